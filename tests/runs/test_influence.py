"""Influence: every client left out in turn, against heads fitted from the rows."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit import Run
from probekit.cache import DiskStore
from probekit.cache.removal import remove_set
from probekit.errors import CacheError, InputError, NotFoundError, VerificationError
from probekit.runs.folder import RunFolder
from tests.conftest import spec
from tests.oracles import columns, least_squares, one_hot
from tests.runs.conftest import Opened
from tests.shelves import Shelve, rows_around_centres
from tests.shelves import shelve as shelve

RIDGE = 0.01


@pytest.fixture
def run(shelve: Shelve, store: DiskStore) -> str:
    """A run of three clients of different sizes, one of them with wrong labels."""
    rows, labels = rows_around_centres(160, 5, 3, seed=0)
    labels[40:80] = (labels[40:80] + 1) % 3
    owners = ("a",) * 40 + ("wrong",) * 40 + ("c",) * 80
    shelve("rows", embeddings=rows, labels=labels, clients=owners)
    shelve("test", rows=70, seed=5)
    Run.train("run", "rows", partition="column:client_id", server_share=0.2, ridge=RIDGE, store=store)
    return "run"


def params(store: DiskStore, clients: set[str]) -> NDArray[np.float64]:
    """What fitting these clients' rows gives."""
    opened = RunFolder.open("run")
    embeddings, partition = opened.embeddings(store), opened.partition()
    rows = np.concatenate([partition.clients[name] for name in clients])
    X, Y = columns(embeddings.to_numpy()[rows]), one_hot(embeddings.labels[rows], 3)
    return least_squares(X, Y, penalty=RIDGE * len(rows))


def test_each_client_is_left_out_exactly(run: str, opened: Opened, store: DiskStore) -> None:
    value = opened(run).influence(test="test").plain
    test = store.open("test")
    X, everybody = columns(test.to_numpy()), {"a", "wrong", "c"}
    now = params(store, everybody)
    assert value["accuracy"] == pytest.approx((np.argmax(X @ now, axis=1) == test.labels).mean())
    assert {one["client"] for one in value["clients"]} == everybody
    for one in value["clients"]:
        rest = params(store, everybody - {one["client"]})
        distance = float(np.linalg.norm(now - rest))
        assert one["distance"] == pytest.approx(distance, rel=1e-6)
        assert one["relative"] == pytest.approx(distance / float(np.linalg.norm(now)), rel=1e-6)
        assert distance <= one["bound"] * (1 + 1e-9)
        right = (np.argmax(X @ rest, axis=1) == test.labels).mean()
        assert one["accuracy_without"] == pytest.approx(right)
        assert one["change"] == pytest.approx(right - value["accuracy"])
    distances = [one["distance"] for one in value["clients"]]
    assert distances == sorted(distances, reverse=True)
    assert value["clients"][0]["client"] == "wrong"


def test_the_server_judges_where_no_set_is_named(run: str, opened: Opened, store: DiskStore) -> None:
    value = opened(run).influence().plain
    rows = RunFolder.open(run).partition().server
    embeddings = RunFolder.open(run).embeddings(store)
    right = np.argmax(columns(embeddings.to_numpy()[rows]) @ RunFolder.open(run).head().params, axis=1)
    assert value["accuracy"] == pytest.approx((right == embeddings.labels[rows]).mean())
    assert "the server's rows" in value["judged_on"]


@pytest.mark.parametrize("keep", ["gradients", "nothing"])
def test_what_was_not_kept_is_made_of_the_rows(run: str, opened: Opened, store: DiskStore, keep: str) -> None:
    Run.train("other", "rows", partition="column:client_id", ridge=RIDGE, keep=keep, store=store)
    value = opened("other").influence().plain
    assert value["computed_from"] == "the cached rows"
    assert all(one["distance"] is not None and one["accuracy_without"] is None for one in value["clients"])
    assert "server has no rows" in value["judged_on"]
    remove_set(store, "rows")
    if keep == "nothing":
        with pytest.raises(InputError, match="rows are not at hand"):
            opened("other").influence()
    else:
        bounds = [(one.distance, one.bound) for one in opened("other").influence().clients]
        assert all(distance is None and bound is not None and bound > 0 for distance, bound in bounds)


def test_a_state_of_before(run: str, opened: Opened) -> None:
    opened(run).unlearn("wrong")
    assert {one["client"] for one in opened(run).influence().plain["clients"]} == {"a", "c"}
    assert len(opened(run).influence(state=1).plain["clients"]) == 3
    opened(run).unlearn("a")
    with pytest.raises(InputError, match=re.escape("at least two")):
        opened(run).influence()


def test_bad_input(run: str, opened: Opened, shelve: Shelve, tmp_path: Path, store: DiskStore) -> None:
    shelve("foreign", seed=1, spec=spec(weights="1" * 64))
    with pytest.raises(NotFoundError):
        opened("nothing").influence()
    with pytest.raises(NotFoundError):
        opened(run).influence(test="nothing")
    with pytest.raises(CacheError):
        opened(run).influence(test="foreign")
    with pytest.raises(NotFoundError):
        opened(run).influence(state=2)
    Run.train("logistic", "rows", method="logistic", ridge=0.1, store=store)
    with pytest.raises(InputError, match=re.escape("logistic")):
        opened("logistic").influence()
    ledger = tmp_path / "run/ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes().replace(b'"train"', b'"trian"'))
    with pytest.raises(VerificationError):
        opened(run).influence()
