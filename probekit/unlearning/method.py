"""What an unlearning method is, what it may use, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from probekit.errors import InputError, NotFoundError
from probekit.federated.fedavg import FedAvg
from probekit.federated.task import ClosedForm
from probekit.federated.trained import Trained, Watch, unwatched
from probekit.linear.design import ClientStats, Solution
from probekit.models.heads import NetworkHead
from probekit.registry import methods, nearest
from probekit.unlearning.request import UnlearnRequest
from probekit.unlearning.retained import RetainedClients
from probekit.unlearning.tree import StatisticsTree
from probekit.values import EmbeddingSet, Partition

REMEDIES = {
    "statistics": 'every client\'s statistics: train with keep="statistics"',
    "server set": "rows of the server's own: partition with a server share, say 0.1",
    "retained gradient": 'the clients\' gradients at the head: train with keep="gradients" or "statistics"',
    "retained clients": "the retained clients online, their statistics, or their cached rows",
    "rows": "the cached rows of the retained clients: give the embedding set and the partition",
    "options": "FedAvg options, which only a run trained by FedAvg has: train with --method fedavg, or use retrain",
}
"""The material that methods need, each with where it comes from."""
SOLVING = ("exact", "retrain")
"""The methods that solve for the minimum itself, with whatever linear term the run's objective has."""


@dataclass(frozen=True, eq=False)
class Material:
    """What may be used besides what the server kept.

    `embeddings` and `partition` are the run's cached rows; `clients` answer online; `options` are the run's
    training options (needed where the head's recipe does not tell them); `arriving` are statistics of clients
    that join; `tree` saves re-adding all clients when requests come in a stream; `watch` is told how far it is.
    """

    embeddings: EmbeddingSet | None = None
    partition: Partition | None = None
    clients: RetainedClients | None = None
    options: ClosedForm | FedAvg | None = None
    arriving: Mapping[str, ClientStats] = field(default_factory=dict)
    tree: StatisticsTree | None = None
    watch: Watch = unwatched


NOTHING = Material()


@dataclass(frozen=True)
class Cost:
    """What a removal took: bytes to and from the server, rounds with the clients, operations, time.

    Sending the new head round is not counted: every method has to.
    """

    up: int = 0
    down: int = 0
    rounds: int = 0
    flops: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class Unlearned:
    """A run without the forgotten: `trained_after`, who made it, how well the equations were solved, its cost.

    `warnings` were known before the step was taken. `loss_change` is the exact change of the retained loss,
    where the method learns it. `tree` is the new tree where the material had one.
    """

    trained_after: Trained
    request: UnlearnRequest
    method: str
    solution: Solution
    cost: Cost
    note: str = ""
    warnings: tuple[str, ...] = ()
    loss_change: float | None = None
    tree: StatisticsTree | None = None


class Unlearner(Protocol):
    """A way to forget. `needs` names its material, in the words of `REMEDIES`."""

    @property
    def name(self) -> str: ...
    @property
    def needs(self) -> frozenset[str]: ...
    def unlearn(self, trained: Trained, request: UnlearnRequest, material: Material) -> Unlearned: ...


def method(text: str) -> Unlearner:
    """The method of this name: `exact`, `fedremoval[:SOLVER]`, `fedremoval-pcg:ROUNDS`, a plugin's own, ..."""
    name, _, argument = text.partition(":")
    if name not in methods.names():
        raise NotFoundError(f"There is no unlearning method {text!r}. {nearest(name, methods.names())}")
    found: Unlearner = methods.get(name)(argument)
    return found


def available(trained: Trained, material: Material) -> frozenset[str]:
    """The material that is here."""
    rows = material.embeddings is not None and material.partition is not None
    asked = rows or material.clients is not None or trained.statistics is not None
    here = {
        "statistics": trained.statistics is not None,
        "server set": trained.server is not None,
        "retained gradient": asked or trained.gradients is not None,
        "retained clients": asked,
        "rows": rows,
        "options": isinstance(material.options, FedAvg),
    }
    return frozenset(name for name, there in here.items() if there)


def require(unlearner: Unlearner, trained: Trained, material: Material) -> None:
    """Refuse a method whose material is missing, and say what to keep next time."""
    if trained.objective is not None and unlearner.name not in SOLVING:
        raise InputError(
            f"Unlearning by {unlearner.name} does not know the secret linear term of this run's objective. Use exact, "
            "which solves again with the same term."
        )
    missing = sorted(unlearner.needs - available(trained, material))
    if "statistics" in missing and isinstance(trained.head, NetworkHead):
        raise InputError(
            f"Unlearning by {unlearner.name} needs what this run did not keep: every client's statistics, which a "
            "linearized network does not have. Take fedremoval-pcg or retrain."
        )
    if missing:
        wanted = "; ".join(REMEDIES.get(name, name) for name in missing)
        raise InputError(f"Unlearning by {unlearner.name} needs what this run did not keep: {wanted}.")


def without_argument(name: str, argument: str) -> None:
    """Refuse an argument for a method that takes none."""
    if argument:
        raise InputError(f"The unlearning method {name} takes no argument; found {argument!r}. Write {name}.")
