"""A run of an experiment: its rows, its scenarios, tuning on the first seed, then every method on every seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from probekit.bench.cells import BenchPlace, CellKey, compute, known, opened
from probekit.bench.costly import COSTLY
from probekit.bench.estimate import TimeEstimate, estimate
from probekit.bench.experiment import BenchSetting, Experiment
from probekit.bench.forgetting import NOTHING
from probekit.bench.pairs import setting_for
from probekit.bench.rows import bring
from probekit.bench.scenario import ScenarioKey, folder_of
from probekit.bench.tuning import best, trials
from probekit.bench.workers import Task, carry_out
from probekit.errors import ProbekitError

Look = Callable[[int, int, str], None]
"""Called with how many cells are done, of how many, and what was done last."""


@dataclass(frozen=True)
class Line:
    """One line of a table: a setting and a method as asked for."""

    setting: BenchSetting
    method: str
    keys: tuple[ScenarioKey, ...]
    tried: tuple[str, ...]


@dataclass(eq=False)
class BenchRun:
    """All that an experiment computes, and what of it is done."""

    experiment: Experiment
    place: BenchPlace
    note: Callable[[str], None] = lambda text: None
    again: bool = False
    data: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    cells: dict[tuple[str, str, int], dict[str, Any]] = field(default_factory=dict)
    tuned: dict[tuple[str, str], dict[str, float | None]] = field(default_factory=dict)

    def lines(self) -> list[Line]:
        """Every line of every table; the rows are brought on the way."""
        found = []
        tune = self.experiment.tune
        for setting in self.experiment.settings:
            if setting.name not in self.data:
                rows = bring(setting, self.place.store, self.note)
                self.data[setting.name] = rows.digest
                self.sizes[rows.digest] = (len(rows.clean), rows.clean.dimension)
            for name in (NOTHING, *self.experiment.methods_of(setting)):
                own = setting if name == NOTHING else setting_for(name, setting)
                keys = tuple(ScenarioKey(own, seed, self.data[setting.name]) for seed in self.experiment.seeds)
                before = tune.reused.get(setting.name, {}).get(name)
                tried = () if name == NOTHING else (before,) if before else trials(name, tune.budget)
                found.append(Line(setting, name, keys, tried))
        return found

    def estimate(self) -> TimeEstimate:
        """How long what is not there yet will take on one core."""
        scenarios, cells, free = dict[str, ScenarioKey](), list[CellKey](), set[str]()
        cheap = not set(self.experiment.metrics) & COSTLY.keys()
        for line in self.lines():
            scenarios |= {key.digest: key for key in line.keys}
            tried = list(self._trials(line))
            for key in tried:  # where all are known, so is what they choose
                self.tuned.setdefault((line.setting.name, line.method), {})[key.method] = self._aim(key)
            shown = self._final(line)
            free |= {shown[0].digest} if tried and cheap else set()  # a trial measures it on the way
            cells += [*tried, *shown]
        todo = [key for key in scenarios.values() if not folder_of(self.place.root, key).is_dir()]
        found = [(key, known(self.place, key)) for key in cells]
        lacking = [key for key, one in found if one is None]
        costly = [key for key in lacking if key.digest not in free]
        done = [(key, float(one["cpu_seconds"])) for key, one in found if one is not None and "error" not in one]
        seconds = estimate(self.place, todo, costly, self.sizes, done)
        return TimeEstimate(len(cells), len(lacking), len(todo), seconds)

    def run(self, *, jobs: int = 1, look: Look = lambda done, total, what: None) -> None:
        """Compute what is not there yet."""
        lines = self.lines()
        total = sum(len(line.keys) + (len(line.tried) if len(line.tried) > 1 else 0) for line in lines)
        counted = 0
        tasks, lacking = list[Task](), {one.name: one for one in self._scenarios(lines)}
        waiting = {(line.setting.name, line.method): len(line.tried) for line in lines}
        by_task: dict[str, tuple[Line, CellKey]] = {}

        def add(line: Line, keys: Sequence[CellKey]) -> list[Task]:
            made = []
            for key in keys:
                name = f"cell {line.setting.name} {line.method} {key.digest}"
                task = Task(name, compute_cell, (self.place, key, self.again), self._after(key))
                by_task[task.name] = (line, key)
                made.append(task)
            return made

        def done(task: Task, value: Any) -> Sequence[Task]:
            nonlocal counted
            if task.name not in by_task:
                return ()
            counted += 1
            line, key = by_task[task.name]
            where = (line.setting.name, line.method)
            look(counted, total, f"{line.setting.name}: {key.method}, seed {key.scenario.seed}")
            if key.aim:
                self.tuned.setdefault(where, {})[key.method] = value.get("aim")
                waiting[where] -= 1
                return add(line, self._final(line)) if not waiting[where] else ()
            self.cells[(*where, key.scenario.seed)] = value
            return ()

        for line in lines:  # each scenario just before what needs it first
            wanted = [f"scenario {key.digest}" for key in line.keys]
            tasks += [lacking.pop(name) for name in wanted if name in lacking]
            tasks += add(line, list(self._trials(line)) or self._final(line))
        carry_out(tasks, done, jobs=jobs)

    def chosen(self, line: Line) -> str:
        """The method with the options that tuning chose."""
        tried = self.tuned.get((line.setting.name, line.method))
        if not tried:
            return line.tried[0] if line.tried else NOTHING
        return best({spec: tried[spec] for spec in line.tried})

    def _final(self, line: Line) -> list[CellKey]:
        return list(self._cells(line, self.chosen(line)))

    def _aim(self, key: CellKey) -> float | None:
        """What a trial came to; None: it failed, or is not there yet."""
        value: float | None = (known(self.place, key) or {}).get("aim")
        return value

    def _cells(self, line: Line, spec: str) -> Iterator[CellKey]:
        about = self.experiment
        yield from (CellKey(key, spec, about.metrics, shadows=self._shadows) for key in line.keys)

    def _trials(self, line: Line) -> Iterator[CellKey]:
        if len(line.tried) > 1:
            about, key = self.experiment, line.keys[0]
            yield from (CellKey(key, spec, about.metrics, about.tune.aim, self._shadows) for spec in line.tried)

    @property
    def _shadows(self) -> tuple[int, int]:
        return self.experiment.shadows, self.experiment.closed_shadows

    def _scenarios(self, lines: Sequence[Line]) -> list[Task]:
        """Those that some cell lacks."""
        wanted = {key.digest: key for line in lines for key in line.keys}
        lacking = [key for key in wanted.values() if not folder_of(self.place.root, key).is_dir()]
        return [Task(f"scenario {key.digest}", make_scenario, (self.place, key)) for key in lacking]

    def _after(self, key: CellKey) -> frozenset[str]:
        there = folder_of(self.place.root, key.scenario).is_dir() or known(self.place, key) is not None
        return frozenset() if there else frozenset({f"scenario {key.scenario.digest}"})


def compute_cell(place: BenchPlace, key: CellKey, again: bool) -> dict[str, Any]:
    """A cell, in a process of its own."""
    return compute(place, key, again=again)


def make_scenario(place: BenchPlace, key: ScenarioKey) -> str:
    """A scenario, in a process of its own; why there is none, where it failed: its cells will say so, too."""
    try:
        opened(place, key)
    except ProbekitError as error:
        return str(error)
    return ""
