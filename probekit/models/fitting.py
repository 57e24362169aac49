"""How a client trains on its own rows: a plan of local steps, the order of its batches, and the loop over them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np

from probekit.errors import InputError
from probekit.models.optimiser import Optimiser
from probekit.values import Array, Indices, Json

BATCH_STREAM, LABEL_STREAM = 22, 23
TARGETS = ("own", "random", "random-batch", "false", "uniform", "teacher")
LOSSES = ("own", "bounded")


Drawn = Callable[[Indices], Array]
"""From the numbers of some rows to what they are trained to, (rows, classes); called once a step, in order."""


@dataclass(frozen=True)
class Noise:
    """Noise on the inputs: `draws` for each row, of a size drawn from `low` to `high` (of a column's own: `relative`).

    `reduce` "sum" adds up the rows of a batch instead of their mean; `detach` takes the noisy side for constant.
    """

    draws: int = 20
    low: float = 0.05
    high: float = 1.0
    relative: bool = False
    reduce: str = "mean"
    detach: bool = False


@dataclass(frozen=True)
class FitPlan:
    """Local training. One of `steps` and `epochs` is given; without a `batch` every step takes all rows.

    `ridge` is in mean scaling. `sign` -1 climbs the loss instead. `clip` is the largest norm of a gradient, `ball`
    the largest distance from the array "centre" of the question, `stop` ends once the parameters are that far from the
    array "away" (without them: from the start). The arrays "importance" and "anchor" (without it: the start) pull every
    parameter back, whatever the sign; a parameter whose "mask" is 0 stays. The order of batches follows from `seed`,
    `stream`, `round` and the client's name alone, as do drawn labels.

    `targets`: the rows' "own" labels, a "random" one for each row, a "false" one (random, not its own), one for each
    batch ("random-batch"), "uniform" (1 / k), or what the "teacher" (an array of parameters) gives. `loss`: the
    problem's own, or "bounded" from above (of cross-entropy), which may be climbed forever.

    `tells_loss`: whether the answer has the loss at the start, which takes a pass over the rows of its own.

    With a `rank`, adapters on `layers` are trained instead (array "adapter"); with `noise`, blindness to a part of the
    inputs (array "region" or "pairs").
    """

    steps: int | None = None
    epochs: int | None = None
    batch: int | None = None
    drop_last: bool = False
    optimiser: Optimiser = field(default_factory=Optimiser)
    rate: float = 1.0
    ridge: float = 0.0
    sign: float = 1.0
    clip: float | None = None
    ball: float | None = None
    stop: float | None = None
    targets: str = "own"
    loss: str = "own"
    rank: int | None = None
    layers: tuple[str, ...] = ()
    noise: Noise | None = None
    tells_loss: bool = True
    seed: int = 0
    stream: int = BATCH_STREAM
    round: int = 0

    def __post_init__(self) -> None:
        for value, known in ((self.targets, TARGETS), (self.loss, LOSSES)):
            if value not in known:
                raise InputError(f"Local training knows {', '.join(known)}; found {value!r}.")
        object.__setattr__(self, "layers", tuple(self.layers))
        if isinstance(self.noise, dict):
            object.__setattr__(self, "noise", Noise(**self.noise))

    @property
    def plain(self) -> dict[str, Json]:
        """The plan in plain values; what is left at its default is not in it."""
        usual = asdict(FitPlan())
        return {name: value for name, value in asdict(self).items() if value != usual[name]}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """The plan that these values describe."""
        values = dict(plain)
        try:
            if "optimiser" in values:
                given = dict(values["optimiser"])
                values["optimiser"] = Optimiser(**{**given, "betas": tuple(given.get("betas", Optimiser.betas))})
            return cls(**values)
        except TypeError as error:
            raise InputError(f"This is not a plan of local training: {error}.") from error

    @property
    def free(self) -> bool:
        """Whether nothing but the steps themselves decides where the parameters go."""
        return self.clip is None and self.ball is None and self.stop is None

    def batches(self, count: int, name: str) -> Indices:
        """The rows of every step, (steps, batch), short batches padded with -1; full batches have one empty row."""
        if self.batch is None:
            return np.empty((self.steps or self.epochs or 1, 0), np.int64)
        if self.drop_last and count < self.batch:
            raise InputError(
                f"With drop_last every client needs a full batch of {self.batch}; client {name} has {count} rows. "
                "Take a smaller batch_size, or keep the last batch."
            )
        generator = self.generator(name, self.stream)
        batch = min(self.batch, count)
        per_epoch = count // batch if self.drop_last else -(-count // batch)
        passes = -(-self.steps // per_epoch) if self.steps is not None else self.epochs or 1
        taken = np.full((passes, per_epoch * batch), -1, np.int64)
        for one in taken:
            order = generator.permutation(count)[: per_epoch * batch]
            one[: len(order)] = order
        return taken.reshape(-1, batch)[: self.steps]

    def generator(self, name: str, stream: int) -> np.random.Generator:
        """Random numbers of one client in one round."""
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
        return np.random.Generator(np.random.PCG64([self.seed, stream, self.round, number]))

    def drawn(self, labels: Indices, classes: int, name: str, teacher: Callable[[], Array]) -> Drawn | None:
        """What the rows are to be trained to; None: their own labels. `teacher` gives its outputs for all rows."""
        generator, count = self.generator(name, LABEL_STREAM), len(labels)
        match self.targets:
            case "own":
                return None
            case "random-batch":
                return lambda some: np.eye(classes)[np.full(len(some), generator.integers(classes))]
            case "teacher":
                wanted = teacher()
            case "uniform":
                wanted = np.full((count, classes), 1 / classes)
            case "false":
                wanted = np.eye(classes)[(labels + generator.integers(1, classes, count)) % classes]
            case _:
                wanted = np.eye(classes)[generator.integers(classes, size=count)]
        return lambda some: np.asarray(wanted[some])


def local_steps(
    plan: FitPlan, arrays: Mapping[str, Array], batches: Iterable[Indices], gradient: Callable[[Array, Indices], Array]
) -> Array:
    """The parameters after a plan's steps from "params"; `gradient` is that of some rows' mean loss, ridge included."""
    start = arrays["params"]
    stack, centre, away = start[None].copy(), arrays.get("centre", start), arrays.get("away", start)
    state = plan.optimiser.start(stack)
    for some in batches:
        found = plan.sign * gradient(stack[0], some)
        if "importance" in arrays:
            found += arrays["importance"] * (stack[0] - arrays.get("anchor", start))
        if "mask" in arrays:
            found *= arrays["mask"]
        if plan.clip is not None:
            found *= min(1.0, plan.clip / max(float(np.linalg.norm(found)), np.finfo(np.float64).tiny))
        plan.optimiser.step(stack, found[None], state=state, rate=plan.rate)
        if plan.ball is not None and (far := float(np.linalg.norm(stack[0] - centre))) > plan.ball:
            stack[0] = centre + (stack[0] - centre) * (plan.ball / far)
        if plan.stop is not None and float(np.linalg.norm(stack[0] - away)) > plan.stop:
            break
    return np.asarray(stack[0])
