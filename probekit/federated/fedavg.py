"""FedAvg on a ridge head (the paper's FLT, algorithm 1): rounds of local steps and weighted averages."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError, NotFoundError, SolverError
from probekit.federated.optimiser import Optimiser
from probekit.federated.server import WEIGHTS, average, client_weights, participants, taking
from probekit.federated.trained import NUMBER_BYTES, History, Progress, Reached, Round
from probekit.linear.design import Solution
from probekit.registry import nearest
from probekit.values import frozen

INIT_STREAM = 20
INITS = ("zeros", "random")
PRESETS = ("f2l2",)
HISTORY_LIMIT = 4 << 30
PLAIN = Optimiser("sgd")
EXPLODED = 10.0  # a loss this many times the worse of start and zero will not come back

Params = NDArray[np.float64]


@dataclass(frozen=True)
class FedAvg:
    """The options of FedAvg. A client starts every round from the global parameters and with fresh optimiser
    state.

    `local_steps` or `local_epochs`: exactly one. `batch_size` None: all rows of the client in every step.
    `learning_rate` None: 1 / (largest curvature), for full batches of any client's loss, for minibatches of
    any single row's; Adam has no such rule and needs a number. `weights`: "size" (n_c / n) or "uniform". With
    `participation` below 1 a round is right on average over who is drawn. `tolerance` ends the rounds when
    the parameters change by less than this share. `ridge` belongs to a preset; None leaves it to the caller.
    """

    rounds: int = 100
    local_steps: int | None = 10
    local_epochs: int | None = None
    batch_size: int | None = None
    drop_last: bool = False
    learning_rate: float | None = None
    optimiser: Optimiser = PLAIN
    weights: str = "size"
    participation: float = 1.0
    server_learning_rate: float = 1.0
    init: str = "zeros"
    seed: int = 0
    keep_history: bool = False
    tolerance: float = 0.0
    ridge: float | None = None

    def __post_init__(self) -> None:
        positive = {
            "rounds": self.rounds,
            "local_steps": self.local_steps,
            "local_epochs": self.local_epochs,
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "server_learning_rate": self.server_learning_rate,
            "participation": self.participation,
        }
        for name, value in positive.items():
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name} must be a number above 0; found {value}.")
        if self.participation > 1:
            raise InputError(f"participation is a share of the clients, at most 1; found {self.participation}.")
        if (self.local_steps is None) == (self.local_epochs is None):
            raise InputError(
                f"Give local_steps or local_epochs, one of them; found {self.local_steps} and {self.local_epochs}."
            )
        if self.weights not in WEIGHTS or self.init not in INITS:
            raise InputError(
                f"weights must be one of {', '.join(WEIGHTS)} and init one of {', '.join(INITS)}; found "
                f"{self.weights!r} and {self.init!r}."
            )
        if self.optimiser.name == "adam" and self.learning_rate is None:
            raise InputError("Adam needs a learning_rate; none was given. The paper's code uses 1e-4.")
        if self.seed < 0 or self.tolerance < 0:
            raise InputError(f"seed and tolerance must be 0 or more; found {self.seed} and {self.tolerance}.")

    @classmethod
    def preset(cls, name: str) -> Self:
        """The options of a published implementation, its mistakes included.

        "f2l2": the paper's own code. What departs from the paper there: Adam instead of SGD, its state lost
        every round (so its schedule never decays); uniform weights instead of n_c / n; a random start instead
        of the pretrained one; ridge 0, where the theorem needs it above 0; the last short batch of every
        epoch is dropped, so some rows are not seen. Its loss is a mean over rows and classes, 2 / k of ours:
        without a ridge Adam does not notice (but for epsilon).
        """
        if name not in PRESETS:
            raise NotFoundError(f"There is no FedAvg preset {name!r}. {nearest(name, list(PRESETS))}")
        return cls(
            rounds=200,
            local_steps=None,
            local_epochs=1,
            batch_size=32,
            drop_last=True,
            learning_rate=1e-4,
            optimiser=Optimiser("adam"),
            weights="uniform",
            init="random",
            ridge=0.0,
        )


class Clients(Protocol):
    """Clients that hold data and take local steps; how they compute is theirs."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def counts(self) -> NDArray[np.int64]: ...
    @property
    def largest_curvature(self) -> float: ...
    def local(self, start: Params, chosen: NDArray[np.int64], *, round_number: int, rate: float) -> Params: ...
    def gradients(self, params: Params, chosen: NDArray[np.int64]) -> Params: ...
    def loss(self, params: Params) -> float: ...


@dataclass(frozen=True)
class Rounds:
    """What the rounds came to."""

    params: Params
    done: int
    losses: tuple[float, ...]
    learning_rate: float
    last_participants: NDArray[np.int64]
    last_uploads: Params
    uploaded: int
    history: History | None


def initial(options: FedAvg, shape: tuple[int, int]) -> Params:
    """The first global parameters: zeros, or uniform in +-1 / sqrt(columns) as layers usually start."""
    if options.init == "zeros":
        return np.zeros(shape)
    generator = np.random.Generator(np.random.PCG64([options.seed, INIT_STREAM]))
    return generator.uniform(-1, 1, shape) / math.sqrt(shape[0])


def run_rounds(
    clients: Clients,
    options: FedAvg,
    *,
    shape: tuple[int, int],
    progress: Callable[[Progress], None] | None = None,
    start: Reached | None = None,
    save: Callable[[Reached], None] | None = None,
) -> Rounds:
    """Let the clients train: broadcast, local steps, weighted average, again.

    `save` is given where every round ended; `start` is such a place, to go on from.
    """
    _check_history(clients, options, shape)
    rate = options.learning_rate or 1 / clients.largest_curvature
    weights = client_weights(clients.counts, options.weights)
    params = initial(options, shape) if start is None else start.params
    first = 0 if start is None else min(start.rounds, options.rounds - 1)
    watch = _Watch(clients, options, rate, params)
    kept: list[Round] = []
    done, uploaded = first, first * taking(len(weights), options.participation)
    for number in range(first, options.rounds):
        chosen = participants(len(weights), options.participation, round_number=number, seed=options.seed)
        before, done, uploaded = params, number + 1, uploaded + len(chosen)
        with np.errstate(over="ignore", invalid="ignore"):  # the watch below refuses what is not finite
            uploads = clients.local(params, chosen, round_number=number, rate=rate)
            params = average(
                before,
                uploads,
                weights[chosen],
                clients=len(weights),
                learning_rate=options.server_learning_rate,
            )
        if options.keep_history:
            names = tuple(clients.names[c] for c in chosen)
            kept.append(Round(frozen(before), names, tuple(weights[chosen].tolist()), frozen(uploads)))
        loss = watch.look(params)
        if progress is not None:
            progress(Progress(done, options.rounds, loss))
        if save is not None:
            save(Reached(params, done))
        if np.linalg.norm(params - before) <= options.tolerance * np.linalg.norm(params):
            break
    watch.judge()
    history = History(tuple(kept), frozen(params)) if options.keep_history else None
    return Rounds(params, done, tuple(watch.losses), rate, chosen, uploads, uploaded, history)


class _Watch:
    """Follows the loss from round to round and refuses a run that diverges."""

    def __init__(self, clients: Clients, options: FedAvg, rate: float, start: Params) -> None:
        self.clients, self.options, self.rate = clients, options, rate
        self.losses = [clients.loss(start)]
        self.best = start
        self.bound = max(self.losses[0], clients.loss(np.zeros_like(start)))

    def look(self, params: Params) -> float:
        """The loss now; raises as soon as it is not finite or has exploded."""
        with np.errstate(over="ignore", invalid="ignore"):
            loss = self.clients.loss(params)
        self.losses.append(loss)
        if not loss <= EXPLODED * self.bound:
            self.refuse()
        if loss <= min(self.losses):
            self.best = params
        return loss

    def judge(self) -> None:
        """Refuse an end that is worse than the start and than the zero head, and still rising."""
        if self.losses[-1] > self.bound and self.losses[-1] > self.losses[-2]:
            self.refuse()

    def refuse(self) -> None:
        """Say that the rounds diverge and which rate would not."""
        stable = self.options.optimiser.largest_rate(self.clients.largest_curvature)
        remedy = f"rates below {stable:.6g} are stable here" if stable else f"try {self.rate / 10:.3g}"
        if stable and self.rate < stable:
            remedy = f"it is below the stable {stable:.6g}, so lower server_learning_rate or raise participation"
        best = Solution(self.best, math.nan, int(np.nanargmin(self.losses)), "fedavg", "the best before divergence")
        raise SolverError(
            f"FedAvg must lower the loss; after {len(self.losses) - 1} rounds at learning rate "
            f"{self.rate:.6g} it went "
            f"from {self.losses[0]:.6g} to {self.losses[-1]:.6g}. Lower the learning rate: {remedy}.",
            best,
        )


def _check_history(clients: Clients, options: FedAvg, shape: tuple[int, int]) -> None:
    many = taking(len(clients.names), options.participation)
    size = options.rounds * (many + 1) * shape[0] * shape[1] * NUMBER_BYTES
    if options.keep_history and size > HISTORY_LIMIT:
        raise InputError(
            f"The history of {options.rounds} rounds with {many} clients takes {size / 2**30:.1f} GiB, "
            f"more than {HISTORY_LIMIT / 2**30:.0f}. Ask for fewer rounds, a smaller participation, or no "
            "history."
        )
