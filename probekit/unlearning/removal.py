"""A removal: what was trained, what is to be forgotten, and who can be asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import ClassVar, Literal, Protocol, TypeVar

import numpy as np

from probekit.arrays import Array, Indices
from probekit.errors import InputError, SolverError
from probekit.federated.federation import Federation, collect_stats
from probekit.federated.held_out import HeldOut
from probekit.federated.loss import MeanLoss
from probekit.federated.queries import Query, Weight
from probekit.federated.state import (
    History,
    Kept,
    KeptGradients,
    KeptStatistics,
    State,
    choose_from,
    choose_ridge,
)
from probekit.federated.training.knot import Clusters
from probekit.linear.model import LinearModel
from probekit.linear.ridge import InverseC, RidgeChoice
from probekit.linear.stats import SufficientStats, sum_stats
from probekit.objective import Squares
from probekit.progress import Progress, silent
from probekit.records import type_name
from probekit.unlearning.classes import ClassSquares, narrow_federation, narrow_state, narrow_stats

SHOWN_CLIENTS = 9

K = TypeVar("K")


class Need(Enum):
    """What a method may need; the value says how to have it."""

    TARGET = "the forgotten clients with their rows (bring them online)"
    RETAINED = "the retained clients (bring them online)"
    RETAINED_ROWS = "retained clients with rows (statistics cannot train locally)"
    SERVER_ROWS = "rows on the server (train with --server-share)"
    WHOLE_CLIENTS = "a request about whole clients (forget samples by exact or retrain)"
    HISTORY = "the rounds of the training (train --method fedavg --keep history)"
    CLUSTERS = "a head trained in clusters (train --method knot)"
    DIRECTIONS = "what to be blind to (ferrari:columns=0:9, or ferrari:directions=FILE.npy)"
    QUADRATIC = "squares of linear scores (a ridge head, or a linearized network)"
    LINEAR = "linear scores (a head, or a linearized network)"
    RATE = "a rate of local training (train --method fedavg)"
    PENALIZED = "a ridge above 0 on every parameter (--ridge, --intercept penalized)"


@dataclass(frozen=True)
class Request:
    """Whole clients, or samples (hex ids) by client, to be forgotten."""

    clients: frozenset[str] = frozenset()
    samples: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if bool(self.clients) == bool(self.samples):
            raise InputError(
                "A request is about clients or about samples; found both or neither. "
                "Make a request for each."
            )

    @property
    def touched(self) -> frozenset[str]:
        """Clients of whom nothing that was computed before may be used."""
        return self.clients | self.samples.keys()


@dataclass(frozen=True, eq=False)
class Removal:
    """What a method works from. The rows on the server are a federation of one.

    clients: all retained clients with their rows. retained: those of them that can be asked.
    target: the forgotten clients, or the forgotten samples of clients, that can be asked.
    class_labels: outputs are classes, which leave the head with their last row.
    renewed: the retained clients' sums, where they were collected before.
    """

    state: State
    request: Request
    clients: Mapping[str, int]
    retained: Federation
    target: Federation
    server: Federation | None = None
    class_labels: bool = True
    progress: Progress = silent
    renewed: Mapping[str, SufficientStats] | None = None

    @classmethod
    def of(
        cls,
        state: State,
        request: Request,
        federation: Federation,
        *,
        server: Federation | None = None,
        class_labels: bool = True,
        progress: Progress = silent,
    ) -> Removal:
        """The clients that can be asked, divided by a request. Clients may be absent."""
        _check_clients(state, request, federation)
        if request.clients:
            retained = federation.without(request.clients)
            target = federation.only(request.clients & federation.clients.keys())
        else:
            retained = federation.without_samples(request.samples)
            counts = {  # as they were when the retained rows were counted
                name: rows - retained.clients.get(name, 0)
                for name, rows in federation.clients.items()
                if name in request.samples
            }
            target = replace(federation, clients=counts, samples=request.samples, keep=True)
        clients = {
            name: retained.clients.get(name, rows)
            for name, rows in state.clients.items()
            if name in retained.clients or name not in request.touched
        }
        if not clients:
            raise InputError(
                f"Some rows must be retained; this request is about all "
                f"{sum(state.clients.values())}. Forget less, or delete the run."
            )
        if server is not None:
            server = replace(server, model=state.model)
        return cls(state, request, clients, retained, target, server, class_labels, progress)

    @property
    def is_quadratic(self) -> bool:
        return isinstance(self.state.model.loss, Squares) and self.state.model.is_linear

    @property
    def has_sums(self) -> bool:
        """Whether the minimum follows from sums of the rows: that of a ridge head."""
        return self.is_quadratic and isinstance(self.state.model, LinearModel)

    @property
    def absent(self) -> list[str]:
        """The retained clients that cannot be asked."""
        return [name for name in self.clients if name not in self.retained.clients]

    @property
    def round(self) -> int:
        """The number of the next round, which no batch has been drawn under."""
        return self.state.rounds

    def kept(self, kind: type[K]) -> K:
        """What the server keeps of this kind; a method that calls this declares the need."""
        item = self.state.get(kind)
        if item is None:
            raise InputError(
                f"This run must keep {kind.__name__}; it keeps "
                f"{', '.join(type(item).__name__ for item in self.state.kept) or 'nothing'}. "
                "Use another method, or train anew."
            )
        return item

    @property
    def loss(self) -> MeanLoss:
        """The loss of the retained rows, of networks in float64; each value is a round."""
        exact = replace(self.retained, model=self.retained.model.exact)
        return MeanLoss(exact, self.ridge_choice.value)

    @property
    def changed(self) -> list[str]:
        """The retained clients whose sums must be asked for again: those that forget samples."""
        return [name for name in self.clients if name in self.request.touched]

    @property
    def keeps_statistics(self) -> bool:
        """Whether every retained client's sums are kept, but for those that forget samples."""
        kept = self.state.get(KeptStatistics)
        return kept is not None and kept.parts.keys() >= self.clients.keys()

    @property
    def keeps_gradients(self) -> bool:
        """Whether the retained gradient at the trained parameters follows from what is kept."""
        kept = self.state.get(KeptGradients)
        return (
            kept is not None
            and not self.request.samples
            and kept.gradients.keys() >= self.clients.keys()
            and np.array_equal(kept.params, self.state.params)
        )

    @cached_property
    def statistics(self) -> dict[str, SufficientStats] | None:
        """The retained clients' sums: kept, or asked for again where samples were forgotten."""
        if self.renewed is not None:
            return dict(self.renewed)
        kept = self.state.get(KeptStatistics)
        if kept is None or not self.keeps_statistics:
            return None
        parts = dict(kept.without(self.request.touched).parts)
        if self.changed:
            parts |= collect_stats(self.retained, self.changed, progress=self.progress)
        return {name: parts[name] for name in self.clients}

    @cached_property
    def ridge_choice(self) -> RidgeChoice:
        """The ridge; one that a rule chose is chosen again from the retained sums, or stale.

        A C that held-out rows chose is chosen again by training anew, which asks for gradients.
        """
        choice = self.state.ridge_choice
        if choice.rule is None:
            return choice
        if self.statistics is not None and not isinstance(choice.rule, HeldOut):
            total = sum_stats(self.statistics.values())
            return choose_from(choice.rule, self.state.model, total)
        if isinstance(choice.rule, InverseC) and not self.absent:
            return choose_ridge(choice.rule, self.retained)
        return replace(choice, stale=True)

    def gradient(self) -> Array:
        """The retained gradient at the trained parameters: from what was kept, else one round."""
        kept = self.state.get(KeptGradients)
        params = self.state.params
        if kept is None or not self.keeps_gradients:
            return self.loss.gradient(params)
        gradient = sum(kept.gradients[name] for name in self.clients)
        weight = sum(kept.weights[name] for name in self.clients)
        return np.asarray(gradient / weight + self.loss.penalty.gradient(params))

    @cached_property
    def remaining_classes(self) -> Indices:
        """The classes that retained rows have: by kept sums, else by one small round."""
        classes = np.arange(self.state.model.classes)
        if not self.class_labels:
            return classes
        if self.statistics is None:
            squares = [answer.arrays["squares"] for answer in self.retained.ask(ClassSquares())]
            return np.flatnonzero(np.sum(squares, axis=0))
        present = np.zeros(len(classes), bool)
        for part in self.statistics.values():  # the first few clients often have them all
            present |= part.target_squares > 0
            if present.all():
                break
        return np.flatnonzero(present)

    def narrowed(self) -> Removal:
        """The removal for a head of the remaining classes.

        The server's rows stay as they are: their curvature is alike for all classes of a head.
        """
        classes = self.remaining_classes
        if len(classes) == self.state.model.classes:
            return self
        parts = self.statistics
        if parts is not None:
            parts = {name: narrow_stats(part, classes) for name, part in parts.items()}
        server = self.server
        if server is not None and not isinstance(self.state.model, LinearModel):
            server = narrow_federation(server, classes)
        return replace(
            self,
            state=narrow_state(self.state, classes),
            renewed=parts,
            retained=narrow_federation(self.retained, classes),
            server=server,
            class_labels=False,
        )

    def seen_by(self, after: State) -> Removal:
        """The removal in the classes of the state that a method made of it."""
        return self if after.model.classes == self.state.model.classes else self.narrowed()

    def finish(
        self, params: Array, *renewed: Kept, rounds: int = 0, ridge: RidgeChoice | None = None
    ) -> State:
        """The state after `rounds` more; what is kept forgets, unless it was renewed."""
        if not np.isfinite(params).all():
            raise SolverError(
                "Unlearning must end with finite parameters; found others. Use another method."
            )
        kept = list(renewed)
        kinds = {type(item) for item in renewed}
        for item in self.state.kept:
            remaining = self._remaining(item)
            if type(item) not in kinds and remaining is not None:
                kept.append(remaining)
        return replace(
            self.state,
            params=np.ascontiguousarray(params),
            ridge_choice=ridge or self.ridge_choice,
            clients=dict(self.clients),
            rounds=self.state.rounds + rounds,
            kept=tuple(kept),
        )

    def _remaining(self, item: Kept) -> Kept | None:
        """What is kept, without the forgotten; gradients elsewhere than here are of no use."""
        if isinstance(item, KeptStatistics) and self.statistics is not None:
            return KeptStatistics(self.statistics)
        if isinstance(item, KeptGradients):
            return None
        return item.without(self.request.touched)


def _check_clients(state: State, request: Request, federation: Federation) -> None:
    """The retained must be those of the training, or the result would be about other rows."""
    unknown = request.touched - state.clients.keys()
    if unknown:
        raise InputError(
            f"Cannot forget client {min(unknown)}: this run has {_listed(state.clients)}. "
            "Check the name."
        )
    for name, rows in federation.clients.items():
        trained = state.clients.get(name, 0)
        if trained != rows and name not in request.clients:
            raise InputError(
                f"Client {name} must have the {trained} rows of the training; it has {rows}. "
                "Bring them back, leave out samples that were forgotten before "
                "(federation.without_samples), or forget the client too."
            )


def _listed(clients: Iterable[str]) -> str:
    """`clients 0 to 4`, or their names."""
    names = list(clients)
    if len(names) > 1 and sorted(names) == sorted(map(str, range(len(names)))):
        return f"clients 0 to {len(names) - 1}"
    shown = ", ".join(names[:SHOWN_CLIENTS])
    return f"{len(names)} clients: {shown}{', ...' if len(names) > SHOWN_CLIENTS else ''}"


@dataclass(frozen=True, eq=False)
class Questions:
    """A query that a method asks so many times, of all its clients or of some.

    target: it is asked of the forgotten clients, not of the retained ones.
    """

    query: Query
    times: int = 1
    clients: Sequence[str] | None = None
    target: bool = False


def choosing_questions(removal: Removal) -> list[Questions]:
    """What choosing the ridge again asks where no sums are kept."""
    by_weight = isinstance(removal.state.ridge_choice.rule, InverseC)
    return [Questions(Weight())] if by_weight and not removal.keeps_statistics else []


Promise = Literal["minimum", "retrained", "nothing"]


class Unlearner(Protocol):
    """A way to forget: a record whose options are its fields.

    promise: where it ends, up to rounding or its tolerance: at the minimum over the retained rows,
        at what the run's own procedure makes of them, or nowhere in particular.
    """

    promise: ClassVar[Promise]

    def needs(self, removal: Removal) -> frozenset[Need]: ...
    def questions(self, removal: Removal) -> Sequence[Questions]:
        """What it would ask clients, at most."""

    def unlearn(self, removal: Removal) -> State: ...


def missing(method: Unlearner, removal: Removal) -> list[str]:
    """What a method needs that is not here."""
    state = removal.state
    present = {
        Need.TARGET: removal.target.clients.keys() == removal.request.touched
        and removal.target.has_rows,
        Need.RETAINED: not removal.absent,
        Need.RETAINED_ROWS: not removal.absent and removal.retained.has_rows,
        Need.SERVER_ROWS: removal.server is not None,
        Need.WHOLE_CLIENTS: bool(removal.request.clients),
        Need.HISTORY: state.get(History) is not None,
        Need.CLUSTERS: state.get(Clusters) is not None,
        Need.DIRECTIONS: False,  # a method that has them does not declare the need
        Need.RATE: False,  # likewise
        Need.QUADRATIC: removal.is_quadratic,
        Need.LINEAR: state.model.is_linear,
        Need.PENALIZED: state.ridge > 0 and bool((state.model.penalized == 1).all()),
    }
    return sorted(need.value for need in method.needs(removal) if not present[need])


def finds_classes(method: Unlearner, removal: Removal) -> bool:
    """Whether the remaining classes are known, or the retained clients must answer anyway."""
    return removal.keeps_statistics or Need.RETAINED in method.needs(removal)


WIDE = {Need.TARGET, Need.HISTORY, Need.CLUSTERS}
"""Forgotten rows and kept rounds have classes that may leave: these methods work with all."""


def unlearn(method: Unlearner, removal: Removal) -> State:
    """Check what the method needs, drop classes that are gone, then let it work."""
    lacking = missing(method, removal)
    if lacking:
        absent = f"; {removal.absent[0]} is absent" if removal.absent else ""
        raise InputError(
            f"{type_name(method).removeprefix('method/')} needs {' and '.join(lacking)}{absent}. "
            "Provide it, or use another method (--dry-run shows which are possible)."
        )
    if not finds_classes(method, removal):
        return method.unlearn(removal)
    if method.needs(removal) & WIDE:
        return narrow_state(method.unlearn(removal), removal.remaining_classes)
    return method.unlearn(removal.narrowed())
