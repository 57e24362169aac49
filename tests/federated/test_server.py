"""The server's arithmetic: who takes part, weights, averages."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probekit.errors import InputError
from probekit.federated.server import average, client_weights, participants
from probekit.federated.summation import StatisticsTree


@given(clients=st.integers(2, 6), seed=st.integers(0, 1000), rate=st.floats(0.1, 2))
def test_a_round_with_sampled_clients_is_right_on_average_over_all_samples(
    clients: int, seed: int, rate: float
) -> None:
    generator = np.random.default_rng(seed)
    start, uploads = generator.normal(size=(3, 2)), generator.normal(size=(clients, 3, 2))
    weights = client_weights(generator.integers(1, 50, clients))
    everyone = start + rate * sum(p * (one - start) for p, one in zip(weights, uploads, strict=True))
    for taking in range(1, clients + 1):
        groups = [list(group) for group in combinations(range(clients), taking)]
        found = [average(start, uploads[group], weights[group], clients=clients, rate=rate) for group in groups]
        np.testing.assert_allclose(np.mean(found, axis=0), everyone, rtol=0, atol=1e-12)


def test_every_client_is_drawn_equally_often() -> None:
    drawn = np.zeros(10)
    for number in range(4000):
        chosen = participants(10, 0.3, round_number=number, seed=7)
        assert len(set(chosen.tolist())) == 3
        drawn[chosen] += 1
    assert np.abs(drawn / 4000 - 0.3).max() < 4 * np.sqrt(0.3 * 0.7 / 4000)


def test_participation_is_reproducible_and_never_nobody() -> None:
    assert (
        participants(9, 0.4, round_number=3, seed=1).tolist() == participants(9, 0.4, round_number=3, seed=1).tolist()
    )
    assert len(participants(9, 0.01, round_number=3, seed=1)) == 1
    assert participants(4, 1.0, round_number=0, seed=1).tolist() == [0, 1, 2, 3]


def test_weights_are_shares_of_the_rows_or_equal() -> None:
    counts = np.array([1, 3, 4])
    assert client_weights(counts).tolist() == [0.125, 0.375, 0.5]
    assert client_weights(counts, "uniform").tolist() == [1 / 3] * 3
    with pytest.raises(InputError, match="'rows'"):
        client_weights(counts, "rows")
    with pytest.raises(InputError, match=r"\[2, 0\]"):
        client_weights(np.array([2, 0]))


def test_nothing_cannot_be_merged() -> None:
    with pytest.raises(InputError, match="at least one client"):
        StatisticsTree.of({})
