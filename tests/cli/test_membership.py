"""`probekit audit membership`: members of an overfitted head are found, forgotten ones as little as by retraining."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from probekit.cache import DiskStore
from probekit.runs.folder import RunFolder
from tests.cli.conftest import Command, Probekit
from tests.conftest import spec
from tests.oracles import columns, least_squares, one_hot
from tests.shelves import Shelve
from tests.shelves import shelve as shelve

RIDGE = 1e-4
OVERFITTED = {"rows": 240, "dimension": 60}


@pytest.fixture
def run(probekit: Probekit, shelve: Shelve) -> str:
    """A run that overfits, of four clients of which one was forgotten exactly; and rows that nobody saw."""
    shelve("rows", **OVERFITTED)
    shelve("unseen", rows=150, dimension=60, seed=5)
    options = ("--clients", "4", "--server-share", "0.2", "--ridge", str(RIDGE))
    assert probekit("train", "rows", *options, "--run", "run")[0] == 0
    assert probekit("unlearn", "run", "--client", "2")[0] == 0
    return "run"


def area(members: np.ndarray, others: np.ndarray) -> float:
    """The share of pairs in the right order."""
    return float((members[:, None] > others).mean() + (members[:, None] == others).mean() / 2)


def test_the_loss_attack_against_pairs_counted_by_hand(run: str, probekit: Probekit, store: DiskStore) -> None:
    code, value, _ = probekit("audit", "membership", run, "--unseen", "unseen")
    assert code == 0
    opened = RunFolder.open(run)
    embeddings, partition, unseen = opened.embeddings(store), opened.partition(), store.open("unseen")
    kept = np.concatenate([partition.clients[name] for name in "013"])
    X, Y = columns(embeddings.to_numpy()[kept]), one_hot(embeddings.labels[kept], 3)
    retrained = least_squares(X, Y, penalty=RIDGE * len(kept))

    def scores(params: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        found: np.ndarray = -np.square(columns(rows) @ params - one_hot(labels, 3)).sum(axis=1)
        return found

    assert [one["head"] for one in value["heads"]] == ["state 1, closed-form", "state 2, exact", "retrained without"]
    gone = partition.clients["2"]
    for told, params in zip(value["heads"], (opened.head(1).params, opened.head(2).params, retrained), strict=True):
        others = scores(params, unseen.to_numpy(), unseen.labels)
        for name, rows in (("forgotten", gone), ("retained", kept)):
            wanted = area(scores(params, embeddings.to_numpy()[rows], embeddings.labels[rows]), others)
            assert told["loss"][name]["auc"] == pytest.approx(wanted, abs=1e-6)
    assert [one["forgotten_rows_in_training"] for one in value["heads"]] == [len(gone), 0, 0]
    assert (value["unseen"], value["rows"]["unseen"], value["seen"]) == ("unseen", 150, 0)


@pytest.mark.parametrize("attack", ["loss", "likelihood_ratio"])
def test_members_are_found_and_what_was_forgotten_exactly_is_not(run: str, probekit: Probekit, attack: str) -> None:
    _, value, _ = probekit("audit", "membership", run, "--unseen", "unseen")
    before, after, retrained = (one[attack] for one in value["heads"])
    assert before["forgotten"]["low"] > 0.5
    assert after["retained"]["low"] > 0.5
    assert after["forgotten"]["low"] < 0.5 < after["forgotten"]["high"]
    assert after["difference_to_retraining"] == pytest.approx(0, abs=1e-6)
    assert retrained["difference_to_retraining"] == 0
    assert before["difference_to_retraining"] > 0.1
    assert [rate for rate, _ in after["forgotten"]["found"]] == [0.01, 0.1]
    assert "0.5 means" in value["meaning"][0]


def test_the_servers_rows_are_unseen_but_not_by_fedremoval(run: str, probekit: Probekit) -> None:
    _, value, _ = probekit("audit", "membership", run)
    assert (value["unseen"], value["rows"]["unseen"]) == ("the server's own", 48)
    assert len(value["meaning"]) == 2
    probekit("unlearn", run, "--client", "1", "--method", "fedremoval")
    _, value, _ = probekit("audit", "membership", run)
    assert "Name another set as unseen" in value["meaning"][-1]
    assert value["forgotten"] == "client 1 and client 2"
    assert [one["forgotten_rows_in_training"] for one in value["heads"]] == [96, 48, 0, 0]


def test_a_client_that_is_still_there(run: str, probekit: Probekit) -> None:
    code, value, _ = probekit("audit", "membership", run, "--client", "3", "--unseen", "unseen")
    assert code == 0
    assert [one["forgotten_rows_in_training"] for one in value["heads"]] == [48, 48, 0]
    assert value["heads"][1]["loss"]["forgotten"]["low"] > 0.5
    assert value["heads"][2]["loss"]["forgotten"]["low"] < 0.5
    assert value["rows"]["retained"] == 96


def test_single_samples_that_were_forgotten(probekit: Probekit, shelve: Shelve) -> None:
    embeddings = shelve("rows", **OVERFITTED)
    probekit("train", "rows", "--clients", "4", "--server-share", "0.2", "--ridge", "0.01", "--run", "run")
    rows = RunFolder.open("run").partition().clients["1"][:20]
    samples = [part for row in rows for part in ("--sample", embeddings.ids[int(row)])]
    assert probekit("unlearn", "run", *samples)[0] == 0
    code, value, _ = probekit("audit", "membership", "run")
    assert code == 0
    assert (value["forgotten"], value["rows"]["forgotten"], value["purged"]) == ("single samples", 20, [])
    assert value["rows"]["retained"] == 192 - 20
    assert [one["forgotten_rows_in_training"] for one in value["heads"]] == [20, 0, 0]


def test_rows_of_a_purged_client_are_not_available(run: str, probekit: Probekit) -> None:
    probekit("unlearn", run, "--client", "3")
    assert probekit("purge", run, "--rows", "--yes")[0] == 0
    code, value, _ = probekit("audit", "membership", run, "--client", "2")
    assert (code, "were purged" in value["error"]["message"]) == (3, True)
    code, value, _ = probekit("audit", "membership", run)
    assert (code, "client 2, 3 were purged" in value["error"]["message"]) == (3, True)
    assert probekit("unlearn", run, "--client", "1")[0] == 0
    code, value, _ = probekit("audit", "membership", run)
    assert code == 0
    assert (value["forgotten"], value["rows"]["forgotten"], value["purged"]) == ("client 1", 48, ["2", "3"])


def test_rows_that_were_trained_on_are_not_unseen(
    run: str, probekit: Probekit, shelve: Shelve, store: DiskStore
) -> None:
    rows = store.open("rows").to_numpy()
    fresh = np.random.default_rng(9).normal(size=(40, 60)).astype(np.float32)
    labels = np.arange(80) % 3
    shelve("first", embeddings=np.vstack([rows[:60], fresh]), labels=np.arange(100) % 3)
    options = ("--clients", "4", "--server-share", "0.2", "--ridge", "0.01")
    probekit("train", "first", *options, "--run", "other")
    probekit("unlearn", "other", "--client", "2")
    shelve(
        "mixed",
        embeddings=np.vstack([fresh, np.random.default_rng(8).normal(size=(40, 60)).astype(np.float32)]),
        labels=labels,
    )
    _, value, _ = probekit("audit", "membership", "other", "--unseen", "mixed")
    held = {
        RunFolder.open("other").embeddings(store).ids[int(row)]
        for one in RunFolder.open("other").partition().clients.values()
        for row in one
    }
    seen = sum(sample in held for sample in store.open("mixed").ids)
    assert 0 < seen < 40
    assert (value["unseen"], value["rows"]["unseen"], value["seen"]) == ("mixed", 80 - seen, seen)
    code, value, _ = probekit("audit", "membership", "other", "--unseen", "first")
    assert (code, "nothing of it is unseen" in value["error"]["message"]) == (2, True)


def test_few_rows_of_many_and_the_same_twice(run: str, probekit: Probekit) -> None:
    one = probekit("audit", "membership", run, "--most", "30", "--seed", "4")[1]
    assert one["rows"] == {"forgotten": 30, "retained": 30, "unseen": 30}
    assert one == probekit("audit", "membership", run, "--most", "30", "--seed", "4")[1]
    other = probekit("audit", "membership", run, "--most", "30", "--seed", "5")[1]
    assert one["heads"][0]["loss"]["forgotten"]["auc"] != other["heads"][0]["loss"]["forgotten"]["auc"]


def test_bad_input(run: str, probekit: Probekit, shelve: Shelve, tmp_path: Path) -> None:
    shelve("foreign", rows=50, dimension=60, seed=1, spec=spec(weights="1" * 64))
    cases = {
        ("nothing",): (3, "not a run folder"),
        (run, "--client", "9"): (3, "no client '9'"),
        (run, "--unseen", "nothing"): (3, "nothing"),
        (run, "--unseen", "foreign"): (4, "embeddings of spec"),
    }
    for arguments, (wanted, words) in cases.items():
        code, value, _ = probekit("audit", "membership", *arguments)
        assert (code, words in value["error"]["message"]) == (wanted, True), value
    probekit("train", "rows", "--clients", "4", "--ridge", "0.1", "--run", "fresh")
    code, value, _ = probekit("audit", "membership", "fresh", "--unseen", "unseen")
    assert (code, "Nothing was unlearned" in value["error"]["message"]) == (2, True)
    assert probekit("audit", "membership", "fresh", "--client", "1", "--unseen", "unseen")[0] == 0
    code, value, _ = probekit("audit", "membership", "fresh", "--client", "1")
    assert (code, "Name a set with --unseen" in value["error"]["message"]) == (2, True)
    ledger = tmp_path / "run/ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes().replace(b'"exact"', b'"exakt"'))
    assert probekit("audit", "membership", run)[0] == 6


def test_people_are_told_what_it_means(run: str, command: Command, store: DiskStore) -> None:
    shown = " ".join(command("audit", "membership", run, "--cache", str(store.root)).out.split())
    for words in ("by loss", "by likelihood ratio", "retrained", "cannot be told apart"):
        assert words in shown
