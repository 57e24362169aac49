"""The closed form against least squares on all rows together."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError, MissingClients
from probekit.federated.federation import collect_stats
from probekit.federated.state import KeptGradients, KeptStatistics, choose_ridge
from probekit.federated.training.closed_form import ClosedForm
from probekit.linear.ridge import INTERCEPTS, Gcv, Intercept, InverseC
from probekit.linear.stats import SufficientStats
from probekit.records import dump
from tests.federated.examples import design, divided, federation
from tests.oracles import gcv_error, one_hot, random_set, relative_error, ridge_by_lstsq


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    width=st.integers(1, 20),
    ridge=st.floats(1e-3, 10),
    intercept=st.sampled_from(INTERCEPTS),
    seed=st.integers(0, 99),
)
def test_any_partition_gives_the_minimum_over_all_rows(
    sizes: list[int], width: int, ridge: float, intercept: Intercept, seed: int
) -> None:
    clients = divided([*sizes, 4], width=width, seed=seed)
    state = ClosedForm().train(federation(clients, intercept=intercept), ridge=ridge)
    Z, Y = design(clients)
    expected = ridge_by_lstsq(Z[:, :-1], Y, ridge, intercept=intercept)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(state.params, expected, rtol=1e-6, atol=1e-8 * scale)


def test_weights_of_rows_count() -> None:
    clients = divided()
    generator = np.random.default_rng(2)
    weighted = {
        name: replace(rows, weights=generator.uniform(0.1, 3, len(rows)))
        for name, rows in clients.items()
    }
    Z, Y = design(weighted)
    weights = np.concatenate([rows.row_weights for rows in weighted.values()])
    ridges = tuple(np.geomspace(1e-3, 10, 9).tolist())
    errors = [gcv_error(Z[:, :-1], Y, ridge, weights=weights) for ridge in ridges]
    state = ClosedForm().train(federation(weighted), ridge=Gcv(ridges))
    assert state.ridge == ridges[int(np.argmin(errors))]
    expected = ridge_by_lstsq(Z[:, :-1], Y, state.ridge, weights=weights)
    assert relative_error(state.params, expected) < 1e-9


def test_targets_are_trained_as_labels_are() -> None:
    rows = random_set(60, 5, 3)
    targets = EmbeddingSet.from_numpy(rows.rows, targets=one_hot(rows.labels, 3))
    halves = [np.arange(25), np.arange(25, 60)]
    by_label = federation({str(i): rows.take(half) for i, half in enumerate(halves)})
    by_target = federation({str(i): targets.take(half) for i, half in enumerate(halves)})
    labels = ClosedForm().train(by_label, ridge=0.1)
    assert relative_error(ClosedForm().train(by_target, ridge=0.1).params, labels.params) < 1e-12


def test_a_client_joins_by_the_same_sums() -> None:
    clients = divided()
    first = {name: rows for name, rows in clients.items() if name != "b"}
    state = ClosedForm().train(federation(first), ridge=Gcv())
    kept = state.get(KeptStatistics)
    assert kept is not None
    everyone = federation(clients)
    parts = {**kept.parts, **collect_stats(everyone, ["b"])}
    joined = ClosedForm().solve(everyone, parts, ridge=state.ridge_choice.setting)
    anew = ClosedForm().train(everyone, ridge=Gcv())
    np.testing.assert_array_equal(joined.params, anew.params)
    assert joined.ridge_choice == anew.ridge_choice
    assert joined.clients == anew.clients
    with pytest.raises(InputError):
        ClosedForm().solve(everyone, kept.parts, ridge=0.1)


def test_clients_with_sums_only_train_too() -> None:
    clients = divided((40, 25, 3))
    stats = {name: SufficientStats.from_rows(rows) for name, rows in clients.items()}
    asked = federation(stats)
    assert not asked.has_rows
    np.testing.assert_array_equal(
        ClosedForm().train(asked, ridge=0.1).params,
        ClosedForm().train(federation(clients), ridge=0.1).params,
    )


def test_kept_gradients_are_sums_over_rows_at_the_head() -> None:
    clients = divided()
    keep = frozenset({"statistics", "gradients"})
    state = ClosedForm(keep=keep).train(federation(clients), ridge=0.1)
    kept = state.get(KeptGradients)
    assert kept is not None
    np.testing.assert_array_equal(kept.params, state.params)
    for name, rows in clients.items():
        Z, Y = design({name: rows})
        expected = Z.T @ (Z @ state.params - Y)
        np.testing.assert_allclose(kept.gradients[name], expected, atol=1e-10)
        assert kept.weights[name] == len(rows)


def test_what_is_kept_forgets() -> None:
    keep = frozenset({"statistics", "gradients"})
    state = ClosedForm(keep=keep).train(federation(divided()), ridge=0.1)
    statistics, gradients = (item.without({"a", "c"}) for item in state.kept)
    assert isinstance(statistics, KeptStatistics)
    assert statistics.parts.keys() == {"b", "d"}
    assert isinstance(gradients, KeptGradients)
    assert gradients.gradients.keys() == gradients.weights.keys() == {"b", "d"}


@pytest.mark.parametrize("ridge", [-1.0, float("nan"), float("inf"), 1e400])
def test_a_ridge_is_a_finite_number(ridge: float) -> None:
    with pytest.raises(InputError):
        ClosedForm().train(federation(divided()), ridge=ridge)
    with pytest.raises(InputError):
        choose_ridge(ridge, federation(divided()))


def test_cross_entropy_has_no_closed_form() -> None:
    with pytest.raises(InputError):
        ClosedForm().train(federation(divided(), logistic=True), ridge=0.1)


def test_gcv_is_about_squares() -> None:
    with pytest.raises(InputError):
        choose_ridge(Gcv(), federation(divided(), logistic=True))
    assert choose_ridge(InverseC(2.0), federation(divided())).value == pytest.approx(1 / 260)


def test_rounds_have_no_place_in_one_round() -> None:
    with pytest.raises(InputError):
        ClosedForm(keep=frozenset({"history"}))


def test_rows_that_are_not_finite_name_their_client() -> None:
    clients = divided()
    bad = np.array(clients["c"].rows)
    bad[3, 2] = np.nan
    with pytest.raises(MissingClients) as caught:
        ClosedForm().train(federation({**clients, "c": replace(clients["c"], rows=bad)}), ridge=0.1)
    assert caught.value.reasons.keys() == {"c"}


def test_a_state_is_read_where_its_trainer_was_not_imported(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(dump(ClosedForm().train(federation(divided((20, 30))), ridge=0.1)))
    code = (
        "import sys; from pathlib import Path; from probekit.federated.state import State;"
        "from probekit.records import parse; before = set(sys.modules);"
        "print(parse(Path(sys.argv[1]).read_bytes(), State, max_bytes=1 << 30).trainer);"
        "assert 'probekit.federated.training.closed_form' not in before"
    )
    command = [sys.executable, "-c", code, str(path)]
    printed = subprocess.run(command, text=True, capture_output=True, check=True).stdout
    assert printed.startswith("ClosedForm")
