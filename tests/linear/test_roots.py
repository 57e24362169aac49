"""Roots: the same statistics in the room of the rows, refused where no rows could have them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from probekit.errors import InputError
from probekit.federated.sums import add_up
from probekit.linear.design import INTERCEPTS, ClientStats, Design
from probekit.linear.plausibility import implausible
from probekit.linear.roots import RootStats, client_statistics, product
from probekit.linear.statistics import statistics

EACH = [1, 2, 3, 5]


def rows_of(count: int, dimension: int = 16, seed: int = 0) -> tuple[Any, Any]:
    """Some rows with their classes, of which the last is never there."""
    generator = np.random.default_rng(seed)
    rows = generator.standard_normal((count, dimension)).astype(np.float32) + np.float32(0.5)
    return rows, generator.integers(0, 3, count)


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("count", EACH)
def test_a_root_is_the_sums_of_its_rows(count: int, intercept: str, per_class: bool) -> None:
    design = Design(16, 4, intercept=intercept, per_class=per_class)
    rows, labels = rows_of(count)
    found, wanted = client_statistics(rows, labels, design), statistics(rows, labels, design)
    assert isinstance(found, RootStats)
    np.testing.assert_allclose(found.gram, wanted.gram, atol=1e-13)
    np.testing.assert_allclose(found.moment, wanted.moment, atol=1e-13)
    np.testing.assert_array_equal(found.class_counts, wanted.class_counts)
    assert implausible(found, count) == implausible(found.dense, count) == ""


@pytest.mark.parametrize("count", [9, 10, 11, 40])
def test_many_rows_are_kept_as_sums(count: int) -> None:
    rows, labels = rows_of(count)
    found = client_statistics(rows, labels, Design(16, 4))
    assert isinstance(found, RootStats) == (2 * count < 16 + len(set(labels.tolist())))


def test_the_factor_is_canonical() -> None:
    rows, labels = rows_of(5)
    design = Design(16, 4)
    one, other = (client_statistics(rows[order], labels[order], design) for order in ([0, 1, 2, 3, 4], [4, 2, 0, 1, 3]))
    assert isinstance(one, RootStats)
    assert isinstance(other, RootStats)
    assert (np.diagonal(one.root) >= 0).all()
    np.testing.assert_allclose(one.root, other.root, atol=1e-13)


@pytest.mark.parametrize("scale", [1.0, 1000.0, 4000.0])
def test_exact_roots_give_the_integers(scale: float) -> None:
    """Against rational arithmetic, at the largest numbers of the grid too."""
    design = Design(8, 4, arithmetic="exact", grid=2.0**-2)
    clients = []
    for seed in range(300):
        rows, labels = rows_of(1 + seed % 3, 8, seed)
        rows = np.clip(rows * scale, -4096, 4096)
        clients.append((rows, labels, client_statistics(rows, labels, design)))
    assert sum(isinstance(one, RootStats) for _, _, one in clients) > 200
    total = add_up([one for _, _, one in clients], design)
    seen = [np.rint(rows.astype(np.float64) * 4) / 4 for rows, _, _ in clients]
    columns = [[Fraction(float(value)) for value in column] for column in np.vstack(seen).T]
    wanted = [[float(sum(a * b for a, b in zip(x, y, strict=True))) for y in columns] for x in columns]
    assert total.gram[:8, :8].tolist() == wanted
    sums = statistics(np.vstack([rows for rows, _, _ in clients]), np.hstack([own for _, own, _ in clients]), design)
    assert total.digest == sums.digest


def test_a_sum_of_many_roots_is_that_of_their_rows() -> None:
    design = Design(32, 4)
    parts = [rows_of(2, 32, seed) for seed in range(3000)]  # more rows than one product takes
    total = add_up([client_statistics(rows, labels, design) for rows, labels in parts], design)
    rows, labels = (np.concatenate(some) for some in zip(*parts, strict=True))
    wanted = statistics(rows, labels, design)
    np.testing.assert_allclose(total.gram, wanted.gram, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(total.moment, wanted.moment, rtol=1e-12, atol=1e-9)
    assert implausible(total, 6000) == ""


def test_rows_that_cannot_be_used_are_named() -> None:
    rows, labels = rows_of(3)
    rows[1, 0] = np.nan
    with pytest.raises(InputError, match="row 1 is not finite"):
        client_statistics(rows, labels, Design(16, 4))
    with np.errstate(over="ignore"), pytest.raises(InputError, match="overflow"):
        client_statistics(np.full((3, 16), 1e200), labels, Design(16, 4))


def changed(root: Any, place: tuple[int, int], value: float) -> Any:
    """The root with another number in one place."""
    found = np.array(root)
    found[place] = value
    return found


@pytest.mark.parametrize(
    ("place", "value", "why"),
    [((1, 0), 0.5, "triangular"), ((1, 1), -1.0, "triangular"), ((0, 3), np.nan, "NaN"), ((0, 16), 40.0, "counts")],
)
def test_roots_that_no_rows_have(place: tuple[int, int], value: float, why: str) -> None:
    rows, labels = rows_of(3)
    honest = client_statistics(rows, labels, Design(16, 4))
    assert isinstance(honest, RootStats)
    lie = RootStats(honest.design, changed(honest.root, place, value), honest.class_counts)
    assert why in implausible(lie)


def test_a_root_of_another_shape_is_refused() -> None:
    rows, labels = rows_of(3)
    honest = client_statistics(rows, labels, Design(16, 4))
    assert isinstance(honest, RootStats)
    for root, counts in ((honest.root[:2], honest.class_counts), (honest.root, np.array([3, 0, 0, 0]))):
        with pytest.raises(InputError, match="needs shape"):
            RootStats(honest.design, np.array(root), np.array(counts))
    assert isinstance(honest + ClientStats.zero(honest.design), ClientStats)
    assert product([honest])["class_counts"].sum() == 3
