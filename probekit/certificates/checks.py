"""One check of a certificate: what was claimed, what was found, and whether that is the same."""

from __future__ import annotations

import math
from dataclasses import dataclass

CLOSE = 1e-6
"""Relative room for numbers that follow from others by a few operations, or that a solver rounds."""


@dataclass(frozen=True)
class Check:
    """One thing that was claimed and what was found."""

    name: str
    passed: bool
    claimed: str
    found: str


def same(name: str, claimed: str, found: str) -> Check:
    """Two digests that must be equal."""
    return Check(name, claimed == found, claimed[:16], found[:16])


def close(name: str, claimed: float | None, found: float | None, *, room: float = CLOSE) -> Check:
    """Two numbers that must be equal but for a relative `room`."""
    if claimed is None or found is None:
        return Check(name, claimed is found, str(claimed), str(found))
    equal = math.isclose(claimed, found, rel_tol=room, abs_tol=1e-300)
    return Check(name, equal, f"{claimed:.6g}", f"{found:.6g}")


def at_most(name: str, claimed: float, found: float) -> Check:
    """A number that must not exceed another."""
    return Check(name, claimed <= found, f"{claimed:.6g}", f"at most {found:.6g}")
