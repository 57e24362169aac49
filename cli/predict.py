"""`probekit predict`: what a saved head predicts for data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from probekit.cli.options import CodeFlags, RowFlags, argument, flag, keywords
from probekit.cli.output import CacheOutput

if TYPE_CHECKING:
    from probekit.embeddings import EmbeddingSet
    from probekit.heads import BaseHead

SHOWN_ROWS = 10
MAX_CLASS_COLUMNS = 100
"""Beyond so many classes only the probability of the predicted one is written."""


def predict(
    head: str = argument("Folder of a saved head, or hf:OWNER/NAME."),
    data: str = argument("A cached set, a path, a name with a scheme."),
    backbone: str | None = flag("Encode with this (default: the head's).", "--backbone", "-b"),
    csv: Path | None = flag("Write key, prediction and probabilities to this file."),
    *,
    code: CodeFlags,
    reading: RowFlags,
    output: CacheOutput,
) -> None:
    """Predict with a saved head, for every sample of DATA."""
    import pandas

    from probekit.extraction.sources import is_encoded, read_rows
    from probekit.files import write_bytes
    from probekit.heads import load_head
    from probekit.probing.probe import reading_options

    fitted = load_head(head)
    store = output.open_cache()
    if backbone is None and fitted.encoding is not None and not is_encoded(data, store):
        backbone = fitted.encoding.backbone
    options = reading_options(keywords(reading))
    rows, *_ = read_rows(data, cache=store, backbone=backbone, progress=output.progress, **options)
    output.warn(*rows.notes)
    parts = rows.by_role
    tables = {split: _predictions(fitted, part) for split, part in parts.items()}
    table = pandas.concat(tables, names=["split"]).reset_index("split")
    if len(tables) == 1:
        table = table.drop(columns="split")
    if csv is not None:
        write_bytes(csv, table.to_csv(index=False).encode())
        output.print(f"wrote {len(table):,} predictions to {csv}")
    else:
        shown = table[[name for name in table if not name.startswith("p(")]].head(SHOWN_ROWS)
        output.print(shown.to_string(index=False, float_format="{:.3f}".format))
        if len(table) > SHOWN_ROWS:
            output.print(f"... {len(table):,} rows; write all of them with --csv FILE")
    skipped = [sample for part in parts.values() for sample in part.skipped]
    document = {
        "head": head,
        "data": data,
        "rows": len(table),
        "skipped": skipped,
        "csv": csv,
        "predictions": table.to_dict("records") if csv is None else [],
    }
    output.result(document, skipped=skipped)


def _predictions(head: BaseHead, rows: EmbeddingSet) -> Any:
    """A row for every sample: its key, what is predicted, and probabilities where there are any."""
    import pandas

    predicted = head.predict(rows)
    if head.task != "classes":
        table = pandas.DataFrame(predicted, columns=list(head.names))
    else:
        table = pandas.DataFrame({"predicted": [head.names[number] for number in predicted]})
        if head.temperature is not None:
            probabilities = head.predict_proba(rows)
            table["probability"] = probabilities.max(axis=1)
            if len(head.names) <= MAX_CLASS_COLUMNS:
                table[[f"p({name})" for name in head.names]] = probabilities
    keys = rows.columns.get("key", [str(row) for row in range(len(rows))])
    table.insert(0, "key", keys)
    return table
