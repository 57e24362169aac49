"""ProbeResult: every cell of a probe, as table, CSV, JSON and fitted heads."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probekit.arrays import Json
from probekit.errors import InputError
from probekit.evaluation.intervals import Estimate
from probekit.evaluation.metrics import METRICS
from probekit.files import write_bytes
from probekit.heads import Head
from probekit.probing.against import Difference
from probekit.probing.cells import Cell
from probekit.probing.evaluate import WrongRow
from probekit.probing.few_shot import FewShot
from probekit.probing.protocols import describe_protocol
from probekit.registry import nearest

SHOWN_COLUMNS = (
    *("data", "backbone", "view", "head", "control", "shots", "metric", "result", "chance"),
    *("calibration_error", "width", "normalize", "fit", "train_rows", "test_rows", "evaluated_on"),
)
COLUMNS = (
    *(*SHOWN_COLUMNS, "value", "low", "high", "confidence", *METRICS, "deviation"),
    *("copies", "skipped", "suspicious", "error"),
)


@dataclass(frozen=True, eq=False, repr=False)
class ProbeResult:
    """Cells (data, backbone, head) in the order in which they were asked for.

    differences: of cells from a baseline, where there is one.
    """

    cells: tuple[Cell, ...]
    protocol: str | None = None
    differences: tuple[Difference, ...] = ()

    @property
    def accuracy(self) -> float:
        """The accuracy of the first head, where a single dataset and backbone were probed."""
        evaluation = self._pair[0].evaluation
        assert evaluation is not None
        if "accuracy" not in evaluation.metrics:
            raise InputError(
                f"These rows have targets, so there is no accuracy. Use cells[0].evaluation, whose "
                f"metrics are {', '.join(evaluation.metrics)}."
            )
        return evaluation.metrics["accuracy"].value

    @property
    def heads(self) -> Mapping[str, Head]:
        """Fitted heads by name, where a single dataset and backbone were probed."""
        return {cell.head: cell.fitted for cell in self._pair if cell.fitted is not None}

    @property
    def most_wrong(self) -> tuple[WrongRow, ...]:
        """Evaluated rows that the first head, fitted without them, gets wrong; worst first."""
        return self._pair[0].most_wrong

    @property
    def failed(self) -> tuple[Cell, ...]:
        """Cells without a result, or without that of some shots."""
        return tuple(
            cell
            for cell in self.cells
            if not cell.control and (cell.error or any(shot.error for shot in cell.few_shot))
        )

    @property
    def skipped(self) -> int:
        """Samples that were left out, over all datasets and backbones."""
        by_pair = {(cell.data, cell.backbone, cell.view): cell.skipped for cell in self.cells}
        return sum(by_pair.values())

    @property
    def legend(self) -> tuple[str, ...]:
        """How the numbers were made, and what their intervals cover."""
        sentences = []
        if self.protocol is not None:
            sentences.append(describe_protocol(self.protocol))
        confidences = {estimate.confidence for estimate in self._estimates()}
        if confidences:
            listed = ", ".join(f"{confidence:.3g}" for confidence in sorted(confidences))
            sentences.append(
                f"An interval (confidence {listed}) is about this head on new rows like those that "
                "it was evaluated on; other training rows or seeds are not in it."
            )
        if any("variance x" in estimate.method for estimate in self._estimates()):
            sentences.append(
                "Without test rows, training rows in folds are evaluated by heads fitted without "
                "them; as these heads share rows, their variance is counted twice."
            )
        if self.differences:
            sentences.append(
                "A difference is of the same rows; p-values are adjusted for all differences of "
                "the table (Holm)."
            )
        return tuple(sentences)

    def _estimates(self) -> list[Estimate]:
        evaluations = [cell.evaluation for cell in self.cells if cell.evaluation is not None]
        shots = [shot.accuracy for cell in self.cells for shot in cell.few_shot]
        return [
            *(evaluation.primary for evaluation in evaluations),
            *(estimate for estimate in shots if estimate is not None),
        ]

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know of the numbers, each once."""
        return tuple(dict.fromkeys(note for cell in self.cells for note in cell.notes))

    def to_dict(self) -> dict[str, Any]:
        return {
            "protocol": self.protocol,
            "cells": [cell.to_dict() for cell in self.cells],
            "differences": [difference.to_dict() for difference in self.differences],
            "legend": list(self.legend),
            "notes": list(self.notes),
        }

    def to_pandas(self) -> Any:
        """A row for every cell and, below it, for every number of shots."""
        import pandas

        records = [record for cell in self.cells for record in cell_records(cell)]
        frame = pandas.DataFrame(records, columns=list(COLUMNS))
        return frame.astype({"shots": "Int64"})

    def to_csv(self, path: str | Path) -> Path:
        """The rows of `to_pandas`."""
        write_bytes(Path(path), self.to_pandas().to_csv(index=False).encode())
        return Path(path)

    def to_markdown(self) -> str:
        """The rows of `to_pandas`; columns that say nothing are left out."""
        return markdown_table(text_table(self.cells))

    def differences_table(self) -> list[list[str]]:
        """Headers and rows as texts."""
        rows = [
            [item.data, item.backbone, item.view, item.head, item.baseline, item.text]
            for item in self.differences
        ]
        return [["data", "backbone", "view", "head", "less", "difference"], *rows]

    def write_markdown(self, path: str | Path) -> Path:
        """The table, its legend and notes."""
        sentences = [f"- {sentence}" for sentence in (*self.legend, *self.notes)]
        tables = [self.to_markdown()]
        if self.differences:
            tables.append(markdown_table(self.differences_table()))
        text = "\n\n".join([*tables, "\n".join(sentences)])
        write_bytes(Path(path), f"{text}\n".encode())
        return Path(path)

    def report(self, path: str | Path = "probe.html") -> Path:
        """One HTML page with pictures, which fetches nothing and runs no script."""
        from probekit.report.probe import write_probe_page

        return write_probe_page(self, Path(path))

    def push_to_hub(self, repo: str, *, head: str | None = None, **options: Any) -> str:
        """Upload a fitted head, the first one or `head`, with its metrics in the model card.

        options: of `Head.push_to_hub`. Gives the address.
        """
        heads = self.heads
        name = head or next(iter(heads), "")
        if name not in heads:
            raise InputError(f"No head {name!r} was fitted here. {nearest(name, list(heads))}")
        return heads[name].push_to_hub(repo, **options)

    def save(self, folder: str | Path) -> list[Path]:
        """Write the fitted heads: the only one to the folder itself, several to folders inside.

        Those are called by what differs: head, data, backbone or view.
        """
        heads = {
            (cell.data, cell.backbone, cell.view, cell.head): cell.fitted
            for cell in self.cells
            if cell.fitted is not None
        }
        if not heads:
            raise InputError("No head has weights to save (k-NN has none). Add the head ridge.")
        varying = [
            place for place, parts in enumerate(zip(*heads, strict=True)) if len({*parts}) > 1
        ]
        paths = []
        for parts, head in heads.items():
            name = "-".join(parts[place] for place in varying)
            paths.append(head.save(Path(folder) / re.sub(r"[^\w.-]+", "-", name).strip("-")))
        return paths

    def __repr__(self) -> str:
        texts = [item.text for item in self.differences]
        return "\n".join([self.to_markdown(), *texts, *self.legend, *self.notes])

    def _repr_html_(self) -> str:
        import pandas

        headers, *lines = text_table(self.cells)
        table: str = pandas.DataFrame(lines, columns=headers).to_html(index=False)
        return table + "".join(
            f"<p>{html.escape(note)}</p>" for note in (*self.legend, *self.notes)
        )

    @property
    def _pair(self) -> list[Cell]:
        """The computed cells of the only dataset and backbone."""
        computed = [cell for cell in self.cells if cell.evaluation is not None and not cell.control]
        pairs = {(cell.data, cell.backbone, cell.view) for cell in computed}
        if len(pairs) > 1:
            raise InputError(
                f"This result has {len(pairs)} pairs of dataset and backbone. Choose one of its "
                "cells (result.cells), or use result.to_pandas()."
            )
        return computed


def text_table(cells: Sequence[Cell], hidden: Sequence[str] = ()) -> list[list[str]]:
    """Headers and rows; columns that say nothing are left out."""
    records = [record for cell in cells for record in cell_records(cell)]
    columns = [
        name
        for name in SHOWN_COLUMNS
        if name not in hidden and any(record.get(name) not in (None, "") for record in records)
    ]
    texts = [[as_text(record.get(name)) for name in columns] for record in records]
    return [[name.replace("_", " ") for name in columns], *texts]


def markdown_table(lines: list[list[str]]) -> str:
    """A table from headers and rows."""
    lines = [[text.replace("|", "\\|") for text in line] for line in lines]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    padded = [map(str.ljust, line, widths) for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)


def cell_records(cell: Cell) -> list[dict[str, Any]]:
    """A row of the table for the head of all training rows, and one for each number of shots."""
    is_few_shot_only = cell.evaluation is None and bool(cell.few_shot)
    shots = cell.few_shot if is_few_shot_only else (None, *cell.few_shot)
    return [_record(cell, shot) for shot in shots]


def _record(cell: Cell, shot: FewShot | None) -> dict[str, Any]:
    """The columns of a cell's evaluation, or of one of its few-shot heads."""
    record = {name: value for name, value in vars(cell).items() if name in COLUMNS}
    record["fit"] = _fit_text(cell.fit)
    evaluation = cell.evaluation
    estimate = None
    if shot is not None:
        estimate = shot.accuracy
        record |= {"shots": shot.shots, "metric": "accuracy", "error": shot.error}
        draws = f"{len(shot.accuracies)} draws, deviation {as_text(shot.deviation)}"
        record["fit"] = "" if shot.deviation is None else draws
        record |= {"train_rows": shot.train_rows, "deviation": shot.deviation}
    elif evaluation is not None:
        estimate = evaluation.primary
        record |= {name: value.value for name, value in evaluation.metrics.items()}
        record |= {"metric": evaluation.metric, "chance": evaluation.chance}
        record["calibration_error"] = evaluation.calibration_error
    if estimate is None:
        return {**record, "result": f"failed: {record['error']}"}
    suspicious = " SUSPICIOUS" if cell.suspicious else ""
    record |= {name: getattr(estimate, name) for name in ("value", "low", "high", "confidence")}
    return {**record, record["metric"]: estimate.value, "result": f"{estimate}{suspicious}"}


def _fit_text(fit: Mapping[str, Json]) -> str:
    """`ridge 0.25 (leave-one-out)`."""
    texts = []
    for name, value in fit.items():
        if isinstance(value, int | float):
            choice = fit.get(f"{name}_choice")
            texts.append(f"{name} {as_text(value)}" + (f" ({choice})" if choice else ""))
    return ", ".join(texts)


def as_text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else str(value)
