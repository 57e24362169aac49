"""Rows of a benchmark as tables (Markdown), as CSV of single cells, and as a picture."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Any

from scipy.stats import t as students_t

from probekit.bench.experiment import CURVATURE, SHADOWS
from probekit.bench.published import published_values
from probekit.bench.run import Row
from probekit.bench.tuning import aim
from probekit.report.tables import Table, format_number

CONFIDENCE = 0.95
NUMBERS = ("distance, retrained", "distance, minimum", "certified distance")
COSTS = ("rounds", "bytes", "seconds")
HEADERS = (
    *("method", "accuracy", "backdoor", "backdoor, its own rows", "other class, clean"),
    *("other class, triggered", "to retrained", "to minimum"),
)


@dataclass(frozen=True)
class Mean:
    """A share over seeds; the interval has the noise of seeds and that of the evaluated rows."""

    value: float
    half: float

    @classmethod
    def of(cls, shares: Sequence[float], rows: int) -> Mean:
        value = fmean(shares)
        normal = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
        of_rows = normal * math.sqrt(max(value * (1 - value), 0.0) / rows)
        of_seeds = 0.0
        if len(shares) > 1:
            quantile = float(students_t.ppf(0.5 + CONFIDENCE / 2, len(shares) - 1))
            of_seeds = quantile * stdev(shares) / math.sqrt(len(shares))
        return cls(value, math.hypot(of_rows, of_seeds))

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} ± {100 * self.half:.1f}"


def mean_of(row: Row, measure: str) -> Mean | None:
    """A measure over the seeds of a row; None where no cell has it."""
    shares = []
    counts = []
    for cell in row.cells.values():
        measures = cell.get("measures")
        value = measures.get(measure) if isinstance(measures, dict) else None
        if isinstance(value, dict):
            shares.append(float(str(value["value"])))
            counts.append(int(str(value["rows"])))
    return Mean.of(shares, min(counts)) if shares else None


def number_of(row: Row, name: str) -> float | None:
    """The mean of a plain number of the cells."""
    values = [float(str(cell[name])) for cell in row.cells.values() if name in cell]
    return fmean(values) if values else None


def by_setting(rows: Sequence[Row]) -> dict[str, list[Row]]:
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(row.setting.name, []).append(row)
    return parts


def ordered(rows: Sequence[Row]) -> list[Row]:
    """By how often the class is another than the retrained head's; those that failed are last."""
    return sorted(rows, key=_mean_aim)


def _mean_aim(row: Row) -> float:
    return fmean(map(aim, row.cells.values())) if row.cells else math.inf


def setting_table(rows: Sequence[Row]) -> Table:
    """The methods of one setting, nearest to retraining first."""
    rows = [row for row in rows if row.method.partition(":")[0] not in (SHADOWS, CURVATURE)]
    setting = rows[0].setting
    published = published_values(setting.published)
    lines = []
    for row in ordered(rows):
        name = row.chosen if row.trials < 2 else f"{row.chosen} (of {row.trials})"
        errors = [str(cell["error"]) for cell in row.cells.values() if "error" in cell]
        if errors or not row.cells:
            lines.append(
                (name, errors[0] if errors else "not computed", *[""] * (len(HEADERS) - 2))
            )
            continue
        shares = ("test", "backdoor", "forgotten", "other class, test", "other class, triggered")
        means = [mean_of(row, measure) for measure in shares]
        line = [name, *("" if mean is None else str(mean) for mean in means)]
        line += [format_number(number_of(row, number)) for number in NUMBERS[:2]]
        lines.append(tuple(line))
    headers: tuple[str, ...] = HEADERS
    if published:
        headers += ("paper: accuracy", "paper: backdoor")
        for position, row in enumerate(ordered(rows)):
            values = published.get(row.method.partition(":")[0], ("", ""))
            lines[position] = (*lines[position], *values)
    return Table(headers, tuple(lines), _note(rows))


def extra_tables(rows: Sequence[Row]) -> dict[str, Table]:
    """What a setting measures beside its methods, by title; means over seeds."""
    tables = {"membership": membership_table(rows), "the server's curvature": curvature_table(rows)}
    return {title: table for title, table in tables.items() if table is not None}


def curvature_table(rows: Sequence[Row]) -> Table | None:
    documents: list[Any] = [cell.get("curvature") for row in rows for cell in row.cells.values()]
    tables = [document for document in documents if document is not None]
    if not tables:
        return None
    lines = [(name, format_number(fmean(table[name] for table in tables))) for name in tables[0]]
    note = (
        "A random vector says nothing of the directions of a removal; where the relative error is "
        "below 1/2, one step with the server's curvature is sure to help."
    )
    return Table(("", "value"), tuple(lines), note)


def membership_table(rows: Sequence[Row]) -> Table | None:
    """The attacks by shadows, means over seeds; None where there were none."""
    documents: list[Any] = [cell.get("membership") for row in rows for cell in row.cells.values()]
    tables = [document for document in documents if document is not None]
    if not tables:
        return None
    first = tables[0]
    headers = tuple(dict.fromkeys(name for values in first.values() for name in values))
    lines = []
    for method in first:
        values = [[table[method][name] for table in tables] for name in headers]
        lines.append((method, *(format_number(fmean(value)) for value in values)))
    note = (
        "Heads of random halves of the rows. The row of retraining is the floor: the same rows, "
        "other halves."
    )
    return Table(("method", *headers), tuple(lines), note)


def costs_table(rows: Sequence[Row]) -> Table:
    """What each method asked of clients, and its seconds on one thread."""
    lines = [
        (row.chosen, *(format_number(number_of(row, name)) for name in COSTS))
        for row in ordered(rows)
        if number_of(row, "rounds") is not None
    ]
    return Table(("method", *COSTS), tuple(lines))


def _note(rows: Sequence[Row]) -> str:
    seeds = len(rows[0].cells)
    noise = "seeds and test rows" if seeds > 1 else "test rows; one seed"
    return (
        f"Percent, with 95 % intervals ({noise}), and Euclidean distances. Nearest to retraining "
        "first, by predictions: a backdoor below the retrained head's is a deviation too, and one "
        "that vanished does not show that the client is forgotten."
    )


def markdown(table: Table) -> str:
    lines = [table.headers, tuple("---" for _ in table.headers), *table.rows]
    cells = [" | ".join(text.replace("|", "\\|") for text in line) for line in lines]
    body = "\n".join(f"| {line} |" for line in cells)
    return f"{body}\n\n{table.note}\n" if table.note else f"{body}\n"


def cells_csv(rows: Sequence[Row]) -> str:
    """A line for every cell, with all its numbers."""
    lines = []
    for row in rows:
        for seed, cell in row.cells.items():
            line = {"setting": row.setting.name, "method": row.method, "chosen": row.chosen}
            line |= {"seed": str(seed), "error": str(cell.get("error", ""))}
            measures = cell.get("measures")
            for name, value in measures.items() if isinstance(measures, dict) else ():
                if isinstance(value, dict):
                    line[name] = repr(value["value"])
            line |= {name: repr(cell[name]) for name in (*NUMBERS, *COSTS) if name in cell}
            lines.append(line)
    columns = list(dict.fromkeys(name for line in lines for name in line))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()
