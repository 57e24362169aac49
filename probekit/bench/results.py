"""The outcome of an experiment as one JSON: all that repeats it, every cell, and means over seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from probekit import __version__
from probekit.bench.cells import origin
from probekit.bench.costly import MOST_ROUNDS
from probekit.bench.forgetting import NOTHING
from probekit.bench.published import Published, beside, published, source
from probekit.bench.running import BenchRun
from probekit.bench.scenario import SCHEMA
from probekit.errors import CorruptError, InputError, NotFoundError
from probekit.unlearning.method import method, needs_in_words

FILE = "result.json"
MOST = {"relearn_rounds": MOST_ROUNDS}
"""Where measuring stops: what is told is then a lower bound."""


@dataclass(frozen=True)
class Mean:
    """The mean over seeds with its standard error; None of one seed. `bound`: some seed stopped at the most."""

    value: float
    error: float | None
    seeds: int
    bound: bool = False


@dataclass(frozen=True)
class TableRow:
    """What came of one method in one setting: means over seeds, or why there are none."""

    setting: str
    method: str
    spec: str
    means: Mapping[str, Mean]
    facts: Mapping[str, Any]
    errors: tuple[str, ...]
    published: tuple[tuple[float, float | None], ...] = ()
    possible: bool = True

    def mean(self, name: str) -> float | None:
        """One measure's mean."""
        return self.means[name].value if name in self.means else None


@dataclass(frozen=True)
class BenchResult:
    """An experiment's outcome. `plain` is what its JSON says."""

    plain: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The experiment's."""
        return str(self.plain["experiment"]["name"])

    @property
    def settings(self) -> list[str]:
        """In the order of the experiment."""
        return [str(one["name"]) for one in self.plain["experiment"]["settings"]]

    @cached_property
    def rows(self) -> tuple[TableRow, ...]:
        """Every line of every table."""
        return tuple(self._rows())

    def of(self, setting: str) -> list[TableRow]:
        """The lines of one setting."""
        return [row for row in self.rows if row.setting == setting]

    def row(self, setting: str, name: str) -> TableRow:
        """The line of one method."""
        found = [row for row in self.of(setting) if row.method == name]
        if not found:
            raise NotFoundError(f"{self.name} has no line {name!r} in {setting!r}.")
        return found[0]

    @property
    def failed(self) -> list[TableRow]:
        """Lines in which a cell failed."""
        return [row for row in self.rows if row.errors and row.possible]

    def _rows(self) -> Iterator[TableRow]:
        told = {one["name"]: _published_of(one) for one in self.plain["published"]}
        for line in self.plain["lines"]:
            cells = line["cells"]
            numbers = [cell["numbers"] for cell in cells if "numbers" in cell]
            names = dict.fromkeys(name for one in numbers for name in one)
            means = {
                name: mean([one[name] for one in numbers if one.get(name) is not None], MOST.get(name, math.inf))
                for name in names
            }
            facts: dict[str, Any] = next((cell for cell in cells if "numbers" in cell), {})
            errors = tuple(dict.fromkeys(cell["error"] for cell in cells if "error" in cell))
            named = line["method"].partition(":")[0]
            yield TableRow(
                line["setting"],
                line["method"],
                line["spec"],
                {name: one for name, one in means.items() if one is not None},
                {name: value for name, value in facts.items() if name != "numbers"},
                errors,
                told.get(line["setting"], {}).get(line["method"], told.get(line["setting"], {}).get(named, ())),
                all(cell.get("possible", True) for cell in cells),
            )


def grouped(rows: Sequence[TableRow]) -> list[tuple[str, str]]:
    """The names of methods that failed alike, and why."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.errors:
            found.setdefault(row.errors[0], []).append(row.method)
    return [(", ".join(names), error) for error, names in found.items()]


def mean(values: Sequence[float], most: float = math.inf) -> Mean | None:
    """The mean of some seeds; None of none. Measuring stopped at `most`: where a seed did, it is a lower bound."""
    if not values:
        return None
    centre = math.fsum(values) / len(values)
    if len(values) == 1:
        return Mean(centre, None, 1, centre >= most)
    spread = math.sqrt(math.fsum((one - centre) ** 2 for one in values) / (len(values) - 1))
    return Mean(centre, spread / math.sqrt(len(values)), len(values), max(values) >= most)


def result_of(run: BenchRun) -> BenchResult:
    """The outcome of a run, of its cached cells alone: the same cells give the same bytes."""
    experiment = run.experiment
    lines = []
    for line in run.lines():
        where = (line.setting.name, line.method)
        tried = run.tuned.get(where, {})
        cells = [run.cells[(*where, seed)] for seed in experiment.seeds if (*where, seed) in run.cells]
        lines.append(
            {
                "setting": line.setting.name,
                "method": line.method,
                "spec": run.chosen(line),
                "trainer": line.keys[0].setting.model.trainer,
                "tried": [{"spec": spec, "aim": tried.get(spec)} for spec in line.tried if spec in tried],
                "cells": cells,
            }
        )
    plain = {
        "schema": SCHEMA,
        "probekit": __version__,
        "experiment": asdict(experiment),
        "data": dict(run.data),
        "methods": {name: _about(name) for name in sorted({str(line["method"]) for line in lines} - {NOTHING})},
        "left_out": {one.name: left for one in experiment.settings if (left := experiment.left_out(one))},
        "published": [
            {"name": one.name, "source": source(one.published), "values": published(one.published)}
            for one in experiment.settings
            if one.published.key or one.published.values
        ],
        "beside": [beside(key) for key in experiment.beside],
        "lines": lines,
    }
    return BenchResult(json.loads(json.dumps(plain)))


def read_result(path: Path) -> BenchResult:
    """The outcome in a file, or in a folder that a run wrote."""
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise NotFoundError(f"There is no {file}. `probekit bench run NAME --out {path}` writes one.")
    try:
        plain = json.loads(file.read_text(encoding="utf-8"))
        return BenchResult({**plain, "lines": plain["lines"], "experiment": plain["experiment"]})
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"{file} is not the outcome of an experiment ({error}). Run it again.") from error


def refuse_other_schema(result: BenchResult) -> None:
    """Refuse an outcome that another version of the benchmark wrote in other words."""
    if result.plain.get("schema") != SCHEMA:
        raise InputError(f"This outcome has schema {result.plain.get('schema')}; {SCHEMA} is read. Run it again.")


def _about(name: str) -> dict[str, Any]:
    """What a method is, declared: its source, where it comes from, what it needs."""
    found = method(name)
    return {"source": getattr(found, "source", ""), "origin": origin(name), "needs": list(needs_in_words(found))}


def _published_of(one: Mapping[str, Any]) -> Published:
    return {name: tuple((pair[0], pair[1]) for pair in row) for name, row in one["values"].items()}
