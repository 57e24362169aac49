"""From options and rows to what was trained: the backend makes the problem, the trainer solves it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from probekit.errors import InputError
from probekit.federated.choice import Choice, choose
from probekit.federated.rows import check_rows
from probekit.federated.summation import StatisticsTree
from probekit.federated.trained import RoundState, Trained
from probekit.federated.training import train, trainer_named
from probekit.linear.ridge import penalty_of
from probekit.linear.spectrum import condition, effective_dimension
from probekit.linear.system import system_of
from probekit.linear.targets import TargetStats
from probekit.models.optimiser import Optimiser
from probekit.models.problem import backend_named
from probekit.protocols import Watch
from probekit.runs.checkpoint import TrainingCheckpoint, TrainingState
from probekit.runs.federation import federation_of
from probekit.runs.options import RENAMED, TrainOptions
from probekit.values import EmbeddingSet, Json, Partition

OPTIONS = {own: name for name, own in RENAMED.items()}

LONE_ROWS = (
    "This set has groups, and the ridge is chosen by leaving out single rows. Whole groups are left out with "
    '`partition="groups"`, or give a `ridge`.'
)


@dataclass(frozen=True, eq=False)
class Fitted:
    """What was trained, by which options in the end, and what is known of its system."""

    trained: Trained
    options: dict[str, Json]
    choice: Choice | None = None
    effective_dimension: float | None = None
    condition: float | None = None


def fit(
    options: TrainOptions,
    embeddings: EmbeddingSet,
    divided: Partition,
    checkpoint: TrainingCheckpoint,
    *,
    timings: dict[str, float],
    watch: Watch,
    note: Callable[[str], None] | None,
) -> Fitted:
    """Train as the options say; goes on from a checkpoint of the same training, if there is one."""
    backend, trainer = backend_named(options.backend), trainer_of(options)
    before = checkpoint.load(note)
    known = None if before is None else before.arrays
    with timed(timings, "prepare"):
        problem = backend.prepare(embeddings, divided, options, progress=watch("pretraining"), known=known)
    if before is None and problem.arrays:
        checkpoint.save(TrainingState(problem.arrays))
    if hasattr(trainer, "configure"):
        problem = trainer.configure(problem)
    check_rows(embeddings, divided, problem)
    clients = federation_of(problem, embeddings, divided)
    choice, ridge = None, options.number
    if ridge is None and getattr(trainer, "ridge", None) is None:
        ridge = None if options.auto else backend.ridge
        if ridge is None and "statistics" in problem.traits:
            with timed(timings, "choose the ridge"):
                whole = divided.scheme == "groups" and len(divided.clients) > 1  # then clients hold whole groups
                how = str(options.ridge or ("auto:clients" if whole else "auto"))
                if embeddings.groups is not None and how in ("auto", "auto:loo") and note is not None:
                    note(LONE_ROWS)
                choice = choose(clients, problem, how=how, scaling=options.scaling, seed=options.seed)

    def save(reached: RoundState) -> None:
        checkpoint.save(TrainingState(problem.arrays, reached))

    with timed(timings, "train"):
        trained = train(
            embeddings,
            divided,
            problem=problem,
            federation=clients,
            ridge=choice or ridge,
            method=trainer,
            scaling=options.scaling,
            keep=options.keep,
            objective_noise=options.objective_noise,
            watch=watch,
            resume=None if before is None or options.keep_history else before.rounds,
            save=save,
        )
    dimension, number = _spectrum(trained, choice)
    return Fitted(trained, _resolved(options, trainer, trained), choice, dimension, number)


def trainer_of(options: TrainOptions) -> Any:
    """The trainer that the options name, with those of them that are its own."""
    trainer = trainer_named(options.method or backend_named(options.backend).trainer)
    names = {one.name: OPTIONS.get(one.name, one.name) for one in fields(trainer)}
    given: dict[str, Any] = {own: getattr(options, name, None) for own, name in names.items()}
    given = {own: value for own, value in given.items() if value is not None and own != "ridge"}
    if options.preset is not None:
        if not hasattr(trainer, "preset"):
            raise InputError(f"Training by {trainer.name} has no preset; found `preset={options.preset}`.")
        trainer = trainer.preset(options.preset)
    if "optimiser" in given:
        given["optimiser"] = Optimiser(str(given["optimiser"]))
    if "local_steps" in given or "local_epochs" in given:
        given = {"local_steps": None, "local_epochs": None, **given}
    if options.ridge is not None and "ridge" in names:
        given["ridge"] = None  # the preset's own gives way
    weight = given.get("class_weight")
    if isinstance(weight, str) and weight != "balanced":
        given["class_weight"] = _numbers(weight)
    return replace(trainer, **given)


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        wanted = '"balanced" or one number per class with commas between'
        raise InputError(f"Class weights are {wanted}; found {text!r}.") from None


def _spectrum(trained: Trained, choice: Choice | None) -> tuple[float | None, float | None]:
    """Effective dimension and condition number of the system, where its statistics are at hand."""
    if choice is not None:
        return choice.effective_dimension, choice.condition
    if trained.statistics is None or trained.rounds > 1:
        return None, None
    problem, total = trained.problem, StatisticsTree.of(trained.statistics).total
    if isinstance(total, TargetStats):
        total = max((one for _, one in total.label_groups()), key=lambda one: one.count)
    system = system_of(total, standardise=problem.standardise, class_weight=problem.class_weight)
    values = np.linalg.eigvalsh(system.gram)
    penalty = penalty_of(trained.ridge, trained.scaling, system.weight)
    found = condition(values, penalty)
    return effective_dimension(values, penalty), found if math.isfinite(found) else None


def _resolved(options: TrainOptions, trainer: Any, trained: Trained) -> dict[str, Json]:
    """The options with all filled in that they had left open, but a learning rate, which depends on every row."""
    given = {OPTIONS.get(one.name, one.name): getattr(trainer, one.name) for one in fields(trainer)}
    plain = (str, float, int, type(None))
    own: dict[str, Json] = {k: v for k, v in given.items() if hasattr(options, k) and isinstance(v, plain)}
    if hasattr(trainer, "optimiser"):
        own["optimiser"] = trainer.optimiser.name
    design = getattr(trained.problem, "design", None)
    more: dict[str, Json] = {} if design is None else {"intercept": design.intercept, "grid": design.grid}
    return {
        **options.plain,
        **own,
        "method": trainer.name,
        "clients": len(trained.counts),
        "ridge": trained.ridge,
        "ridge_by": options.ridge if options.ridge is not None else "default",
        "scaling": trained.scaling,
        "keep": next((one for one in ("statistics", "gradients") if trained.has(one)), "nothing"),
        **more,
    }


@contextmanager
def timed(timings: dict[str, float], what: str) -> Iterator[None]:
    """Note how long this took."""
    began = time.perf_counter()
    yield
    timings[what] = round(time.perf_counter() - began, 4)
