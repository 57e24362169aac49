"""The values of learning check themselves."""

from __future__ import annotations

import dataclasses
from typing import Any

import jaxtyping
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probekit.errors import InputError
from probekit.linear.design import EXACT_ROWS, GRID_REACH, ClientStats, Design
from probekit.linear.ridge import fit
from probekit.linear.statistics import statistics, step_for
from probekit.models.heads import LinearHead
from probekit.values import Partition
from tests.linear.conftest import Data
from tests.oracles import relative


@pytest.mark.parametrize(
    ("field", "value"),
    [("view", "cosine"), ("intercept", "maybe"), ("arithmetic", "float16"), ("dimension", 0), ("classes", 0)],
)
def test_a_design_refuses_what_it_does_not_know(field: str, value: Any) -> None:
    options: dict[str, Any] = {"dimension": 3, "classes": 2, field: value}
    with pytest.raises(InputError, match=f"{value}"):
        Design(**options)


def test_exact_arithmetic_needs_a_step_that_no_row_decides() -> None:
    assert Design(3, 2, view="l2", arithmetic="exact").grid == 1 / GRID_REACH
    assert Design(3, 2, view="l2", arithmetic="exact") == Design(3, 2, view="l2", arithmetic="exact", grid=2**-14)
    for grid in (0.0, 0.3, -0.5, float("inf"), float("nan")):
        with pytest.raises(InputError, match=r"power of two.*step_for"):
            Design(3, 2, arithmetic="exact", grid=grid)
    with pytest.raises(InputError, match="belongs to exact arithmetic"):
        Design(3, 2, grid=0.5)


@given(largest=st.floats(1e-6, 1e6), headroom=st.floats(1, 100))
def test_a_step_holds_its_rows_with_headroom_and_is_the_finest(largest: float, headroom: float) -> None:
    step = step_for(np.array([[0.0, -largest]]), headroom=headroom)
    assert headroom * largest <= step * GRID_REACH * (1 + 1e-12)
    assert headroom * largest > step / 2 * GRID_REACH * (1 - 1e-12)
    Design(2, 2, arithmetic="exact", grid=step)


@pytest.mark.parametrize("rows", [np.zeros((2, 2)), np.array([[np.nan, 1.0]]), np.array([[np.inf, 1.0]])])
def test_rows_without_a_scale_have_no_step(rows: np.ndarray) -> None:
    with pytest.raises(InputError, match="finite rows"):
        step_for(rows)


def test_rounding_changes_a_head_little_at_the_default_step_and_more_at_a_larger_one(data: Data) -> None:
    designs = (Design(12, 4, view="l2"), *(Design(12, 4, view="l2", arithmetic="exact", grid=g) for g in (0.0, 2**-7)))
    plain, fine, coarse = (fit(statistics(*data, design), 1e-3).params for design in designs)
    assert 0 < relative(fine, plain) < 1e-3 < relative(coarse, plain)


def test_sums_of_products_of_grid_numbers_stay_exact() -> None:
    assert GRID_REACH**2 * EXACT_ROWS <= 2**53


@pytest.mark.parametrize(("intercept", "columns"), [("penalised", 4), ("free", 4), ("none", 3)])
def test_columns(intercept: str, columns: int) -> None:
    assert Design(3, 2, intercept=intercept).columns == columns


def test_statistics_refuse_arrays_of_other_shapes() -> None:
    with pytest.raises(jaxtyping.TypeCheckError, match="moment"):  # what tests check, and everybody else is told below
        ClientStats(Design(3, 2), np.zeros((4, 4)), np.zeros((3, 2)), np.zeros(2, np.int64))
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        _refuse_other_shapes()
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def _refuse_other_shapes() -> None:
    zero = ClientStats.zero(Design(3, 2))
    with pytest.raises(InputError, match="shapes"):
        dataclasses.replace(zero, moment=np.zeros((3, 2)))
    with pytest.raises(InputError, match="shapes"):
        dataclasses.replace(zero, design=Design(3, 2, per_class=True))


def test_a_sum_beyond_exactness_is_refused() -> None:
    half = ClientStats.zero(Design(1, 1, view="l2", arithmetic="exact"))
    half = dataclasses.replace(half, class_counts=np.array([EXACT_ROWS // 2 + 1]))
    with pytest.raises(InputError, match="at most 33554432 rows"):
        half + half


def test_statistics_are_read_only_and_named_by_their_numbers() -> None:
    zero = ClientStats.zero(Design(2, 2))
    with pytest.raises(ValueError, match="read-only"):
        zero.gram[0, 0] = 1
    other = dataclasses.replace(zero, gram=zero.gram + np.eye(3))
    assert other.digest != zero.digest
    assert other.digest == dataclasses.replace(zero, gram=np.eye(3)).digest
    assert zero.digest != ClientStats.zero(Design(2, 2, intercept="free")).digest


def test_a_partition_refuses_rows_held_twice_or_by_nobody() -> None:
    good = Partition({"a": np.array([0, 2]), "b": np.array([1])}, np.array([3]), 4, "iid", 0)
    assert good.digest != dataclasses.replace(good, server=np.array([1]), clients={"a": np.array([0, 2, 3])}).digest
    with pytest.raises(InputError, match="exactly one client"):
        Partition({"a": np.array([0, 1]), "b": np.array([1])}, np.array([3]), 4, "iid", 0)
    with pytest.raises(InputError, match="exactly one client"):
        Partition({"a": np.array([0, 1])}, np.array([3]), 4, "iid", 0)


def test_a_head_refuses_what_cannot_score() -> None:
    with pytest.raises(InputError, match="3 classes"):
        LinearHead(np.zeros((4, 2)), ("a", "b", "c"), 1.0)
    with pytest.raises(InputError, match="NaN"):
        LinearHead(np.full((4, 1), np.nan), ("a",), 1.0)


def test_a_heads_digest_covers_the_map() -> None:
    head = LinearHead(np.arange(6.0).reshape(3, 2), ("a", "b"), 1.0)
    assert head.dimension == 2
    others = [
        dataclasses.replace(head, params=head.params + 1),
        dataclasses.replace(head, classes=("a", "c")),
        dataclasses.replace(head, view="l2"),
        dataclasses.replace(head, spec_digest="0"),
    ]
    assert len({head.digest, *(other.digest for other in others)}) == 5
    assert dataclasses.replace(head, ridge=2.0).digest == head.digest
