"""Runs side by side: what each forgot and how, how good it is, how far from retraining, and what is proven."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any

from probekit.evaluation.probe_values import write_csv
from probekit.files import write_text
from probekit.pages.formats import upper
from probekit.pages.render import render
from probekit.report.summary import claims

NOTHING, NO_CLAIM = "nothing", "no certificate"
SHOWN = {
    "run": "run",
    "forgotten": "forgotten",
    "method": "by",
    "accuracy": "accuracy",
    "backdoor": "backdoor",
    "distance": "distance",
    "bound": "bound",
    "verdict": "bound is",
}
"""What people see of a line, under which header."""

Plain = Mapping[str, Any]


@dataclass(frozen=True)
class RunLine:
    """A run on one set of rows. Shares of rows lie between 0 and 1; None: not known.

    method: what made the current state. verdict: of the certified distance, checked now. low, high: accuracy's
    interval. retrained: the accuracy of the head retrained on the same rows.
    """

    run: str
    state: int
    trained_by: str
    clients: int
    rows: int
    forgotten: str
    method: str
    judged_on: str = ""
    accuracy: float | None = None
    low: float | None = None
    high: float | None = None
    retrained: float | None = None
    backdoor: float | None = None
    backdoor_retrained: float | None = None
    distance: float | None = None
    bound: float | None = None
    verdict: str = NO_CLAIM
    claims_proven: int = 0
    claims: int = 0

    @property
    def texts(self) -> dict[str, str]:
        """What people see, by header; distances are to retraining."""
        between = "" if self.low is None or self.high is None else f" [{100 * self.low:.0f}-{100 * self.high:.0f}]"
        found = {
            "accuracy": "" if self.accuracy is None else f"{self.accuracy:.1%}{between}",
            "backdoor": "" if self.backdoor is None else f"{self.backdoor:.1%}",
            "distance": "" if self.distance is None else f"{self.distance:.2g}",
            "bound": upper(self.bound, 2),
        }
        return {header: found.get(name, str(getattr(self, name))) for name, header in SHOWN.items()}


@dataclass(frozen=True)
class RunTable:
    """A line for every run and set, and what has to be known besides."""

    lines: tuple[RunLine, ...]
    remarks: tuple[str, ...]

    @property
    def headers(self) -> tuple[str, ...]:
        """The columns that say something of at least one run."""
        return tuple(header for header in SHOWN.values() if any(line.texts[header] for line in self.lines))

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The texts under the headers; a run is called by its folder's name where no other has that name."""
        paths = {line.run: Path(line.run).name for line in self.lines}
        short = {path: name if list(paths.values()).count(name) == 1 else path for path, name in paths.items()}
        return [(short[line.run], *(line.texts[one] for one in self.headers[1:])) for line in self.lines]

    @property
    def plain(self) -> dict[str, Any]:
        """All of it in plain values."""
        return {"runs": [asdict(line) for line in self.lines], "remarks": list(self.remarks)}

    def to_csv(self, path: str | Path) -> Path:
        """Every number, one line for every run and set."""
        return write_csv(path, [one.name for one in fields(RunLine)], [astuple(line) for line in self.lines])

    def to_markdown(self, path: str | Path) -> Path:
        """The table as people see it."""
        write_text(Path(path), render("compare.md.j2", table=self))
        return Path(path)


def run_table(reports: Sequence[Plain]) -> RunTable:
    """Plain reports of runs side by side."""
    lines = tuple(line for report in reports for line in _lines(report))
    return RunTable(lines, tuple(_remarks(reports)))


def _lines(report: Plain) -> list[RunLine]:
    last, (proven, claimed) = report["stages"][-1], claims(report)
    asked = [one["what"].rpartition(", by ")[0] for one in report["ledger"] if one["action"] == "unlearn"]
    about: dict[str, Any] = {
        "run": report["run"],
        "state": report["state"],
        "trained_by": report["config"]["method"],
        "clients": len(last["counts"]),
        "rows": sum(last["counts"].values()),
        "forgotten": "; ".join(asked) or NOTHING,
        "method": last["method"],
        "distance": last["distance"],
        "bound": last["bound"],
        "verdict": _verdict(report),
        "claims_proven": proven,
        "claims": claimed,
    }
    success = {
        name: measured["backdoor"]["excluding_target"]["value"]
        for name, measured in (("backdoor", last["now"]), ("backdoor_retrained", last["retrained"]))
        if measured is not None and measured["backdoor"] is not None
    }
    names = [one["name"] for one in report["judged"]]
    return [RunLine(**about, **success, **_accuracy(last, name)) for name in names] or [RunLine(**about, **success)]


def _accuracy(last: Plain, name: str) -> dict[str, Any]:
    found, retrained = last["now"]["accuracy"][name], last["retrained"]
    beside = None if retrained is None else retrained["accuracy"][name]["value"]
    return {
        "judged_on": name,
        "accuracy": found["value"],
        "low": found["low"],
        "high": found["high"],
        "retrained": beside,
    }


def _verdict(report: Plain) -> str:
    """What came of the current state's claim about its distance."""
    page = next((one for one in report["certificates"] if one["state"] == report["state"]), None)
    found = [] if page is None else [one["verdict"] for one in page["findings"] if one["name"] == "weights"]
    return found[0] if found else NO_CLAIM


def _remarks(reports: Sequence[Plain]) -> list[str]:
    judged = {tuple(sorted(one["digest"] for one in report["judged"])) for report in reports}
    found = []
    if len(judged) > 1:
        found.append(
            "The runs are judged on different rows, so their accuracies cannot be compared. Name one test set."
        )
    found += [f"{report['run']}: {warning}" for report in reports for warning in _warnings(report)]
    return found


def _warnings(report: Plain) -> list[str]:
    pages = [one for one in report["certificates"] if one["state"] == report["state"]]
    return [warning for page in pages for warning in page["certificate"]["warnings"]]
