"""`probekit import`: keep vectors that exist already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from probekit.cli.options import ColumnFlags, VectorFlags, argument, flag, keywords
from probekit.cli.output import CacheOutput

if TYPE_CHECKING:
    from probekit.embeddings import Skipped

REMEDY = "Import the files one at a time, each with its --name."


def import_(
    files: list[Path] = argument(
        "npy, npz, parquet, csv, jsonl, h5, safetensors, pt; folders of slides (h5, pt), of eva, "
        "of clip-retrieval. Several are one set each."
    ),
    name: str | None = flag("Name of the set (default: the name of the file)."),
    *,
    vectors: VectorFlags,
    columns: ColumnFlags,
    output: CacheOutput,
) -> None:
    """Keep vectors that exist already, for `probe` and all other commands.

    The rows' order is that of the file; splits are kept as NAME-train, NAME-test, and
    so on, and `probe NAME` finds them.

    probekit import tiles/ --labels slides.csv --join slide_id --pool mean

    probekit import train.npz test.npz --name mine
    """
    from probekit.cache.erasure import without_erased
    from probekit.errors import InputError
    from probekit.extraction.extract import erased_note, set_name
    from probekit.extraction.vectors import VectorOptions, read_vectors

    store = output.open_cache()
    options = VectorOptions(**keywords(vectors, columns))
    sets: list[dict[str, Any]] = []
    skipped: list[Skipped] = []
    for file in files:
        splits, notes = read_vectors(file.expanduser(), options)
        output.warn(*notes)
        base = name or set_name(str(file), "", "")
        if name and len(files) > 1:
            base = f"{name}-{file.stem}"
        for split, rows in splits.items():
            title = f"{base}-{split}" if split else base
            if title in [row_set["name"] for row_set in sets]:
                raise InputError(f"Sets need different names; {title} is another file's. {REMEDY}")
            rows, erased = without_erased(store, rows)
            if erased:
                output.warn(erased_note(erased, store))
            before = store.describe(title) if title in store else None
            store.save(title, rows)
            if before is not None and before.digest != store.describe(title).digest:
                had = f"{before.rows:,} rows of {before.source}"
                output.warn(f"{title} was replaced: it had {had}.")
            role = split or (file.stem if len(files) > 1 else "")
            sets.append({**output.describe_set(title, rows), "split": role})
            skipped += rows.skipped
    if sets[0]["classes"] or sets[0]["targets"]:
        output.print(f"next: {_next_command(sets)}")
    else:
        output.warn("no labels: give --labels FILE, or --label-column COLUMN.")
    output.result({"sets": sets, "skipped": skipped}, skipped=skipped)


def _next_command(sets: list[dict[str, Any]]) -> str:
    """Probe the training split, and the test split where there is one."""
    from probekit.data.splits import split_role

    names = {split_role(row_set["split"]) or "train": row_set["name"] for row_set in reversed(sets)}
    shared = {row_set["name"].removesuffix(f"-{row_set['split']}") for row_set in sets}
    if len(shared) == 1 and "train" in names and len(names) > 1:
        return f"probekit probe {shared.pop()}"
    command = f"probekit probe {names.get('train', sets[0]['name'])}"
    if "train" in names and "test" in names:
        command += f" --test {names['test']}"
    return command
