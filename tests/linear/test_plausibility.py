"""Statistics that no rows could have are found out; those of rows never are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from probekit.linear.design import ClientStats, Design
from probekit.linear.plausibility import implausible
from probekit.linear.statistics import statistics

DESIGN = Design(3, 2)


def honest(design: Design = DESIGN, count: int = 20) -> ClientStats:
    generator = np.random.default_rng(0)
    return statistics(generator.normal(size=(count, 3)), np.arange(count) % 2, design)


def tampered(**changes: Callable[[Any], None]) -> ClientStats:
    """Honest statistics with some arrays changed."""
    arrays = {name: np.array(getattr(honest(), name)) for name in ("gram", "moment", "class_counts")}
    for name, change in changes.items():
        change(arrays[name])
    return ClientStats(DESIGN, arrays["gram"], arrays["moment"], arrays["class_counts"])


def add(value: float, *index: tuple[int, ...]) -> Callable[[Any], None]:
    def change(array: Any) -> None:
        for place in index:
            array[place] += value

    return change


LIES = {
    "not symmetric": tampered(gram=add(1e-3, (0, 1))),
    "NaN": tampered(gram=add(np.nan, (1, 1))),
    "NaN or inf": tampered(moment=add(np.inf, (1, 1))),
    "not positive": tampered(gram=add(-100.0, (0, 0))),
    "positive semidefinite": tampered(gram=add(60.0, (0, 1), (1, 0))),
    "the classes count 21": tampered(class_counts=add(1, (0,))),
    "a class counts -1": tampered(class_counts=lambda counts: counts.__setitem__(slice(None), [-1, 21])),
    "count of rows is another": tampered(gram=add(1.0, (3, 3))),
    "class counts are others": tampered(class_counts=lambda counts: counts.__setitem__(slice(None), [11, 9])),
    "do not sum the same rows": tampered(moment=add(0.1, (0, 0))),
    "moment is larger": tampered(moment=add(100.0, (0, 0))),
}


@pytest.mark.parametrize("why", LIES)
def test_statistics_that_cannot_be_true_are_found_out(why: str) -> None:
    assert why in implausible(LIES[why], 20)


@pytest.mark.parametrize("why", [why for why in LIES if why != "the classes count 21"])
def test_they_are_found_out_where_nobody_knows_the_count(why: str) -> None:
    assert why in implausible(LIES[why])


def test_a_count_is_held_against_the_column_of_ones() -> None:
    assert implausible(LIES["the classes count 21"]) == "the Gram's count of rows is another"


@pytest.mark.parametrize("view", ["raw", "l2"])
@pytest.mark.parametrize("arithmetic", ["float64", "fast", "exact"])
@pytest.mark.parametrize("rows", [1, 2, 500])
def test_honest_statistics_are_never_refused(view: str, arithmetic: str, rows: int) -> None:
    """Rows with a mean far from zero, fewer of them than columns, one column constant."""
    for scale in (1e-3, 1.0, 1e3):
        embeddings = (np.random.default_rng(rows).normal(size=(rows, 40)) + 30) * scale
        embeddings[:, 0] = scale
        for per_class in (False, True):
            grid = 0.0
            if arithmetic == "exact" and view == "raw":
                grid = float(2.0 ** np.ceil(np.log2(40 * scale / 2**14)))
            design = Design(40, 3, view, "penalised", arithmetic, per_class, grid)
            found = statistics(embeddings.astype(np.float32), np.arange(rows) % 3, design)
            assert implausible(found, rows) == ""
        assert implausible(found) == ""
