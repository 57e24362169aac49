"""A report of a run: values -> a plain dict -> JSON, Markdown and a page. Pictures are drawn from the same dict."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock

from probekit.certificates.agreement import Margins
from probekit.certificates.certificate import Certificate
from probekit.certificates.verdicts import Finding
from probekit.errors import InputError
from probekit.evaluation.backdoor import BackdoorSuccess
from probekit.evaluation.left_out import WrongRow
from probekit.evaluation.metrics import Confusion, Share
from probekit.evaluation.reconstruction import RebuiltRequest
from probekit.files import new_folder, sha256_file, storing, write_text
from probekit.unlearning.influence import Influence
from probekit.unlearning.request import asked
from probekit.values import Json

if TYPE_CHECKING:
    from probekit.pages.pictures import Picture

FORMAT = 2
MARKDOWN, HTML, VALUES = "report.md", "report.html", "report.json"
DRAWN = 2000
"""How many rows' margins are told one by one; all of them are counted."""
BACKDOOR = {"backdoor success": "all", "backdoor success, without the target class": "excluding_target"}
BEFORE, AFTER, RETRAINED, TRAINED = "before", "after", "retrained", "trained"

Plain = dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """A head's digest, and how good it is on each set by name."""

    head: str
    accuracy: Mapping[str, Share] = field(default_factory=dict)
    backdoor: BackdoorSuccess | None = None


@dataclass(frozen=True)
class StateReport:
    """A state of the run beside the head that retraining on the same rows gives.

    `distance` is measured (Frobenius); `bound` is proven, against the minimum of the retained loss, and `own_bound` is
    the retrained head's: distance <= bound + own_bound. `distance_before` is how far the head of the state before lies
    from the same retrained one. `why` says why something is missing.
    """

    state: int
    method: str
    counts: Mapping[str, int]
    now: Measured
    retrained: Measured | None = None
    source: str = ""
    distance_before: float | None = None
    distance: float | None = None
    relative: float | None = None
    bound: float | None = None
    own_bound: float | None = None
    why: str = ""


@dataclass(frozen=True, eq=False)
class Judged:
    """The rows that heads were judged on: classes by head, and the current head's confusion, margins and worst rows.

    `thumbnails`: small pictures (PNG) of the worst rows by id, where they can be read; for pages, not in JSON.
    """

    name: str
    digest: str
    meaning: str
    rows: int
    left_out: int
    by_class: Mapping[str, tuple[Share, ...]]
    confusion: Confusion
    margins: Margins | None = None
    why: str = ""
    most_wrong: tuple[WrongRow, ...] = ()
    thumbnails: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """The certificate of a state, its signature, and what came of its claims when the report was written."""

    state: int
    certificate: Certificate
    signature: Mapping[str, str] | None
    findings: Sequence[Finding]


@dataclass(frozen=True, eq=False)
class Report:
    """All that a report tells. `influence` is of the clients of state `influence_state`.

    `rebuilt`: what the heads before and after each request tell of the rows that it took out.
    `ledger`: each entry's number, time, action, state, digest and previous one's, and in `what` what was done in words.
    """

    run: str
    inputs: Mapping[str, Json]
    config: Mapping[str, Json]
    environment: Mapping[str, Json]
    stages: Sequence[StateReport]
    judged: Sequence[Judged] = ()
    influence: Sequence[Influence] = ()
    influence_state: int | None = None
    pages: Sequence[Page] = ()
    ledger: Sequence[Mapping[str, Json]] = ()
    rebuilt: Sequence[RebuiltRequest] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def plain(self) -> Plain:
        """All of it in plain values: what JSON holds, and what Markdown and pictures are made from."""
        stages, now = self.stages, self.stages[-1].counts
        found: Plain = {
            "format": FORMAT,
            "run": self.run,
            "unlearned": bool(self.pages) or any(entry["action"] == "unlearn" for entry in self.ledger),
            "state": stages[-1].state,
            "inputs": dict(self.inputs),
            "comparison": comparison(stages, names=[one.name for one in self.judged]),
            "stages": [asdict(one) for one in stages],
            "judged": [_judged(one) for one in self.judged],
            "influence": {
                "state": self.influence_state,
                "clients": [{**asdict(one), "forgotten_since": one.client not in now} for one in self.influence],
            },
            "certificates": [_page(one) for one in self.pages],
            "reconstruction": [one.plain for one in self.rebuilt],
            "ledger": [dict(entry) for entry in self.ledger],
            **{name: dict(getattr(self, name)) for name in ("config", "environment", "left_out")},
            "pictures": {},
        }
        # JSON has no word for infinity and NaN, nor for NumPy's numbers
        plain: Plain = json.loads(json.dumps(found, default=np.generic.item), parse_constant=lambda _: None)
        return plain

    def drawn(self) -> tuple[Plain, Sequence[Picture], Mapping[str, bytes]]:
        """What a page is made of: plain values, pictures of them, and small pictures of the worst rows by id."""
        from probekit.pages.pictures import drawn, report_figures

        value = self.plain
        small = {row: picture for one in self.judged for row, picture in one.thumbnails.items()}
        return value, drawn(report_figures(value)), small

    def write(self, folder: Path | str) -> Plain:
        """Write a page, Markdown, JSON and pictures; an old report stands until the new one is whole."""
        from probekit.report.page import markdown, report_page

        folder = Path(folder).absolute()
        folder.parent.mkdir(parents=True, exist_ok=True)
        # not the names of unfinished files in a run: a run that recovers takes those for its own
        new, lock = (folder.parent / f".{folder.name}.{word}" for word in ("new", "lock"))
        with storing(folder.parent), FileLock(lock), new_folder(folder, aside=new):
            refuse_other(folder)
            value, pictures, small = self.drawn()
            for number, one in enumerate(pictures, start=1):
                name = f"{number:02d}-{one.key.replace('_', '-')}.svg"
                write_text(new / name, one.svg)
                value["pictures"][one.key] = {"file": name, "alt": one.alt, "sha256": sha256_file(new / name)}
            write_text(new / VALUES, json_text(value))
            write_text(new / MARKDOWN, markdown(value))
            write_text(new / HTML, report_page([(value, pictures, small)]))
        return value


def refuse_other(folder: Path) -> None:
    """Refuse a folder that holds anything but a report."""
    if folder.exists() and not (folder / VALUES).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not a report. Choose another folder, or remove it.")


def json_text(report: Mapping[str, Any]) -> str:
    """The one text of a plain report."""
    return json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def comparison(stages: Sequence[StateReport], *, names: Iterable[str]) -> list[Plain]:
    """For each measure the first state, the current one and its retrained head; |after - retrained| is what counts."""
    heads = compared(stages)
    rows: dict[str, dict[str, Share | None]] = {
        f"accuracy on {name}": {label: one.accuracy.get(name) for label, one in heads.items()} for name in names
    }
    if any(one.backdoor is not None for one in heads.values()):
        for title, kind in BACKDOOR.items():
            rows[title] = {label: getattr(one.backdoor, kind, None) for label, one in heads.items()}
    return [
        {
            "measure": title,
            "heads": {label: None if share is None else asdict(share) for label, share in shares.items()},
            "difference_to_retraining": _difference(list(shares.values())[-2:]) if RETRAINED in heads else None,
        }
        for title, shares in rows.items()
    ]


def compared(stages: Sequence[StateReport]) -> dict[str, Measured]:
    """The heads that are set side by side, by what they are; the retrained one is last."""
    first, last = stages[0], stages[-1]
    heads = {TRAINED: last.now} if first.state == last.state == 1 else {AFTER: last.now}
    if first.state < last.state:
        heads = {BEFORE: first.now, **heads}
    return {**heads, RETRAINED: last.retrained} if last.retrained is not None else heads


def _difference(two: Sequence[Share | None]) -> float | None:
    values = [share.value for share in two if share is not None and share.value is not None]
    return abs(values[0] - values[1]) if len(values) == 2 else None


def _judged(one: Judged) -> Plain:
    plain, margins = asdict(replace(one, margins=None, thumbnails={})), one.margins
    del plain["thumbnails"]
    if margins is not None:
        places = np.unique(np.linspace(0, len(margins.lead) - 1, min(DRAWN, len(margins.lead))).astype(np.int64))
        both = np.stack([margins.lead[places], margins.needed[places]], axis=1)
        plain["margins"] = {
            "rows": len(margins.lead),
            "certified": margins.certified,
            "median_lead": float(np.median(margins.lead)),
            "median_needed": float(np.median(margins.needed)),
            "points": [[float(f"{one:.6g}") for one in two] for two in both],
        }
    return plain


def _page(one: Page) -> Plain:
    return {
        "state": one.state,
        "digest": one.certificate.digest,
        "removed": asked(one.certificate.request),
        "signed_by": one.signature.get("key") if one.signature else None,
        "certificate": one.certificate.plain,
        "findings": [asdict(finding) for finding in one.findings],
    }
