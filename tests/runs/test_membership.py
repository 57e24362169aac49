"""Membership: members of an overfitted head are found, forgotten ones as little as by retraining."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from probekit import Run
from probekit.cache import DiskStore
from probekit.errors import CacheError, InputError, NotFoundError, VerificationError
from probekit.runs.folder import RunFolder
from tests.conftest import spec
from tests.oracles import columns, least_squares, one_hot
from tests.runs.conftest import Opened
from tests.shelves import Shelve
from tests.shelves import shelve as shelve

RIDGE = 1e-4
OVERFITTED = {"rows": 240, "dimension": 60}


@pytest.fixture
def run(opened: Opened, shelve: Shelve, store: DiskStore) -> str:
    """A run that overfits, of four clients of which one was forgotten exactly; and rows that nobody saw."""
    shelve("rows", **OVERFITTED)
    shelve("unseen", rows=150, dimension=60, seed=5)
    Run.train("run", "rows", clients=4, server_share=0.2, ridge=RIDGE, store=store)
    opened("run").unlearn("2")
    return "run"


def area(members: np.ndarray, others: np.ndarray) -> float:
    """The share of pairs in the right order."""
    return float((members[:, None] > others).mean() + (members[:, None] == others).mean() / 2)


def test_the_loss_attack_against_pairs_counted_by_hand(run: str, opened: Opened, store: DiskStore) -> None:
    value = opened(run).membership(unseen="unseen").plain
    folder = RunFolder.open(run)
    embeddings, partition, unseen = folder.embeddings(store), folder.partition(), store.open("unseen")
    kept = np.concatenate([partition.clients[name] for name in "013"])
    X, Y = columns(embeddings.to_numpy()[kept]), one_hot(embeddings.labels[kept], 3)
    retrained = least_squares(X, Y, penalty=RIDGE * len(kept))

    def scores(params: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        found: np.ndarray = -np.square(columns(rows) @ params - one_hot(labels, 3)).sum(axis=1)
        return found

    assert [one["head"] for one in value["heads"]] == ["state 1, closed-form", "state 2, exact", "retrained without"]
    gone = partition.clients["2"]
    for told, params in zip(value["heads"], (folder.head(1).params, folder.head(2).params, retrained), strict=True):
        others = scores(params, unseen.to_numpy(), unseen.labels)
        for name, rows in (("forgotten", gone), ("retained", kept)):
            wanted = area(scores(params, embeddings.to_numpy()[rows], embeddings.labels[rows]), others)
            assert told["loss"][name]["auc"] == pytest.approx(wanted, abs=1e-6)
    assert [one["forgotten_rows_in_training"] for one in value["heads"]] == [len(gone), 0, 0]
    assert (value["unseen"], value["rows"]["unseen"], value["seen"]) == ("unseen", 150, 0)


@pytest.mark.parametrize("attack", ["loss", "likelihood_ratio"])
def test_members_are_found_and_what_was_forgotten_exactly_is_not(run: str, opened: Opened, attack: str) -> None:
    value = opened(run).membership(unseen="unseen").plain
    before, after, retrained = (one[attack] for one in value["heads"])
    assert before["forgotten"]["low"] > 0.5
    assert after["retained"]["low"] > 0.5
    assert after["forgotten"]["low"] < 0.5 < after["forgotten"]["high"]
    assert after["difference_to_retraining"] == pytest.approx(0, abs=1e-6)
    assert retrained["difference_to_retraining"] == 0
    assert before["difference_to_retraining"] > 0.1
    assert [rate for rate, _ in after["forgotten"]["found"]] == [0.01, 0.1]
    assert "0.5 means" in value["meaning"][0]


def test_the_servers_rows_are_unseen_but_not_by_fedremoval(run: str, opened: Opened) -> None:
    value = opened(run).membership().plain
    assert (value["unseen"], value["rows"]["unseen"]) == ("the server's own", 48)
    assert len(value["meaning"]) == 2
    opened(run).unlearn("1", method="fedremoval")
    value = opened(run).membership().plain
    assert "Name another set as unseen" in value["meaning"][-1]
    assert value["forgotten"] == "client 1 and client 2"
    assert [one["forgotten_rows_in_training"] for one in value["heads"]] == [96, 48, 0, 0]


def test_a_client_that_is_still_there(run: str, opened: Opened) -> None:
    value = opened(run).membership(client="3", unseen="unseen").plain
    assert [one["forgotten_rows_in_training"] for one in value["heads"]] == [48, 48, 0]
    assert value["heads"][1]["loss"]["forgotten"]["low"] > 0.5
    assert value["heads"][2]["loss"]["forgotten"]["low"] < 0.5
    assert value["rows"]["retained"] == 96


def test_single_samples_that_were_forgotten(opened: Opened, shelve: Shelve, store: DiskStore) -> None:
    embeddings = shelve("rows", **OVERFITTED)
    Run.train("run", "rows", clients=4, server_share=0.2, ridge=0.01, store=store)
    rows = RunFolder.open("run").partition().clients["1"][:20]
    opened("run").unlearn(samples=[embeddings.ids[int(row)] for row in rows])
    value = opened("run").membership().plain
    assert (value["forgotten"], value["rows"]["forgotten"], value["purged"]) == ("single samples", 20, 0)
    assert value["rows"]["retained"] == 192 - 20
    assert [one["forgotten_rows_in_training"] for one in value["heads"]] == [20, 0, 0]


def test_rows_of_a_purged_client_are_not_available(run: str, opened: Opened) -> None:
    opened(run).unlearn("3")
    opened(run).purge(rows=True)
    with pytest.raises(NotFoundError, match=re.escape("were purged")):
        opened(run).membership(client="2")
    with pytest.raises(NotFoundError, match=re.escape("those of 2 requests were purged")):
        opened(run).membership()
    opened(run).unlearn("1")
    value = opened(run).membership().plain
    assert (value["forgotten"], value["rows"]["forgotten"], value["purged"]) == ("client 1", 48, 2)


def test_rows_that_were_trained_on_are_not_unseen(run: str, opened: Opened, shelve: Shelve, store: DiskStore) -> None:
    rows = store.open("rows").to_numpy()
    fresh = np.random.default_rng(9).normal(size=(40, 60)).astype(np.float32)
    labels = np.arange(80) % 3
    shelve("first", embeddings=np.vstack([rows[:60], fresh]), labels=np.arange(100) % 3)
    Run.train("other", "first", clients=4, server_share=0.2, ridge=0.01, store=store)
    opened("other").unlearn("2")
    shelve(
        "mixed",
        embeddings=np.vstack([fresh, np.random.default_rng(8).normal(size=(40, 60)).astype(np.float32)]),
        labels=labels,
    )
    value = opened("other").membership(unseen="mixed").plain
    held = {
        RunFolder.open("other").embeddings(store).ids[int(row)]
        for one in RunFolder.open("other").partition().clients.values()
        for row in one
    }
    seen = sum(sample in held for sample in store.open("mixed").ids)
    assert 0 < seen < 40
    assert (value["unseen"], value["rows"]["unseen"], value["seen"]) == ("mixed", 80 - seen, seen)
    with pytest.raises(InputError, match=re.escape("nothing of it is unseen")):
        opened("other").membership(unseen="first")


def test_few_rows_of_many_and_the_same_twice(run: str, opened: Opened) -> None:
    one = opened(run).membership(most=30, seed=4).plain
    assert one["rows"] == {"forgotten": 30, "retained": 30, "unseen": 30}
    assert one == opened(run).membership(most=30, seed=4).plain
    other = opened(run).membership(most=30, seed=5).plain
    assert one["heads"][0]["loss"]["forgotten"]["auc"] != other["heads"][0]["loss"]["forgotten"]["auc"]


def test_bad_input(run: str, opened: Opened, shelve: Shelve, tmp_path: Path, store: DiskStore) -> None:
    shelve("foreign", rows=50, dimension=60, seed=1, spec=spec(weights="1" * 64))
    with pytest.raises(NotFoundError, match="no client '9'"):
        opened(run).membership(client="9")
    with pytest.raises(NotFoundError, match="nothing"):
        opened(run).membership(unseen="nothing")
    with pytest.raises(CacheError, match="embeddings of spec"):
        opened(run).membership(unseen="foreign")
    Run.train("fresh", "rows", clients=4, ridge=0.1, store=store)
    with pytest.raises(InputError, match=re.escape("Nothing was unlearned")):
        opened("fresh").membership(unseen="unseen")
    opened("fresh").membership(client="1", unseen="unseen")
    with pytest.raises(InputError, match="Name a set with `unseen`"):
        opened("fresh").membership(client="1")
    ledger = tmp_path / "run/ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes().replace(b'"exact"', b'"exakt"'))
    with pytest.raises(VerificationError):
        opened(run).membership()
