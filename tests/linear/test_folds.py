"""Folds and clients left out, from statistics, against training on the other rows."""

from __future__ import annotations

import numpy as np
import pytest

from probekit.errors import InputError
from probekit.linear.design import INTERCEPTS, SCALINGS, ClientStats, Design
from probekit.linear.folds import client_folds, cross_validate
from probekit.linear.path import decompose
from probekit.linear.statistics import statistics
from tests.linear.conftest import Data, embeddings
from tests.oracles import columns, least_squares, one_hot

RIDGES = np.geomspace(1e-3, 10, 5)


def parts_of(data: Data, design: Design, *, folds: int = 5, seed: int = 0, name: str = "a") -> list[ClientStats]:
    """The folds of all rows, as one client's."""
    return client_folds(*data, design, folds=folds, seed=seed, name=name)


@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("view", ["none", "standardise"])
def test_each_client_left_out_in_turn(data: Data, intercept: str, scaling: str, view: str) -> None:
    rows, labels = data[0].astype(np.float64), data[1]
    owner = np.random.default_rng(0).choice(4, size=300, p=[0.1, 0.2, 0.3, 0.4])
    design = Design(12, 4, intercept=intercept)
    parts = [statistics(rows[owner == c], labels[owner == c], design) for c in range(4)]
    found = cross_validate(parts, ridges=RIDGES, scaling=scaling, standardise=view)
    for number, ridge in enumerate(RIDGES):
        total = 0.0
        for client in range(4):
            kept, held = owner != client, owner == client
            mean, scale = (rows[kept].mean(axis=0), rows[kept].std(axis=0)) if view != "none" else (0, 1)
            X, T = (columns((rows[which] - mean) / scale, intercept=intercept) for which in (kept, held))
            penalty = ridge * (kept.sum() if scaling == "mean" else 1)
            params = least_squares(X, one_hot(labels[kept], 4), penalty=penalty, free=intercept == "free")
            total += float(np.square(T @ params - one_hot(labels[held], 4)).sum())
        assert np.isclose(found.squared[number], total / (300 * 4), rtol=1e-8)


def test_folds_hold_every_row_once(data: Data) -> None:
    design = Design(12, 4)
    parts = parts_of(data, design, folds=7, seed=1)
    total = ClientStats.zero(design)
    for part in parts:
        total = total + part
    assert np.allclose(total.gram, statistics(*data, design).gram)
    assert {part.count for part in parts} == {42, 43}
    assert [part.digest for part in parts] == [p.digest for p in parts_of(data, design, folds=7, seed=1)]
    assert parts[0].digest != parts_of(data, design, folds=7, seed=2)[0].digest
    assert parts[0].digest != parts_of(data, design, folds=7, seed=1, name="b")[0].digest


def test_default_ridges_hold_the_best_between_them() -> None:
    data, design = embeddings(120, 60, 4, seed=1), Design(60, 4)
    found = cross_validate(parts_of(data, design), ridges=decompose(statistics(*data, design)).grid())
    assert found.ridges[0] < found.best() < found.ridges[-1]


def test_empty_parts_do_not_count(data: Data) -> None:
    design = Design(12, 4)
    parts = parts_of(data, design, folds=3)
    with_empty = cross_validate([parts[0], ClientStats.zero(design), *parts[1:]], ridges=RIDGES)
    assert np.array_equal(with_empty.squared, cross_validate(parts, ridges=RIDGES).squared)
    with pytest.raises(InputError, match="at least two parts"):
        cross_validate([parts[0], ClientStats.zero(design)], ridges=RIDGES)


def test_ridges_must_lie_above_zero(data: Data) -> None:
    with pytest.raises(InputError, match="above 0; found 0"):
        cross_validate(parts_of(data, Design(12, 4)), ridges=np.array([0.0, 1.0]))
