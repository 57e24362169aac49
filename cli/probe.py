"""`probekit probe`: datasets, backbones and heads in one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from probekit.cli.options import RowFlags, argument, common_flag, flag, keywords
from probekit.cli.output import SKIPPED, CacheOutput
from probekit.cli.train import parse_number

WIDTHS = {
    "view": 6,
    "head": 15,
    "shots": 5,
    "metric": 8,
    "result": 22,
    "width": 5,
    "normalize": 9,
    "train_rows": 10,
    "test_rows": 18,
    "fit": 0,
}


def parse_numbers(text: str, kind: type[float] = int, example: str = "1,4,16") -> tuple[float, ...]:
    try:
        return tuple(kind(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise typer.BadParameter(f"Expected numbers such as {example}; found {text!r}.") from None


@dataclass
class ProbeFlags:
    """How heads are fitted and evaluated."""

    protocol: str | None = flag(
        "A published probe: clip, dinov2, dinov3, patho-bench, mteb, big-vision."
    )
    test: str | None = flag("Evaluate on this instead of DATA's own test split.")
    shots: Any = flag(
        "Also few-shot heads: 1,4,16 training rows of every class.",
        metavar="N,N,...",
        parser=parse_numbers,
    )
    draws: int | None = flag("How often few-shot rows are drawn (default 5).", min=1)
    knn: int | None = flag("Neighbors of the k-NN head (default 20); adds it.", min=1)
    metric: str | None = flag("Primary metric: accuracy, balanced_accuracy, top5, auroc, ...")
    C: Any = flag(
        "Of the logistic head: auto (validation rows, else 5 folds) or a number.",
        "--c",
        metavar="C",
        parser=parse_number,
    )
    Cs: Any = flag(
        "What C is chosen from (default: 45 from 1e-6 to 1e5).",
        "--cs",
        metavar="C,C,...",
        parser=lambda text: parse_numbers(text, float, "0.1,1,10"),
    )
    ridge: Any = flag(
        "auto (exact leave-one-out on training rows, the default) or a number.",
        metavar="RIDGE",
        parser=parse_number,
    )
    templates: str | None = flag(
        "Of the zero-shot head: a file with a text in each line, openai-imagenet, simple."
    )
    prompt_names: str | None = flag("File with what its texts call the classes, a line each.")
    normalize: str | None = flag("Rows of linear heads: none (default), l2, standardize.")
    confidence: float = flag("Confidence of the intervals.", default=0.95)
    controls: bool = flag("Also probe shuffled labels and random vectors.", default=True)
    drop_copies: bool = flag("Drop test rows from training rows.", "--drop-copies", default=False)
    seed: int = common_flag("Random seed.", default=0, min=0)


def probe(
    data: list[str] = argument("Cached sets, folders, tables, vectors, hf:NAME, packaged:digits."),
    backbone: list[str] | None = flag("Encode with this; may be repeated.", "--backbone", "-b"),
    head: str = flag(
        "Heads, separated by commas: ridge,logistic,lda,nearest-mean,knn,zero-shot "
        "(default: ridge,logistic; of a protocol its own).",
        default="",
    ),
    against: str | None = flag("A head or backbone: differences from it on the same rows."),
    csv: Path | None = flag("Write every number to this CSV file.", dir_okay=False),
    markdown: Path | None = flag("Write the table to this Markdown file.", dir_okay=False),
    report: Path | None = flag("Write one HTML page with pictures.", dir_okay=False),
    record: Path | None = flag(
        "Add finished cells to this JSONL file; those in it are done.", dir_okay=False
    ),
    save: Path | None = flag("Save the fitted heads to this folder, for predict.", file_okay=False),
    *,
    fitting: ProbeFlags,
    reading: RowFlags,
    output: CacheOutput,
) -> None:
    """Fit heads on frozen embeddings and evaluate them on held-out rows."""
    from probekit.probing import probe as run_probe

    lines = Lines(output, data, backbone or [])
    heads = [name.strip() for name in head.split(",") if name.strip()]
    result = run_probe(
        data,
        backbone=backbone or None,
        cache=output.open_cache(),
        against=against,
        record=record,
        reuse=save is None,
        progress=output.progress,
        log=lines.print,
        **({"heads": heads} if heads else {}),
        **keywords(fitting, reading),
    )
    if result.differences:
        headers, *rows = result.differences_table()
        output.print()
        output.table(headers, rows)
    for sentence in result.legend:
        output.print(sentence)
    output.warn(*result.notes)
    document = result.to_dict()
    if csv is not None:
        output.print(f"wrote {result.to_csv(csv)}")
    if markdown is not None:
        output.print(f"wrote {result.write_markdown(markdown)}")
    if report is not None:
        output.print(f"wrote {result.report(report)}")
    if save is not None:
        document["heads"] = result.save(save)
        for folder in document["heads"]:
            output.print(f"wrote {folder}; next: probekit predict {folder} DATA --csv FILE")
    output.result(document, exit_code=SKIPPED if result.skipped or result.failed else 0)


class Lines:
    """Rows of the table as aligned text, each as soon as it is computed."""

    def __init__(self, output: CacheOutput, data: Sequence[str], backbones: Sequence[str]) -> None:
        self.output = output
        names = {"data": data, "backbone": backbones}
        widths = {name: max(map(len, ["", *values])) for name, values in names.items()} | WIDTHS
        self.widths = {name: max(len(name), width) for name, width in widths.items()}
        self.is_first = True

    def print(self, row: Mapping[str, Any]) -> None:
        from probekit.probing.result import as_text

        row = {**row, "head": row["control"] or row["head"]}
        _, _, folds = str(row.get("evaluated_on", "")).partition("training rows, ")
        row["test_rows"] = folds or row.get("test_rows")
        columns = list(self.widths)
        if row["error"]:  # which is long, and has no numbers
            columns = columns[: columns.index("result") + 1]
        texts = [as_text(row.get(name)) for name in columns]
        if self.is_first:
            self.is_first = False
            if not row["error"]:
                widths = zip(self.widths.items(), map(len, texts), strict=True)
                self.widths = {name: max(width, found) for (name, width), found in widths}
            self._print([name.replace("_", " ") for name in self.widths])
        self._print(texts)

    def _print(self, texts: Sequence[str]) -> None:
        padded = map(str.ljust, texts, self.widths.values())
        self.output.print("  ".join(padded).rstrip())
