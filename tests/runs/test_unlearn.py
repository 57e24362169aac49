"""Unlearning, verifying and purging: the next state, its proof, and what must be gone afterwards."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit import Run
from probekit.cache import DiskStore
from probekit.custody.signatures import new_private_key, public_key_of
from probekit.errors import CacheError, InputError, NotFoundError, ProbekitError, StorageError, VerificationError
from probekit.federated.training import train
from probekit.models.serving import load_head
from probekit.runs.folder import RunFolder
from probekit.runs.rows import rows_at
from probekit.runs.stored import packed
from probekit.runs.verification import verify_head
from probekit.values import Partition
from tests.runs.conftest import Opened
from tests.shelves import Shelve
from tests.shelves import shelve as shelve
from tests.verdicts import STORY, unproven


@pytest.fixture
def trained(shelve: Shelve, tmp_path: Path, store: DiskStore) -> Path:
    """A run of four clients that kept everything."""
    shelve("rows", rows=160)
    shelve("test", rows=40, seed=5)
    Run.train(tmp_path / "run", "rows", clients=4, server_share=0.2, ridge=0.01, store=store)
    return tmp_path / "run"


def certificate(run: Path, state: int = 2) -> Path:
    """Where the certificate of a state stands."""
    return run / "states" / f"{state:04d}" / "certificate.json"


def retrained(run: Path, store: DiskStore, *, without: set[str]) -> Any:
    """The head that training on the others gives, from the rows and nothing else."""
    folder = RunFolder.open(run)
    embeddings, partition = folder.embeddings(store), folder.partition()
    gone = [held for name, held in partition.clients.items() if name in without]
    left = {name: held for name, held in partition.clients.items() if name not in without}
    whole = Partition(left, np.sort(np.concatenate([partition.server, *gone])), partition.rows, "iid", 0)
    return train(embeddings, whole, ridge=0.01).head


def test_a_client_is_forgotten_exactly_and_the_certificate_holds(
    trained: Path,
    opened: Opened,
    store: DiskStore,
) -> None:
    value = opened(trained).unlearn("2", test="test").plain
    assert (value["state"], value["method"], value["already_done"]) == (2, "exact", False)
    head = load_head(trained / "states" / "0002" / "head")
    np.testing.assert_allclose(head.params, retrained(trained, store, without={"2"}).params, rtol=0, atol=1e-12)
    assert head.recipe["backbone"] == "test:pixels"
    assert value["agreement"]["certified"] == 40
    assert unproven(opened(trained).verify(certificate(trained), rows=True, test="test")) == STORY


def test_the_same_request_again_changes_nothing(trained: Path, opened: Opened) -> None:
    opened(trained).unlearn("2")
    value = opened(trained).unlearn("2").plain
    assert (value["already_done"], value["state"]) == (True, 2)
    assert RunFolder.open(trained).state == 2


def test_a_client_returns(trained: Path, opened: Opened) -> None:
    before = load_head(trained / "states" / "0001" / "head")
    opened(trained).unlearn("2")
    value = opened(trained).unlearn(add=["2"]).plain
    assert value["state"] == 3
    np.testing.assert_allclose(load_head(trained / "states" / "0003" / "head").params, before.params, atol=1e-12)
    value = opened(trained).unlearn("2").plain
    assert (value["already_done"], value["state"]) == (False, 4)


def test_samples_go_and_stay_gone(trained: Path, opened: Opened, store: DiskStore) -> None:
    folder = RunFolder.open(trained)
    embeddings, partition = folder.embeddings(store), folder.partition()
    first, second = (int(row) for row in partition.clients["1"][:2])
    for row in (first, second):
        value = opened(trained).unlearn(samples=[embeddings.ids[row][:12]]).plain
    left, divided = rows_at(RunFolder.open(trained), store)
    assert {embeddings.ids[first], embeddings.ids[second]}.isdisjoint(left.ids)
    assert len(divided.clients["1"]) == len(partition.clients["1"]) - 2
    assert value["retained"]["1"] == len(partition.clients["1"]) - 2
    want = train(left, divided, ridge=0.01).head
    np.testing.assert_allclose(load_head(trained / "states" / "0003" / "head").params, want.params, atol=1e-12)
    assert opened(trained).verify(certificate(trained, 3), rows=True).intact


def test_the_rows_of_an_earlier_certificate_are_those_of_its_state(
    trained: Path, opened: Opened, store: DiskStore
) -> None:
    embeddings, partition = RunFolder.open(trained).embeddings(store), RunFolder.open(trained).partition()
    for client in ("0", "1"):
        opened(trained).unlearn(samples=[embeddings.ids[int(partition.clients[client][0])]])
    for state in (2, 3):
        checked = opened(trained).verify(certificate(trained, state), rows=True)
        assert unproven(checked) == STORY | ({"current"} if state == 2 else set())


def test_a_label_is_put_right(trained: Path, opened: Opened, store: DiskStore) -> None:
    embeddings = RunFolder.open(trained).embeddings(store)
    row = int(RunFolder.open(trained).partition().clients["0"][0])
    wrong = (int(embeddings.labels[row]) + 1) % 3
    value = opened(trained).unlearn(relabel=[f"{embeddings.ids[row]}={wrong}"]).plain
    assert value["method"] == "exact"
    left, divided = rows_at(RunFolder.open(trained), store)
    want = train(left, divided, ridge=0.01).head
    np.testing.assert_allclose(load_head(trained / "states" / "0002" / "head").params, want.params, atol=1e-12)


SOLVED = ("fedremoval", "fedremoval:cg", "fedremoval-line", "fedremoval-pcg:6", "retrain")
ROUNDS = ("cf:rounds=3", "flipping", "sga", "ew-sga", "pga:exact=true", "neggrad", "not", "puf", "mode", "fedosd")


@pytest.mark.parametrize("method", [*SOLVED, *ROUNDS])
def test_every_method_is_certified_by_a_gradient_round(
    trained: Path,
    opened: Opened,
    store: DiskStore,
    tmp_path: Path,
    method: str,
) -> None:
    run = tmp_path / "lean"
    Run.train(run, "rows", clients=4, server_share=0.2, ridge=0.01, keep="gradients", store=store)
    value = opened(run).unlearn("1", method=method, test="test").plain
    gap = np.linalg.norm(
        load_head(run / "states" / "0002" / "head").params - retrained(run, store, without={"1"}).params
    )
    assert gap <= value["bounds"]["weights"]
    assert unproven(opened(run).verify(certificate(run), rows=True, test="test")) == STORY


def test_auto_takes_what_was_kept_and_says_why(
    opened: Opened, shelve: Shelve, tmp_path: Path, store: DiskStore
) -> None:
    shelve("rows", rows=160)
    for keep, share, method in (("gradients", 0.2, "retrain"), ("statistics", 0.0, "exact"), ("nothing", 0, "retrain")):
        run = str(tmp_path / keep)
        Run.train(run, "rows", clients=4, ridge=0.01, keep=keep, server_share=share, store=store)
        value = opened(run).unlearn("0").plain
        assert value["method"] == method
        assert len(value["why"]) > 20
    with pytest.raises(InputError, match='keep="statistics"'):
        opened(run).unlearn("1", server_only=True)


def test_auto_never_leads_away_from_retraining(
    opened: Opened, shelve: Shelve, tmp_path: Path, store: DiskStore
) -> None:
    """C17: a FedAvg run with few rows of the server's own, where one step does harm and the rows are at hand."""
    shelve("rows", rows=160)
    options: dict[str, Any] = {"clients": 4, "ridge": 0.01, "server_share": 0.05, "partition": "dirichlet:0.3"}
    for name in ("auto", "step"):
        run = tmp_path / name
        Run.train(str(run), "rows", method="fedavg", rounds=5, keep="gradients", store=store, **options)
        first = load_head(run / "states" / "0001" / "head").params
        wanted = retrained(run, store, without={"1"}).params
        with pytest.raises(InputError, match="only taken when asked for by name"):
            opened(str(run)).unlearn("1", server_only=True)
        done = opened(str(run)).unlearn("1", method="auto" if name == "auto" else "fedremoval")
        found = load_head(run / "states" / "0002" / "head").params
        assert done.distance is not None
        assert done.distance.before == pytest.approx(np.linalg.norm(first - wanted), rel=1e-6)
        assert done.distance.after == pytest.approx(np.linalg.norm(found - wanted), rel=1e-6, abs=1e-8)
        assert done.distance.harmed is (name == "step")
        assert done.plain["distance"] == {"before": done.distance.before, "after": done.distance.after}
        stage = opened(str(run)).report().plain["stages"][-1]
        assert stage["distance_before"] == pytest.approx(done.distance.before, rel=1e-6)
        assert stage["distance"] == pytest.approx(done.distance.after, rel=1e-6, abs=1e-8)


def test_server_only_certifies_nothing_and_says_so(
    opened: Opened, shelve: Shelve, tmp_path: Path, store: DiskStore
) -> None:
    shelve("rows", rows=160)
    run = str(tmp_path / "run")
    Run.train(run, "rows", clients=4, ridge=0.01, keep="gradients", server_share=0.2, store=store)
    value = opened(run).unlearn("0", server_only=True).plain
    assert (value["bounds"]["weights"], value["checkable_by"]) == (None, "server alone")
    assert "gradient round" in value["bounds"]["why"]


def test_bad_requests(trained: Path, opened: Opened, tmp_path: Path) -> None:
    requests: list[tuple[dict[str, Any], type[ProbekitError], str]] = [
        ({"client": "7"}, InputError, "this run has clients 0 to 3"),
        ({"clients": ["0", "1", "2", "3"]}, InputError, "nothing would remain"),
        ({}, InputError, "must name something"),
        ({"client": "0", "method": "exakt"}, NotFoundError, "exact"),
        ({"client": "0", "method": "fedremoval:newton"}, NotFoundError, "cholesky"),
        ({"samples": ["ffffffffffff"]}, InputError, "means 0 samples"),
        ({"relabel": ["abc"]}, InputError, "ID=NUMBER"),
        ({"client": "0", "test": "nowhere"}, NotFoundError, "no set"),
    ]
    for request, error, words in requests:
        with pytest.raises(error, match=words):
            opened(trained).unlearn(**request)
    assert RunFolder.open(trained).state == 1
    with pytest.raises(NotFoundError):
        opened(tmp_path / "nowhere").unlearn("0")


def test_forgeries_fail(trained: Path, opened: Opened, tmp_path: Path, store: DiskStore) -> None:
    opened(trained).unlearn("2")
    good = certificate(trained).read_text()
    forged = tmp_path / "forged.json"
    places = [place for place, letter in enumerate(good) if letter.isdigit()]
    for place in places[:: max(1, len(places) // 25)]:
        forged.write_text(good[:place] + str((int(good[place]) + 1) % 10) + good[place + 1 :])
        with pytest.raises(VerificationError):
            opened(trained).verify(forged)
    forged.write_text(good)
    assert opened(trained).verify(forged).intact
    sealed = json.loads(good)
    sealed["certificate"]["claims"][0]["value"] = 0.0
    forged.write_text(json.dumps(sealed, sort_keys=True, indent=1) + "\n")
    with pytest.raises(VerificationError):
        opened(trained).verify(forged)
    for state, true in ((1, False), (2, True)):
        head = trained / "states" / f"{state:04d}" / "head"
        assert verify_head(certificate(trained), head, store=store).intact is true


def test_a_tampered_run_fails(trained: Path, opened: Opened) -> None:
    opened(trained).unlearn("2")
    ledger = trained / "ledger.jsonl"
    good = ledger.read_text()
    ledger.write_text(good.replace('"client', '"Client', 1) if '"client' in good else good.replace("train", "trail", 1))
    with pytest.raises(VerificationError):
        opened(trained).verify(certificate(trained))
    ledger.write_text(good)
    packs = RunFolder.open(trained).at().note["leaves"]["packs"]
    statistics = trained / "states" / "0002" / "kept" / "statistics" / f"{next(iter(packs))}.safetensors"
    data = bytearray(statistics.read_bytes())
    data[-9] ^= 1
    statistics.unlink()
    statistics.write_bytes(data)
    assert not opened(trained).verify().intact
    with pytest.raises((CacheError, VerificationError)):
        opened(trained).unlearn("1")


def test_signatures(trained: Path, opened: Opened) -> None:
    mine, other = new_private_key(), new_private_key()
    opened(trained).unlearn("2", key=mine)
    assert opened(trained).verify(public_key=public_key_of(mine)).intact
    assert not opened(trained).verify(public_key=public_key_of(other)).intact


def holds(folder: Path, secret: bytes) -> list[Path]:
    """The files below a folder that contain these bytes."""
    return [path for path in folder.rglob("*") if path.is_file() and secret in path.read_bytes()]


def test_purge_leaves_no_byte_of_the_forgotten(trained: Path, opened: Opened, store: DiskStore) -> None:
    folder = RunFolder.open(trained)
    statistics = folder.trained().statistics
    assert statistics is not None
    secrets = [packed(statistics["2"].gram).tobytes(), np.ascontiguousarray(statistics["2"].moment).tobytes()]
    embeddings, partition = folder.embeddings(store), folder.partition()
    rows = [embeddings.embeddings[int(row)].tobytes() for row in partition.clients["2"]]
    old_head = folder.head().params.tobytes()
    opened(trained).unlearn("2")
    (trained / "report").mkdir()
    (trained / "report" / "report.md").write_text("client 2 was ...")
    assert all(holds(trained, secret) for secret in [*secrets, old_head])
    value = opened(trained).purge(rows=True).plain
    assert value["cache"]["remains"] == []
    assert value["cache"]["rows"] == len(rows)
    for secret in [*secrets, *rows, old_head]:
        assert not holds(trained, secret)
    assert not (trained / "report").exists()
    for row in rows:
        assert not holds(store.root, row)
    assert opened(trained).verify(certificate(trained), rows=True).intact
    opened(trained).unlearn("1")
    assert opened(trained).verify(certificate(trained, 3), rows=True).intact
    opened(trained).evaluate()


def test_purging_twice_or_too_early(trained: Path, opened: Opened) -> None:
    with pytest.raises(InputError, match=re.escape("nothing was unlearned yet")):
        opened(trained).purge()
    opened(trained).unlearn("2")
    opened(trained).purge()
    with pytest.raises(InputError, match=re.escape("purged already")):
        opened(trained).purge()
    assert RunFolder.open(trained).states() == [2]


def _forget(path: Path, root: Path) -> None:
    Run.open(path, store=DiskStore(root)).unlearn("2")


def test_killed_while_unlearning_the_run_is_the_old_or_the_new_one(
    trained: Path,
    opened: Opened,
    store: DiskStore,
    tmp_path: Path,
) -> None:
    fork, chance = multiprocessing.get_context("fork"), random.Random(3)
    seen: set[int] = set()
    began = time.perf_counter()
    process = fork.Process(target=_forget, args=(_copy(trained, tmp_path / "whole"), store.root))
    process.start()
    process.join()
    seconds = time.perf_counter() - began
    number = 0
    while number < 25 or seen != {1, 2}:  # on a machine that grew busier, give it more time before the kill
        number += 1
        assert number < 200
        run = _copy(trained, tmp_path / f"run-{number}")
        process = fork.Process(target=_forget, args=(run, store.root))
        process.start()
        process.join(chance.uniform(0, seconds * (1.1 + number / 25)))
        if process.exitcode is None:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        folder = RunFolder.open(run)
        with folder.lock():
            folder.at().check()
            seen.add(folder.state)
        opened(run).unlearn("2")
        assert RunFolder.open(run).state == 2


def _copy(run: Path, target: Path) -> Path:
    import shutil

    shutil.copytree(run, target)
    return target


def test_a_head_still_says_which_loss_it_minimises(shelve: Shelve, tmp_path: Path, store: DiskStore) -> None:
    """Whatever method it was unlearned by: whoever gets the head alone must read its parameters as they are meant."""
    shelve("rows", rows=160)
    options: dict[str, Any] = {"clients": 4, "server_share": 0.2, "ridge": 0.01, "intercept": "none"}
    run = Run.train(tmp_path / "run", "rows", store=store, **options)
    before = run.head().recipe
    run.unlearn("2", method="fedremoval-pcg:1")
    said = ("head", "scaling", "intercept", "arithmetic", "fit_view", "class_weight", "normalise_classes")
    assert {name: run.head().recipe.get(name, "gone") for name in said} == {name: before[name] for name in said}


def test_with_statistics_a_client_is_forgotten_without_a_look_at_rows(
    shelve: Shelve, tmp_path: Path, store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelve("rows", rows=160)
    run = Run.train(tmp_path / "run", "rows", clients=4, ridge=0.01, store=store)
    other = run.fork(tmp_path / "other")
    wanted = other.unlearn("2", method="retrain").certificate

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("rows were looked for")

    monkeypatch.setattr("probekit.runs.unlearning.rows_at", refused)
    found = run.unlearn("2").certificate
    assert found.method == "exact"
    assert found.after["head"] == wanted.after["head"]
    with pytest.raises(AssertionError, match="looked for"):
        run.unlearn("3", method="retrain")


@pytest.mark.parametrize("where", ["unlearning.certify", "state_writing.save_head"])
def test_a_failure_while_the_state_is_being_written_leaves_nothing(
    trained: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The arrays are written in a thread while the certificate is made: either may fail."""

    def fail(*_: Any, **__: Any) -> Any:
        raise StorageError("no more room")

    with monkeypatch.context() as patch:
        patch.setattr(f"probekit.runs.{where}", fail)
        with pytest.raises(StorageError, match="no more room"):
            opened(trained).unlearn("2")
    assert RunFolder.open(trained).state == 1
    assert [path.name for path in (trained / "states").iterdir()] == ["0001"]
    assert opened(trained).unlearn("2").state == 2
