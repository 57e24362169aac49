"""Run an experiment: trials, then cells, and the trainings that they need; nothing twice."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

import msgspec

from probekit.arrays import Json, canonical_json
from probekit.bench.cells import Cell, Folders
from probekit.bench.experiment import TUNING_SEED, Experiment, Setting
from probekit.bench.tuning import best, trials
from probekit.extraction.loading import start_worker
from probekit.progress import Progress, Step, silent
from probekit.registry import configured

Each = Callable[[Callable[[Any], object], Sequence[object], str], None]
HEARTBEAT = 10.0
"""Seconds after which a stage says that it goes on."""
KEPT_BYTES = str(1 << 30)
WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": KEPT_BYTES,
    "MALLOC_TRIM_THRESHOLD_": KEPT_BYTES,
}
"""One thread; glibc keeps freed blocks, as in the command: clearing new ones takes networks as long
as their arithmetic."""


@dataclass(frozen=True)
class Row:
    """A method in a setting: what was chosen of so many trials, and its cells by seed.

    trials: how many are computed; 0 where there is no choice.
    """

    setting: Setting
    method: str
    chosen: str
    trials: int
    cells: dict[int, dict[str, Json]]


def run_experiment(
    experiment: Experiment, folders: Folders, *, jobs: int = 1, progress: Progress = silent
) -> list[Row]:
    """Every method of every setting. jobs: processes, of one thread each."""
    for setting in experiment.settings:
        for method in setting.methods:
            configured(method)  # refused here, before hours of work
    with worker_processes(jobs, progress) as each:
        _compute_missing(trial_cells(experiment), "trials", folders, each)
        _compute_missing(reported_cells(experiment, folders), "cells", folders, each)
    return read_rows(experiment, folders)


def trial_cells(experiment: Experiment) -> list[Cell]:
    """What is tried of each method, where there is a choice."""
    return [
        Cell(setting, TUNING_SEED, trial)
        for setting in experiment.settings
        for method in setting.methods
        for trial in trials(method, experiment.budget(setting))
        if len(trials(method, experiment.budget(setting))) > 1
    ]


def reported_cells(experiment: Experiment, folders: Folders) -> list[Cell]:
    return [
        Cell(setting, seed, chosen(setting, method, experiment.budget(setting), folders))
        for setting in experiment.settings
        for method in setting.rows_to_compute
        for seed in experiment.seeds
    ]


def recorded_cells(experiment: Experiment, folders: Folders) -> str:
    """The cells that are computed, trials too, each a line of JSON."""
    cells = [*trial_cells(experiment), *reported_cells(experiment, folders)]
    documents = [cell.read(folders) for cell in cells]
    return "".join(f"{canonical_json(cell)}\n" for cell in documents if cell is not None)


def selected(
    experiment: Experiment,
    settings: Sequence[str] = (),
    methods: Sequence[str] = (),
    further: Sequence[str] = (),
) -> Experiment:
    """Some settings of an experiment, with other methods, and with further ones."""
    parts = [
        msgspec.structs.replace(part, methods=(*(methods or part.methods), *further))
        for part in experiment.only(tuple(settings))
    ]
    return msgspec.structs.replace(experiment, settings=tuple(parts))


def read_rows(experiment: Experiment, folders: Folders) -> list[Row]:
    """What is computed of an experiment, `nothing` first in each setting."""
    rows = []
    for setting in experiment.settings:
        for method in setting.rows_to_compute:
            tried = read_trials(setting, method, experiment.budget(setting), folders)
            choice = best(tried) if tried else method
            cells = {seed: Cell(setting, seed, choice).read(folders) for seed in experiment.seeds}
            present = {seed: cell for seed, cell in cells.items() if cell is not None}
            rows.append(Row(setting, method, choice, len(tried), present))
    return rows


def read_trials(
    setting: Setting, method: str, budget: int, folders: Folders
) -> dict[str, dict[str, Json]]:
    """A method's trials that are computed; none where there is no choice."""
    names = trials(method, budget)
    if len(names) == 1:
        return {}
    cells = {name: Cell(setting, TUNING_SEED, name).read(folders) for name in names}
    return {name: cell for name, cell in cells.items() if cell is not None}


def chosen(setting: Setting, method: str, budget: int, folders: Folders) -> str:
    """The best of a method's trials that are computed; else the method as it is named."""
    tried = read_trials(setting, method, budget, folders)
    return best(tried) if tried else method


def _compute_missing(cells: Sequence[Cell], stage: str, folders: Folders, each: Each) -> None:
    """The cells that are not there, after the trainings that they need."""
    missing = [cell for cell in cells if cell.read(folders) is None]
    needed = {
        folders.training_folder(cell.setting, cell.seed): (cell.setting, cell.seed)
        for cell in missing
    }
    each(partial(_train, folders), list(needed.values()), f"trainings for {stage}")
    each(partial(_compute, folders), missing, stage)


def _train(folders: Folders, pair: tuple[Setting, int]) -> None:
    folders.training(*pair).write()


def _compute(folders: Folders, cell: Cell) -> None:
    cell.compute(folders)


@contextmanager
def worker_processes(jobs: int, progress: Progress = silent) -> Iterator[Each]:
    """A function that applies another to items, in processes of one thread that die with this.

    An interrupted one ends them at once: what they compute may take an hour.
    """
    context = multiprocessing.get_context("spawn")
    others = multiprocessing.active_children()
    before = {name: os.environ.get(name) for name in WORKER_ENVIRONMENT}
    os.environ.update(WORKER_ENVIRONMENT)  # read when a process starts
    try:
        with ProcessPoolExecutor(jobs, context, start_worker, (os.getpid(),)) as pool:

            def each(
                function: Callable[[Any], object], items: Sequence[object], stage: str
            ) -> None:
                pending = {pool.submit(function, item) for item in items}
                started = monotonic()
                try:
                    while pending:
                        finished, pending = wait(pending, HEARTBEAT, FIRST_COMPLETED)
                        for future in finished:
                            future.result()
                        minutes = (monotonic() - started) / 60
                        done = len(items) - len(pending)
                        progress(Step(stage, done, len(items), f"{minutes:.0f} min"))
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    for process in multiprocessing.active_children():
                        if process not in others:
                            process.terminate()
                    raise

            yield each
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
