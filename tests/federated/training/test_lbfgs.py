"""Logistic heads by gradient rounds against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from probekit.errors import InputError, SolverError
from probekit.federated.federation import collect_stats
from probekit.federated.loss import MeanLoss
from probekit.federated.state import KeptStatistics
from probekit.federated.training.lbfgs import LbfgsRounds
from probekit.linear.ridge import Gcv, InverseC
from probekit.progress import Step
from tests.federated.examples import Clients, design, divided, federation
from tests.oracles import Array, relative_error


def by_scikit_learn(clients: Clients, C: float) -> Array:
    """With the ones as a column, so that the intercept is penalized."""
    Z, Y = design(clients)
    model = LogisticRegression(C=C, fit_intercept=False, tol=1e-12, max_iter=10_000)
    return np.asarray(model.set_params(solver="newton-cg").fit(Z, Y.argmax(axis=1)).coef_).T


@pytest.mark.parametrize("C", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("whiten", [True, False])
def test_the_minimum_is_that_of_scikit_learn(C: float, whiten: bool) -> None:
    clients = divided((60, 40, 3, 50))
    trainer = LbfgsRounds(rounds=1000, whiten=whiten)
    state = trainer.train(federation(clients, logistic=True), ridge=InverseC(C))
    assert relative_error(state.params, by_scikit_learn(clients, C)) < 1e-5
    assert state.ridge == pytest.approx(1 / (153 * C))
    assert state.ridge_choice.rule == InverseC(C)


def test_two_classes_have_the_probabilities_of_scikit_learn() -> None:
    clients = divided((60, 40), classes=2)
    state = LbfgsRounds().train(federation(clients, logistic=True), ridge=InverseC(2.0))
    difference = state.params[:, 1:] - state.params[:, :1]
    assert relative_error(difference, by_scikit_learn(clients, 2.0)) < 1e-5


def test_the_gradient_is_as_small_as_promised() -> None:
    asked = federation(divided(), logistic=True)
    for tolerance in (1e-3, 1e-7):
        state = LbfgsRounds(tolerance=tolerance).train(asked, ridge=0.02)
        gradient = MeanLoss(asked, 0.02).gradient(state.params)
        assert np.linalg.norm(gradient) <= 0.02 * tolerance


def test_the_gram_saves_rounds() -> None:
    clients = divided((120, 80), width=6, seed=3)
    stretched: Clients = {}
    for name, rows in clients.items():
        scale = np.geomspace(1, 15, 6)
        stretched[name] = type(rows).from_numpy(
            np.asarray(rows.rows) * scale, rows.labels, class_names=rows.class_names
        )

    def rounds(whiten: bool) -> int:
        asked = federation(stretched, logistic=True)
        LbfgsRounds(rounds=3000, tolerance=1e-4, whiten=whiten).train(asked, ridge=1e-3)
        return asked.traffic.rounds

    assert 2 * rounds(whiten=True) < rounds(whiten=False)


def test_a_warm_start_ends_at_the_same_minimum() -> None:
    clients = divided()
    asked = federation(clients, logistic=True)
    trainer = LbfgsRounds()
    state = trainer.train(asked, ridge=0.05)
    kept = state.get(KeptStatistics)
    assert kept is not None
    assert kept.parts.keys() == collect_stats(asked).keys()
    fewer = asked.without({"b"})
    anew = trainer.train(fewer, ridge=0.05)
    warm = trainer.minimize(fewer, state.params, ridge=0.05, parts=kept.without({"b"}).parts)
    assert np.linalg.norm(warm.value - anew.params) < 2e-6


def test_rounds_are_reported() -> None:
    steps: list[Step] = []
    LbfgsRounds().train(federation(divided(), logistic=True), ridge=0.1, progress=steps.append)
    stages = {step.stage for step in steps}
    assert stages == {"statistics", "gradient rounds"}
    rounds = [step.done for step in steps if step.stage == "gradient rounds"]
    assert rounds == list(range(1, len(rounds) + 1))


def test_too_few_rounds_are_no_answer() -> None:
    with pytest.raises(SolverError):
        LbfgsRounds(rounds=2).train(federation(divided(), logistic=True), ridge=0.01)


def test_a_ridge_must_be_given() -> None:
    with pytest.raises(InputError):
        LbfgsRounds().train(federation(divided(), logistic=True), ridge=Gcv())
    for rounds, tolerance in ((0, 1e-6), (10, 0.0), (10, float("nan"))):
        with pytest.raises(InputError):
            LbfgsRounds(rounds, tolerance)
