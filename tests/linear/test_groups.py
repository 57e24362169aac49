"""Groups left out in closed form, against heads that were fitted without them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.linear.design import Design
from probekit.linear.groups import group_rows, leave_groups_out, left_out_scores
from probekit.linear.leaveout import leave_one_out
from probekit.linear.path import decompose
from probekit.linear.ridge import penalty_of, solve
from probekit.linear.statistics import statistics
from probekit.linear.system import class_weights, system_of

RIDGES = np.array([1e-3, 0.1, 3.0])


def rows_of(count: int = 60, dimension: int = 7) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    drawn = np.random.default_rng(5)
    labels = np.concatenate([np.arange(4), drawn.integers(0, 4, count - 4)])
    groups = drawn.integers(0, 11, count)
    groups[:24] = groups[4:28] % 2  # two groups of more rows than columns
    return drawn.normal(size=(count, dimension)) + labels[:, None] / 3, labels, groups


@pytest.mark.parametrize("intercept", ["penalised", "free", "none"])
@pytest.mark.parametrize("scaling", ["mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_left_out_groups_are_those_of_refitting(intercept: str, scaling: str, weighted: bool) -> None:
    rows, labels, groups = rows_of()
    design = Design(7, 4, intercept=intercept, per_class=weighted)
    stats = statistics(rows, labels, design)
    weight = class_weights(stats, "balanced") if weighted else None
    path = decompose(stats, scaling=scaling, class_weight=weight)
    found = leave_groups_out(path, rows, labels, groups=groups, ridges=RIDGES)
    for number, ridge in enumerate(RIDGES):
        squared = wrong = 0.0
        each = left_out_scores(path, rows, labels, ridge=float(ridge), groups=groups)
        for group in np.unique(groups):
            inside = groups == group
            system = system_of(statistics(rows[~inside], labels[~inside], design), class_weight=weight)
            params = system.lift(solve(system, penalty_of(float(ridge), scaling, system.weight)).value)
            scores = rows[inside] @ params[:-1] + params[-1]
            assert np.allclose(each[inside], scores, rtol=1e-10, atol=1e-10)
            own = np.ones(inside.sum()) if weight is None else weight[labels[inside]]
            squared += float(own @ np.square(scores - np.eye(4)[labels[inside]]).sum(axis=1))
            wrong += float(own @ (scores.argmax(axis=1) != labels[inside]))
        assert found.squared[number] == pytest.approx(squared / (4 * path.system.weight), rel=1e-10)
        assert found.wrong is not None
        assert found.wrong[number] == pytest.approx(wrong / path.system.weight, abs=1e-12)


def test_groups_of_one_row_are_leave_one_out() -> None:
    rows, labels, _ = rows_of()
    path = decompose(statistics(rows, labels, Design(7, 4)))
    one = leave_one_out(path, rows, labels, ridges=RIDGES)
    other = leave_groups_out(path, rows, labels, groups=np.arange(60), ridges=RIDGES)
    assert np.allclose(one.squared, other.squared, rtol=1e-12)
    assert one.wrong is not None
    assert other.wrong is not None
    assert np.allclose(one.wrong, other.wrong)


def test_groups_keep_the_order_of_their_first_rows_and_bad_ones_are_refused() -> None:
    found = group_rows(["b", "a", "b", "c"], 4)
    assert [part.tolist() for part in found] == [[0, 2], [1], [3]]
    rows, labels, groups = rows_of()
    path = decompose(statistics(rows, labels, Design(7, 4)))
    with pytest.raises(InputError, match="one group"):
        leave_groups_out(path, rows, labels, groups=groups[:-1])
    with pytest.raises(InputError, match="two groups"):
        leave_groups_out(path, rows, labels, groups=np.zeros(60))
    lone = np.vstack([rows * np.array([1, 1, 1, 1, 1, 1, 0]), [[0, 0, 0, 0, 0, 0, 1e9]]])
    alone = decompose(statistics(lone, np.append(labels, 0), Design(7, 4, intercept="none")), scaling="sum")
    with pytest.raises(InputError, match="cannot be left out"):
        left_out_scores(alone, lone, np.append(labels, 0), ridge=1e-3)
