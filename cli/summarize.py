"""`probekit summarize`: a client's rows as sums in a file, which train in their place."""

from __future__ import annotations

from pathlib import Path

from probekit.cli.options import argument, flag
from probekit.cli.output import CacheOutput
from probekit.cli.unlearn import listed_ids

MAX_NAMES_BYTES = 1 << 24


def summarize(
    rows: str = argument("A cached set.", metavar="SET"),
    out: Path = flag("File to write: north.safetensors.", "--out", "-o", default=...),
    client: str | None = flag("Name of the client (default: the name of the file)."),
    classes: str | None = flag(
        "Names of all classes, of other clients too.", metavar="FILE|NAME,NAME"
    ),
    without: list[str] | None = flag(
        "Leave out the sample of this id (or its first 8 digits), or those in @FILE."
    ),
    normalize: str = flag("Rows: none (as they are), l2.", default="none"),
    federation: str = flag("Name of the federation that the file is for.", default=""),
    min_rows: int | None = flag("Refuse fewer rows (default: as many as columns).", min=1),
    min_class_rows: int = flag("Refuse fewer rows of a class.", default=10, min=1),
    *,
    output: CacheOutput,
) -> None:
    """Write the sums of a set's rows, from which heads are trained and clients removed.

    Sums are not the rows, but two files that differ by one row show that row.
    """
    from probekit.federated.transports.files import SUFFIX, summarize
    from probekit.files import write_bytes
    from probekit.runs.unlearn import full_ids

    path = out.expanduser()
    embeddings = output.open_cache().open(rows)
    absent = listed_ids(without)
    if absent:
        embeddings = embeddings.without(full_ids(absent, embeddings))
    file = summarize(
        embeddings,
        client or path.name.removesuffix(SUFFIX),
        classes=_names(classes),
        normalize=normalize,
        federation=federation,
        min_rows=min_rows,
        min_class_rows=min_class_rows,
    )
    content = file.to_bytes()
    write_bytes(path, content)
    stats = file.stats
    document = {
        "file": str(path),
        "client": file.client,
        "rows": stats.count,
        "columns": stats.columns,
        "classes" if file.task == "classes" else "targets": file.outputs,
        "bytes": len(content),
        "date": file.date,
    }
    output.fields(document)
    if stats.count < stats.columns:
        output.warn("With fewer rows than columns, the sums are the rows up to a rotation.")
    output.print(f"next: probekit train {path} ... --run RUN")
    output.result(document)


def _names(text: str | None) -> list[str]:
    """The lines of a file, or names between commas."""
    if text is None:
        return []
    path = Path(text).expanduser()
    if not path.is_file():
        return text.split(",")
    from probekit.files import read_limited

    lines = read_limited(path, MAX_NAMES_BYTES).decode(errors="replace").splitlines()
    return [line.strip() for line in lines if line.strip()]
