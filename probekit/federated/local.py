"""Local training of a client: one loop over batches, whatever the model and whatever the loss."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import numpy as np

from probekit.arrays import Array, Indices
from probekit.errors import InputError
from probekit.federated.client import ClientData
from probekit.objective import Objective, Penalty
from probekit.records import record

BATCH_STREAM = 22
TINY = 1e-300
DIVERGED = 1e50


def check_positive(options: object, *names: str) -> None:
    """Refuse options that must be above 0 and are not."""
    for name in names:
        value = vars(options)[name]
        if value is not None and not value > 0:
            raise InputError(f"{name} must be above 0; found {value}. Write {name}=NUMBER.")


class Stepper(Protocol):
    """An optimizer's memory within one round."""

    def step(self, params: Array, gradient: Array, rate: float) -> Array: ...


class Optimizer(Protocol):
    """An optimizer's options; every round begins with a fresh memory."""

    def fresh(self) -> Stepper: ...


@record("optimizer/sgd")
@dataclass(frozen=True)
class Sgd:
    """Gradient steps with heavy-ball momentum."""

    momentum: float = 0.0

    def fresh(self) -> Stepper:
        return _SgdStepper(self)


@dataclass
class _SgdStepper:
    options: Sgd
    velocity: Array | float = 0.0

    def step(self, params: Array, gradient: Array, rate: float) -> Array:
        self.velocity = self.options.momentum * self.velocity + gradient
        return params - rate * self.velocity


@record("optimizer/adam")
@dataclass(frozen=True)
class Adam:
    """Adam with bias correction."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def fresh(self) -> Stepper:
        return _AdamStepper(self)


@dataclass
class _AdamStepper:
    options: Adam
    mean: Array | float = 0.0
    square: Array | float = 0.0
    steps: int = 0

    def step(self, params: Array, gradient: Array, rate: float) -> Array:
        options = self.options
        gradient = gradient + options.weight_decay * params
        self.steps += 1
        self.mean = options.beta1 * self.mean + (1 - options.beta1) * gradient
        self.square = options.beta2 * self.square + (1 - options.beta2) * gradient**2
        scale = np.sqrt(self.square / (1 - options.beta2**self.steps)) + options.epsilon
        return params - rate / (1 - options.beta1**self.steps) * self.mean / scale


@record("local-plan")
@dataclass(frozen=True)
class LocalPlan:
    """How a client trains in a round: `steps` or `epochs`, of all rows without a batch size.

    rate: None leaves it to the trainer; a negative rate climbs.
    drop_last: leave out the rows of an epoch that fill no batch.
    clip: a bound of a gradient's norm. radius: one of the distance from the start.
    The rows of a batch follow from seed, round and the client's name alone.
    """

    rate: float | None = None
    steps: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    drop_last: bool = False
    optimizer: Optimizer = field(default_factory=Sgd)
    clip: float | None = None
    radius: float | None = None
    seed: int = 0
    round: int = 0

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise InputError(
                f"A plan has steps or epochs; found {self.steps} and {self.epochs}. Set one."
            )
        check_positive(self, "steps", "epochs", "batch_size")
        if self.seed < 0 or self.round < 0:
            raise InputError(
                f"Seed and round must be 0 or more; found {self.seed} and {self.round}. Raise them."
            )
        if self.rate is not None and not math.isfinite(self.rate):
            raise InputError(f"rate (fedavg:rate=1e-3) must be a finite number; found {self.rate}.")

    def shortened(self, ratio: float) -> Self:
        """A share of the steps or epochs, rounded up."""
        if self.steps is not None:
            return replace(self, steps=math.ceil(ratio * self.steps))
        return replace(self, epochs=math.ceil(ratio * (self.epochs or 1)))

    def generator(self, client: str, stream: int = BATCH_STREAM) -> np.random.Generator:
        """The random numbers of a client in this round; each use of them is a stream."""
        key = int.from_bytes(hashlib.sha256(client.encode()).digest()[:8], "little")
        return np.random.Generator(np.random.PCG64([self.seed, stream, self.round, key]))

    def step_count(self, count: int) -> int:
        """The steps that so many rows take."""
        return self.steps or (self.epochs or 0) * self._per_epoch(count)

    def _per_epoch(self, count: int) -> int:
        if self.batch_size is None:
            return 1
        whole, remainder = divmod(count, self.batch_size)
        return max(1, whole) if self.drop_last else whole + (remainder > 0)

    def batches(self, count: int, client: str) -> Iterator[Indices | None]:
        """The rows of every step; None: all of them."""
        steps = self.step_count(count)
        if self.batch_size is None:
            yield from [None] * steps
            return
        generator = self.generator(client)
        per_epoch = self._per_epoch(count)
        for step in range(steps):
            if step % per_epoch == 0:
                order = generator.permutation(count)
            first = step % per_epoch * self.batch_size
            yield order[first : first + self.batch_size]


def check_work(plan: LocalPlan, client: ClientData, parameters: int) -> None:
    """Refuse local training that would take longer, or tell of fewer rows, than a client agrees to.

    After a step on a batch of one the parameters show that row.
    """
    rows = min(plan.batch_size or client.count, client.count)
    steps = plan.step_count(client.count)
    if steps * rows * parameters > client.limits.work:
        raise InputError(
            f"Client {client.name} trains for at most {client.limits.work:g} (steps x rows x "
            f"parameters) a round; {steps} x {rows} x {parameters} were asked for. Lower the "
            "steps, or ask its owner to raise the limit."
        )
    if rows < client.limits.min_rows:
        raise InputError(
            f"Client {client.name} answers about {client.limits.min_rows} rows or more; batches of "
            f"{rows} were asked for. Raise the batch size, or ask its owner to lower the limit."
        )


class LocalLoss(Protocol):
    """What a client descends: a mean over its rows, penalty included."""

    @property
    def count(self) -> int: ...
    def gradient(self, params: Array) -> Array: ...
    def batch(self, indices: Indices) -> LocalLoss: ...


class LossRecipe(Protocol):
    """How a client makes its local loss: a record that travels with the query."""

    def local_loss(self, client: ClientData, plan: LocalPlan) -> LocalLoss: ...


class LossChange(Protocol):
    """A recipe that descends the training loss by another gradient."""

    def gradient(self, training: LocalLoss, params: Array) -> Array: ...


@dataclass(frozen=True, eq=False)
class ChangedLoss:
    """A training loss as a recipe changes it."""

    recipe: LossChange
    training: LocalLoss

    @property
    def count(self) -> int:
        return self.training.count

    def gradient(self, params: Array) -> Array:
        return self.recipe.gradient(self.training, params)

    def batch(self, indices: Indices) -> ChangedLoss:
        return ChangedLoss(self.recipe, self.training.batch(indices))


@dataclass(frozen=True, eq=False)
class Penalized:
    """The mean of an objective, and the penalty."""

    objective: Objective
    penalty: Penalty

    @property
    def count(self) -> int:
        return self.objective.count

    def gradient(self, params: Array) -> Array:
        gradient = self.objective.value_and_gradient(params)[1] / self.objective.weight
        return gradient + self.penalty.gradient(params)

    def batch(self, indices: Indices) -> Penalized:
        return Penalized(self.objective.batch(indices), self.penalty)


@record("recipe/training-loss")
@dataclass(frozen=True)
class TrainingLoss:
    """The model's loss on the client's rows, as in training."""

    ridge: float

    def local_loss(self, client: ClientData, plan: LocalPlan) -> Penalized:
        return Penalized(client.objective, Penalty(client.model, self.ridge))


def train_locally(loss: LocalLoss, start: Array, plan: LocalPlan, client: str) -> Array:
    """The parameters after a plan's steps; refuses to return a diverged result."""
    if plan.rate is None:
        raise InputError("Local training needs a rate; found none. Pass one (fedavg:rate=1e-3).")
    params = start
    stepper = plan.optimizer.fresh()
    with np.errstate(over="ignore", invalid="ignore"):  # divergence is refused below
        for indices in plan.batches(loss.count, client):
            part = loss if indices is None else loss.batch(indices)
            gradient = part.gradient(params)
            if plan.clip is not None:
                norm = max(float(np.linalg.norm(gradient)), TINY)
                gradient = gradient * min(1.0, plan.clip / norm)
            params = stepper.step(params, gradient, plan.rate)
            if plan.radius is not None:
                params = project(params, start, plan.radius)
    if not (np.abs(params) < DIVERGED).all():
        raise InputError(
            f"Local training must end with finite parameters; that of client {client} diverged at "
            f"rate {plan.rate:g}. Lower it (fedavg:rate=1e-3)."
        )
    return params


def project(params: Array, center: Array, radius: float) -> Array:
    """The nearest point of a ball."""
    distance = float(np.linalg.norm(params - center))
    if distance <= radius:
        return params
    return center + (params - center) * (radius / distance)
