"""`probekit probe`: datasets, backbones and heads in one table."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from probekit.cli.options import RowFlags, argument, build, common_flag, expand_flags, flag
from probekit.cli.output import SKIPPED, CacheOutput

if TYPE_CHECKING:
    from probekit.probing import ProbeResult


def parse_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise typer.BadParameter(f"Expected numbers such as 1,4,16; found {text!r}.") from None


def parse_ridge(text: str) -> float | str:
    with suppress(ValueError):
        return float(text)
    return text


@dataclass
class ProbeFlags:
    """How heads are fitted and evaluated."""

    test: str | None = flag("Evaluate on this instead of DATA's own test split.")
    shots: Any = flag(
        "Also few-shot heads: 1,4,16 training rows of every class.",
        default="",
        metavar="N,N,...",
        parser=parse_numbers,
    )
    draws: int = flag("How often few-shot rows are drawn.", default=5, min=1)
    knn: int | None = flag("Neighbors of the k-NN head (default 20); adds it.", min=1)
    metric: str | None = flag("Primary metric: accuracy, balanced_accuracy, top5, auroc, ...")
    ridge: Any = flag(
        "auto (exact leave-one-out on training rows) or a number.",
        default="auto",
        metavar="RIDGE",
        parser=parse_ridge,
    )
    normalize: str = flag("Rows of the ridge head: none (as they are), l2.", default="none")
    confidence: float = flag("Confidence of the intervals.", default=0.95)
    controls: bool = flag("Also probe shuffled labels and random vectors.", default=True)
    drop_copies: bool = flag("Drop test rows from training rows.", "--drop-copies", default=False)
    seed: int = common_flag("Random seed.", default=0, min=0)


@expand_flags
def probe(
    data: list[str] = argument("Cached sets, folders, tables, vectors, hf:NAME, packaged:digits."),
    backbone: list[str] | None = flag("Encode with this; may be repeated.", "--backbone", "-b"),
    head: str = flag("Heads, separated by commas: ridge,knn.", default="ridge"),
    csv: Path | None = flag("Write every number to this CSV file."),
    save: Path | None = flag("Save the fitted heads to this folder, for predict."),
    markdown: bool = flag("Print the table as Markdown.", "--markdown", default=False),
    *,
    fitting: ProbeFlags,
    reading: RowFlags,
    output: CacheOutput,
) -> None:
    """Fit heads on frozen embeddings and evaluate them on held-out rows."""
    from probekit.data import DataOptions
    from probekit.extraction import ExtractOptions
    from probekit.extraction.vectors import VectorOptions
    from probekit.probing import probe as run_probe

    options: dict[str, Any] = {}
    for kind in (DataOptions, ExtractOptions, VectorOptions):
        options |= vars(build(kind, reading))
    result = run_probe(
        data,
        backbone=backbone or None,
        heads=[name.strip() for name in head.split(",") if name.strip()],
        cache=output.open_cache(),
        progress=output.progress,
        **vars(fitting),
        **options,
    )
    if markdown:
        output.print(result.to_markdown())
    else:
        output.table(*result.table())
    output.warn(*result.notes)
    document = result.to_dict()
    if csv is not None:
        output.print(f"wrote {result.to_csv(csv)}")
    if save is not None:
        document["heads"] = _save_heads(result, save)
        for folder in document["heads"]:
            output.print(f"wrote {folder}; next: probekit predict {folder} DATA --csv FILE")
    output.result(document, exit_code=SKIPPED if result.skipped or result.failed else 0)


def _save_heads(result: ProbeResult, folder: Path) -> list[str]:
    """Write the fitted heads: the only one to the folder itself, several to folders inside."""
    heads = {
        f"{cell.data}-{cell.backbone}-{cell.view}-{cell.head}": cell.fitted
        for cell in result.cells
        if cell.fitted is not None
    }
    saved = []
    for name, head in heads.items():
        path = folder
        if len(heads) > 1:
            path = folder / re.sub(r"[^\w.-]+", "-", name).strip("-")
        saved.append(str(head.save(path)))
    return saved
