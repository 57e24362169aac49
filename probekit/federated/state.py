"""What training leaves behind: parameters, and what the server keeps for later."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, Self, TypeVar

from probekit.arrays import Array
from probekit.errors import InputError
from probekit.federated.federation import Federation, collect_stats, total, total_stats
from probekit.federated.held_out import HeldOut
from probekit.federated.queries import Gradient, Weight
from probekit.linear.model import LinearModel
from probekit.linear.ridge import Gcv, InverseC, RidgeChoice, RidgeRule, check_ridge
from probekit.linear.stats import SufficientStats, sum_stats
from probekit.objective import Model, Squares
from probekit.progress import Progress, silent
from probekit.records import record

KEEP = ("statistics", "gradients", "history")
Ridge = float | RidgeRule
"""A ridge, or the rule that chooses it."""

V = TypeVar("V")
K = TypeVar("K")


class Kept(Protocol):
    """What the server keeps of clients; it knows how to forget them."""

    def without(self, clients: Collection[str]) -> Self | None:
        """The same without these clients; None where they cannot be taken out."""


class Trainer(Protocol):
    """A way to train; its options are its fields."""

    def train(
        self, federation: Federation, *, ridge: Ridge, progress: Progress = silent
    ) -> State: ...


@record("state")
@dataclass(frozen=True, eq=False)
class State:
    """A trained model: parameters, ridge and how it was chosen, clients with their rows, trainer.

    `rounds` of local training are done; the next one draws its batches under this number.
    """

    params: Array
    model: Model
    ridge_choice: RidgeChoice
    clients: Mapping[str, int]
    trainer: Trainer
    rounds: int = 0
    kept: tuple[Kept, ...] = ()

    @property
    def ridge(self) -> float:
        return self.ridge_choice.value

    def get(self, kind: type[K]) -> K | None:
        """What is kept of this kind."""
        return next((item for item in self.kept if isinstance(item, kind)), None)


@record("kept/statistics")
@dataclass(frozen=True, eq=False)
class KeptStatistics:
    """Each client's statistics."""

    parts: Mapping[str, SufficientStats]

    @cached_property
    def total(self) -> SufficientStats:
        """Their sum; training and its certificate use the same."""
        return sum_stats(self.parts.values())

    def without(self, clients: Collection[str]) -> Self:
        return type(self)(drop(self.parts, clients))


@record("kept/gradients")
@dataclass(frozen=True, eq=False)
class KeptGradients:
    """Each client's gradient at `params`, a sum over its rows, and their weight."""

    params: Array
    gradients: Mapping[str, Array]
    weights: Mapping[str, float]

    def without(self, clients: Collection[str]) -> Self:
        return type(self)(self.params, drop(self.gradients, clients), drop(self.weights, clients))


@record("upload")
@dataclass(frozen=True, eq=False)
class Upload:
    """A client's parameters after local training, and their weight in an average."""

    params: Array
    weight: float


@record("round")
@dataclass(frozen=True, eq=False)
class Round:
    """A round of local training: where it started, and what each client sent back."""

    start: Array
    uploads: Mapping[str, Upload]


@record("kept/history")
@dataclass(frozen=True, eq=False)
class History:
    """All rounds of a training, and the parameters after the last."""

    rounds: tuple[Round, ...]
    end: Array

    def without(self, clients: Collection[str]) -> None:
        """Nothing: every model on the way was an average over all clients."""
        return


def drop(parts: Mapping[str, V], clients: Collection[str]) -> dict[str, V]:
    """A mapping by client, without these clients."""
    return {name: part for name, part in parts.items() if name not in clients}


def check_keep(keep: frozenset[str], possible: Collection[str], trainer: str) -> None:
    impossible = keep.difference(possible)
    if impossible:
        raise InputError(
            f"{trainer} can keep {', '.join(possible)} or nothing; found {min(impossible)!r}. "
            "Choose one of them (--keep)."
        )


def gradients_at(federation: Federation, params: Array) -> KeptGradients:
    """Each client's gradient at these parameters, to be kept; of networks in float64."""
    exact = replace(federation, model=federation.model.exact)
    answers = list(exact.ask(Gradient(params)))
    gradients = {answer.client: answer.arrays["gradient"] for answer in answers}
    weights = {answer.client: float(answer.arrays["weight"][0]) for answer in answers}
    return KeptGradients(params, gradients, weights)


def collect_and_choose(
    ridge: Ridge, federation: Federation, *, collect: bool, progress: Progress = silent
) -> tuple[KeptStatistics | None, RidgeChoice]:
    """The clients' statistics, if they are to be collected, and the ridge."""
    statistics = None
    if collect:
        statistics = KeptStatistics(collect_stats(federation, progress=progress))
    stats = None if statistics is None else statistics.total
    return statistics, choose_ridge(ridge, federation, stats=stats, progress=progress)


def kept_by(
    keep: frozenset[str], federation: Federation, params: Array, statistics: KeptStatistics | None
) -> tuple[Kept, ...]:
    """What is kept after training: sums that were collected before, gradients at its end."""
    kept: list[Kept] = []
    if statistics is not None and "statistics" in keep:
        kept.append(statistics)
    if "gradients" in keep:
        kept.append(gradients_at(federation, params))
    return tuple(kept)


def choose_ridge(
    ridge: Ridge,
    federation: Federation,
    *,
    stats: SufficientStats | None = None,
    progress: Progress = silent,
) -> RidgeChoice:
    """A number as it is; a rule is applied to the clients' sums, or by rows that they hold out.

    stats: the sums, where they are here already; else a round asks for them.
    """
    if isinstance(ridge, HeldOut):
        best = InverseC(ridge.best(federation, stats=stats, progress=progress))
        return replace(choose_ridge(best, federation, stats=stats), rule=ridge)
    if isinstance(ridge, InverseC) and stats is None:
        weight = total(federation.ask(Weight())).weight
        return RidgeChoice(ridge.of(weight, federation.model.classes), ridge)
    if isinstance(ridge, int | float):
        return RidgeChoice(check_ridge(ridge))
    return choose_from(ridge, federation.model, stats or total_stats(federation))


def choose_from(ridge: Ridge, model: Model, stats: SufficientStats) -> RidgeChoice:
    """The ridge that follows from sums."""
    if isinstance(ridge, int | float):
        return RidgeChoice(check_ridge(ridge))
    if not isinstance(model, LinearModel):
        raise InputError(
            f"A ridge is chosen for a LinearModel; this is a {type(model).__name__}. "
            "Pass a number (--ridge)."
        )
    if isinstance(ridge, Gcv) and not isinstance(model.loss, Squares):
        raise InputError(
            f"GCV is about squares; this model has {type(model.loss).__name__}. "
            "Pass a number (--ridge) or C (--c)."
        )
    return RidgeChoice(ridge.choose(stats, model.intercept), ridge)
