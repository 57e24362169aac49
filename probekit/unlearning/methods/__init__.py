"""Unlearning methods, one file each. Importing this is enough to answer what they ask."""

from probekit.unlearning.methods import (
    ascent,
    cf,
    exact,
    federaser,
    fedrecovery,
    fedremoval,
    ferrari,
    flipping,
    fused,
    knot,
    retrain,
    rounds,
    starfish,
)

__all__ = [
    "ascent",
    "cf",
    "exact",
    "federaser",
    "fedrecovery",
    "fedremoval",
    "ferrari",
    "flipping",
    "fused",
    "knot",
    "retrain",
    "rounds",
    "starfish",
]
