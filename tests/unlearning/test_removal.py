"""Requests and removals: what is refused, who may be absent, what is forgotten with the rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from probekit.errors import InputError, MissingClients, SolverError
from probekit.federated.state import History, KeptGradients, KeptStatistics
from probekit.federated.training.closed_form import ClosedForm
from probekit.federated.training.fedavg import FedAvg, LocalPlan
from probekit.linear.ridge import Gcv
from probekit.unlearning.removal import Removal, Request
from tests.unlearning.problems import federation, forget, sample_ids, some_clients, trained

CLIENTS = some_clients()
ASKED = federation(CLIENTS)
STATE = trained(ASKED)


def test_a_request_is_about_clients_or_about_samples() -> None:
    ids = sample_ids(CLIENTS["1"], [0])
    assert Request(samples={"1": ids}).touched == {"1"}
    for arguments in ({}, {"clients": frozenset({"0"}), "samples": {"1": ids}}):
        with pytest.raises(InputError, match="or"):
            Request(**arguments)


def test_unknown_clients_are_refused_with_those_that_there_are() -> None:
    with pytest.raises(InputError, match="client 7: this run has clients 0 to 4"):
        forget(STATE, ASKED, clients={"1", "7"})
    named = federation({"north": CLIENTS["0"], "south": CLIENTS["1"]})
    with pytest.raises(InputError, match="east: this run has 2 clients: north, south"):
        forget(trained(named), named, samples={"east": sample_ids(CLIENTS["0"], [0])})


def test_unknown_samples_are_refused() -> None:
    with pytest.raises(MissingClients, match="id"):
        forget(STATE, ASKED, samples={"1": sample_ids(CLIENTS["2"], [0])})


def test_something_must_be_retained() -> None:
    with pytest.raises(InputError, match="150"):
        forget(STATE, ASKED, clients=set(CLIENTS))
    ids = {name: sample_ids(rows, range(len(rows))) for name, rows in CLIENTS.items()}
    with pytest.raises(InputError, match="150"):
        forget(STATE, ASKED, samples=ids)


def test_a_client_is_gone_with_its_last_sample() -> None:
    every = sample_ids(CLIENTS["2"], range(30))
    after = forget(STATE, ASKED, samples={"2": every})
    assert list(after.clients) == ["0", "1", "3", "4"]
    assert np.array_equal(after.params, forget(STATE, ASKED, clients={"2"}).params)


def test_copies_of_a_sample_are_all_forgotten() -> None:
    twice = {**CLIENTS, "0": CLIENTS["0"].take(np.array([*range(40), 3, 3]))}
    asked = federation(twice)
    after = forget(trained(asked), asked, samples={"0": sample_ids(CLIENTS["0"], [3])})
    assert after.clients["0"] == 39


def test_the_retained_rows_are_those_of_the_training() -> None:
    """Else the head would be about other rows than the state says."""
    shorter = {**CLIENTS, "0": CLIENTS["0"].take(np.arange(39))}
    with pytest.raises(InputError, match="40 rows"):
        forget(STATE, federation(shorter), clients={"1"})
    with pytest.raises(InputError, match="Client new"):
        forget(STATE, federation({**CLIENTS, "new": CLIENTS["0"]}), clients={"1"})
    forget(STATE, federation(shorter), clients={"0"})


def test_samples_do_not_come_back_in_a_second_removal() -> None:
    first = {"1": sample_ids(CLIENTS["1"], [0, 1])}
    after = forget(STATE, ASKED, samples=first)
    with pytest.raises(InputError, match="23 rows"):
        forget(after, ASKED, clients={"0"})
    again = forget(after, ASKED.without_samples(first), clients={"0"})
    assert again.clients == {"1": 23, "2": 30, "3": 35, "4": 20}


def test_what_is_kept_forgets() -> None:
    kept = frozenset({"statistics", "gradients", "history"})
    trainer = FedAvg(2, LocalPlan(0.01, steps=2), keep=kept)
    before = trained(ASKED, trainer, Gcv())
    assert [type(item) for item in before.kept] == [KeptStatistics, KeptGradients, History]
    after = forget(
        before, ASKED, "fedremoval", clients={"3"}, server=federation({"s": CLIENTS["0"]})
    )
    assert [type(item) for item in after.kept] == [KeptStatistics]
    assert list(after.get(KeptStatistics).parts) == ["0", "1", "2", "4"]


def test_gradients_at_other_parameters_are_not_used() -> None:
    before = trained(ASKED, ClosedForm(keep=frozenset({"gradients"})))
    request = Request(frozenset({"3"}))
    assert Removal.of(before, request, ASKED).keeps_gradients
    elsewhere = replace(before, params=before.params + 1)
    assert not Removal.of(elsewhere, request, ASKED).keeps_gradients
    samples = Request(samples={"3": sample_ids(CLIENTS["3"], [0])})
    assert not Removal.of(before, samples, ASKED).keeps_gradients


def test_a_chosen_ridge_is_stale_where_no_sums_are_kept() -> None:
    for keep, stale in ((frozenset({"statistics"}), False), (frozenset(), True)):
        before = trained(ASKED, ClosedForm(keep=keep), Gcv())
        removal = Removal.of(before, Request(frozenset({"0"})), ASKED)
        assert removal.ridge_choice.stale is stale
    by_hand = Removal.of(STATE, Request(frozenset({"0"})), ASKED)
    assert by_hand.ridge_choice == STATE.ridge_choice


def test_a_result_that_is_not_finite_is_refused() -> None:
    removal = Removal.of(STATE, Request(frozenset({"0"})), ASKED)
    with pytest.raises(SolverError):
        removal.finish(np.full(STATE.params.shape, np.nan))


def test_absent_clients_are_named() -> None:
    before = trained(ASKED, ClosedForm(keep=frozenset()))
    with pytest.raises(InputError, match=r"2.*absent"):
        forget(before, ASKED.only({"0", "1", "3", "4"}), clients={"1"})


def test_the_server_is_seen_by_the_runs_own_model() -> None:
    penalized = federation(CLIENTS, intercept="penalized")
    server = federation({"server": some_clients((50,), seed=3)["0"]})
    removal = Removal.of(trained(penalized), Request(frozenset({"0"})), penalized, server=server)
    assert removal.server is not None
    assert removal.server.model == penalized.model
