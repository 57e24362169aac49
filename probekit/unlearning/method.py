"""What an unlearning method is: its options, what it needs, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from probekit.federated.federation import Federation
from probekit.federated.trained import Trained
from probekit.linear.design import ClientStats, Solution
from probekit.protocols import Watch, unwatched
from probekit.registry import configured, methods
from probekit.unlearning.request import UnlearnRequest
from probekit.values import EmbeddingSet, Partition

if TYPE_CHECKING:
    from probekit.unlearning.removal import Removal

FROM_ROWS, CONTAINS_BEFORE = "from_rows", "contains_before"
ROWS = "the cached rows of the retained clients: give the embedding set and the partition"
GRADIENTS = 'the clients\' gradients at the head: train with keep="gradients" or "statistics"'
REMEDIES = {
    ("kept", "statistics"): 'every client\'s statistics: train with keep="statistics"',
    ("kept", "history"): "the history of rounds: train by FedAvg with keep_history=True",
    ("kept", "gradients"): GRADIENTS,
    ("server", "rows"): (
        "rows of the server's own: partition with a server share, say 0.1 (of a network, also give the embedding set "
        "and the partition)"
    ),
    ("retained", "gradient"): f"{GRADIENTS}, or give the clients online",
    ("retained", "form"): "the retained clients online, their statistics, or their cached rows",
    ("retained", "fit"): "the retained clients online, or their cached rows",
    **{("online", what): ROWS for what in ("gradient", "fit", "scales", "statistics")},
    ("retained", "importance"): "the retained clients online, their statistics, or their cached rows",
    **{
        ("target", what): "the forgotten client online, or its cached rows"
        for what in ("fit", "scales", "product", "importance", "evaluate", "statistics")
    },
    ("trainer", "local_steps"): "FedAvg options, which runs by FedAvg have: train with `method=fedavg`, or use retrain",
    ("request", "clients"): "a request that forgets whole clients: samples, labels and joining ones have no history",
    ("request", "leaving"): "a request by which nobody joins",
    ("problem", "quadratic"): "a ridge loss of a head or of a linearized network",
    ("problem", "plain"): "a head without feature scaling, class weights, normalised classes; or use exact or retrain",
    ("problem", "statistics"): (
        "a head on embeddings, whose minimum follows from sums; of a network use fedremoval-pcg or retrain (not "
        "linearized: retrain-fedavg)"
    ),
}
"""What methods need, each with where it comes from. A method's own need may bring its remedy as a third entry."""


@dataclass(frozen=True, eq=False)
class Material:
    """What may be used besides what the server kept.

    `embeddings` and `partition` are the run's cached rows; `clients` the retained ones, online; `target` the forgotten
    ones; `server` the server's own rows, where the others lie elsewhere; `options` the run's trainer; `arriving` are
    statistics of clients that join; `server_only`: nobody may be asked, what was kept must do; `watch` is called with
    progress.
    """

    embeddings: EmbeddingSet | None = None
    partition: Partition | None = None
    clients: Federation | None = None
    target: Federation | None = None
    server: EmbeddingSet | None = None
    options: Any = None
    arriving: Mapping[str, ClientStats] = field(default_factory=dict)
    server_only: bool = False
    watch: Watch = unwatched

    def __post_init__(self) -> None:
        if self.server_only:
            for name in ("clients", "target"):
                object.__setattr__(self, name, None)


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

    `warnings` were known before the step was taken. `loss_change` is the exact change of the retained loss, where the
    method learns it. `one_step`: a single step was taken with the server's curvature.
    """

    trained_after: Trained
    request: UnlearnRequest
    method: str
    solution: Solution
    cost: Cost
    note: str = ""
    warnings: tuple[str, ...] = ()
    loss_change: float | None = None
    one_step: bool = False


class Unlearner(Protocol):
    """A way to forget: a frozen value of its options.

    `needs`: pairs of party and question or kept thing, each perhaps with its remedy; a tuple of such is a choice.
    Parties: "kept", "server", "retained" (kept things may answer for them), "online" (they themselves), "target",
    "problem", "trainer", "request". `traits`: "minimum" (solves for the minimum itself, with the run's own linear
    term), "linear_term" (knows that term), "from_rows" (what comes out is made of what the retained rows give alone,
    and holds nothing of the old head), "contains_before" (an adapter on the old head, which comes back without it),
    "epsilon_delta" (makes a statement of its own about distributions).
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[Any, ...]]
    keeps: ClassVar[tuple[str, ...]]
    traits: ClassVar[frozenset[str]]

    def unlearn(self, removal: Removal) -> Unlearned: ...


def method(text: Any) -> Any:
    """The method of this name: `exact`, `fedremoval[:SOLVER]`, `fedremoval-pcg:ROUNDS`, a plugin's own, ..."""
    return configured(methods, text) if isinstance(text, str) else text


def choices_of(need: tuple[Any, ...]) -> tuple[Any, ...]:
    """The alternatives of one need, each a party and what it must give."""
    return need if isinstance(need[0], tuple) else (need,)


def needs_in_words(unlearner: Any) -> tuple[str, ...]:
    """What a method needs, each as a party and what it must give; alternatives with `or`."""
    return tuple(" or ".join(" ".join(one[:2]) for one in choices_of(need)) for need in unlearner.needs)


def missing(unlearner: Any, removal: Removal) -> str:
    """What a method needs and this removal does not have, with the remedy; empty where all is here."""
    if removal.before.objective is not None and not {"minimum", "linear_term"} & {*getattr(unlearner, "traits", ())}:
        return (
            f"Unlearning by {unlearner.name} does not know the secret linear term of this run's objective. Use exact, "
            "which solves again with the same term."
        )
    if removal.pretrained_on:
        return removal.pretrained_on
    alone = removal.material.server_only
    if removal.request.by_row and removal.material.clients is None and (removal.held is None or alone):
        return f"Unlearning single samples by {unlearner.name} needs {ROWS}; or give the retained clients online."
    lacking = []
    for need in unlearner.needs:
        choices = choices_of(need)
        if not any(removal.available(*one[:2]) for one in choices):
            party, what, *remedy = choices[0]
            if party == "problem" and hasattr(removal.problem, "no_unlearning"):
                return str(removal.problem.no_unlearning)
            lacking.append(remedy[0] if remedy else REMEDIES.get((party, what), f"{what} of {party}"))
            if party == "problem":
                break  # nothing that is kept or asked would help
    if not lacking:
        return ""
    where = " where nobody may be asked (`server_only=True`)" if alone else ""
    wanted = "; ".join(dict.fromkeys(lacking))
    return f"Unlearning by {unlearner.name} needs what this run does not have{where}: {wanted}."
