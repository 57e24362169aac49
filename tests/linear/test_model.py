"""LinearModel on rows in memory, on rows that are read in blocks, and on sums of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.embeddings import BLOCK, EmbeddingSet
from probekit.errors import InputError, WireError
from probekit.linear import model as linear
from probekit.linear.model import LinearModel, StatsObjective
from probekit.linear.stats import SufficientStats
from probekit.objective import CrossEntropy, RowsObjective
from probekit.records import dump, parse
from tests.oracles import random_set


@dataclass
class OnDisk:
    """Rows that say how many of them were read at once."""

    array: NDArray[Any]
    most: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        rows = self.array[index]
        self.most = max(self.most, len(rows))
        return rows

    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> NDArray[Any]:
        self.most = max(self.most, len(self.array))
        return np.asarray(self.array, dtype)


def test_many_rows_are_read_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_set(3 * BLOCK, 4, 3)
    model = LinearModel(4, 3)
    params = np.random.default_rng(0).standard_normal(model.shape)
    expected = RowsObjective.of(model, rows).value_and_gradient(params)
    monkeypatch.setattr(linear, "RESIDENT_BYTES", 0)
    disk = OnDisk(np.asarray(rows.rows))
    lazy = EmbeddingSet(disk, rows.ids, rows.encoding, rows.labels, rows.class_names)
    value, gradient = RowsObjective.of(model, lazy).value_and_gradient(params)
    assert disk.most == BLOCK
    assert value == expected[0]
    np.testing.assert_array_equal(gradient, expected[1])


@pytest.mark.parametrize("count", [2, 40], ids=["root", "sums"])
def test_sums_have_the_loss_of_their_rows(count: int) -> None:
    rows = random_set(count, 8, 3)
    model = LinearModel(8, 3)
    stats = SufficientStats.from_rows(rows)
    assert (stats.root is None) == (count == 40)
    generator = np.random.default_rng(1)
    params = generator.standard_normal(model.shape)
    vector = generator.standard_normal(model.shape)
    by_sums = StatsObjective(stats)
    by_rows = RowsObjective.of(model, rows)
    assert (by_sums.count, by_sums.weight) == (by_rows.count, by_rows.weight)
    value, gradient = by_rows.value_and_gradient(params)
    assert by_sums.value_and_gradient(params)[0] == pytest.approx(value)
    np.testing.assert_allclose(by_sums.value_and_gradient(params)[1], gradient)
    np.testing.assert_allclose(by_sums.product(params, vector), by_rows.product(params, vector))


def test_sums_have_no_batches() -> None:
    with pytest.raises(InputError):
        StatsObjective(SufficientStats.from_rows(random_set(9, 2, 2))).batch(np.arange(3))


def test_tensors_are_places_in_the_parameters() -> None:
    model = LinearModel(3, 2)
    params = np.arange(8.0).reshape(model.shape)
    weight, shape = model.tensors["weight"]
    assert params[weight].shape == shape
    intercept, shape = model.tensors["intercept"]
    assert params[intercept].shape == shape
    np.testing.assert_array_equal(params[intercept], [[6, 7]])


@pytest.mark.parametrize("shape", [(0, 2), (2, 0), (-1, 2)])
def test_a_model_needs_a_shape(shape: tuple[int, int]) -> None:
    with pytest.raises(InputError):
        LinearModel(*shape)


def test_a_model_travels_as_it_is_and_nothing_else() -> None:
    model = LinearModel(3, 2, CrossEntropy(), "penalized")
    data = dump(model)
    assert parse(data, LinearModel, max_bytes=1 << 12) == model
    with pytest.raises(WireError):
        parse(data.replace(b"penalized", b"undecided"), LinearModel, max_bytes=1 << 12)
    with pytest.raises(InputError):
        LinearModel(3, 2, intercept="undecided")  # type: ignore[arg-type]
