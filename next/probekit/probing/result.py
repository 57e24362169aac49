"""ProbeResult: every cell of a probe, as text, table, JSON and fitted heads."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probekit.errors import InputError
from probekit.evaluation.intervals import Estimate
from probekit.files import write_bytes
from probekit.probing.cells import Cell, WrongRow
from probekit.probing.options import METRICS

if TYPE_CHECKING:
    from probekit.heads import Head, KNNHead

COLUMNS = (
    *("data", "backbone", "view", "width", "normalize", "head", "control", "shots"),
    *("metric", "value", "low", "high", "confidence", "chance"),
    *METRICS,
    *("calibration_error", "train_rows", "test_rows", "evaluated_on", "copies", "skipped"),
    *("ridge", "ridge_choice", "neighbors", "draws", "deviation", "suspicious", "error"),
)


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """Cells (data, backbone, head) in the order in which they were asked for."""

    cells: tuple[Cell, ...]

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
    def heads(self) -> Mapping[str, Head | KNNHead]:
        """Fitted heads by name, where a single dataset and backbone were probed."""
        return {cell.head: cell.fitted for cell in self._pair if cell.fitted is not None}

    @property
    def most_wrong(self) -> tuple[WrongRow, ...]:
        """Training rows that the first head, fitted without them, gets wrong; worst first."""
        return self._pair[0].most_wrong

    @property
    def failed(self) -> tuple[Cell, ...]:
        return tuple(cell for cell in self.cells if cell.error and not cell.control)

    @property
    def skipped(self) -> int:
        """Samples that were left out, over all datasets and backbones."""
        by_pair = {(cell.data, cell.backbone, cell.view): cell.skipped for cell in self.cells}
        return sum(by_pair.values())

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know of the numbers, each once."""
        notes = [note for cell in self.cells for note in cell.notes]
        notes += [
            f"{cell.data}, {shot.shots} shots: {shot.error}."
            for cell in self.cells
            for shot in cell.few_shot
            if shot.error
        ]
        return tuple(dict.fromkeys(notes))

    def records(self) -> list[dict[str, Any]]:
        """One record for every cell and, below it, for every number of shots."""
        return [record for cell in self.cells for record in _records(cell)]

    def to_dict(self) -> dict[str, Any]:
        return {"cells": [cell.to_dict() for cell in self.cells], "notes": list(self.notes)}

    def to_pandas(self) -> Any:
        import pandas

        return pandas.DataFrame(self.records(), columns=list(COLUMNS))

    def to_csv(self, path: str | Path) -> Path:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, COLUMNS)
        writer.writeheader()
        writer.writerows(self.records())
        write_bytes(Path(path), text.getvalue().encode())
        return Path(path)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headers and rows of text; columns that say nothing are left out."""
        rows = [_text_row(cell) for cell in self.cells]
        headers = max((list(row) for row in rows), key=len)
        headers = [header for header in headers if any(row.get(header) for row in rows)]
        return headers, [[row.get(header, "") for header in headers] for row in rows]

    def to_markdown(self) -> str:
        headers, rows = self.table()
        lines = [headers, ["---"] * len(headers), *rows]
        return "\n".join(f"| {' | '.join(map(_escape_markdown, line))} |" for line in lines)

    def __str__(self) -> str:
        headers, rows = self.table()
        lines = [headers, *rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
        aligned = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        return "\n".join([*aligned, *self.notes])

    def __repr__(self) -> str:
        return f"ProbeResult of {len(self.cells)} cells\n{self}"

    def _repr_html_(self) -> str:
        headers, rows = self.table()
        lines = [
            "".join(f"<td>{html.escape(text)}</td>" for text in line) for line in [headers, *rows]
        ]
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return f"<table><tr>{'</tr><tr>'.join(lines)}</tr></table>{notes}"

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


def _records(cell: Cell) -> list[dict[str, Any]]:
    record: dict[str, Any] = {name: value for name, value in vars(cell).items() if name in COLUMNS}
    evaluation = cell.evaluation
    if evaluation is None:
        return [record]
    main = {
        **record,
        **{name: estimate.value for name, estimate in evaluation.metrics.items()},
        **_interval(evaluation.metric, evaluation.primary),
        "chance": evaluation.chance,
        "calibration_error": evaluation.calibration_error,
    }
    records = [main]
    for shot in cell.few_shot:
        line = {**record, "shots": shot.shots, "error": shot.error}
        line |= {"ridge": None, "ridge_choice": "", "train_rows": None}
        if shot.accuracy is not None:
            line |= {
                **_interval("accuracy", shot.accuracy),
                "accuracy": shot.accuracy.value,
                "draws": len(shot.accuracies),
                "deviation": shot.deviation,
            }
        records.append(line)
    return records


def _interval(metric: str, estimate: Estimate) -> dict[str, Any]:
    names = ("value", "low", "high", "confidence")
    return {"metric": metric, **{name: getattr(estimate, name) for name in names}}


def _text_row(cell: Cell) -> dict[str, str]:
    """Texts by header."""
    row = {
        "data": cell.data,
        "backbone": f"control: {cell.control}" if cell.control else cell.backbone,
        "view": cell.view,
        "head": cell.head if cell.neighbors is None else f"{cell.head}, k = {cell.neighbors}",
        "result": f"failed: {cell.error}",
    }
    evaluation = cell.evaluation
    if evaluation is None:
        return row
    row["result"] = f"{METRICS[evaluation.metric]} {evaluation.primary}"
    if cell.suspicious:
        row["result"] += " SUSPICIOUS"
    row["chance"] = evaluation.primary.format(evaluation.chance)
    error = evaluation.calibration_error
    row["ECE"] = "" if error is None else f"{error:.1%}"
    for shot in cell.few_shot:
        accuracy = shot.accuracy
        row[f"{shot.shots}-shot"] = "" if accuracy is None else accuracy.format(accuracy.value)
    return row | {
        "width": str(cell.width),
        "normalize": cell.normalize,
        "ridge": "" if cell.ridge is None else f"{cell.ridge:.3g} ({cell.ridge_choice})",
        "train rows": f"{cell.train_rows:,}",
        "evaluated on": f"{cell.test_rows:,} {cell.evaluated_on}",
    }


def _escape_markdown(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
