"""The tables of a report, and how numbers are written in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich import filesize

from probekit.certificates.certificate import rounded_up
from probekit.evaluation.intervals import Estimate
from probekit.evaluation.unlearning import (
    AFTER,
    BEFORE,
    HEADS,
    MINIMUM,
    RETRAINED,
    UnlearningEvaluation,
)
from probekit.runs.layout import Cost

REFERENCES = {RETRAINED: "the retrained head", MINIMUM: "the minimum"}
MAX_CLIENTS = 30
MEASURES = {
    "test": "accuracy, test rows",
    "retained": "accuracy, retained rows",
    "forgotten": "accuracy, forgotten rows",
    "backdoor": "backdoor success, other classes",
    "backdoor_all": "backdoor success, all rows",
    "membership_auc": "membership inference, AUC",
}


def format_number(value: float | None) -> str:
    """Three significant digits."""
    return "" if value is None else f"{value:.3g}"


def format_bound(value: float | None) -> str:
    """An upper bound, rounded up as on every certificate."""
    return "" if value is None else rounded_up(value)


def format_estimate(estimate: Estimate | None) -> str:
    """With its interval, which stays on one line."""
    return "" if estimate is None else str(estimate).replace(", ", ",\N{NO-BREAK SPACE}")


def format_difference(estimate: Estimate, difference: float) -> str:
    """A signed difference of two estimates: points of percent, or a decimal number."""
    if estimate.decimal:
        return f"{round(difference, 3) + 0.0:+.3f}"
    return f"{round(100 * difference, 1) + 0.0:+.1f} points"


@dataclass(frozen=True)
class ReportData:
    """What a page tells of a run.

    summary: sentences at the top; facts: how the run was made.
    certificate: a Certificate's to_dict().
    a_priori: the bound that holds before anything is computed from rows.
    costs: by event, in the order of the history.
    """

    name: str
    evaluation: UnlearningEvaluation
    summary: tuple[str, ...] = ()
    certificate: Mapping[str, Any] | None = None
    a_priori: float | None = None
    costs: tuple[tuple[str, Cost], ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def truth(self) -> float | None:
        """The measured distance from the head that was unlearned to the minimum."""
        return self.evaluation.distances.get(MINIMUM, {}).get(AFTER)


@dataclass(frozen=True)
class Table:
    """Texts in rows; the first column names a row. `note` is printed below."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def heads_table(evaluation: UnlearningEvaluation) -> Table:
    """Each measure of the heads before, after, retrained and at the minimum."""
    heads = {name: evaluation.heads[name] for name in HEADS if name in evaluation.heads}
    differences = evaluation.minus_retrained(AFTER) if AFTER in heads else {}
    rows = []
    for measure, title in MEASURES.items():
        if any(measure in measures for measures in heads.values()):
            cells = [format_estimate(measures.get(measure)) for measures in heads.values()]
            if measure in differences:
                cells.append(format_difference(heads[AFTER][measure], differences[measure]))
            rows.append([title, *cells])
    for reference, distances in evaluation.distances.items():
        cells = [format_number(distances.get(name)) for name in heads]
        rows.append([f"distance to {REFERENCES[reference]}", *cells])
    headers = ["", *heads]
    if differences:
        headers.append("after minus retrained")
    padded = [(*row, *[""] * (len(headers) - len(row))) for row in rows]
    agreement = ", ".join(
        f"{estimate} of the test rows get the class that {REFERENCES[name]} gives"
        for name, estimate in evaluation.agreement.items()
    )
    note = f"After unlearning, {agreement}." if agreement else ""
    return Table(tuple(headers), tuple(padded), note)


def bounds_table(data: ReportData) -> Table:
    """The distance to the minimum: measured, certified, and bounded a priori."""
    certificate = data.certificate or {}
    rows = [
        ("measured distance to the minimum", format_number(data.truth)),
        ("certified: at most", format_bound(certificate.get("distance"))),
        ("a priori: at most", format_bound(data.a_priori)),
        ("excess loss, certified: at most", format_bound(certificate.get("excess_loss"))),
    ]
    if certificate.get("test_rows"):
        kept = f"{certificate['certified_rows']:,} of {certificate['test_rows']:,}"
        rows.append(("test rows that provably keep their class", kept))
    return Table(("", "value"), tuple(row for row in rows if row[1]))


def clients_table(evaluation: UnlearningEvaluation) -> Table:
    """Each client's accuracy by head: forgotten ones first, then those that lost most."""
    names = [name for name in HEADS if name in evaluation.heads]
    last = AFTER if AFTER in names else names[-1]
    changes = sorted(
        evaluation.clients,
        key=lambda change: (
            not change.is_forgotten,
            change.accuracy[last] - change.accuracy[names[0]],
        ),
    )
    rows = [
        (
            f"{change.client} (forgotten)" if change.is_forgotten else change.client,
            f"{change.rows:,}",
            *(f"{change.accuracy[name]:.1%}" for name in names),
        )
        for change in changes[:MAX_CLIENTS]
    ]
    hidden = len(changes) - len(rows)
    note = f"{hidden:,} more clients are not shown; they lost less." if hidden else ""
    return Table(("client", "rows", *names), tuple(rows), note)


def costs_table(costs: Sequence[tuple[str, Cost]]) -> Table:
    rows = [
        (
            event,
            f"{cost.rounds:,}",
            filesize.decimal(cost.sent),
            filesize.decimal(cost.received),
            f"{format_number(cost.seconds)} s",
        )
        for event, cost in costs
    ]
    return Table(("", "rounds", "to the clients", "from the clients", "time"), tuple(rows))


def runs_table(runs: Sequence[ReportData]) -> Table:
    """Several runs beside each other: the head of each after unlearning."""
    rows = []
    for data in runs:
        heads = data.evaluation.heads
        measures = heads[AFTER if AFTER in heads else BEFORE]
        received = [filesize.decimal(cost.received) for _, cost in data.costs]
        rows.append(
            (
                data.name,
                *(format_estimate(measures.get(measure)) for measure in ("test", "backdoor")),
                format_number(data.truth),
                format_bound((data.certificate or {}).get("distance")),
                *(received[-1:] or [""]),
            )
        )
    headers = ("run", "accuracy, test rows", "backdoor success", "distance to the minimum")
    return Table((*headers, "certified: at most", "from the clients"), tuple(rows))
