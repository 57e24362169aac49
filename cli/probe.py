"""`probekit probe`: datasets, backbones and heads in one table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from probekit.cli.options import RowFlags, argument, common_flag, expand_flags, flag, keywords
from probekit.cli.output import SKIPPED, CacheOutput
from probekit.cli.train import parse_number


def parse_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise typer.BadParameter(f"Expected numbers such as 1,4,16; found {text!r}.") from None


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
        parser=parse_number,
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
    *,
    fitting: ProbeFlags,
    reading: RowFlags,
    output: CacheOutput,
) -> None:
    """Fit heads on frozen embeddings and evaluate them on held-out rows."""
    from probekit.probing import probe as run_probe

    result = run_probe(
        data,
        backbone=backbone or None,
        heads=[name.strip() for name in head.split(",") if name.strip()],
        cache=output.open_cache(),
        progress=output.progress,
        **keywords(fitting, reading),
    )
    output.print(result.to_markdown())
    output.warn(*result.notes)
    document = result.to_dict()
    if csv is not None:
        output.print(f"wrote {result.to_csv(csv)}")
    if save is not None:
        document["heads"] = result.save(save)
        for folder in document["heads"]:
            output.print(f"wrote {folder}; next: probekit predict {folder} DATA --csv FILE")
    output.result(document, exit_code=SKIPPED if result.skipped or result.failed else 0)
