"""Gradient rounds end as near to the minimum as was asked for, by their certificate."""

from __future__ import annotations

import numpy as np
import pytest

from probekit.certificates.certificate import certify
from probekit.errors import InputError, SolverError
from probekit.federated.held_out import HeldOut
from probekit.federated.training.closed_form import ClosedForm
from probekit.federated.training.lbfgs import LbfgsRounds
from probekit.linear.ridge import InverseC
from tests.unlearning.problems import federation, forget, logistic, some_clients, trained


@pytest.mark.parametrize("distance", [1e-2, 1e-4, 1e-7])
@pytest.mark.parametrize("keep", [frozenset(), frozenset({"statistics"})])
def test_a_logistic_head_is_certified_as_near_as_asked(distance: float, keep: frozenset) -> None:
    clients = some_clients()
    asked = logistic(clients)
    before = trained(asked, LbfgsRounds(keep=keep), 0.01)
    after = forget(before, asked, f"rounds:{distance}", clients={"2"})
    retained = asked.without({"2"})
    assert certify(after, retained).distance <= distance
    minimum = trained(retained, LbfgsRounds(tolerance=1e-10), 0.01).params
    assert np.linalg.norm(after.params - minimum) <= distance


def test_the_ridge_of_a_given_c_follows_the_rows() -> None:
    clients = some_clients()
    asked = logistic(clients)
    before = trained(asked, LbfgsRounds(keep=frozenset()), InverseC(2.0))
    after = forget(before, asked, "rounds", clients={"2"})
    assert after.ridge == pytest.approx(1 / (2.0 * 120))
    assert not after.ridge_choice.stale


def test_a_c_that_held_out_rows_chose_is_stale() -> None:
    asked = logistic(some_clients())
    before = trained(asked, LbfgsRounds(), HeldOut((0.1, 1.0)))
    after = forget(before, asked, "rounds", clients={"2"})
    assert after.ridge == before.ridge
    assert after.ridge_choice.stale
    assert certify(after, asked.without({"2"})).stale_ridge


def test_ridge_heads_have_a_minimum_too() -> None:
    clients = some_clients()
    asked = federation(clients, intercept="penalized")
    before = trained(asked, ClosedForm(keep=frozenset()), 0.1)
    after = forget(before, asked, "rounds:1e-8", clients={"2"})
    minimum = forget(before, asked, "exact", clients={"2"})
    assert np.linalg.norm(after.params - minimum.params) <= 1e-8


def test_what_cannot_be_reached_is_refused() -> None:
    clients = some_clients()
    asked = logistic(clients)
    before = trained(asked, LbfgsRounds(), 0.01)
    with pytest.raises(SolverError):
        forget(before, asked, "rounds:distance=1e-9,rounds=2", clients={"2"})
    free = federation(clients)
    with pytest.raises(InputError, match="penalized"):
        forget(trained(free), free, "rounds", clients={"2"})
