"""A certificate: how far an unlearned head can be from retraining, on what assumptions, checkable by whom.

It is a frozen value with one text. Its digest covers everything it says; a signature, if any, covers the
digest's text and stands beside it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Self

from probekit.certificates.agreement import Agreement, RoundsAgreement
from probekit.certificates.bounds import Residual, SmallestCurvature
from probekit.certificates.published import Concentration, Term
from probekit.certificates.sealing import LOSS_CHANGE, REQUEST, RETAINED, unsealed
from probekit.custody.seals import Openings, opened
from probekit.errors import VerificationError
from probekit.files import parsed
from probekit.linear.objective import SIGMA
from probekit.values import Json, canonical, digest

FORMAT = 2
"""Format 1 is still read; it is never proven."""
BOUNDS = ("weights", "excess_loss", "outputs", "loss_change")
CLAIMS = ("residual", "curvature", "agreement", "rounds", "reference", "privacy")
CONTEXT = ("paper", "concentration", "warnings")
"""What is written beside the claims and proves nothing."""
SERVER, SCALAR, GRADIENT, STATISTICS = (
    "server alone",
    "server plus one scalar per retained client",
    "server plus one gradient round of the retained clients",
    "statistics of the retained clients",
)
"""Who can check a certificate, from the least material to the most."""
CHECKERS = (SERVER, SCALAR, GRADIENT, STATISTICS)

ASSUMPTIONS = (
    "The embeddings of the retained rows are those that were trained on: same backbone, preprocessing and bits.",
    "The retained clients' answers (statistics, gradients, numbers) are true; a lying client is not detected.",
    "The reference is the minimum of the retained ridge loss with the same ridge, design and classes.",
    "Numbers were computed in IEEE float64; rounding is bounded to first order and included.",
)
TERM_ASSUMPTIONS = (
    "The loss has a secret linear term, the same before and after, of which only the size is told here.",
    "Without that term digests, counts, statistics, the smallest curvature and what follows from the residual can be "
    "checked, but not the residual itself: every head is the minimum for some term.",
)
"""What goes with a certificate of objective perturbation."""
NOT_QUADRATIC = "No distance to retraining is certified for this loss: it is not quadratic."
CAVEATS = (
    "It concerns the released head only: not embeddings, logs, the head before, nor statistics of the forgotten, "
    "which must be deleted too. Whoever holds both heads can take their difference.",
    "Requests that depend on what was released before are outside of guarantees of this kind.",
    "The backbone must not have been trained on the forgotten rows.",
    "Ridge, classes, centring, scaling and grid chosen with the forgotten rows' help remember them.",
)


@dataclass(frozen=True)
class Bounds:
    """Upper bounds against the minimum of the retained loss; None where the material does not allow one.

    `weights`: Frobenius distance of parameters. `excess_loss`: retained loss above its minimum. `outputs`: of a
    score for an embedding row of norm 1. `loss_change`: the change of the retained loss, where known, and how far
    rounding may have taken it off (`loss_rounding`).
    """

    weights: float | None = None
    excess_loss: float | None = None
    outputs: float | None = None
    loss_change: float | None = None
    loss_rounding: float | None = None
    why: str = ""


@dataclass(frozen=True)
class ReferenceHead:
    """Another head to compare with (one that was retrained): its own bound, and the measured distance.

    Both are at most their bounds from the same minimum, so `distance` <= bound + own `bound`.
    """

    head: str
    bound: float
    distance: float


@dataclass(frozen=True)
class Certificate:
    """What was removed, how, and what is proven about the result.

    What could give somebody away is written sealed where it has an opening. Read without it, `request`, `before` and
    `concentration` are seals, `retained` is empty and `counted` has its numbers.
    """

    request: Mapping[str, Json]
    method: str
    before: Mapping[str, str]
    after: Mapping[str, str]
    retained: Mapping[str, int]
    objective: Mapping[str, Json]
    checkable_by: str
    bounds: Bounds
    residual: Residual | None = None
    curvature: SmallestCurvature | None = None
    agreement: Agreement | None = None
    rounds: RoundsAgreement | None = None
    reference: ReferenceHead | None = None
    paper: tuple[Term, ...] = ()
    concentration: Concentration | None = None
    privacy: Mapping[str, Json] | None = None
    warnings: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ASSUMPTIONS
    caveats: tuple[str, ...] = CAVEATS
    format: int = FORMAT
    unknown: tuple[Mapping[str, Json], ...] = ()
    counted: Mapping[str, Json] | None = None
    openings: Openings = field(default_factory=dict)

    @property
    def retained_numbers(self) -> tuple[int, int]:
        """How many clients are retained, and how many rows; their names may be sealed."""
        found: Any = self.counted
        return (found["clients"], found["rows"]) if found else (len(self.retained), sum(self.retained.values()))

    @property
    def statements(self) -> tuple[str, ...]:
        """What it takes for granted and warns of."""
        return (*self.assumptions, *self.caveats)

    @property
    def plain(self) -> dict[str, Json]:
        """All that it says, in plain values."""
        found: dict[str, Json] = _said(replace(self, openings={}, retained={}))
        del found["openings"]  # salts are for nobody
        return found | {"retained": dict(sorted(self.retained.items()))}

    @cached_property
    def stored(self) -> dict[str, Any]:
        """As it is written: what it claims is a list of typed entries. Not to be changed."""
        said: dict[str, Any] = self.plain
        if self.format == 1:
            said["bounds"].pop("loss_rounding")
            return {name: value for name, value in said.items() if name not in ("unknown", "counted", "rounds")}
        bounds, counted = said.pop("bounds"), said.pop("counted")
        claims = [{"kind": kind, "value": bounds[kind]} for kind in BOUNDS if bounds[kind] is not None]
        if bounds["loss_change"] is not None:  # the last of them
            claims[-1]["rounding"] = bounds["loss_rounding"]
        claims += [{"kind": kind, **value} for kind in CLAIMS if (value := said.pop(kind)) is not None]
        context = {"why": bounds["why"], **{name: said.pop(name) for name in CONTEXT}}
        seals = {place: one.seal for place, one in self.openings.items()}
        if LOSS_CHANGE in seals:  # after those that everybody may read
            claims = [one for one in claims if one["kind"] != LOSS_CHANGE]
            claims.append({"kind": LOSS_CHANGE, **seals.pop(LOSS_CHANGE)})
        claims += said.pop("unknown")
        context |= {name: seals.pop(name) for name in CONTEXT if name in seals}
        if RETAINED in seals:
            clients, rows = self.retained_numbers
            counted = {"clients": clients, "rows": rows, **seals.pop(RETAINED)}
        said |= {RETAINED: counted} if counted else {}
        for place in [one for one in seals if one.startswith(f"{REQUEST}.")]:
            _, kind, number = place.split(".")
            said[REQUEST][kind][int(number)] = seals.pop(place)
        return {**said, **seals, "claims": claims, "context": context}

    @cached_property
    def digest(self) -> str:
        """The sha256 of all that it says."""
        return digest(self.stored)

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any], openings: Openings | None = None) -> Self:
        """The certificate that was written so, opened where openings fit; what is no certificate is refused."""
        try:
            said = dict(stored)
            if said["format"] == FORMAT:
                said, fitting = unsealed(said, openings or {})
                said = {**_opened(said), "openings": fitting}
            elif said["format"] != 1:
                raise ValueError(f"format {said['format']!r} is of another version of probekit")
            return cls(**{name: _PARTS.get(name, lambda one: one)(value) for name, value in said.items()})
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise VerificationError(f"This is not a certificate: {error}. Take the file as written.") from error


def _opened(said: dict[str, Any]) -> dict[str, Any]:
    """The fields of a certificate from its list of claims."""
    context = said.pop("context")
    if set(context) != {"why", *CONTEXT}:
        raise ValueError(f"a context of {', '.join(context)}")
    found: dict[str, Any] = said | context
    bounds, unknown = {"why": context["why"]}, []
    del found["why"]
    for claim in found.pop("claims"):
        kind, rest = claim["kind"], {name: value for name, value in claim.items() if name != "kind"}
        if "sealed" in rest:
            unknown.append(claim)
        elif kind in BOUNDS and kind not in bounds:
            bounds |= {kind: rest.pop("value")}
            bounds |= {"loss_rounding": rest.pop("rounding")} if kind == "loss_change" else {}
            if rest:
                raise ValueError(f"a claim {kind} with more than a value")
        elif kind in CLAIMS and kind not in found:
            found[kind] = rest
        else:
            unknown.append(claim)
    found |= {"bounds": bounds, "unknown": unknown}
    return found


def required_statements(certificate: Certificate) -> tuple[str, ...]:
    """The assumptions and caveats that a certificate of such an objective cannot leave out."""
    return (*ASSUMPTIONS, *CAVEATS, *(TERM_ASSUMPTIONS if SIGMA in certificate.objective else ()))


def certificate_text(certificate: Certificate, *, signature: Mapping[str, str] | None = None) -> str:
    """The one text of a certificate: its JSON with its digest and, if there is one, its signature."""
    sealed = {"certificate": certificate.stored, "digest": certificate.digest, "signature": signature}
    return json.dumps(sealed, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read_certificate(text: str, openings: Openings | None = None) -> tuple[Certificate, Mapping[str, str] | None]:
    """The certificate and signature in a text, opened where openings fit.

    One that differs in any byte from what was written is refused.
    """
    try:
        sealed = parsed(text.encode())
        plain, signature = sealed["certificate"], sealed["signature"]
        if signature is not None and {type(one) for one in signature.values()} != {str}:
            raise ValueError("its signature is none")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise VerificationError(f"This is not a certificate: {error}. Take the file as written.") from error
    found = Certificate.from_stored(plain, openings)
    if certificate_text(found, signature=signature) != text:
        raise VerificationError(
            f"The certificate was changed after it was written: its digest says {str(sealed.get('digest'))[:16]}, "
            f"its content {found.digest[:16]}. Take the file as written."
        )
    return found, signature


def signed_bytes(certificate: Certificate) -> bytes:
    """What a signature covers: its kind, so that it fits nothing else, and the canonical JSON of all that it says."""
    kind = b"" if certificate.format == 1 else f"probekit certificate {certificate.format}\n".encode()
    return kind + canonical(certificate.stored).encode()


def _said(value: Any) -> Any:
    """The same in plain values, names sorted, with infinite bounds as None: JSON has no infinity."""
    if value is None or isinstance(value, str | int | float):
        return value if not isinstance(value, float) else float(value) if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        plain = {*map(type, value)} == {float}
        return [one if math.isfinite(one) else None for one in value] if plain else [_said(one) for one in value]
    named = value if isinstance(value, Mapping) else {one.name: getattr(value, one.name) for one in fields(value)}
    return {name: _said(named[name]) for name in sorted(named)}


def _typed(kind: Any) -> Callable[[Any], Any]:
    """Makes a value of a class from plain values of its fields' types; None stays None."""
    kinds = {one.name: str(one.type) for one in fields(kind)}

    def make(value: Any) -> Any:
        if value is None:
            return None
        for name, one in value.items():
            if not _fits(one, kinds[name]):
                raise TypeError(f"{name} is to be {kinds[name]}; found {one!r:.40}")
        return kind(**{name: tuple(one) if isinstance(one, list) else one for name, one in value.items()})

    return make


def _fits(value: Any, kind: str) -> bool:
    if kind.endswith("| None"):
        return value is None or _fits(value, kind.removesuffix("| None").strip())
    if kind.startswith("tuple["):
        return isinstance(value, list | tuple) and all(_fits(one, kind[6:].split(",")[0]) for one in value)
    known: dict[str, Any] = {"float": int | float, "int": int, "str": str}
    return isinstance(value, known[kind]) and not isinstance(value, bool)


_PARTS: Mapping[str, Any] = {
    "bounds": _typed(Bounds),
    "residual": _typed(Residual),
    "curvature": _typed(SmallestCurvature),
    "agreement": _typed(Agreement),
    "rounds": _typed(RoundsAgreement),
    "reference": _typed(ReferenceHead),
    "paper": lambda value: tuple(map(_typed(Term), value)),
    "concentration": lambda value: _typed(Concentration)(value) if opened(value) else value,
    **dict.fromkeys(("warnings", "assumptions", "caveats", "unknown"), tuple),
}
