"""Which method `auto` takes, what each would cost, and what one has done to the loss."""

from __future__ import annotations

import numpy as np
import pytest

from probekit.errors import InputError
from probekit.federated.federation import Federation
from probekit.federated.state import State
from probekit.federated.training.closed_form import ClosedForm
from probekit.federated.training.fedavg import FedAvg, LocalPlan
from probekit.federated.training.knot import KnotTraining
from probekit.federated.training.lbfgs import LbfgsRounds
from probekit.federated.transports.loopback import Loopback
from probekit.linear.ridge import Gcv, InverseC
from probekit.registry import METHODS, configured
from probekit.unlearning.choice import choose, facts, plan, plan_of
from probekit.unlearning.removal import Removal, Request, unlearn
from tests.unlearning.problems import (
    federation,
    forget,
    logistic,
    sample_ids,
    some_clients,
    trained,
)

CLIENTS = some_clients()
SERVER = federation({"server": some_clients((60,), seed=7)["0"]})
FEDAVG = FedAvg(3, LocalPlan(0.01, steps=2))


def removal_of(
    asked: Federation,
    trainer: ClosedForm | FedAvg | LbfgsRounds,
    *,
    present: str = "01234",
    server: Federation | None = None,
) -> Removal:
    state = trained(asked, trainer, 0.1)
    request = Request(frozenset({"3"}))
    return Removal.of(state, request, asked.only(set(present)), server=server)


def elsewhere() -> Federation:
    """Clients who are not in this process."""
    return Federation.of(Loopback(CLIENTS), federation(CLIENTS).model)


def keeping(*kinds: str) -> FedAvg:
    return FedAvg(3, LocalPlan(0.01, steps=2), keep=frozenset(kinds))


@pytest.mark.parametrize(
    ("removal", "expected"),
    [
        (removal_of(federation(CLIENTS), ClosedForm()), "exact"),
        (removal_of(federation(CLIENTS), keeping("statistics"), present=""), "exact"),
        (removal_of(federation(CLIENTS), FEDAVG), "exact"),
        (removal_of(elsewhere(), ClosedForm(keep=frozenset())), "exact"),
        (removal_of(elsewhere(), FEDAVG, server=SERVER), "fedremoval-pcg"),
        (removal_of(elsewhere(), FEDAVG), "retrain"),
        (removal_of(elsewhere(), keeping("gradients"), present="", server=SERVER), "fedremoval"),
        (removal_of(logistic(CLIENTS), LbfgsRounds()), "exact"),
    ],
)
def test_auto_takes_the_best_that_is_possible(removal: Removal, expected: str) -> None:
    choice = choose(removal)
    assert choice.name == expected
    assert choice.reason.endswith(".")
    assert unlearn(choice.method, removal).clients == {"0": 40, "1": 25, "2": 30, "4": 20}


def test_auto_takes_no_step_that_may_do_harm() -> None:
    few = federation({"server": some_clients((9,), seed=7)["0"]})
    trainer = keeping("gradients")
    removal = removal_of(federation(CLIENTS), trainer, present="", server=few)
    with pytest.raises(InputError, match="server rows"):
        choose(removal)
    assert plan_of("fedremoval", configured("fedremoval"), removal).warning
    unlearn(configured("fedremoval"), removal)


@pytest.mark.parametrize("trainer", [FEDAVG, keeping("gradients")])
def test_auto_says_what_is_missing(trainer: FedAvg) -> None:
    with pytest.raises(InputError, match="server"):
        choose(removal_of(federation(CLIENTS), trainer, present=""))
    with pytest.raises(InputError, match="retained"):
        choose(removal_of(logistic(CLIENTS), LbfgsRounds(), present="0"))


def requests() -> list[Request]:
    samples = {"0": sample_ids(CLIENTS["0"], [1, 2]), "4": sample_ids(CLIENTS["4"], [0])}
    return [Request(frozenset({"3"})), Request(samples=samples)]


TRAINERS = {
    "closed form": ClosedForm(),
    "closed form that keeps all": ClosedForm(keep=frozenset({"statistics", "gradients"})),
    "closed form that keeps nothing": ClosedForm(keep=frozenset()),
    "fedavg": FEDAVG,
    "half of the clients": FedAvg(3, LocalPlan(0.01, steps=2), participation=0.5),
    "fedavg that keeps": keeping("statistics", "gradients"),
    "fedavg that keeps its rounds": keeping("history"),
    "half of them, kept": FedAvg(
        4, LocalPlan(0.01, steps=2), participation=0.5, keep=frozenset({"history"})
    ),
    "clusters": KnotTraining(2, FEDAVG),
    "clusters that keep": KnotTraining(2, FEDAVG, frozenset({"statistics"})),
}
VARIANTS = [
    *METHODS.names(),
    "ferrari:columns=0:2",
    "pga:post=0",
    "fused:rank=2,layers=1",
    "ew-sga:importance=target",
    "ew-sga:importance=server",
]


@pytest.mark.parametrize("request_number", [0, 1])
@pytest.mark.parametrize("ridge", [0.1, Gcv()])
@pytest.mark.parametrize("name", TRAINERS)
def test_a_plan_foresees_what_passes(name: str, ridge: float | Gcv, request_number: int) -> None:
    """For every method: as many rounds and bytes, or at most as many where it may stop early."""
    asked = federation(CLIENTS, intercept="penalized")
    state = trained(asked, TRAINERS[name], ridge)
    for method in VARIANTS:
        removal = Removal.of(state, requests()[request_number], asked, server=SERVER)
        planned = plan_of(method, configured(method), removal)
        if not planned.possible:
            with pytest.raises(InputError):
                unlearn(configured(method), removal)
            continue
        traffic = asked.traffic
        start = (traffic.rounds, traffic.sent + traffic.received)
        unlearn(configured(method), removal)
        passed = (traffic.rounds - start[0], traffic.sent + traffic.received - start[1])
        if method in ("rounds", "fedremoval-pcg"):
            assert passed <= (planned.rounds, planned.bytes)
        else:
            assert passed == (planned.rounds, planned.bytes)


@pytest.mark.parametrize("method", ["exact", "retrain", "rounds"])
@pytest.mark.parametrize("keep", [frozenset(), frozenset({"statistics", "gradients"})])
def test_a_plan_of_a_logistic_head_is_an_upper_bound(method: str, keep: frozenset[str]) -> None:
    asked = logistic(CLIENTS)
    state = trained(asked, LbfgsRounds(whiten=False, keep=keep), InverseC(1.0))
    removal = Removal.of(state, requests()[0], asked)
    planned = plan_of(method, configured(method), removal)
    traffic = asked.traffic
    start = (traffic.rounds, traffic.sent + traffic.received)
    unlearn(configured(method), removal)
    assert 0 < traffic.rounds - start[0] <= planned.rounds
    assert 0 < traffic.sent + traffic.received - start[1] <= planned.bytes


def test_a_plan_says_what_each_method_needs_and_promises() -> None:
    plans = {entry.name: entry for entry in plan(removal_of(federation(CLIENTS), FEDAVG))}
    assert list(plans) == METHODS.names()
    possible = {name for name, entry in plans.items() if entry.possible}
    local = {"cf", "flipping", "sga", "ew-sga", "fused"}
    assert possible == {"exact", "retrain", *local}
    assert any("--keep history" in need for need in plans["federaser"].missing)
    assert any("--method knot" in need for need in plans["knot"].missing)
    assert any("ferrari:columns" in need for need in plans["ferrari"].missing)
    assert any("--server-share" in need for need in plans["fedremoval"].missing)
    promised = {name: entry.promise for name, entry in plans.items() if entry.promise != "nothing"}
    assert promised == {
        "exact": "minimum",
        "fedremoval-pcg": "minimum",
        "knot": "retrained",
        "retrain": "retrained",
        "rounds": "minimum",
    }


def mean_loss(state: State, params: np.ndarray, names: str) -> float:
    """Row by row."""
    losses = []
    for name in names:
        rows = np.asarray(CLIENTS[name].rows, float)
        scores = rows @ params[:-1] + params[-1]
        losses.extend(np.square(scores - CLIENTS[name].target_matrix).sum(axis=1) / 2)
    return float(np.mean(losses) + state.ridge / 2 * np.square(params[:-1]).sum())


@pytest.mark.parametrize("keep", ["statistics", "gradients"])
def test_facts_are_the_loss_before_and_after_and_the_servers_rows(keep: str) -> None:
    asked = federation(CLIENTS)
    removal = removal_of(asked, ClosedForm(keep=frozenset({keep})), server=SERVER)
    after = unlearn(configured("exact"), removal)
    found = facts(removal, after, configured("fedremoval-line"))
    assert found.loss_before == pytest.approx(mean_loss(after, removal.state.params, "0124"))
    assert found.loss_after == pytest.approx(mean_loss(after, after.params, "0124"))
    assert found.loss_after < found.loss_before
    assert found.server_rows == 60
    assert 1 < found.effective_dimension < 7
    assert found.warnings == ()


def test_facts_warn_of_harm() -> None:
    clients = some_clients((60, 60, 60), width=30)
    asked = federation(clients, intercept="penalized")
    few = federation({"server": some_clients((20,), width=30, seed=5)["0"]})
    removal = Removal.of(trained(asked, ridge=1e-3), Request(frozenset({"0"})), asked, server=few)
    after = unlearn(configured("fedremoval"), removal)
    assert len(facts(removal, after, configured("cf")).warnings) == 1
    found = facts(removal, after, configured("fedremoval"))
    assert found.loss_after > found.loss_before
    assert len(found.warnings) == 2


def test_facts_of_a_head_that_lost_a_class_are_about_the_others() -> None:
    rare = CLIENTS["1"].take(np.flatnonzero(CLIENTS["1"].labels == 2))
    parts = {"0": CLIENTS["0"].take(np.flatnonzero(CLIENTS["0"].labels != 2)), "rare": rare}
    asked = federation(parts)
    state = trained(asked, ClosedForm(keep=frozenset()))
    after = forget(state, asked, clients={"rare"})
    removal = Removal.of(state, Request(frozenset({"rare"})), asked)
    found = facts(removal, after, configured("exact"))
    assert after.model.classes == 2
    assert found.loss_after < found.loss_before


def test_removal_in_no_rounds_is_refused() -> None:
    with pytest.raises(InputError, match="rounds must be above 0"):
        configured("fedremoval-pcg:0")
