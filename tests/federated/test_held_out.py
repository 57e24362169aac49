"""C chosen by rows that clients hold out, against scikit-learn on the same rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from probekit.certificates.held_out import is_best_C
from probekit.errors import InputError, MissingClients, SolverError
from probekit.federated import held_out
from probekit.federated.federation import collect_stats, total_stats
from probekit.federated.held_out import DECADES, HeldOut, is_held_out
from probekit.federated.state import choose_ridge
from probekit.federated.training.closed_form import ClosedForm
from probekit.federated.training.lbfgs import LbfgsRounds
from probekit.linear.model import LinearModel
from probekit.linear.ridge import InverseC
from probekit.objective import CrossEntropy
from probekit.progress import Step
from tests.federated.examples import Clients, design, divided, federation

CLIENTS = divided((60, 45, 3, 50), classes=4)
SOME = (0.01, 0.1, 1.0, 10.0)


def central_losses(clients: Clients, Cs: tuple[float, ...]) -> dict[float, float]:
    Z, Y = design(clients)
    y = Y.argmax(axis=1)
    inside = np.concatenate([is_held_out(rows) for rows in clients.values()])
    losses = {}
    for C in Cs:
        model = LogisticRegression(C=C, fit_intercept=False, solver="newton-cholesky", tol=1e-8)
        model.fit(Z[~inside], y[~inside])
        losses[C] = float(log_loss(y[inside], model.predict_proba(Z[inside])))
    return losses


@pytest.mark.parametrize("classes", [4, 2])
@pytest.mark.parametrize("whiten", [True, False])
def test_losses_are_those_of_heads_without_the_held_out_rows(classes: int, whiten: bool) -> None:
    clients = divided((60, 45, 3, 50), classes=classes)
    asked = federation(clients, logistic=True)
    stats = total_stats(asked) if whiten else None
    losses = HeldOut(SOME).losses(asked, stats=stats)
    expected = central_losses(clients, SOME)
    assert list(losses) == list(SOME)
    assert np.allclose(list(losses.values()), list(expected.values()), rtol=2e-3)
    choice = choose_ridge(HeldOut(SOME), asked)
    least = min(expected.values())
    best = min(C for C in SOME if expected[C] <= 1.01 * least)
    assert choice.rule == HeldOut(SOME)
    assert choice.value == InverseC(best).of(158, classes)


def test_a_fifth_of_the_rows_is_held_out_wherever_it_is() -> None:
    rows = divided((5000,))["a"]
    assert 0.18 < is_held_out(rows).mean() < 0.22
    order = np.random.default_rng(0).permutation(5000)
    assert np.array_equal(is_held_out(rows.take(order)), is_held_out(rows)[order])


def test_who_has_the_rows_is_no_matter() -> None:
    rows = divided((158,), classes=4)["a"]
    alone = choose_ridge(HeldOut(), federation({"a": rows}, logistic=True))
    parts = np.array_split(np.arange(158), 60)  # of some clients all rows are held out, or none
    many = {f"{number:02}": rows.take(part) for number, part in enumerate(parts)}
    assert choose_ridge(HeldOut(), federation(many, logistic=True)) == alone


def test_all_Cs_are_asked_about_together() -> None:  # noqa: N802
    asked = federation(CLIENTS, logistic=True)
    HeldOut((1.0,)).losses(asked, stats=None)
    hardest = max(rounds_of(C) for C in SOME)
    assert rounds_of(*SOME) == hardest < sum(rounds_of(C) for C in SOME)


def rounds_of(*Cs: float) -> int:
    asked = federation(CLIENTS, logistic=True)
    HeldOut(Cs).losses(asked, stats=None)
    return asked.traffic.rounds


def test_the_head_is_refitted_to_all_rows() -> None:
    asked = federation(CLIENTS, logistic=True)
    steps: list[Step] = []
    state = LbfgsRounds().train(asked, ridge=HeldOut(), progress=steps.append)
    by_hand = LbfgsRounds().train(asked, ridge=state.ridge)
    assert np.array_equal(state.params, by_hand.params)
    assert any(state.ridge == InverseC(C).of(asked.rows, 4) for C in DECADES)
    assert {step.stage for step in steps} == {"statistics", "choosing C", "gradient rounds"}


def test_a_C_that_takes_too_many_rounds_is_not_chosen(  # noqa: N802
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = federation(CLIENTS, logistic=True)
    monkeypatch.setattr(held_out, "ROUNDS", 12)
    reached = HeldOut(DECADES).losses(asked, stats=total_stats(asked))
    assert 0 < len(reached) < len(DECADES)
    assert list(reached) == list(DECADES[: len(reached)])
    monkeypatch.setattr(held_out, "ROUNDS", 1)
    with pytest.raises(SolverError, match="within 1 rounds"):
        HeldOut((100.0, 1e4)).losses(asked, stats=None)


def test_the_choice_is_confirmed_from_the_rows() -> None:
    asked = federation(CLIENTS, logistic=True)
    model = asked.model
    assert isinstance(model, LinearModel)
    rule = HeldOut(SOME)
    chosen = rule.best(asked, stats=None)
    assert SOME[0] < chosen < SOME[-1]
    for C in SOME:
        ridge = InverseC(C).of(asked.rows, 4)
        expected = True if chosen == C else False if chosen < C else None
        assert is_best_C(ridge, rule, CLIENTS, model) is expected
        assert is_best_C(1.01 * ridge, rule, CLIENTS, model) is False


def test_what_has_no_held_out_rows_is_refused() -> None:
    asked = federation(CLIENTS, logistic=True)
    with pytest.raises(InputError, match="LinearModel of Squares"):
        choose_ridge(HeldOut(), federation(CLIENTS))
    with pytest.raises(InputError, match="statistics"):
        ClosedForm().train(federation(CLIENTS), ridge=HeldOut())
    sums = federation(collect_stats(asked))
    sums = replace(sums, model=LinearModel(6, 4, CrossEntropy(), "penalized"))
    with pytest.raises(MissingClients, match="statistics only"):
        choose_ridge(HeldOut(), sums)
    rows = CLIENTS["a"]
    fitted = {"a": rows.take(np.flatnonzero(~is_held_out(rows)))}
    with pytest.raises(InputError, match="none was drawn"):
        choose_ridge(HeldOut(), federation(fitted, logistic=True))
    inside = {"a": rows.take(np.flatnonzero(is_held_out(rows)))}
    with pytest.raises(InputError, match="all were drawn"):
        choose_ridge(HeldOut(), federation(inside, logistic=True))
    with pytest.raises(InputError, match="found none"):
        HeldOut(())
    with pytest.raises(InputError, match="found -1"):
        HeldOut((-1.0,))
