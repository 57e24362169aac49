"""Shadows in closed form are heads retrained one by one; their attacks find what is planted and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.evaluation.shadow_attacks import RmiaResult, gaussian_klom, klom, likelihood_attack, rmia, rmia_scores
from probekit.evaluation.shadows import (
    KernelShadows,
    ShadowDraw,
    called_margins,
    draws_around,
    margins,
    masks,
    random_draws,
)
from probekit.linear.design import Design
from tests.oracles import columns, least_squares, one_hot

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
ROWS, COLUMNS, CLASSES, RIDGE = 60, 7, 3, 0.02


def planted(seed: int = 0, rows: int = ROWS, dimension: int = COLUMNS) -> tuple[Array, Indices]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, rows)
    return random.normal(size=(rows, dimension)) + np.eye(CLASSES, dimension)[labels], labels


def brute(matrix: Array, labels: Indices, rows: Indices, scaling: str) -> Array:
    """The head of these rows, by an SVD."""
    penalty = RIDGE * (len(rows) if scaling == "mean" else 1)
    return least_squares(matrix[rows], one_hot(labels[rows], CLASSES), penalty=penalty)


@pytest.mark.parametrize("scaling", ["mean", "sum"])
@pytest.mark.parametrize("intercept", ["penalised", "none"])
def test_closed_forms_are_heads_trained_one_by_one(intercept: str, scaling: str) -> None:
    rows, labels = planted()
    public = np.arange(25)
    shadows = KernelShadows(rows, labels, Design(COLUMNS, CLASSES, intercept=intercept), RIDGE, scaling, public)
    matrix, draws = columns(rows, intercept=intercept), random_draws(ROWS, count=6)

    def exact(draw: ShadowDraw) -> Array:
        return brute(matrix, labels, draw.retained, scaling)

    def one_step(draw: ShadowDraw) -> Array:
        params, kept = brute(matrix, labels, draw.trained, scaling), draw.retained
        mu = RIDGE / (1 if scaling == "mean" else len(kept))
        gradient = matrix[kept].T @ (matrix[kept] @ params - one_hot(labels[kept], CLASSES)) / len(kept) + mu * params
        curvature = matrix[public].T @ matrix[public] / len(public) + mu * np.eye(matrix.shape[1])
        return np.asarray(params - np.linalg.solve(curvature, gradient))

    def nothing(draw: ShadowDraw) -> Array:
        return brute(matrix, labels, draw.trained, scaling)

    found = shadows.margins(draws)
    for name, way in {"exact": exact, "one-step": one_step, "nothing": nothing}.items():
        expected = called_margins(draws, way, lambda params: matrix @ params, labels)
        np.testing.assert_allclose(found[name], expected, atol=1e-9)
    assert np.abs(found["exact"] - found["nothing"]).max() > 1e-3


def test_margins_are_the_own_score_minus_the_best_other() -> None:
    scores = np.array([[[0.2, 0.9, 0.1], [0.5, 0.4, 0.8]]])
    np.testing.assert_allclose(margins(scores, np.array([1, 0])), [[0.7, -0.3]])


def test_draws_are_of_the_sizes_asked_for() -> None:
    draws = random_draws(200, count=40, share=0.5, forget=0.1, seed=3)
    assert {(len(one.trained), len(one.forgotten), len(one.retained)) for one in draws} == {(100, 10, 90)}
    seen = masks(draws, 200)
    assert not (seen["forgotten"] & seen["unseen"]).any()
    assert 1 < seen["forgotten"].sum(axis=0).mean() < 3
    around = draws_around(50, np.arange(5), count=4)
    assert all(set(range(5)) <= {*one.trained.tolist()} and len(one.retained) == 22 for one in around)
    other = draws_around(50, np.arange(5), count=4, again=True)
    assert any(set(one.retained) != set(two.retained) for one, two in zip(around, other, strict=True))
    with pytest.raises(InputError, match="shares between 0 and 1"):
        random_draws(200, share=1.0)
    with pytest.raises(InputError, match="forgotten rows"):
        draws_around(50, np.arange(0))


def test_klom_is_the_divergence_of_normal_laws_and_its_floor_is_small() -> None:
    random = np.random.default_rng(1)
    base = random.normal(size=(4000, 3))
    found = gaussian_klom(0.5 * base + [0.0, 1.0, 2.0], random.normal(size=(4000, 3)))
    truth = np.log(1 / 0.5) + (0.25 + np.array([0.0, 1.0, 4.0])) / 2 - 0.5
    np.testing.assert_allclose(found, truth, rtol=0.1)
    judged = klom(base[:2000] + 3, base[2000:], again=base[:2000])
    assert judged.floor < 0.01 < 4 < judged.median < judged.high
    assert klom(base, base, again=base, rows=np.array([1])).rows == 1
    with pytest.raises(InputError, match="same rows"):
        gaussian_klom(base, base[:, :2])


def test_shadows_see_what_was_left_behind_and_nothing_after_exact_removal() -> None:
    rows, labels = planted(5, rows=160, dimension=60)
    shadows = KernelShadows(rows, labels, Design(60, CLASSES), 0.05)
    draws = random_draws(160, count=120)
    found = {
        name: likelihood_attack(one, masks(draws, 160))
        for name, one in shadows.margins(draws, ("nothing", "exact")).items()
    }
    assert found["nothing"].attack.low > 0.85
    assert found["exact"].attack.auc == pytest.approx(0.5, abs=0.03)
    rate, share = found["nothing"].attack.found[0]
    assert rate == 0.01
    assert share.low is not None
    assert share.low > 0.1
    assert found["exact"].plain["attack"]["members"] == sum(len(one.forgotten) for one in draws)
    gone = np.arange(20)
    one, two = (
        shadows.margins(draws_around(160, gone, count=60, again=again), ("nothing", "exact")) for again in (False, True)
    )
    left, removed = (klom(one[name], two["exact"], again=one["exact"], rows=gone) for name in ("nothing", "exact"))
    assert removed.mean == removed.floor < 0.1 < 1 < left.median


def test_intervals_cover_chance_though_a_row_is_judged_many_times() -> None:
    found = []
    for seed in range(40):
        rows, labels = planted(seed, rows=150, dimension=30)
        draws = random_draws(150, count=60, seed=seed)
        shadows = KernelShadows(rows, labels, Design(30, CLASSES), 0.05).margins(draws, ("exact",))
        found.append(likelihood_attack(shadows["exact"], masks(draws, 150)).attack)
    assert sum(one.low <= 0.5 <= one.high for one in found) >= 35
    width = np.mean([one.high - one.low for one in found]) / (2 * 1.96)
    assert width == pytest.approx(np.std([one.auc for one in found]), rel=0.3)


def test_what_has_no_closed_form_is_refused() -> None:
    rows, labels = planted()
    with pytest.raises(InputError, match="ridge above 0"):
        KernelShadows(rows, labels, Design(COLUMNS, CLASSES), 0.0)
    with pytest.raises(InputError, match="penalised or none"):
        KernelShadows(rows, labels, Design(COLUMNS, CLASSES, intercept="free"), 0.1)
    shadows = KernelShadows(rows, labels, Design(COLUMNS, CLASSES), 0.1)
    with pytest.raises(InputError, match="Give `public`"):
        shadows.margins(random_draws(ROWS, count=4))
    with pytest.raises(InputError, match="found 'sga'"):
        shadows.margins(random_draws(ROWS, count=4), ("sga",))
    with pytest.raises(InputError, match="Draw more shadows"):
        likelihood_attack(np.zeros((4, 3)), {"forgotten": np.zeros((4, 3), bool), "unseen": np.ones((4, 3), bool)})


def test_rmia_counts_the_population_that_is_beaten() -> None:
    found = rmia_scores(np.array([0.9, 0.2]), np.array([0.5, 0.5]), np.array([0.3, 0.5, 0.9]), np.full(3, 0.5))
    np.testing.assert_allclose(found, [2 / 3, 0])


def test_rmia_finds_members_of_an_overfitted_head_at_a_temperature_of_other_rows() -> None:
    knowing, unknowing = ([_attacked(seed, members=members) for seed in range(10)] for members in (True, False))
    assert min(one.attack.low for one in knowing) > 0.6
    assert np.mean([one.attack.auc for one in unknowing]) == pytest.approx(0.5, abs=0.04)  # one has a spread of 0.04
    assert {one.calibrated_on for one in knowing} == {"50 rows that are not judged"}
    some = np.zeros((3, 2)), np.array([0, 1, 0])
    with pytest.raises(InputError, match="calibrate"):
        rmia(some, some, (np.zeros((1, 3, 2)),) * 2, calibration=(some[0][:1], some[1][:1]))


def _attacked(seed: int, *, members: bool) -> RmiaResult:
    """RMIA on a head that was trained on the members, or on other rows alone."""
    rows, labels = planted(seed, rows=500, dimension=150)
    matrix, random = columns(rows), np.random.default_rng(seed)
    inside, others, rest = np.split(np.arange(500), [100, 300])
    fresh, pool = rest[:50], rest[50:]
    head = brute(matrix, labels, inside if members else random.permutation(pool)[:100], "mean")
    references = [brute(matrix, labels, random.permutation(pool)[:100], "mean") for _ in range(6)]
    own, apart, held = ((matrix[some] @ head, labels[some]) for some in (inside, others, fresh))
    without = tuple(np.stack([matrix[some] @ one for one in references]) for some in (inside, others))
    return rmia(own, apart, (without[0], without[1]), calibration=held)
