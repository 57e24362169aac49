"""Rows of a benchmark as tables (Markdown), as CSV of single cells, and as a picture."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Any

from rich import filesize
from scipy.stats import t as students_t

from probekit.bench.cost import RETAINED, SERVER
from probekit.bench.experiment import EXTRAS, NOTHING
from probekit.bench.published import published_before, published_cost, published_values
from probekit.bench.run import Row
from probekit.bench.tuning import aim
from probekit.report.tables import Table, format_number

CONFIDENCE = 0.95
NUMBERS = ("distance, retrained", "distance, minimum", "certified distance")
COSTS = ("rounds", "bytes", "seconds")
OWN_ROWS = "backdoor, its own rows"
HEADERS = (
    *("method", "accuracy", "backdoor (less retrained's)", OWN_ROWS),
    *("other class, clean", "other class, triggered", "to retrained", "to minimum"),
)
PAPER = ("paper: accuracy", "paper: backdoor, its own rows")
PAPER_NOTE = " The paper's are means and standard errors of three runs."
PRODUCT = ("rows", "GFLOP", "seconds", "rounds", "bytes")
RETRAIN = "retrain"
SHARES = ("test", "backdoor", "forgotten", "other class, test", "other class, triggered")


@dataclass(frozen=True)
class Mean:
    """A share over seeds; the interval has the noise of seeds and that of the evaluated rows.

    That of the rows is Agresti and Coull's, so that it is not 0 where no row was hit.
    """

    value: float
    half: float

    @classmethod
    def of(cls, shares: Sequence[float], rows: int) -> Mean:
        value = fmean(shares)
        normal = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
        count = rows + normal**2
        middle = (value * rows + normal**2 / 2) / count
        of_rows = normal * math.sqrt(middle * (1 - middle) / count)
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
    """The methods of one setting, nearest to retraining first; the retrained head has a line."""
    rows = [row for row in rows if row.method.partition(":")[0] not in EXTRAS]
    published = published_values(rows[0].setting.published)
    lines: list[tuple[str, ...]] = []
    if rows[0].cells and all(row.method != RETRAIN for row in rows):
        means = [mean_of(rows[0], f"{measure}, retrained") for measure in SHARES]
        shown = ["" if mean is None else str(mean) for mean in means]
        lines.append(("(retrained)", *shown, "0", ""))
        if published:
            lines[0] += published.get(RETRAIN, ("", ""))
    seeds = max(len(row.cells) for row in rows)
    for row in ordered(rows):
        line = (_name(row, seeds), *_figures(row))
        if published:
            line += published.get(row.method.partition(":")[0], ("", ""))
        lines.append(line)
    headers = list(HEADERS)
    if not rows[0].setting.trigger:
        headers[headers.index(OWN_ROWS)] = "accuracy, forgotten rows"
    if published:
        headers += PAPER
    measured = [
        column
        for column in range(len(headers))
        if column < 2 or not rows[0].cells or any(line[column] for line in lines)
    ]
    has_errors = any("±" in figure for figures in published.values() for figure in figures)
    return Table(
        tuple(headers[column] for column in measured),
        tuple(tuple(line[column] for column in measured) for line in lines),
        _note(seeds) + PAPER_NOTE * has_errors,
    )


def _name(row: Row, seeds: int) -> str:
    name = row.chosen if row.trials < 2 else f"{row.chosen} (of {row.trials})"
    if 0 < len(row.cells) < seeds:
        name += f", {len(row.cells)} of {seeds} seeds"
    return name


def _figures(row: Row) -> tuple[str, ...]:
    errors = [str(cell["error"]) for cell in row.cells.values() if "error" in cell]
    if errors or not row.cells:
        reason = errors[0] if errors else "not computed"
        return (reason, *[""] * (len(HEADERS) - 2))
    means = [mean_of(row, measure) for measure in SHARES]
    shown = ["" if mean is None else str(mean) for mean in means]
    retrained = mean_of(row, "backdoor, retrained")
    if means[1] is not None and retrained is not None:
        shown[1] += f" ({100 * (means[1].value - retrained.value) + 0.0:+.1f})"
    return (*shown, *(format_number(number_of(row, number)) for number in NUMBERS[:2]))


def overall_tables(rows: Sequence[Row]) -> dict[str, Table]:
    """Of all settings together, by title."""
    tables = {"all settings": across_table(rows), "the server's curvature": curvature_table(rows)}
    return {title: table for title, table in tables.items() if table is not None}


def across_table(rows: Sequence[Row]) -> Table | None:
    """Settings as lines, the methods that all of them have as columns; None of one setting."""
    parts = {name: part for name, part in by_setting(rows).items() if part[0].cells}
    if len(parts) < 2:
        return None
    columns = [[row.method for row in part] for part in parts.values()]
    shared = [
        name
        for name in columns[0]
        if name.partition(":")[0] not in (NOTHING, RETRAIN, *EXTRAS)
        and all(name in others for others in columns)
    ]
    papers = {name: published_before(part[0].setting) for name, part in parts.items()}
    has_paper = any(papers.values())
    lines = []
    for name, part in parts.items():
        by_method = {row.method: row for row in part}
        before = by_method[NOTHING]
        pairs = [_pair(before), _pair(before, ", retrained")]
        pairs += [_pair(by_method[method]) for method in shared]
        if has_paper:
            pairs += [_pair(before, backdoor="forgotten"), papers[name]]
        lines.append((name, *pairs))
    headers = ("setting", "before", "retrained", *shared)
    if has_paper:
        headers += ("before, its own rows", "paper: before, its own rows")
    note = "Accuracy / backdoor in percent, means over seeds; each setting's table has intervals."
    return Table(headers, tuple(lines), note)


def _pair(row: Row, of: str = "", backdoor: str = "backdoor") -> str:
    means = [mean_of(row, f"{measure}{of}") for measure in ("test", backdoor)]
    return " / ".join(f"{100 * mean.value:.1f}" for mean in means if mean is not None)


def extra_tables(rows: Sequence[Row]) -> dict[str, Table]:
    """What a setting measures beside its methods, by title."""
    tables = {
        "membership": membership_table(rows),
        "a product with the curvature": product_table(rows),
    }
    return {title: table for title, table in tables.items() if table is not None}


def curvature_table(rows: Sequence[Row]) -> Table | None:
    """The server's curvature beside that of the retained rows: a line for each setting."""
    lines = []
    names: list[str] = []
    for setting, part in by_setting(rows).items():
        documents: list[Any] = [
            cell["curvature"] for row in part for cell in row.cells.values() if "curvature" in cell
        ]
        if documents:
            names = list(documents[0])
            means = [fmean(document[name] for document in documents) for name in names]
            lines.append((setting, *map(_count, means)))
    note = (
        "A random vector says nothing of the directions of a removal; where the relative error is "
        "below 1/2, one step with the server's curvature is sure to help."
    )
    return Table(("setting", *names), tuple(lines), note) if lines else None


def product_table(rows: Sequence[Row]) -> Table | None:
    """What a product costs with the server's rows, and without that approximation."""
    documents: list[Any] = [cell.get("product") for row in rows for cell in row.cells.values()]
    tables = [document for document in documents if document is not None]
    if not tables:
        return None
    paper = published_cost(rows[0].setting)
    lines: list[tuple[str, ...]] = []
    for name in (SERVER, RETAINED):
        means = [fmean(table[name][measure] for table in tables) for measure in PRODUCT]
        traffic = filesize.decimal(round(means[-1]))
        line = (name, *map(_count, means[:-1]), traffic)
        lines.append((*line, paper[len(lines)]) if paper else line)
    headers: tuple[str, ...] = (
        "with the curvature of",
        "rows",
        "GFLOP",
        "seconds",
        "rounds",
        "traffic",
    )
    steps = [number_of(row, "products of a step") for row in rows]
    count = next(number for number in steps if number is not None)
    note = (
        f"One product, seconds of one thread. FedRemoval's step takes {count:,.0f} with the "
        "server's rows; without the approximation each of them is a round of all clients."
    )
    if paper:
        headers += ("paper: GFLOP",)
        note += " The paper's epoch passes over all its rows: compare the two ratios."
    return Table(headers, tuple(lines), note)


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
    lines = []
    for row in ordered(rows):
        rounds, sent, seconds = (number_of(row, name) for name in COSTS)
        if rounds is not None and sent is not None:
            traffic = filesize.decimal(round(sent))
            lines.append((row.chosen, _count(rounds), traffic, format_number(seconds)))
    note = (
        "Asked of clients when forgetting; what was kept when training (statistics, history) is "
        "not counted again. Seconds of one thread."
    )
    return Table(("method", "rounds", "traffic", "seconds"), tuple(lines), note)


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else format_number(value)


def _note(seeds: int) -> str:
    if not seeds:
        return "Nothing is computed yet: `probekit bench run` computes it."
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
