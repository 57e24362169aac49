"""What a certificate says in sealed form: who asked and who stays, and what depends on the head before."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from probekit.custody.seals import Opening, Openings

if TYPE_CHECKING:
    from probekit.certificates.certificate import Certificate

REQUEST, RETAINED, LOSS_CHANGE, CONCENTRATION = "request", "retained", "loss_change", "concentration"
COUNTED = [("clients", int), ("rows", int), ("sealed", str)]
"""What is written of the retained clients where their names are sealed."""


def sealed(certificate: Certificate) -> Certificate:
    """The certificate with fresh salts for what names people, or depends on who is forgotten.

    Everything that was asked for has a salt of its own, so that one person's request can be opened without others'.
    """
    said = certificate.stored
    values: dict[str, Any] = {place: said[place] for place in ("before", RETAINED)}
    values |= {f"{REQUEST}.{kind}.{n}": one for kind, own in said[REQUEST].items() for n, one in enumerate(own)}
    bounds = certificate.bounds
    if bounds.loss_change is not None:
        values[LOSS_CHANGE] = {"value": bounds.loss_change, "rounding": bounds.loss_rounding}
    if certificate.concentration is not None:
        values[CONCENTRATION] = said["context"][CONCENTRATION]
    return replace(certificate, openings={place: Opening.of(value) for place, value in values.items()})


def unsealed(said: dict[str, Any], openings: Openings) -> tuple[dict[str, Any], dict[str, Opening]]:
    """What is written, with values in place of the seals that openings fit; and those openings."""
    request = {kind: list(items) for kind, items in said[REQUEST].items()}
    said |= {"claims": list(said["claims"]), "context": dict(said["context"]), REQUEST: request}
    fitting = {place: one for place, one in openings.items() if _open(said, place, one)}
    if isinstance((counted := said[RETAINED]).get("sealed"), str):
        if [(name, type(value)) for name, value in sorted(counted.items())] != COUNTED:
            raise ValueError("retained clients are named, or counted and sealed")
        said |= {RETAINED: {}, "counted": counted}
    return said, fitting


def _open(said: dict[str, Any], place: str, one: Opening) -> bool:
    """Put a value in the place of its seal, if it is the seal's."""
    part, *rest = place.split(".")
    value: Any = one.value
    if part == LOSS_CHANGE:
        seal = {"kind": LOSS_CHANGE, **one.seal}
        if fits := seal in said["claims"]:
            said["claims"].remove(seal)
            said["claims"].append({"kind": LOSS_CHANGE, **value})
        return fits
    kept: Any = {REQUEST: said[REQUEST].get("".join(rest[:1])), CONCENTRATION: said["context"]}.get(part, said)
    key: Any = int(rest[1]) if part == REQUEST and rest[1:] and rest[1].isdecimal() else part
    there = key in kept if isinstance(kept, dict) else kept and isinstance(key, int) and key < len(kept)
    seal = one.seal
    if part == RETAINED:
        seal = {"clients": len(value), "rows": sum(value.values()), **seal}
    if not there or kept[key] != seal:
        return False
    kept[key] = value
    return True
