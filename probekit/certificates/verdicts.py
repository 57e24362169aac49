"""What came of holding a claim against the truth: proven, not proven, or false."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from probekit.errors import InputError

if TYPE_CHECKING:
    from probekit.certificates.second_look import Range

PROVEN, INTACT, FALSE = "proven", "not proven", "false"
VERDICTS = (FALSE, INTACT, PROVEN)
"""From the worst to the best."""


@dataclass(frozen=True)
class Finding:
    """A claim, what came of it, and, where it is not proven, the evidence that would prove or refute it."""

    name: str
    verdict: str
    claimed: str
    found: str
    wanted: str = ""


def verdict_of(findings: Iterable[Finding], require: Iterable[str] = ()) -> str:
    """The worst verdict of all, or of those that are `require`d; something false is false whatever is required."""
    found = list(findings)
    if any(one.verdict == FALSE for one in found):
        return FALSE
    names = {one.name for one in found}
    unknown = sorted(set(require) - names)
    if unknown:
        raise InputError(f"This certificate makes no claim {unknown[0]!r}. Require some of {', '.join(sorted(names))}.")
    weighed = [one for one in found if one.name in set(require)] if require else found
    return PROVEN if weighed and all(one.verdict == PROVEN for one in weighed) else INTACT


def unproven(name: str, claimed: str, wanted: str) -> Finding:
    """A claim for which evidence is missing."""
    return Finding(name, INTACT, claimed, "not computed again", wanted)


def same(name: str, claimed: str, found: str) -> Finding:
    """Two texts, or digests, that must be equal."""
    return Finding(name, PROVEN if claimed == found else FALSE, claimed[:16], found[:16])


def stated(name: str, holds: bool, claimed: str, found: str) -> Finding:
    """A claim that simply holds or does not."""
    return Finding(name, PROVEN if holds else FALSE, claimed, found)


def at_most(name: str, claim: float, truth: Range) -> Finding:
    """A claimed upper bound against the range that the truth lies in."""
    return _judged(name, claim, truth, below=True)


def at_least(name: str, claim: float, truth: Range) -> Finding:
    """A claimed lower bound against the range that the truth lies in."""
    return _judged(name, claim, truth, below=False)


def _judged(name: str, claim: float, truth: Range, *, below: bool) -> Finding:
    claimed = f"{'at most' if below else 'at least'} {claim:.6g}"
    if not math.isfinite(claim):
        return Finding(name, FALSE, claimed, "a bound must be a finite number")
    number = Fraction(claim)
    if below:
        proven, refuted = truth.high is not None and truth.high <= number, truth.low > number
    else:
        proven, refuted = truth.low >= number, truth.high is not None and truth.high < number
    verdict = PROVEN if proven else FALSE if refuted else INTACT
    return Finding(name, verdict, claimed, str(truth), "" if verdict != INTACT else "numbers that rounding spoils less")
