"""`probekit audit influence`: every client left out in turn, against heads fitted from the rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.cache import DiskStore
from probekit.cache.removal import remove_set
from probekit.runs.folder import RunFolder
from tests.cli.conftest import Command, Probekit
from tests.conftest import spec
from tests.oracles import columns, least_squares, one_hot
from tests.shelves import Shelve, rows_around_centres
from tests.shelves import shelve as shelve

RIDGE = 0.01


@pytest.fixture
def run(probekit: Probekit, shelve: Shelve) -> str:
    """A run of three clients of different sizes, one of them with wrong labels."""
    rows, labels = rows_around_centres(160, 5, 3, seed=0)
    labels[40:80] = (labels[40:80] + 1) % 3
    owners = ("a",) * 40 + ("wrong",) * 40 + ("c",) * 80
    shelve("rows", embeddings=rows, labels=labels, clients=owners)
    shelve("test", rows=70, seed=5)
    options = ("--partition", "column:client_id", "--server-share", "0.2", "--ridge", str(RIDGE))
    assert probekit("train", "rows", *options, "--run", "run")[0] == 0
    return "run"


def params(store: DiskStore, clients: set[str]) -> NDArray[np.float64]:
    """What fitting these clients' rows gives."""
    opened = RunFolder.open("run")
    embeddings, partition = opened.embeddings(store), opened.partition()
    rows = np.concatenate([partition.clients[name] for name in clients])
    X, Y = columns(embeddings.to_numpy()[rows]), one_hot(embeddings.labels[rows], 3)
    return least_squares(X, Y, penalty=RIDGE * len(rows))


def test_each_client_is_left_out_exactly(run: str, probekit: Probekit, store: DiskStore) -> None:
    code, value, _ = probekit("audit", "influence", run, "--test", "test")
    assert code == 0
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


def test_the_server_judges_where_no_set_is_named(run: str, probekit: Probekit, store: DiskStore) -> None:
    _, value, _ = probekit("audit", "influence", run)
    rows = RunFolder.open(run).partition().server
    embeddings = RunFolder.open(run).embeddings(store)
    right = np.argmax(columns(embeddings.to_numpy()[rows]) @ RunFolder.open(run).head().params, axis=1)
    assert value["accuracy"] == pytest.approx((right == embeddings.labels[rows]).mean())
    assert "the server's rows" in value["judged_on"]


@pytest.mark.parametrize("keep", ["gradients", "nothing"])
def test_what_was_not_kept_is_made_of_the_rows(run: str, probekit: Probekit, store: DiskStore, keep: str) -> None:
    options = ("--partition", "column:client_id", "--ridge", str(RIDGE), "--keep", keep)
    assert probekit("train", "rows", *options, "--run", "other")[0] == 0
    code, value, _ = probekit("audit", "influence", "other")
    assert (code, value["computed_from"]) == (0, "the cached rows")
    assert all(one["distance"] is not None and one["accuracy_without"] is None for one in value["clients"])
    assert "server has no rows" in value["judged_on"]
    remove_set(store, "rows")
    code, value, _ = probekit("audit", "influence", "other")
    if keep == "nothing":
        assert (code, "rows are not at hand" in value["error"]["message"]) == (2, True)
    else:
        assert code == 0
        assert all(one["distance"] is None and one["bound"] > 0 for one in value["clients"])


def test_a_state_of_before(run: str, probekit: Probekit) -> None:
    probekit("unlearn", run, "--client", "wrong")
    assert {one["client"] for one in probekit("audit", "influence", run)[1]["clients"]} == {"a", "c"}
    assert len(probekit("audit", "influence", run, "--state", "1")[1]["clients"]) == 3
    probekit("unlearn", run, "--client", "a")
    code, value, _ = probekit("audit", "influence", run)
    assert (code, "at least two" in value["error"]["message"]) == (2, True)


def test_bad_input(run: str, probekit: Probekit, shelve: Shelve, tmp_path: Path) -> None:
    shelve("foreign", seed=1, spec=spec(weights="1" * 64))
    assert probekit("audit", "influence", "nothing")[0] == 3
    assert probekit("audit", "influence", run, "--test", "nothing")[0] == 3
    assert probekit("audit", "influence", run, "--test", "foreign")[0] == 4
    assert probekit("audit", "influence", run, "--state", "2")[0] == 3
    probekit("train", "rows", "--method", "logistic", "--ridge", "0.1", "--run", "logistic")
    code, value, _ = probekit("audit", "influence", "logistic")
    assert (code, "logistic" in value["error"]["message"]) == (2, True)
    ledger = tmp_path / "run/ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes().replace(b'"train"', b'"trian"'))
    assert probekit("audit", "influence", run)[0] == 6


def test_people_see_a_sorted_table(run: str, command: Command, store: DiskStore) -> None:
    shown = command("audit", "influence", run, "--cache", str(store.root)).out
    assert shown.index("wrong") < shown.index("\na ")
    assert "points" in shown
