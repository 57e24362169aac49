"""Small runs to check unlearning methods on, each kind of training and of model once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from probekit.federated.federation import Answers, Federation
from probekit.federated.methods.fedavg import FedAvg
from probekit.federated.methods.guo import Guo
from probekit.federated.partition import partition
from probekit.federated.trained import Trained
from probekit.federated.training import train, trainer_named
from probekit.models.problem import backend_named
from probekit.registry import trainers
from probekit.testing.planted import planted_set
from probekit.unlearning.method import Material
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import UnlearnRequest
from probekit.values import EmbeddingSet, Partition

RIDGE = 0.05
KEPT = ("statistics", "gradients", "history")


@dataclass(frozen=True, eq=False)
class PlantedRun:
    """A small run of which client `leaver` is to be forgotten."""

    name: str
    embeddings: EmbeddingSet
    partition: Partition
    trained: Trained
    options: Any
    leaver: str = "1"

    def removal(self, before: Trained | None = None) -> WatchedRemoval:
        """The request against the run (or another state of it)."""
        material = Material(self.embeddings, self.partition, options=self.options)
        return WatchedRemoval(before or self.trained, UnlearnRequest((self.leaver,)), material)


@dataclass(frozen=True, eq=False)
class WatchedRemoval(Removal):
    """A removal that notes what the clients are asked."""

    asked: list[tuple[str, str]] = field(default_factory=list)

    @cached_property
    def online(self) -> Federation:
        """The retained clients, watched."""
        return Watched(super().online, "online", self.asked)

    @cached_property
    def target(self) -> Federation:
        """The forgotten ones, watched."""
        return Watched(super().target, "target", self.asked)


@dataclass(eq=False)
class Watched:
    """A federation that notes what it is asked."""

    inner: Any
    party: str
    asked: list[tuple[str, str]]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def ask(self, kind: str, *arguments: Any, **options: Any) -> Answers:
        """Note, and ask."""
        self.asked.append((self.party, kind))
        found: Answers = self.inner.ask(kind, *arguments, **options)
        return found


def _rows() -> tuple[EmbeddingSet, Partition]:
    data = planted_set(120)
    return data, partition(data.labels, "dirichlet:0.5", clients=4, server_share=0.15, seed=2)


def paired(wanted: Collection[str] | None = None, *, network: bool) -> Iterator[Callable[[], PlantedRun]]:
    """Runs by the trainers that keep what only they keep (some of `wanted`), on a head and on networks."""
    for name in trainers.names() if wanted is None or {*wanted} - {*KEPT} else ():
        own = {*getattr(trainers.get(name), "keeps", ())} - {*KEPT}
        if own if wanted is None else own & {*wanted}:
            backends = ("embeddings", *(("jvp", "network") if network else ()))
            yield from [OWN_RUNS[name]] if name in OWN_RUNS else [partial(_trained_by, name, one) for one in backends]


def _trained_by(name: str, backend: str) -> PlantedRun:
    data, split = _rows()
    trainer, small = trainer_named(name), {"rounds": 4, "local_steps": 2, "learning_rate": 0.05}.items()
    trainer = replace(trainer, **{option: value for option, value in small if hasattr(trainer, option)})
    whole = SmallNetwork(subset=None if backend == "network" else "1")
    problem = None if backend == "embeddings" else backend_named(backend).prepare(data, split, whole)
    trained = train(data, split, problem=problem, ridge=RIDGE, method=trainer)
    return PlantedRun(f"{backend} by {name}", data, split, trained, trainer)


def _closed_form() -> PlantedRun:
    data, split = _rows()
    trained = train(data, split, ridge=RIDGE, method="closed-form", keep="statistics")
    return PlantedRun("closed form with statistics", data, split, trained, None)


def _fedavg() -> PlantedRun:
    data, split = _rows()
    options = FedAvg(rounds=6, local_steps=3, keep_history=True)
    return PlantedRun(
        "FedAvg with history", data, split, train(data, split, ridge=RIDGE, method=options, keep="gradients"), options
    )


def _network() -> PlantedRun:
    """The last layer of a small network."""
    data, split = _rows()
    options = FedAvg(rounds=4, local_steps=2, keep_history=True)
    problem = backend_named("jvp").prepare(data, split, SmallNetwork())
    trained = train(data, split, problem=problem, ridge=RIDGE, method=options, keep="gradients")
    return PlantedRun("network with history", data, split, trained, options)


def _guo() -> PlantedRun:
    """A ridge and a linear term large enough that a client can leave."""
    data, split = _rows()
    options = Guo(ridge=1000.0, sigma=1000.0)
    return PlantedRun("logistic with a linear term", data, split, train(data, split, method=options), options)


def _conventional() -> PlantedRun:
    """A small network that is not linearized."""
    data, split = _rows()
    options = FedAvg(rounds=3, local_steps=None, local_epochs=1, batch_size=16, learning_rate=0.1, keep_history=True)
    problem = backend_named("network").prepare(data, split, SmallNetwork(subset=None))
    trained = train(data, split, problem=problem, ridge=RIDGE, method=options, keep="gradients")
    return PlantedRun("conventional network with history", data, split, trained, options)


USUAL, NETWORKS = (_closed_form, _fedavg), (_network, _conventional)
OWN_RUNS: Mapping[str, Callable[[], PlantedRun]] = {"guo": _guo}
"""Runs by trainers whose usual options do not do for so few rows."""


@dataclass(frozen=True)
class SmallNetwork:
    """The options of a backend of networks."""

    network: str = "mlp"
    subset: str | None = "1"
    centre: str = "wp"
    precision: str = "float64"
    pretrain_epochs: int = 2
    pretrain_batch: int = 8
    pretrain_rate: float = 0.01
    network_weights: str | None = None
    loss: str = "cross-entropy"
    seed: int = 0
