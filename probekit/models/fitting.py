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

BATCH_STREAM = 22


@dataclass(frozen=True)
class FitPlan:
    """Local training. One of `steps` and `epochs` is given; without a `batch` every step takes all rows.

    `ridge` is in mean scaling. `sign` -1 climbs the loss instead. `clip` is the largest norm of a gradient, `ball`
    the largest distance from the array "centre" of the question, `stop` ends once the parameters are that far from the
    array "away" (without them: from the start). The order of batches follows from `seed`, `stream`, `round` and the
    client's name alone.
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
    seed: int = 0
    stream: int = BATCH_STREAM
    round: int = 0

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
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
        generator = np.random.Generator(np.random.PCG64([self.seed, self.stream, self.round, number]))
        batch = min(self.batch, count)
        per_epoch = count // batch if self.drop_last else -(-count // batch)
        passes = -(-self.steps // per_epoch) if self.steps is not None else self.epochs or 1
        taken = np.full((passes, per_epoch * batch), -1, np.int64)
        for one in taken:
            order = generator.permutation(count)[: per_epoch * batch]
            one[: len(order)] = order
        return taken.reshape(-1, batch)[: self.steps]


def local_steps(
    plan: FitPlan, arrays: Mapping[str, Array], batches: Iterable[Indices], gradient: Callable[[Array, Indices], Array]
) -> Array:
    """The parameters after a plan's steps from "params"; `gradient` is that of some rows' mean loss, ridge included."""
    start = arrays["params"]
    stack, centre, away = start[None].copy(), arrays.get("centre", start), arrays.get("away", start)
    state = plan.optimiser.start(stack)
    for some in batches:
        found = plan.sign * gradient(stack[0], some)
        if plan.clip is not None:
            found *= min(1.0, plan.clip / max(float(np.linalg.norm(found)), np.finfo(np.float64).tiny))
        plan.optimiser.step(stack, found[None], state=state, rate=plan.rate)
        if plan.ball is not None and (far := float(np.linalg.norm(stack[0] - centre))) > plan.ball:
            stack[0] = centre + (stack[0] - centre) * (plan.ball / far)
        if plan.stop is not None and float(np.linalg.norm(stack[0] - away)) > plan.stop:
            break
    return np.asarray(stack[0])
