"""What a certificate says in sealed form: who asked and who stays, and what depends on the head before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from probekit.custody.seals import Opening, Openings

if TYPE_CHECKING:
    from probekit.certificates.certificate import Certificate

RETAINED, LOSS_CHANGE, CONCENTRATION = "retained", "loss_change", "concentration"
COUNTED = [("clients", int), ("rows", int), ("sealed", str)]
"""What is written of the retained clients where their names are sealed."""


def sealed(certificate: Certificate) -> Certificate:
    """The certificate with fresh salts for what names people, or depends on who is forgotten."""
    said = certificate.stored
    values = {place: said[place] for place in ("request", "before", RETAINED)}
    bounds = certificate.bounds
    if bounds.loss_change is not None:
        values[LOSS_CHANGE] = {"value": bounds.loss_change, "rounding": bounds.loss_rounding}
    if certificate.concentration is not None:
        values[CONCENTRATION] = said["context"][CONCENTRATION]
    return replace(certificate, openings={place: Opening.of(value) for place, value in values.items()})


def unsealed(said: dict[str, Any], openings: Openings) -> tuple[dict[str, Any], dict[str, Opening]]:
    """What is written, with values in place of the seals that openings fit; and those openings."""
    fitting: dict[str, Opening] = {}
    said |= {"claims": list(said["claims"]), "context": dict(said["context"])}
    for place, one in openings.items():
        kept, value = said, one.value
        if place == CONCENTRATION:
            kept = said["context"]
        if place == LOSS_CHANGE:
            seal = {"kind": LOSS_CHANGE, **one.seal}
            if seal in said["claims"] and isinstance(value, Mapping):
                said["claims"].remove(seal)
                said["claims"].append({"kind": LOSS_CHANGE, **value})
                fitting[place] = one
        elif place == RETAINED and isinstance(value, Mapping):
            if said[place] == {"clients": len(value), "rows": sum(value.values()), **one.seal}:  # type: ignore[arg-type]
                said[place], fitting[place] = value, one
        elif kept.get(place) == one.seal:
            kept[place], fitting[place] = value, one
    if RETAINED not in fitting and "sealed" in said[RETAINED]:
        counted = said[RETAINED]
        if [(name, type(value)) for name, value in sorted(counted.items())] != COUNTED:
            raise ValueError("retained clients are named, or counted and sealed")
        said |= {RETAINED: {}, "counted": counted}
    return said, fitting
