"""Certificates as records: what they are computed from, what they say, what they refuse."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from probekit.certificates.certificate import Certificate, certify, rounded_up
from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError, SolverError
from probekit.federated.state import State
from probekit.federated.training.closed_form import ClosedForm
from probekit.federated.training.lbfgs import LbfgsRounds
from probekit.linear.ridge import Gcv
from probekit.records import dump, parse
from probekit.unlearning.removal import Removal, Request
from tests.unlearning.problems import federation, forget, logistic, some_clients, trained

CLIENTS = some_clients()
CERTIFICATE = Certificate(
    rows=1234,
    clients=5,
    ridge=0.1,
    distance=1.2301e-9,
    excess_loss=0.0,
    test_rows=100,
    certified_rows=99,
    residual=1e-10,
    allowance=1e-12,
    curvature=0.1,
    evidence="statistics",
    stale_ridge=False,
    stale_classes=False,
)


def test_kept_statistics_certify_without_asking_anybody() -> None:
    asked = federation(CLIENTS)
    state = trained(asked)
    rounds = asked.traffic.rounds
    issued = certify(state, asked.only(()), test=CLIENTS["0"])
    assert asked.traffic.rounds == rounds
    assert issued.evidence == "statistics"
    assert issued.distance < 1e-10
    assert (issued.rows, issued.clients, issued.test_rows) == (150, 5, 40)
    assert issued.certified_rows == 40


def test_a_free_intercept_is_certified_by_statistics_that_are_asked_for() -> None:
    asked = federation(CLIENTS)
    state = trained(asked, ClosedForm(keep=frozenset()))
    assert certify(state, asked).evidence == "statistics"


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_penalized_heads_are_certified_by_gradients(kind: str) -> None:
    asked = federation(CLIENTS, intercept="penalized")
    trainer = ClosedForm(keep=frozenset())
    if kind == "logistic":
        asked = logistic(CLIENTS)
        trainer = LbfgsRounds(keep=frozenset())
    state = trained(asked, trainer)
    issued = certify(state, asked)
    assert issued.evidence == "gradients"
    assert issued.curvature == pytest.approx(0.1)
    assert issued.distance < 1e-5


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
@pytest.mark.parametrize("keep", [frozenset(), frozenset({"statistics"})])
def test_products_sharpen_a_bound_on_a_head_that_is_far_away(kind: str, keep: frozenset) -> None:
    asked = federation(CLIENTS, intercept="penalized")
    trainer = ClosedForm(keep=frozenset())
    if kind == "logistic":
        asked = logistic(CLIENTS)
        trainer = LbfgsRounds(keep=keep)
    state = trained(asked, trainer, 0.05)
    shift = np.random.default_rng(0).normal(size=state.params.shape)
    far = replace(state, params=state.params + 1e-3 * shift)
    issued = certify(far, asked)
    distance = 1e-3 * float(np.linalg.norm(shift))
    plain = issued.residual / issued.curvature
    assert distance <= issued.distance < 0.8 * plain


def test_the_bound_does_not_grow_with_the_rows() -> None:
    """Copies of rows have the same minimum; sums of 16 times as many rows are bounded alike."""

    def distance(copies: int) -> float:
        rows = np.tile(np.asarray(CLIENTS["0"].rows), (copies, 1))
        labels = np.tile(CLIENTS["0"].labels, copies)
        asked = federation({"0": EmbeddingSet.from_numpy(rows, labels)}, intercept="penalized")
        return certify(trained(asked), asked).distance

    assert distance(128 * 16) < 1.2 * distance(128)


def test_what_was_chosen_with_forgotten_rows_is_said() -> None:
    asked = federation(CLIENTS, intercept="penalized")
    server = federation({"server": some_clients((60,), seed=7)["0"]})
    state = trained(asked, ClosedForm(keep=frozenset()), Gcv())
    after = forget(state, asked, "fedremoval", clients={"1"}, server=server)
    issued = certify(after, asked.without({"1"}))
    assert issued.stale_ridge
    fresh = trained(asked, ridge=Gcv())
    again = forget(fresh, asked, "fedremoval", clients={"1"}, server=server)
    assert not certify(again, asked.without({"1"})).stale_ridge
    assert len(issued.statements) == len(certify(again, asked.without({"1"})).statements) + 1


@pytest.mark.parametrize("keep", [frozenset({"statistics"}), frozenset()])
def test_classes_without_rows_are_said(keep: frozenset) -> None:
    parts = {name: rows.take(np.flatnonzero(rows.labels != 1)) for name, rows in CLIENTS.items()}
    asked = federation(parts, intercept="penalized")
    state = trained(asked, ClosedForm(keep=keep))
    assert certify(state, asked).stale_classes
    assert not certify(state, asked, class_labels=False).stale_classes
    whole = federation(CLIENTS, intercept="penalized")
    assert not certify(trained(whole, ClosedForm(keep=keep)), whole).stale_classes


def test_a_head_without_a_class_is_certified_by_clients_who_still_number_it() -> None:
    rare = CLIENTS["1"].take(np.flatnonzero(CLIENTS["1"].labels == 2))
    parts = {"0": CLIENTS["0"].take(np.flatnonzero(CLIENTS["0"].labels != 2)), "rare": rare}
    asked = logistic(parts)
    state = trained(asked, LbfgsRounds(), 0.01)
    after = forget(state, asked, clients={"rare"})
    removal = Removal.of(state, Request(frozenset({"rare"})), asked)
    assert certify(after, removal.seen_by(after).retained).distance < 1e-5
    with pytest.raises(InputError, match="2 classes"):
        certify(after, removal.retained)


def test_other_rows_than_those_of_the_state_are_refused() -> None:
    asked = federation(CLIENTS, intercept="penalized")
    state = trained(asked, ClosedForm(keep=frozenset()))
    with pytest.raises(InputError, match="150"):
        certify(state, asked.without({"1"}))
    kept = trained(asked)
    fewer = replace(kept, clients={**kept.clients, "1": 24})
    with pytest.raises(InputError, match="149"):
        certify(fewer, asked)
    left_in: State = replace(kept, clients={"0": 40})
    with pytest.raises(InputError, match="renews"):
        certify(left_in, asked)


def test_without_curvature_nothing_is_certified() -> None:
    rows = np.ones((20, 3), np.float32)
    asked = federation({"0": EmbeddingSet.from_numpy(rows, np.arange(20) % 2)})
    with pytest.raises(SolverError, match="curvature"):
        certify(trained(asked, ridge=1e-18 + 1e-14), asked)
    free = federation(CLIENTS, loss=logistic(CLIENTS).model.loss)
    with pytest.raises(InputError, match="intercept"):
        certify(trained(free, LbfgsRounds(tolerance=1e-2), 0.1), free)


def test_every_certificate_says_what_it_is_not() -> None:
    words = " ".join(CERTIFICATE.statements)
    for part in (
        *("1,234 retained rows", "99 of 100 test rows", "not (epsilon, delta) removal"),
        *("encoder", "earlier heads", "copies", "all the rows", "1.3e-9"),
    ):
        assert part in words


def test_a_certificate_is_json_and_a_record() -> None:
    value = json.loads(json.dumps(CERTIFICATE.to_dict(), allow_nan=False))
    assert value["distance"] == CERTIFICATE.distance
    assert value["statements"] == list(CERTIFICATE.statements)
    assert parse(dump(CERTIFICATE), Certificate, max_bytes=1 << 16) == CERTIFICATE


@pytest.mark.parametrize(
    "changes",
    [
        {"distance": math.nan},
        {"distance": -1.0},
        {"excess_loss": math.inf},
        {"certified_rows": 101},
    ],
)
def test_numbers_that_no_certificate_has_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(InputError):
        replace(CERTIFICATE, **changes)


@given(st.floats(0, 1e300), st.integers(1, 6))
def test_upper_bounds_are_printed_rounded_up(value: float, digits: int) -> None:
    text = rounded_up(value, digits)
    assert Decimal(value) <= Decimal(text) <= Decimal(value) * (1 + Decimal(10) ** (1 - digits))


def delta_of(noise: float, distance: float, epsilon: float) -> float:
    """Integrated numerically: max(0, p - e^epsilon q) of the two densities."""
    grid = np.linspace(-40 * noise, 40 * noise + distance, 400_001)
    excess = norm.pdf(grid, distance, noise) - math.exp(epsilon) * norm.pdf(grid, 0, noise)
    return float(np.trapezoid(np.maximum(excess, 0), grid))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-2])
def test_noise_is_the_least_that_hides_the_distance(epsilon: float, delta: float) -> None:
    noise = CERTIFICATE.noise_for(epsilon, delta) / CERTIFICATE.distance
    assert delta_of(noise, 1.0, epsilon) <= delta * (1 + 1e-3)
    assert delta_of(noise * 0.99, 1.0, epsilon) > delta
    if epsilon <= 1:
        assert noise <= math.sqrt(2 * math.log(1.25 / delta)) / epsilon


@pytest.mark.parametrize(("epsilon", "delta"), [(0, 0.1), (1, 0), (1, 1), (math.nan, 0.1)])
def test_impossible_budgets_are_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(InputError):
        CERTIFICATE.noise_for(epsilon, delta)
