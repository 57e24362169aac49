"""The tables of a report, and how numbers are written in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from probekit.certificates.certificate import rounded_up
from probekit.evaluation.intervals import Estimate
from probekit.evaluation.unlearning import (
    AFTER,
    HEADS,
    MINIMUM,
    RETRAINED,
    UnlearningEvaluation,
)

DIGITS = 3
MAX_CLIENTS = 30
MEASURES = {
    "test": "accuracy, test rows",
    "retained": "accuracy, retained rows",
    "forgotten": "accuracy, forgotten rows",
    "backdoor": "backdoor success, other classes",
    "backdoor_all": "backdoor success, all rows",
    "membership_auc": "membership inference, AUC",
}
BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")


def format_number(value: float | None) -> str:
    """Three significant digits."""
    return "" if value is None else f"{value:.{DIGITS}g}"


def format_bound(value: float | None) -> str:
    """An upper bound, rounded up as on every certificate."""
    return "" if value is None else rounded_up(value)


def format_bytes(count: int | None) -> str:
    if count is None:
        return ""
    if count < 1000:
        return f"{count} B"
    power = min((len(str(count)) - 1) // 3, len(BYTE_UNITS) - 1)
    return f"{count / 1000**power:.1f} {BYTE_UNITS[power]}"


def format_estimate(estimate: Estimate | None) -> str:
    """With its interval, which stays on one line."""
    return "" if estimate is None else str(estimate).replace(", ", ",\N{NO-BREAK SPACE}")


def format_difference(estimate: Estimate, difference: float) -> str:
    """A signed difference of two estimates: points of percent, or a decimal number."""
    if estimate.decimal:
        return f"{round(difference, 3) + 0.0:+.3f}"
    return f"{round(100 * difference, 1) + 0.0:+.1f} points"


@dataclass(frozen=True)
class Cost:
    """What one event of a run took; None where it was not measured."""

    event: str
    rounds: int | None = None
    sent_bytes: int | None = None
    received_bytes: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class ReportData:
    """What a page tells of a run.

    summary: sentences at the top; facts: how the run was made.
    certificate: a Certificate's to_dict().
    a_priori: the bound that holds before anything is computed from rows.
    """

    name: str
    evaluation: UnlearningEvaluation
    summary: tuple[str, ...] = ()
    certificate: Mapping[str, Any] | None = None
    a_priori: float | None = None
    costs: tuple[Cost, ...] = ()
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
    names = [name for name in HEADS if name in evaluation.heads]
    estimates = {name: evaluation.heads[name].estimates for name in names}
    differences = evaluation.minus_retrained(AFTER) if AFTER in names else {}
    rows = []
    for measure, title in MEASURES.items():
        if not any(measure in head for head in estimates.values()):
            continue
        cells = [format_estimate(head.get(measure)) for head in estimates.values()]
        if differences:
            is_compared = measure in differences
            cells.append(
                format_difference(estimates[AFTER][measure], differences[measure])
                if is_compared
                else ""
            )
        rows.append((title, *cells))
    for reference, distances in evaluation.distances.items():
        cells = [format_number(distances.get(name)) for name in names]
        rows.append((f"distance to {_reference(reference)}", *cells, *[""] * bool(differences)))
    headers = ("", *names, *["after minus retrained"] * bool(differences))
    agreement = ", ".join(
        f"{estimate} of the test rows get the class that {_reference(name)} gives"
        for name, estimate in evaluation.agreement.items()
    )
    return Table(headers, tuple(rows), f"After unlearning, {agreement}." if agreement else "")


def _reference(name: str) -> str:
    return "the retrained head" if name == RETRAINED else "the minimum"


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
    changes = sorted(
        evaluation.clients,
        key=lambda change: (
            not change.is_forgotten,
            change.accuracy[names[-1] if AFTER not in names else AFTER] - change.accuracy[names[0]],
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


def costs_table(costs: Sequence[Cost]) -> Table:
    rows = [
        (
            cost.event,
            "" if cost.rounds is None else f"{cost.rounds:,}",
            format_bytes(cost.sent_bytes),
            format_bytes(cost.received_bytes),
            "" if cost.seconds is None else f"{format_number(cost.seconds)} s",
        )
        for cost in costs
    ]
    return Table(("", "rounds", "to the clients", "from the clients", "time"), tuple(rows))


def runs_table(runs: Sequence[ReportData]) -> Table:
    """Several runs beside each other: the head of each after unlearning."""
    rows = []
    for data in runs:
        name = AFTER if AFTER in data.evaluation.heads else next(iter(data.evaluation.heads))
        estimates = data.evaluation.heads[name].estimates
        cost = data.costs[-1] if data.costs else Cost("")
        rows.append(
            (
                data.name,
                *(format_estimate(estimates.get(measure)) for measure in ("test", "backdoor")),
                format_number(data.truth),
                format_bound((data.certificate or {}).get("distance")),
                format_bytes(cost.received_bytes),
            )
        )
    headers = ("run", "accuracy, test rows", "backdoor success", "distance to the minimum")
    return Table((*headers, "certified: at most", "from the clients"), tuple(rows))
