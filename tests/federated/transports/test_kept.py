"""Kept statistics in the place of clients that are not there."""

from __future__ import annotations

import numpy as np
import pytest

from probekit.errors import MissingClients
from probekit.federated.federation import Federation, InProcess, collect_stats, total
from probekit.federated.local import LocalPlan
from probekit.federated.queries import Gradient, Product, Query, Statistics, Weight
from probekit.federated.training.closed_form import ClosedForm
from probekit.federated.training.fedavg import FedAvg
from probekit.federated.training.lbfgs import LbfgsRounds
from probekit.federated.transports.kept import KeptFirst
from tests.federated.examples import Meddling, divided, federation

CLIENTS = divided()
PARAMS = np.random.default_rng(0).standard_normal((7, 3))
PARTS = collect_stats(federation(CLIENTS), ["b", "d"])


def kept_first(*, logistic: bool = False) -> tuple[Federation, Meddling]:
    """Clients "b" and "d" by their statistics where possible, and who was asked otherwise."""
    live = Meddling(InProcess(CLIENTS), {})
    model = federation(CLIENTS, logistic=logistic).model
    return Federation.of(KeptFirst(PARTS, live), model), live


@pytest.mark.parametrize(
    "query", [Statistics(), Gradient(PARAMS), Product(PARAMS, PARAMS), Weight()]
)
def test_only_the_others_are_asked(query: Query) -> None:
    asked, live = kept_first()
    found = total(asked.ask(query))
    assert live.asked == ["a", "c"]
    expected = total(federation(CLIENTS).ask(query))
    for name, array in expected.arrays.items():
        np.testing.assert_allclose(found.arrays[name], array)


def test_what_is_kept_does_not_pass_again() -> None:
    asked, _ = kept_first()
    total(asked.ask(Gradient(PARAMS)))
    passed = federation(CLIENTS).only(["a", "c"])
    total(passed.ask(Gradient(PARAMS)))
    assert asked.traffic == passed.traffic
    kept = kept_first()[0].only(["b", "d"])
    total(kept.ask(Gradient(PARAMS)))
    assert (kept.traffic.rounds, kept.traffic.sent, kept.traffic.received) == (0, 0, 0)


def test_what_statistics_do_not_know_is_asked() -> None:
    asked, live = kept_first()
    trainer = FedAvg(2, LocalPlan(0.01, epochs=1, batch_size=4))
    state = trainer.train(asked, ridge=0.1)
    np.testing.assert_array_equal(
        state.params, trainer.train(federation(CLIENTS), ridge=0.1).params
    )
    assert live.asked == 2 * ["a", "b", "c", "d"]


def test_gradients_of_cross_entropy_are_asked() -> None:
    asked, live = kept_first(logistic=True)
    state = LbfgsRounds().train(asked, ridge=0.1)
    expected = LbfgsRounds().train(federation(CLIENTS, logistic=True), ridge=0.1)
    np.testing.assert_array_equal(state.params, expected.params)
    assert live.asked[:6] == ["a", "c", "a", "b", "c", "d"]


def test_clients_that_left_are_still_known() -> None:
    live = InProcess({name: CLIENTS[name] for name in ("a", "c")})
    asked = Federation.of(KeptFirst(PARTS, live), federation(CLIENTS).model)
    assert asked.clients == {"a": 40, "b": 25, "c": 30, "d": 35}
    assert not asked.has_rows
    np.testing.assert_array_equal(
        ClosedForm().train(asked, ridge=0.1).params,
        ClosedForm().train(federation(CLIENTS), ridge=0.1).params,
    )
    with pytest.raises(MissingClients) as caught:
        FedAvg(1, LocalPlan(0.1, epochs=1, batch_size=4)).train(asked, ridge=0.1)
    assert caught.value.reasons.keys() == {"b", "d"}
