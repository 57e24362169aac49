"""A certificate: how far an unlearned head can be from retraining, on what assumptions, checkable by whom.

It is a frozen value with one text. Its digest covers everything it says; a signature, if any, covers the
digest's text and stands beside it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from probekit.certificates.agreement import Agreement
from probekit.certificates.bounds import Residual, SmallestCurvature
from probekit.certificates.published import Concentration, Term
from probekit.errors import VerificationError
from probekit.values import Json, canonical, digest

FORMAT = 1
SERVER, SCALAR, GRADIENT, STATISTICS = (
    "server alone",
    "server plus one scalar per retained client",
    "server plus one gradient round of the retained clients",
    "statistics of the retained clients",
)
"""Who can check a certificate, from the least material to the most."""

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
    score for an embedding row of norm 1. `loss_change`: the exact change of the retained loss, where known.
    """

    weights: float | None = None
    excess_loss: float | None = None
    outputs: float | None = None
    loss_change: float | None = None
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
    """What was removed, how, and what is proven about the result."""

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
    reference: ReferenceHead | None = None
    paper: tuple[Term, ...] = ()
    concentration: Concentration | None = None
    privacy: Mapping[str, Json] | None = None
    warnings: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ASSUMPTIONS
    caveats: tuple[str, ...] = CAVEATS
    format: int = FORMAT

    @property
    def plain(self) -> dict[str, Json]:
        """All that it says, in plain values."""
        found: dict[str, Json] = json.loads(canonical(_finite(asdict(self))))
        return found

    @property
    def digest(self) -> str:
        """The sha256 of all that it says."""
        return digest(self.plain)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """The certificate that plain values say; what is no certificate is refused."""
        try:
            if plain["format"] != FORMAT or set(plain) != {one.name for one in fields(cls)}:
                raise VerificationError(
                    f"A certificate of format {FORMAT} was wanted; found format {plain['format']!r} with fields "
                    f"{', '.join(sorted(plain))}. Use the version of probekit that wrote it."
                )
            values = {name: _PARTS.get(name, _same)(value) for name, value in plain.items()}
            return cls(**values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise VerificationError(f"This is not a certificate: {error}. Take the file as written.") from error


def certificate_text(certificate: Certificate, *, signature: Mapping[str, str] | None = None) -> str:
    """The one text of a certificate: its JSON with its digest and, if there is one, its signature."""
    sealed = {"certificate": certificate.plain, "digest": certificate.digest, "signature": signature}
    return json.dumps(sealed, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read_certificate(text: str) -> tuple[Certificate, Mapping[str, str] | None]:
    """The certificate and signature in a text; one that differs in any byte from what was written is refused."""
    try:
        sealed = json.loads(text)
        plain, signature = sealed["certificate"], sealed["signature"]
    except (ValueError, KeyError, TypeError) as error:
        raise VerificationError(f"This is not a certificate: {error}. Take the file as written.") from error
    found = Certificate.from_plain(plain)
    if certificate_text(found, signature=signature) != text:
        raise VerificationError(
            f"The certificate was changed after it was written: its digest says {str(sealed.get('digest'))[:16]}, "
            f"its content {found.digest[:16]}. Take the file as written."
        )
    return found, signature


def signed_bytes(certificate: Certificate) -> bytes:
    """What a signature covers: the canonical JSON of all that the certificate says."""
    return canonical(certificate.plain).encode()


def _finite(value: Any) -> Any:
    """The same value with infinite bounds as None: JSON has no infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def _same(value: Any) -> Any:
    return value


def _tuples(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(one) if isinstance(one, list) else one for name, one in value.items()}


_PARTS: Mapping[str, Any] = {
    "bounds": lambda value: Bounds(**value),
    "residual": lambda value: value and Residual(**_tuples(value)),
    "curvature": lambda value: value and SmallestCurvature(**value),
    "agreement": lambda value: value and Agreement(**value),
    "reference": lambda value: value and ReferenceHead(**value),
    "paper": lambda value: tuple(Term(**one) for one in value),
    "concentration": lambda value: value and Concentration(**value),
    "warnings": tuple,
    "assumptions": tuple,
    "caveats": tuple,
}
