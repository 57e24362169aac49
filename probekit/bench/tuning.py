"""Equal budgets: so many settings of each method are tried, its defaults first."""

from __future__ import annotations

from collections.abc import Mapping

from probekit.arrays import Json

GRIDS: dict[str, tuple[str, ...]] = {
    "cf": ("rounds=40", "rounds=10", "rounds=5", "rounds=30", "rounds=60"),
    "ew-sga": (
        *("strength=1.05", "strength=2", "strength=4"),
        *("strength=2,max-norm=0.3", "strength=4,max-norm=0.3"),
    ),
    "federaser": (
        *("ratio=0.25", "ratio=1", "lengths=mean"),
        *("ratio=0.25,lengths=mean", "ratio=1,lengths=mean"),
    ),
    "fedrecovery": ("scale=0.5", "scale=2", "scale=4", "weights=sum", "scale=0.5,weights=sum"),
    "ferrari": ("rate=0.001", "rate=0.003", "rate=0.03", "steps=20", "steps=100"),
    "flipping": ("rounds=1", "rounds=4", "post=5", "post=40", "rounds=4,post=40"),
    "fused": ("rounds=40", "density=0.1", "density=1", "layers=4", "rank=4"),
    "pga": ("radius=0.01", "radius=0.1", "radius=0.3", "post=20", "radius=0.1,post=20"),
    "sga": (
        *("steps=3", "steps=30", "rate-scale=0.03"),
        *("rate-scale=0.3", "steps=30,max-norm=0.3"),
    ),
    "starfish": ("warmup=5", "warmup=20", "correction=5", "correction=20", "tuning=10"),
}
"""What is tried beside the defaults. Methods that end at the minimum, or repeat training, have
nothing to tune; of FedRemoval each kind is a row of its own."""


def trials(method: str, budget: int) -> tuple[str, ...]:
    """The settings of a method that are tried: as it is named, then with further options."""
    name, colon, options = method.partition(":")
    named = {option.partition("=")[0] for option in options.split(",")}
    further = [
        f"{method}{',' if colon else ':'}{grid}"
        for grid in GRIDS.get(name, ())
        if named.isdisjoint(option.partition("=")[0] for option in grid.split(","))
    ]
    return (method, *further)[: max(1, budget)]


def best(tried: Mapping[str, Mapping[str, Json]]) -> str:
    """The trial whose head gives the retrained head's class most often; the first of equals."""
    return min(tried, key=lambda method: aim(tried[method]))


def aim(document: Mapping[str, Json]) -> float:
    """How often a cell's head gives another class than the retrained one: the mean of test rows
    with and without the trigger. Infinite where the method failed."""
    measures = document.get("measures")
    if not isinstance(measures, dict):
        return float("inf")
    parts = [measures[name] for name in measures if name.startswith("other class")]
    values = [part["value"] for part in parts if isinstance(part, dict)]
    return sum(map(float, values)) / len(values)
