"""Two outcomes side by side: what differs between them, line by line and beyond their standard errors."""

from __future__ import annotations

import math
from dataclasses import dataclass

from probekit.bench.results import BenchResult, Mean, TableRow

SHOWN = ("accuracy", "backdoor", "distance", "distance_fedavg")


@dataclass(frozen=True)
class Difference:
    """A measure of one line in both outcomes. `beyond`: by how many standard errors they differ; None: not known."""

    setting: str
    method: str
    measure: str
    first: float
    second: float
    beyond: float | None


@dataclass(frozen=True)
class BenchComparison:
    """What both outcomes measured, what differs in how, and lines that only one of them has."""

    differences: tuple[Difference, ...]
    changed: tuple[str, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]

    @property
    def plain(self) -> dict[str, object]:
        """For JSON."""
        lists = {name: list(getattr(self, name)) for name in ("changed", "only_first", "only_second")}
        return {"differences": [vars(one) for one in self.differences], **lists}


def compare(first: BenchResult, second: BenchResult) -> BenchComparison:
    """The second outcome against the first."""
    lines: list[dict[tuple[str, str], TableRow]] = [
        {(row.setting, row.method): row for row in one.rows} for one in (first, second)
    ]
    found = [
        Difference(*where, name, a.means[name].value, b.means[name].value, _beyond(a.means[name], b.means[name]))
        for where, a in lines[0].items()
        if (b := lines[1].get(where)) is not None
        for name in SHOWN
        if name in a.means and name in b.means
    ]
    one, two = (result.plain["experiment"] for result in (first, second))
    changed = [
        f"{key}: {one[key]} and {two[key]}" for key in ("seeds", "tune", "scale", "metrics") if one[key] != two[key]
    ]
    if first.plain["probekit"] != second.plain["probekit"]:
        changed.append(f"probekit: {first.plain['probekit']} and {second.plain['probekit']}")
    changed += [
        f"data of {name}"
        for name, value in first.plain["data"].items()
        if second.plain["data"].get(name, value) != value
    ]
    apart = [tuple(": ".join(where) for where in lines[a] if where not in lines[b]) for a, b in ((0, 1), (1, 0))]
    return BenchComparison(tuple(found), tuple(changed), *apart)


def _beyond(a: Mean, b: Mean) -> float | None:
    if a.error is None or b.error is None:
        return None
    spread = math.hypot(a.error, b.error)
    return abs(a.value - b.value) / spread if spread else (0.0 if a.value == b.value else None)
