"""From options and rows to what was trained: the backend makes the problem, the trainer solves it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from probekit.errors import InputError
from probekit.federated.attendance import ClientsLeft
from probekit.federated.choice import Choice, choose
from probekit.federated.federation import Missing
from probekit.federated.rows import check_classes, check_rows
from probekit.federated.summation import StatisticsTree
from probekit.federated.trained import RoundState, Trained
from probekit.federated.training import train, trainer_named, with_recipe
from probekit.linear.ridge import penalty_of
from probekit.linear.spectrum import condition, effective_dimension
from probekit.linear.system import system_of
from probekit.linear.targets import TargetStats
from probekit.models.optimiser import Optimiser
from probekit.models.problem import backend_named
from probekit.protocols import Watch
from probekit.runs.checkpoint import TrainingCheckpoint, TrainingState
from probekit.runs.federation import close
from probekit.runs.options import RENAMED, TrainOptions
from probekit.runs.training_rows import TrainingRows
from probekit.values import Json

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
    missing: Mapping[str, Missing] = field(default_factory=dict)
    clients: Any = None
    """Whoever was asked."""


def fit(
    options: TrainOptions,
    rows: TrainingRows,
    checkpoint: TrainingCheckpoint,
    *,
    timings: dict[str, float],
    watch: Watch,
    note: Callable[[str], None] | None,
    opened: ExitStack,
) -> Fitted:
    """Train as the options say; goes on from a checkpoint of the same training, if there is one.

    opened: what closes the clients, once nobody asks them any more.
    """
    backend, trainer = backend_named(options.backend), trainer_of(options)
    before = checkpoint.load(note)
    known = None if before is None else before.arrays
    with timed(timings, "prepare"):
        look, start = watch("pretraining"), getattr(trainer, "init", options.init)  # which a preset may have
        how = replace(options, init=start) if options.init != start and options.preset else options
        problem = rows.settled(backend.prepare(rows.embeddings, rows.partition, how, progress=look, known=known))
    if before is None and problem.arrays:
        checkpoint.save(TrainingState(problem.arrays))
    if hasattr(trainer, "configure"):
        problem = trainer.configure(problem)
    if rows.party is None:
        check_rows(rows.embeddings, rows.partition, problem)
    opened.callback(close, rows.party)
    clients = rows.clients(problem, options)
    opened.callback(close, clients)
    work = _Work(options, rows, problem, trainer, clients, checkpoint, timings, watch, note)
    # clients elsewhere gave answers that are kept: the same questions, from the first, find them
    trained, ridge = work.done(None if before is None or rows.party is not None else before.rounds)
    choice = ridge if isinstance(ridge, Choice) else None
    dimension, number = _spectrum(trained, choice)
    missing = getattr(clients, "missing", {})
    return Fitted(trained, _resolved(options, trainer, trained), choice, dimension, number, missing, clients)


@dataclass(eq=False)
class _Work:
    """A training, from the choice of its ridge to its end; where clients leave, the others do it again."""

    options: TrainOptions
    rows: TrainingRows
    problem: Any
    trainer: Any
    clients: Any
    checkpoint: TrainingCheckpoint
    timings: dict[str, float]
    watch: Watch
    note: Callable[[str], None] | None
    reached: RoundState | None = None

    def done(self, before: RoundState | None) -> tuple[Trained, Choice | float | None]:
        """What was trained, and by which ridge; goes on after these rounds."""
        left: list[str] = []
        self.reached = before
        while True:
            try:
                ridge = self._ridge()
                trained = self._trained(ridge)
                break
            except ClientsLeft as error:
                rounds = 0 if self.reached is None or self.options.keep_history else self.reached.rounds
                left += [f"{error} It was in the first {rounds} rounds."] * bool(rounds)
                if self.note is not None:
                    self.note(f"{error} The others go on.")
        if self.rows.party is not None:
            _check_answered(trained, self.rows)
        return _noted(trained, left), ridge

    def _save(self, now: RoundState) -> None:
        self.reached = now
        if self.rows.party is None:
            self.checkpoint.save(TrainingState(self.problem.arrays, now))

    def _trained(self, ridge: Choice | float | None) -> Trained:
        options = self.options
        with timed(self.timings, "train"):
            return train(
                self.rows.embeddings,
                self.rows.partition,
                problem=self.problem,
                federation=self.clients,
                ridge=ridge,
                method=self.trainer,
                scaling=options.scaling,
                keep=options.keep,
                objective_noise=options.objective_noise,
                watch=self.watch,
                resume=None if options.keep_history else self.reached,
                save=self._save,
            )

    def _ridge(self) -> Choice | float | None:
        """The one that was given, the usual one, or one that is chosen by asking the clients."""
        options, rows, ridge = self.options, self.rows, self.options.number
        if ridge is not None or getattr(self.trainer, "ridge", None) is not None:
            return ridge
        usual = None if options.auto else backend_named(options.backend).ridge
        if usual is not None or "statistics" not in self.problem.traits:
            return usual
        with timed(self.timings, "choose the ridge"):
            divided = rows.partition
            whole = divided.scheme == "groups" and len(divided.clients) > 1  # then clients hold whole groups
            how = str(options.ridge or ("auto:clients" if whole else "auto"))
            grouped = rows.party is None and rows.embeddings.groups is not None
            if grouped and how in ("auto", "auto:loo") and self.note is not None:
                self.note(LONE_ROWS)
            return choose(self.clients, self.problem, how=how, scaling=options.scaling, seed=options.seed)


def _check_answered(trained: Trained, rows: TrainingRows) -> None:
    """Refuse classes that nobody has a row of, where statistics say how many there are."""
    if trained.statistics is not None and "targets" not in trained.problem.traits:
        total = StatisticsTree.of(trained.statistics).total
        check_classes(total.class_counts, trained.head.classes, own=rows.embeddings.labels[rows.partition.server])


def _noted(trained: Trained, remarks: list[str]) -> Trained:
    """The same with remarks on how it was solved."""
    if not remarks:
        return trained
    note = " ".join(filter(None, (trained.solution.note, *remarks)))
    return with_recipe(replace(trained, solution=replace(trained.solution, note=note)), {"note": note})


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


def trainer_again(config: Mapping[str, Any]) -> Any:
    """The trainer that a run was trained by."""
    return trainer_of(TrainOptions.of({**config, "ridge": None, "keep": None}))


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
        "method": _spec(trainer, options),
        "clients": len(trained.counts),
        "ridge": trained.ridge,
        "ridge_by": options.ridge if options.ridge is not None else "default",
        "scaling": trained.scaling,
        "keep": next((one for one in ("statistics", "gradients") if trained.has(one)), "nothing"),
        **more,
    }


def _spec(trainer: Any, options: TrainOptions) -> str:
    """The name of a trainer, with those options of its own that a run's do not say."""
    known = {one.name for one in fields(trainer) if hasattr(options, OPTIONS.get(one.name, one.name))}
    own = [one for one in fields(trainer) if one.name not in known and one.init and one.repr]
    usual = {one.name: one.default for one in own}
    if options.preset is not None:
        usual |= {one.name: getattr(trainer.preset(options.preset), one.name) for one in own}
    given = [f"{name}={value}" for name, first in usual.items() if (value := getattr(trainer, name)) != first]
    return f"{trainer.name}:{','.join(given)}" if given else str(trainer.name)


@contextmanager
def timed(timings: dict[str, float], what: str) -> Iterator[None]:
    """Note how long this took."""
    began = time.perf_counter()
    yield
    timings[what] = round(time.perf_counter() - began, 4)
