"""A cell: one method with its options on one scenario, and what came of it; kept by the sha256 of all it depends on."""

from __future__ import annotations

import math
import time
import traceback
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from probekit import __version__
from probekit.bench.costly import COSTLY
from probekit.bench.forgetting import NOTHING, NotPossible, unlearned
from probekit.bench.judging import MEASURES, Judge, seeds_apart
from probekit.bench.pairs import trainer_for
from probekit.bench.rows import bring
from probekit.bench.scenario import SCHEMA, Scenario, ScenarioKey, load, make
from probekit.cache import DiskStore
from probekit.errors import InputError, ProbekitError
from probekit.files import make_folder, read_json, write_json
from probekit.registry import methods, spec_of
from probekit.unlearning.method import method
from probekit.values import digest


@dataclass(frozen=True)
class CellKey:
    """What determines a cell. `aim`: of a trial of tuning, which sees validation rows only; else empty.

    A trial measures on the way what its setting would show in the table, where that is cheap: `metrics` of a trial.
    """

    scenario: ScenarioKey
    method: str
    metrics: tuple[str, ...]
    aim: str = ""
    shadows: tuple[int, int] = (0, 0)

    @property
    def digest(self) -> str:
        """The sha256 of all of it."""
        parts: Any = {"scenario": self.scenario.digest, "method": self.spec, "origin": origin(self.method)}
        seen = [] if self.aim else sorted(self.metrics)
        more: Any = {"shadows": self.shadows} if "shadows" in seen else {}
        return digest({"schema": SCHEMA, **parts, "metrics": seen, "aim": self.aim, **more})

    @property
    def spec(self) -> str:
        """The method with its options, in one way of writing."""
        return self.method if self.method == NOTHING else spec_of(method(self.method))

    def path(self, root: Path) -> Path:
        """Where it lies below the benchmark's folder of a cache."""
        name = self.digest
        return root / "cells" / name[:2] / f"{name}.json"


def origin(spec: str) -> str:
    """The distribution and version that a method comes from."""
    name = spec.partition(":")[0]
    point = next((one for one in methods.points if one.name == name), None)
    if point is None or point.origin == "probekit":
        return f"probekit {__version__}"
    try:
        return f"{point.origin} {metadata.version(point.origin)}"
    except metadata.PackageNotFoundError:
        return point.origin


@dataclass(frozen=True)
class BenchPlace:
    """Where a benchmark works: the cache with the rows, and the folder of scenarios and cells in it."""

    cache: Path

    @property
    def root(self) -> Path:
        """Of scenarios and cells."""
        return self.cache / "bench"

    @property
    def store(self) -> DiskStore:
        """The rows."""
        return DiskStore(self.cache)


_LOADED: dict[str, Scenario] = {}


def opened(place: BenchPlace, key: ScenarioKey) -> Scenario:
    """A scenario, made if it is not there; the last one stays in memory."""
    if key.digest not in _LOADED:
        rows = bring(key.setting, place.store)
        make(key, rows, place.root)
        _LOADED.clear()
        _LOADED[key.digest] = load(key, rows, place.root)
    return _LOADED[key.digest]


def known(place: BenchPlace, key: CellKey) -> dict[str, Any] | None:
    """What a cell holds, if it was computed."""
    path = key.path(place.root)
    return dict(read_json(path)) if path.is_file() else None


def compute(place: BenchPlace, key: CellKey, *, again: bool = False) -> dict[str, Any]:
    """What a cell holds, computed now unless it was; a method that fails leaves its sentence."""
    found = known(place, key)
    if found is not None and not (again and "error" in found):
        return found
    began = time.process_time()
    try:
        value = _measured(place, _scenario(place, key), key)
    except NotPossible as error:
        value = {"error": " ".join(str(error).split()), "possible": False}
    except ProbekitError as error:
        value = {"error": " ".join(str(error).split())}
    except Exception as error:  # of anybody's method: a table shows it and goes on
        where = traceback.extract_tb(error.__traceback__)[-1]
        value = {"error": f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})."}
    used = time.process_time() - began
    if key.aim and (shown := _shown(key, value)) is not None and known(place, final := replace(key, aim="")) is None:
        _write(place, final, shown, used)
    if key.aim:
        value = {name: one for name, one in value.items() if name in ("aim", "error", "possible")}
    return _write(place, key, value, used)


def _shown(key: CellKey, value: dict[str, Any]) -> dict[str, Any] | None:
    """What a trial found that belongs in the table, had its setting been chosen; None if it has to be computed."""
    if "error" in value:
        return value
    return {name: one for name, one in value.items() if name != "aim"} if "numbers" in value else None


def _write(place: BenchPlace, key: CellKey, value: dict[str, Any], used: float) -> dict[str, Any]:
    path = key.path(place.root)
    make_folder(path.parent)
    write_json(path, {"method": key.spec, "seed": key.scenario.seed, "cpu_seconds": used, **value})
    return dict(read_json(path))  # in the order in which it will be read again


def _scenario(place: BenchPlace, key: CellKey) -> Scenario:
    """The cell's scenario; a method is not possible where the trainer that it needs refuses the problem."""
    try:
        return opened(place, key.scenario)
    except InputError as error:
        if key.method != NOTHING and trainer_for(key.method) is not None:
            raise NotPossible(str(error)) from error
        raise


def _measured(place: BenchPlace, scenario: Scenario, key: CellKey) -> dict[str, Any]:
    """The numbers of one method."""
    costly = set(key.metrics) & COSTLY.keys()
    found = scenario.retrained.get(key.method) if not costly else None  # these look at more than parameters
    found = found or unlearned(scenario, key.method)
    params, cost = found.params, found.cost
    tuned = {"aim": Judge(scenario, "validation").aim(params, key.aim)} if key.aim else {}
    if key.aim and costly:
        return tuned
    judge, numbers = Judge(scenario), dict[str, Any]()
    for name in key.metrics:
        if name in MEASURES:
            numbers |= MEASURES[name](judge, params)
        if name in COSTLY:
            numbers |= COSTLY[name](scenario, key.method, found, place.root, key.shadows)
    numbers |= {"up": cost.up, "down": cost.down, "rounds": cost.rounds, "operations": cost.flops}
    numbers |= {"seconds": cost.seconds, "seeds_apart": seeds_apart(scenario), "training_seconds": scenario.seconds}
    bad = [name for name, one in numbers.items() if isinstance(one, float) and not math.isfinite(one)]
    return {"numbers": {name: None if name in bad else one for name, one in numbers.items()}, **found.facts, **tuned}
