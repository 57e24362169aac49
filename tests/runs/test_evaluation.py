"""Evaluation: on which rows, how good, and what it refuses to compare."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit import Run
from probekit.cache import DiskStore
from probekit.cache.removal import remove_set
from probekit.errors import CacheError, InputError, NotFoundError
from probekit.runs.folder import RunFolder
from probekit.runs.ledger import Event
from tests.conftest import spec
from tests.runs.conftest import Opened
from tests.shelves import Shelve
from tests.shelves import shelve as shelve


def guesses(rows: np.ndarray, *, run: str = "r") -> np.ndarray:
    """The class of each row by the stored parameters, without our own prediction code."""
    params = RunFolder.open(run).head().params
    columns = np.hstack([rows.astype(np.float64), np.ones((len(rows), 1))])
    found: np.ndarray = np.argmax(columns @ params, axis=1)
    return found


def test_a_test_set_is_judged(opened: Opened, shelve: Shelve, store: DiskStore) -> None:
    shelve("small")
    test = shelve("test", rows=70, seed=1, clients=("x", "y") * 35)
    Run.train("r", "small", clients=4, store=store)
    value = opened("r").evaluate("test").plain
    [result] = value["results"]
    found = guesses(test.embeddings[np.arange(70)])
    right = found == test.labels
    assert (result["kind"], result["rows"], result["also_trained_on"]) == ("test", 70, 0)
    assert result["accuracy"]["hits"] == right.sum()
    assert result["accuracy"]["low"] < right.mean() < result["accuracy"]["high"]
    assert [one["hits"] for one in result["by_class"]] == [int(right[test.labels == k].sum()) for k in range(3)]
    assert {one["name"]: one["hits"] for one in result["by_client"]} == {
        "x": int(right[::2].sum()),
        "y": int(right[1::2].sum()),
    }
    counts = np.zeros((3, 3), int)
    np.add.at(counts, (test.labels, found), 1)
    assert result["confusion"]["counts"] == counts.tolist()
    assert sum(one["count"] for one in result["calibration"]["bins"]) == 70
    assert value["head"] == RunFolder.open("r").head().digest


def test_without_a_set_the_server_judges_and_without_a_server_it_is_training_accuracy(
    opened: Opened, shelve: Shelve, store: DiskStore
) -> None:
    embeddings = shelve("small")
    Run.train("r", "small", clients=4, server_share=0.2, store=store)
    [result] = opened("r").evaluate().plain["results"]
    rows = RunFolder.open("r").partition().server
    assert (result["kind"], result["rows"], result["also_trained_on"]) == ("server", 18, 0)
    assert result["accuracy"]["hits"] == (guesses(embeddings.embeddings[rows]) == embeddings.labels[rows]).sum()
    Run.train("s", "small", clients=4, partition="dirichlet:0.3", store=store)
    [result] = opened("s").evaluate().plain["results"]
    assert (result["kind"], result["rows"]) == ("training", 90)
    right = guesses(embeddings.embeddings[np.arange(90)], run="s") == embeddings.labels
    partition = RunFolder.open("s").partition()
    assert {one["name"]: one["hits"] for one in result["by_client"]} == {
        name: int(right[held].sum()) for name, held in partition.clients.items()
    }
    assert "WAS trained on" in result["meaning"]


def test_the_training_set_by_name_is_still_training(opened: Opened, shelve: Shelve, store: DiskStore) -> None:
    shelve("small")
    Run.train("r", "small", clients=4, store=store)
    [result] = opened("r").evaluate("small").plain["results"]
    assert result["kind"] == "training"
    assert len(result["by_client"]) == 4


def test_test_rows_that_were_trained_on_are_counted(opened: Opened, shelve: Shelve, store: DiskStore) -> None:
    generator = np.random.default_rng(3)
    rows = generator.normal(size=(60, 5)).astype(np.float32)
    shelve("small", embeddings=rows, labels=np.arange(60) % 3)
    shelve("test", embeddings=np.vstack([rows[:7], rows[:13] + 1]), labels=np.arange(20) % 3)
    Run.train("r", "small", clients=4, ridge=1, store=store)
    [result] = opened("r").evaluate("test").plain["results"]
    assert (result["kind"], result["also_trained_on"]) == ("test", 7)


def test_unusable_test_rows_are_left_out(opened: Opened, shelve: Shelve, store: DiskStore) -> None:
    shelve("small")
    labels = np.arange(40) % 3
    labels[:5] = -1
    shelve("test", rows=40, seed=1, labels=labels)
    Run.train("r", "small", store=store)
    [result] = opened("r").evaluate("test").plain["results"]
    assert (result["rows"], result["left_out"]) == (35, 5)


def test_neighbours_and_few_shots(opened: Opened, shelve: Shelve, store: DiskStore) -> None:
    train = shelve("small")
    test = shelve("test", rows=30, seed=1)
    Run.train("r", "small", clients=4, ridge=0.1, store=store)
    value = opened("r").evaluate("test", knn=1, shots=[1, 8], draws=3).plain
    [result] = value["results"]
    one, other = (s.embeddings[np.arange(len(s))].astype(np.float64) for s in (train, test))
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (one, other)]
    nearest = train.labels[np.argmax(unit[1] @ unit[0].T, axis=1)]
    assert result["knn"]["accuracy"]["hits"] == (nearest == test.labels).sum()
    assert [point["shots"] for point in result["few_shot"]] == [1, 8]
    assert all(len(point["accuracies"]) == 3 for point in result["few_shot"])
    assert result["few_shot"][1]["mean"] > 0.5


@pytest.mark.parametrize("options", [{"knn": 3}, {"shots": [1]}])
def test_what_learns_from_training_rows_is_not_judged_on_them(
    opened: Opened, shelve: Shelve, options: dict[str, Any], store: DiskStore
) -> None:
    shelve("small")
    Run.train("r", "small", store=store)
    with pytest.raises(InputError, match="Name a test set"):
        opened("r").evaluate(**options)


def test_embeddings_of_another_spec_are_refused(opened: Opened, shelve: Shelve, store: DiskStore) -> None:
    shelve("small")
    shelve("test", seed=1, spec=spec(weights="1" * 64))
    Run.train("r", "small", store=store)
    with pytest.raises(CacheError, match=re.escape("differ in weights")):
        opened("r").evaluate("test")


def test_labels_of_another_set_are_refused_with_both_lists(opened: Opened, shelve: Shelve, store: DiskStore) -> None:
    shelve("small")
    shelve("test", seed=1, class_names=("cat", "dog", "cow"))
    Run.train("r", "small", store=store)
    with pytest.raises(CacheError, match=r"class 0, class 1, class 2\..*cat, dog, cow"):
        opened("r").evaluate("test")


def test_any_state_can_be_judged(opened: Opened, shelve: Shelve, store: DiskStore) -> None:
    shelve("small")
    shelve("test", seed=1)
    Run.train("r", "small", ridge=0.1, clients=4, store=store)
    Run.train("s", "small", ridge=1000, clients=4, store=store)
    run = RunFolder.open("r")
    run.write_state(RunFolder.open("s").trained(), Event("other"))
    first = opened("r").evaluate("test", state=1).plain
    now = opened("r").evaluate("test").plain
    assert (first["state"], now["state"]) == (1, 2)
    assert first["head"] != now["head"] == RunFolder.open("s").head().digest
    with pytest.raises(NotFoundError, match=re.escape("it has 1, 2")):
        opened("r").evaluate("test", state=3)


def test_forgotten_samples_are_not_among_the_rows_of_a_state(opened: Opened, shelve: Shelve, store: DiskStore) -> None:
    small = shelve("small")
    shelve("test", seed=1)
    Run.train("r", "small", ridge=0.1, clients=4, store=store)
    gone = [int(row) for row in RunFolder.open("r").partition().clients["1"][:9]]
    opened("r").unlearn(samples=[small.ids[row] for row in gone])
    opened("r").unlearn("2")
    partition = RunFolder.open("r").partition()
    for state, left in ((1, 90), (2, 81), (3, 81 - len(partition.clients["2"]))):
        [result] = opened("r").evaluate(state=state).plain["results"]
        assert (result["kind"], result["rows"], result["also_trained_on"]) == ("training", left, left)
        counts = {one["name"]: one["count"] for one in result["by_client"]}
        assert counts == dict(RunFolder.open("r").trained(state).counts)
        [result] = opened("r").evaluate("small", state=state).plain["results"]
        assert (result["rows"], result["also_trained_on"]) == (90, left)
    rest = np.setdiff1d(np.arange(90), [*gone, *partition.clients["2"]])
    right = guesses(small.embeddings[rest]) == small.labels[rest]
    [result] = opened("r").evaluate().plain["results"]
    assert result["accuracy"]["hits"] == right.sum()


def test_a_trigger_is_judged_beside_the_retrained_head_of_that_state(
    opened: Opened, shelve: Shelve, store: DiskStore
) -> None:
    generator = np.random.default_rng(2)
    small = shelve("small", labels=generator.integers(0, 3, 90))
    vectors = generator.normal(size=(600, 5)).astype(np.float32)
    triggered = shelve("triggered", embeddings=vectors, labels=np.arange(600) % 3, spec=spec(trigger="square"))
    Run.train("r", "small", ridge=0.001, clients=4, server_share=0.1, keep="nothing", store=store)
    rows = [int(row) for row in RunFolder.open("r").partition().clients["1"][:12]]
    for some in (rows[:6], rows[6:]):
        opened("r").unlearn(samples=[small.ids[row] for row in some], method="retrain")
    held = np.concatenate([*RunFolder.open("r").partition().clients.values()])
    seen = set()
    for state, gone in ((1, 0), (2, 6), (3, 12)):
        left = np.setdiff1d(held, rows[:gone])
        X = np.hstack([small.embeddings[left].astype(np.float64), np.ones((len(left), 1))])
        params = np.linalg.solve(X.T @ X + 0.001 * len(left) * np.eye(6), X.T @ np.eye(3)[small.labels[left]])
        given = np.argmax(np.hstack([vectors.astype(np.float64), np.ones((600, 1))]) @ params, axis=1)
        value = opened("r").evaluate(state=state, triggered="triggered", target=1).plain
        wanted = float((given[triggered.labels != 1] == 1).mean())
        assert value["backdoor"]["retrained"]["excluding_target"]["value"] == pytest.approx(wanted)
        assert value["backdoor"]["difference_to_retraining"] == 0
        seen.add(wanted)
    assert len(seen) == 3


def test_a_run_whose_set_is_gone_can_still_be_tested(opened: Opened, shelve: Shelve, store: DiskStore) -> None:
    shelve("small")
    shelve("test", seed=1)
    Run.train("r", "small", store=store)
    remove_set(store, "small")
    value = opened("r").evaluate("test").plain
    assert value["results"][0]["also_trained_on"] is None
    with pytest.raises(NotFoundError, match=re.escape("Extract it again")):
        opened("r").evaluate("test", knn=1)
    with pytest.raises(NotFoundError):
        opened("r").evaluate()


def test_what_is_no_run_or_of_another_version(opened: Opened, shelve: Shelve, tmp_path: Path, store: DiskStore) -> None:
    shelve("small")
    with pytest.raises(NotFoundError, match=re.escape("not a run folder")):
        opened("nothing").evaluate()
    Run.train("r", "small", store=store)
    note = json.loads((tmp_path / "r/run.json").read_text())
    (tmp_path / "r/run.json").write_text(json.dumps({**note, "schema": 2}))
    with pytest.raises(CacheError, match=re.escape("schema 2")):
        opened("r").evaluate()
