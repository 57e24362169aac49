"""Exact removal: the state is that of training without the forgotten rows, to the last byte."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError
from probekit.federated.federation import Federation
from probekit.federated.held_out import HeldOut
from probekit.federated.state import KeptStatistics
from probekit.federated.training.closed_form import ClosedForm
from probekit.federated.training.fedavg import FedAvg, LocalPlan
from probekit.federated.training.lbfgs import LbfgsRounds
from probekit.federated.transports.kept import KeptFirst
from probekit.federated.transports.loopback import Loopback
from probekit.linear.ridge import Gcv, InverseC
from probekit.unlearning.methods.exact import Exact
from probekit.unlearning.removal import Removal, Request, unlearn
from tests.oracles import relative_error, ridge_by_lstsq
from tests.unlearning.problems import (
    federation,
    forget,
    logistic,
    same,
    sample_ids,
    some_clients,
    trained,
    without_class,
)

INTERCEPTS = ("free", "penalized")
WIDTHS = (6, 200)
"""With 200 columns every client sends a root."""


def with_noise(clients):
    """A client more, whose labels say nothing and whose rows are long."""
    noisy = some_clients((60,), width=clients["0"].width, seed=9, signal=0.0)["0"]
    return {**clients, "noise": replace(noisy, rows=np.asarray(noisy.rows) * 3)}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_a_client_that_moved_the_ridge_leaves_no_trace(intercept: str, width: int) -> None:
    clients = some_clients(width=width)
    asked = federation(with_noise(clients), intercept=intercept)
    before = trained(asked, ridge=Gcv())
    after = forget(before, asked, clients={"noise"})
    assert same(after, trained(federation(clients, intercept=intercept), ridge=Gcv()))
    assert after.ridge != before.ridge


@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_the_head_is_the_minimum_by_other_means(intercept: str) -> None:
    clients = some_clients()
    asked = federation(clients, intercept=intercept)
    after = forget(trained(asked, ridge=0.1), asked, clients={"1", "3"})
    rows = np.vstack([clients[name].rows for name in "024"])
    targets = np.vstack([clients[name].target_matrix for name in "024"])
    expected = ridge_by_lstsq(rows, targets, 0.1, intercept=intercept)
    assert relative_error(after.params, expected) < 1e-12


@given(data=st.data(), width=st.sampled_from(WIDTHS), intercept=st.sampled_from(INTERCEPTS))
def test_chains_of_mixed_requests_leave_no_trace(data, width: int, intercept: str) -> None:
    clients = some_clients((9, 7, 8, 6, 5), width=width, seed=data.draw(st.integers(0, 99)))
    asked = federation(clients, intercept=intercept)
    state = trained(asked, ridge=Gcv())
    remaining = dict(clients)
    for _ in range(data.draw(st.integers(1, 4))):
        name = data.draw(st.sampled_from(sorted(remaining)))
        if len(remaining) == 1 or state.model.classes < 3:  # a class left: clients number others
            break
        if data.draw(st.booleans()):
            state = forget(state, asked, clients={name})
            asked = asked.without({name})
            del remaining[name]
            continue
        size = len(remaining[name])
        ids = sample_ids(remaining[name], data.draw(st.sets(st.integers(0, size - 1), min_size=1)))
        state = forget(state, asked, samples={name: ids})
        asked = asked.without_samples({name: ids})
        remaining[name] = remaining[name].without(ids)
        if not len(remaining[name]):
            del remaining[name]
    labels = np.concatenate([rows.labels for rows in remaining.values()])
    if len(np.unique(labels)) == 3:
        alone = trained(federation(remaining, intercept=intercept), ridge=Gcv())
        assert same(state, alone)


@pytest.mark.parametrize("trainer", [ClosedForm(), ClosedForm(keep=frozenset())])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_class_leaves_with_its_last_row(width: int, trainer: ClosedForm) -> None:
    clients = some_clients(width=width, classes=4)
    others = without_class(clients, 1)
    last = clients["3"].take(np.flatnonzero(clients["3"].labels == 1))
    wide = {name: rows.take(np.flatnonzero(rows.labels != 1)) for name, rows in clients.items()} | {
        "last": last
    }
    asked = federation(wide)
    after = forget(trained(asked, trainer, Gcv()), asked, clients={"last"})
    assert after.model.classes == 3
    assert same(after, trained(federation(others), trainer, Gcv()))


def test_a_class_leaves_with_its_last_sample_too() -> None:
    clients = some_clients()
    ids = {
        name: sample_ids(rows, np.flatnonzero(rows.labels == 2)) for name, rows in clients.items()
    }
    asked = federation(clients)
    after = forget(trained(asked, ridge=Gcv()), asked, samples=ids)
    assert same(after, trained(federation(without_class(clients, 2)), ridge=Gcv()))


def test_a_logistic_head_is_trained_anew_from_zero() -> None:
    clients = some_clients()
    asked = logistic(with_noise(clients))
    before = trained(asked, LbfgsRounds(), InverseC(1.0))
    after = forget(before, asked, clients={"noise"})
    assert same(after, trained(logistic(clients), LbfgsRounds(), InverseC(1.0)))
    assert after.ridge > before.ridge


def test_a_client_that_moved_c_leaves_no_trace() -> None:
    clients = some_clients()
    asked = logistic(with_noise(clients))
    before = trained(asked, LbfgsRounds(), HeldOut())
    after = forget(before, asked, clients={"noise"})
    assert same(after, trained(logistic(clients), LbfgsRounds(), HeldOut()))
    rows = {name: part.rows for name, part in (("before", asked), ("after", logistic(clients)))}
    assert before.ridge * rows["before"] != pytest.approx(after.ridge * rows["after"])
    assert not after.ridge_choice.stale


def test_a_class_leaves_a_logistic_head() -> None:
    clients = some_clients((30, 30))
    rare = clients["1"].take(np.flatnonzero(clients["1"].labels == 2))
    others = {"0": clients["0"].take(np.flatnonzero(clients["0"].labels != 2))}
    asked = logistic({**others, "rare": rare})
    after = forget(trained(asked, LbfgsRounds(), 0.01), asked, clients={"rare"})
    assert same(after, trained(logistic(without_class(others, 2)), LbfgsRounds(), 0.01))


@pytest.mark.parametrize("width", WIDTHS)
def test_real_targets_stay_though_all_are_zero(width: int) -> None:
    clients = {}
    for name, rows in some_clients(width=width).items():
        targets = np.random.default_rng(int(name)).normal(size=(len(rows), 3))
        targets[:, 1] *= name == "4"
        clients[name] = EmbeddingSet.from_numpy(rows.rows, targets=targets)
    asked = federation(clients)
    before = trained(asked, ridge=Gcv())
    request = Request(frozenset({"4"}))
    after = unlearn(Exact(), Removal.of(before, request, asked, class_labels=False))
    assert same(after, trained(asked.without({"4"}), ridge=Gcv()))
    assert np.abs(after.params[:, 1]).max() < 1e-12


@pytest.mark.parametrize("clients", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_many_small_clients(clients: int) -> None:
    parts = some_clients((2,) * clients, width=64, classes=5)
    asked = federation(parts)
    gone = {str(number) for number in range(0, clients, 7)}
    after = forget(trained(asked, ridge=Gcv()), asked, clients=gone)
    retained = {name: rows for name, rows in parts.items() if name not in gone}
    assert same(after, trained(federation(retained), ridge=Gcv()))


def test_kept_statistics_need_nobody_online() -> None:
    clients = some_clients()
    asked = federation(clients)
    before = trained(asked, ridge=Gcv())
    nobody = asked.only(())
    assert same(forget(before, nobody, clients={"2"}), forget(before, asked, clients={"2"}))
    assert asked.traffic.rounds == 1  # that of training


def test_only_the_client_that_forgets_samples_is_asked() -> None:
    clients = some_clients()
    asked = federation(clients)
    before = trained(asked, ridge=Gcv())
    ids = sample_ids(clients["2"], [0, 5])
    alone = asked.only({"2"})
    after = forget(before, alone, samples={"2": ids})
    remaining = {**clients, "2": clients["2"].without(ids)}
    assert same(after, trained(federation(remaining), ridge=Gcv()))


@pytest.mark.parametrize("transport", ["bytes", "kept first"])
def test_every_transport_gives_the_same_bytes(transport: str) -> None:
    clients = some_clients(classes=3)
    rare = clients["1"].take(np.flatnonzero(clients["1"].labels == 2))
    parts = {"0": clients["0"].take(np.flatnonzero(clients["0"].labels != 2)), "1": rare}
    parts["2"] = clients["2"].take(np.flatnonzero(clients["2"].labels != 2))
    asked = federation(parts)
    before = trained(asked, ridge=Gcv())
    carrier = Loopback(parts)
    if transport == "kept first":
        carrier = KeptFirst(before.get(KeptStatistics).parts, carrier)
    elsewhere = Federation.of(carrier, asked.model)
    ids = sample_ids(parts["0"], [1])
    for request in ({"clients": {"1"}}, {"samples": {"0": ids}}):
        assert same(forget(before, elsewhere, **request), forget(before, asked, **request))


def test_without_statistics_the_retained_clients_are_asked_for_theirs() -> None:
    clients = some_clients()
    asked = federation(clients)
    plan = LocalPlan(steps=3)
    before = trained(asked, FedAvg(4, plan), 0.1)
    after = forget(before, asked, clients={"0"})
    expected = trained(asked.without({"0"}), ridge=0.1)
    assert np.array_equal(after.params, expected.params)
    assert after.kept == ()


def test_a_logistic_head_with_a_free_intercept_has_no_certified_minimum() -> None:
    clients = some_clients()
    asked = federation(clients, loss=logistic(clients).model.loss)
    before = trained(asked, LbfgsRounds(tolerance=1e-3), 0.1)
    with pytest.raises(InputError, match="penalized"):
        forget(before, asked, clients={"0"})
