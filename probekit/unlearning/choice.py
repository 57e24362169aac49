"""Which method to use where none is named, what each would need and cost, what one has changed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from probekit.errors import InputError
from probekit.federated.federation import Federation, InProcess
from probekit.federated.loss import MeanLoss
from probekit.federated.queries import Statistics, answer_bytes
from probekit.federated.state import State
from probekit.federated.training.closed_form import ClosedForm
from probekit.federated.transports.kept import KeptFirst
from probekit.linear.model import StatsObjective
from probekit.linear.stats import sum_stats
from probekit.objective import Penalty
from probekit.records import array_bytes
from probekit.registry import METHODS, configured
from probekit.unlearning.classes import ClassSquares
from probekit.unlearning.methods.exact import Exact
from probekit.unlearning.methods.fedremoval import (
    FedRemoval,
    FedRemovalLine,
    FedRemovalPcg,
    ServerRows,
)
from probekit.unlearning.methods.retrain import Retrain
from probekit.unlearning.removal import (
    Need,
    Promise,
    Questions,
    Removal,
    Unlearner,
    finds_classes,
    missing,
)


@dataclass(frozen=True)
class Choice:
    """A method by its name, and a sentence that says why."""

    name: str
    method: Unlearner
    reason: str


def choose(removal: Removal) -> Choice:
    """The method that comes nearest to the minimum with the least asked of clients."""
    if not removal.is_quadratic:
        return _choose_retraining(removal)
    if removal.keeps_statistics:
        reason = "The clients' statistics are kept: those of the retained are summed and solved."
        return Choice("exact", Exact(), reason)
    if removal.absent:
        return _choose_one_step(removal)
    if not removal.has_sums:
        return _choose_retraining(removal)
    if _is_local(removal.retained) or isinstance(removal.state.trainer, ClosedForm):
        reason = "No statistics are kept, but the retained clients can be asked for theirs once."
        return Choice("exact", Exact(), reason)
    if removal.server is not None:
        reason = (
            "No statistics are kept; with the server's rows each round of the retained clients "
            "brings the head nearer to the minimum."
        )
        return Choice("fedremoval-pcg", FedRemovalPcg(), reason)
    return _choose_retraining(removal)


def _choose_retraining(removal: Removal) -> Choice:
    """For losses without a closed form, or clients elsewhere and no rows on the server."""
    exact = Exact()
    if not removal.has_sums and not missing(exact, removal):
        reason = (
            "The retained clients train anew from the start, which leaves no trace of the old head."
        )
        return Choice("exact", exact, reason)
    lacking = missing(Retrain(), removal)
    if lacking:
        raise InputError(f"Every method that fits needs {' and '.join(lacking)}. Provide it.")
    return Choice("retrain", Retrain(), "The retained clients repeat the run's own training.")


def _choose_one_step(removal: Removal) -> Choice:
    lacking = missing(FedRemoval(), removal)
    if lacking or removal.server is None:
        raise InputError(
            f"{removal.absent[0]} and {len(removal.absent) - 1} more retained clients are absent, "
            f"and what was kept allows no method; fedremoval needs {' and '.join(lacking)}. "
            "Bring them online."
        )
    server = ServerRows.of(removal.server, ridge=removal.state.ridge)
    if not server.enough:
        raise InputError(f"{server.warning} Name the method to use it all the same.")
    reason = (
        f"Nobody can be asked; kept gradients allow one step with the server's {server.rows} rows, "
        "which are enough for it to help. How far it ends from the minimum is not known."
    )
    return Choice("fedremoval", FedRemoval(), reason)


def _is_local(federation: Federation) -> bool:
    """Whether the clients' rows are in this process."""
    transport = federation.transport
    live = transport.live if isinstance(transport, KeptFirst) else transport
    return isinstance(live, InProcess)


@dataclass(frozen=True)
class Properties:
    """By what a method needs and promises, the five by which the paper compares systems.

    certified: it ends at the minimum; None: it repeats training, by which others are measured.
    """

    no_communication: bool
    no_target: bool
    no_retained: bool
    no_history: bool
    certified: bool | None

    @classmethod
    def of(cls, method: Unlearner, removal: Removal) -> Properties:
        needs = method.needs(removal)
        no_target = Need.TARGET not in needs
        no_retained = needs.isdisjoint({Need.RETAINED, Need.RETAINED_ROWS})
        return cls(
            no_communication=no_target and no_retained,
            no_target=no_target,
            no_retained=no_retained,
            no_history=needs.isdisjoint({Need.HISTORY, Need.CLUSTERS}),
            certified=None if method.promise == "retrained" else method.promise == "minimum",
        )


@dataclass(frozen=True)
class MethodPlan:
    """What a method would need, whether it is here, and what it would ask at most."""

    name: str
    promise: Promise
    properties: Properties
    missing: tuple[str, ...]
    rounds: int
    bytes: int
    warning: str = ""

    @property
    def possible(self) -> bool:
        return not self.missing


def plan(removal: Removal, names: Collection[str] = ()) -> tuple[MethodPlan, ...]:
    """These methods (else all, with defaults); nobody is asked but the server's own rows."""
    return tuple(plan_of(name, configured(name), removal) for name in names or METHODS.names())


def plan_of(name: str, method: Unlearner, removal: Removal) -> MethodPlan:
    lacking = missing(method, removal)
    questions: list[Questions] = []
    warning = ""
    if not lacking:
        questions = [*method.questions(removal), *_preparing(method, removal)]
        if removal.server is not None and isinstance(method, FedRemoval):
            warning = ServerRows.of(removal.server, ridge=removal.state.ridge).warning
    rounds = sum(question.times for question in questions)
    size = sum(question.times * _bytes(question, removal) for question in questions)
    properties = Properties.of(method, removal)
    return MethodPlan(name, method.promise, properties, tuple(lacking), rounds, size, warning)


def _preparing(method: Unlearner, removal: Removal) -> list[Questions]:
    """What is asked before any method: new sums where samples leave, or which classes remain."""
    if removal.keeps_statistics:
        return [Questions(Statistics(), clients=removal.changed)] if removal.changed else []
    if removal.class_labels and finds_classes(method, removal):
        return [Questions(ClassSquares())]
    return []


def _bytes(question: Questions, removal: Removal) -> int:
    """What one round sends and receives."""
    federation = removal.target if question.target else removal.retained
    names = federation.clients if question.clients is None else question.clients
    query = question.query
    shapes = (query.shapes(federation.model, federation.clients[name]) for name in names)
    return len(names) * array_bytes(query) + sum(map(answer_bytes, shapes))


@dataclass(frozen=True)
class Facts:
    """What a removal has done to the loss of the retained rows, and what the server's rows allow.

    server_rows and effective_dimension are of one step of FedRemoval; 0 of other methods.
    """

    loss_before: float
    loss_after: float
    server_rows: int
    effective_dimension: float
    warnings: tuple[str, ...]


def facts(removal: Removal, after: State, method: Unlearner) -> Facts:
    """From kept statistics, else by two rounds of the retained clients."""
    removal = removal.seen_by(after)
    before_loss = _loss(removal, removal.state, ridge=after.ridge)
    after_loss = _loss(removal, after, ridge=after.ridge)
    warnings: list[str] = []
    if after_loss > before_loss:
        warnings.append(
            f"The retained loss rose from {before_loss:.6g} to {after_loss:.6g}: the head is worse "
            "on the retained rows than before. Use another method."
        )
    server = ServerRows(0, 0.0)
    if removal.server is not None and isinstance(method, FedRemoval | FedRemovalLine):
        server = ServerRows.of(removal.server, ridge=after.ridge)
    if isinstance(method, FedRemoval):  # a step along the line never raises the loss
        warnings += filter(None, [server.warning])
    return Facts(before_loss, after_loss, server.rows, server.effective_dimension, tuple(warnings))


def _loss(removal: Removal, state: State, *, ridge: float) -> float:
    if removal.is_quadratic and removal.statistics is not None:
        objective = StatsObjective(sum_stats(removal.statistics.values()))
        value = objective.value_and_gradient(state.params)[0] / objective.weight
        return value + Penalty(state.model, ridge).value(state.params)
    return MeanLoss(removal.retained, ridge).value_and_gradient(state.params)[0]
