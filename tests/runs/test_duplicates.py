"""Duplicates: planted twins are found, counted where they matter, and nothing else is."""

from __future__ import annotations

import re

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit import Run
from probekit.cache import DiskStore
from probekit.errors import CacheError, InputError, NotFoundError
from tests.conftest import spec
from tests.runs.conftest import Opened
from tests.shelves import Shelve
from tests.shelves import shelve as shelve

OWNERS = ("a", "b", "c") * 20


def planted() -> NDArray[np.float32]:
    """Rows far from each other but for: 1 and 4 (b) equal 0 (a), 5 (c) is nearly 3 (a), 9 (a) is nearly 6 (a)."""
    rows = np.random.default_rng(0).normal(size=(60, 30)).astype(np.float32)
    rows[[1, 4]] = rows[0]
    rows[5] = rows[3] * 2 + np.float32(1e-3)
    rows[9] = rows[6] + np.float32(1e-3)
    return rows


@pytest.fixture
def run(shelve: Shelve, store: DiskStore) -> str:
    """A run whose clients share samples."""
    shelve("small", embeddings=planted(), labels=np.arange(60) % 3, clients=OWNERS)
    Run.train("r", "small", partition="column:client_id", ridge=1, store=store)
    return "r"


def test_twins_across_clients_are_counted_for_each(opened: Opened, run: str) -> None:
    value = opened(run).duplicates().plain
    found = {(pair["row"], pair["other_row"]): pair for pair in value["across"]}
    assert set(found) == {(0, 1), (0, 4), (3, 5)}
    assert found[0, 1]["same_sample"]
    assert not found[3, 5]["same_sample"]
    assert value["clients"] == [
        {"client": "a", "rows": 20, "stay_known": 2, "same_sample": 1},
        {"client": "b", "rows": 20, "stay_known": 2, "same_sample": 2},
        {"client": "c", "rows": 20, "stay_known": 1, "same_sample": 0},
    ]
    assert {tuple(one["holders"]): one["pairs"] for one in value["between"]} == {("a", "b"): 2, ("a", "c"): 1}


def test_one_client_alone(opened: Opened, run: str) -> None:
    value = opened(run).duplicates(client="b").plain
    assert [(pair["row"], pair["other_row"]) for pair in value["across"]] == [(0, 1), (0, 4)]
    assert [one["client"] for one in value["clients"]] == ["b"]
    with pytest.raises(NotFoundError, match=re.escape("no client 'd'")):
        opened(run).duplicates(client="d")


def test_twins_in_a_test_set(opened: Opened, run: str, shelve: Shelve) -> None:
    rows = planted()
    test = np.vstack([rows[[7, 8]] * 3, np.random.default_rng(1).normal(size=(8, 30)).astype(np.float32)])
    shelve("test", embeddings=test, labels=np.arange(10) % 3)
    value = opened(run).duplicates(test="test").plain
    assert {(pair["row"], pair["other_row"]) for pair in value["test"]["pairs"]} == {(7, 0), (8, 1)}
    assert (value["test"]["rows_with_a_twin"], value["test"]["rows"]) == (2, 10)
    assert value["test"]["by_client"] == {"b": 1, "c": 1}
    shelve("other", seed=1, dimension=30, spec=spec(weights="1" * 64))
    with pytest.raises(CacheError, match=re.escape("encoded differently")):
        opened(run).duplicates(test="other")


def test_threshold_and_limit(opened: Opened, run: str) -> None:
    assert len(opened(run).duplicates(threshold=1).plain["across"]) == 2
    assert len(opened(run).duplicates(threshold=0.3).plain["across"]) > 3
    with pytest.raises(InputError, match=re.escape("More than 2 pairs")):
        opened(run).duplicates(threshold=0.3, limit=2)
    with pytest.raises(InputError):
        opened(run).duplicates(threshold=2)
