"""`probekit unlearn`, `verify` and `purge`: the next state, its proof, and what must be gone afterwards."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit.cache import DiskStore
from probekit.custody.signatures import new_private_key, public_key_of
from probekit.federated.training import train
from probekit.models.serving import load_head
from probekit.runs.folder import RunFolder
from probekit.runs.rows import rows_at
from probekit.runs.run import Run
from probekit.values import Partition
from tests.cli.conftest import Probekit
from tests.shelves import Shelve
from tests.shelves import shelve as shelve


@pytest.fixture
def trained(probekit: Probekit, shelve: Shelve, tmp_path: Path) -> Path:
    """A run of four clients that kept everything."""
    shelve("rows", rows=160)
    shelve("test", rows=40, seed=5)
    options = ("--clients", "4", "--server-share", "0.2", "--ridge", "0.01")
    code, _, said = probekit("train", "rows", *options, "--run", str(tmp_path / "run"))
    assert code == 0, said
    return tmp_path / "run"


def certificate(run: Path, state: int = 2) -> Path:
    """Where the certificate of a state stands."""
    return run / "states" / f"{state:04d}" / "certificate.json"


def retrained(run: Path, store: DiskStore, *, without: set[str]) -> Any:
    """The head that training on the others gives, from the rows and nothing else."""
    opened = RunFolder.open(run)
    embeddings, partition = opened.embeddings(store), opened.partition()
    gone = [held for name, held in partition.clients.items() if name in without]
    left = {name: held for name, held in partition.clients.items() if name not in without}
    whole = Partition(left, np.sort(np.concatenate([partition.server, *gone])), partition.rows, "iid", 0)
    return train(embeddings, whole, ridge=0.01).head


def test_a_client_is_forgotten_exactly_and_the_certificate_holds(
    trained: Path,
    probekit: Probekit,
    store: DiskStore,
) -> None:
    code, value, _ = probekit("unlearn", str(trained), "--client", "2", "--test", "test")
    assert (code, value["state"], value["method"], value["already_done"]) == (0, 2, "exact", False)
    head = load_head(trained / "states" / "0002" / "head")
    np.testing.assert_allclose(head.params, retrained(trained, store, without={"2"}).params, rtol=0, atol=1e-12)
    assert head.recipe["backbone"] == "test:pixels"
    assert value["agreement"]["certified"] == 40
    code, checked, _ = probekit("verify", str(certificate(trained)), "--run", str(trained), "--rows", "--test", "test")
    assert (code, checked["verified"]) == (0, True)
    names = {check["name"] for check in checked["checks"]}
    assert {"head after", "head before", "retained residual", "certified agreement", "statistics of client 0"} <= names


def test_the_same_request_again_changes_nothing(trained: Path, probekit: Probekit) -> None:
    probekit("unlearn", str(trained), "--client", "2")
    code, value, _ = probekit("unlearn", str(trained), "--client", "2")
    assert (code, value["already_done"], value["state"]) == (0, True, 2)
    assert RunFolder.open(trained).state == 2


def test_a_client_returns(trained: Path, probekit: Probekit) -> None:
    before = load_head(trained / "states" / "0001" / "head")
    probekit("unlearn", str(trained), "--client", "2")
    code, value, said = probekit("unlearn", str(trained), "--add", "2")
    assert (code, value["state"]) == (0, 3), said
    np.testing.assert_allclose(load_head(trained / "states" / "0003" / "head").params, before.params, atol=1e-12)
    code, value, _ = probekit("unlearn", str(trained), "--client", "2")
    assert (code, value["already_done"], value["state"]) == (0, False, 4)


def test_samples_go_and_stay_gone(trained: Path, probekit: Probekit, store: DiskStore) -> None:
    opened = RunFolder.open(trained)
    embeddings, partition = opened.embeddings(store), opened.partition()
    first, second = (int(row) for row in partition.clients["1"][:2])
    for row in (first, second):
        code, value, said = probekit("unlearn", str(trained), "--sample", embeddings.ids[row][:12])
        assert code == 0, said
    left, divided = rows_at(RunFolder.open(trained), store)
    assert {embeddings.ids[first], embeddings.ids[second]}.isdisjoint(left.ids)
    assert len(divided.clients["1"]) == len(partition.clients["1"]) - 2
    assert value["retained"]["1"] == len(partition.clients["1"]) - 2
    want = train(left, divided, ridge=0.01).head
    np.testing.assert_allclose(load_head(trained / "states" / "0003" / "head").params, want.params, atol=1e-12)
    assert probekit("verify", str(certificate(trained, 3)), "--run", str(trained), "--rows")[0] == 0


def test_the_rows_of_an_earlier_certificate_are_those_of_its_state(
    trained: Path, probekit: Probekit, store: DiskStore
) -> None:
    embeddings, partition = RunFolder.open(trained).embeddings(store), RunFolder.open(trained).partition()
    for client in ("0", "1"):
        assert probekit("unlearn", str(trained), "--sample", embeddings.ids[int(partition.clients[client][0])])[0] == 0
    for state in (2, 3):
        code, checked, said = probekit("verify", str(certificate(trained, state)), "--run", str(trained), "--rows")
        assert (code, checked.get("verified")) == (0, True), (state, checked, said)


def test_a_label_is_put_right(trained: Path, probekit: Probekit, store: DiskStore) -> None:
    embeddings = RunFolder.open(trained).embeddings(store)
    row = int(RunFolder.open(trained).partition().clients["0"][0])
    wrong = (int(embeddings.labels[row]) + 1) % 3
    code, value, said = probekit("unlearn", str(trained), "--relabel", f"{embeddings.ids[row]}={wrong}")
    assert (code, value["method"]) == (0, "exact"), said
    left, divided = rows_at(RunFolder.open(trained), store)
    want = train(left, divided, ridge=0.01).head
    np.testing.assert_allclose(load_head(trained / "states" / "0002" / "head").params, want.params, atol=1e-12)


@pytest.mark.parametrize("method", ["fedremoval", "fedremoval:cg", "fedremoval-line", "fedremoval-pcg:6", "retrain"])
def test_every_method_is_certified_by_a_gradient_round(
    trained: Path,
    probekit: Probekit,
    store: DiskStore,
    tmp_path: Path,
    method: str,
) -> None:
    run, options = tmp_path / "lean", ("--clients", "4", "--server-share", "0.2", "--ridge", "0.01")
    assert probekit("train", "rows", *options, "--keep", "gradients", "--run", str(run))[0] == 0
    code, value, said = probekit("unlearn", str(run), "--client", "1", "--method", method, "--test", "test")
    assert code == 0, said
    gap = np.linalg.norm(
        load_head(run / "states" / "0002" / "head").params - retrained(run, store, without={"1"}).params
    )
    assert gap <= value["bounds"]["weights"]
    code, checked, _ = probekit("verify", str(certificate(run)), "--run", str(run), "--rows", "--test", "test")
    assert (code, checked["verified"]) == (0, True), checked


def test_auto_takes_what_was_kept_and_says_why(probekit: Probekit, shelve: Shelve, tmp_path: Path) -> None:
    shelve("rows", rows=160)
    base = ("train", "rows", "--clients", "4", "--ridge", "0.01")
    for keep, share, method in (("gradients", "0.2", "fedremoval-pcg:10"), ("statistics", "0", "exact")):
        run = str(tmp_path / keep)
        assert probekit(*base, "--keep", keep, "--server-share", share, "--run", run)[0] == 0
        code, value, _ = probekit("unlearn", run, "--client", "0")
        assert (code, value["method"]) == (0, method)
        assert len(value["why"]) > 20
    run = str(tmp_path / "nothing")
    assert probekit(*base, "--keep", "nothing", "--run", run)[0] == 0
    code, _, said = probekit("unlearn", run, "--client", "0")
    assert code == 2
    assert "--keep statistics" in said


def test_server_only_certifies_nothing_and_says_so(probekit: Probekit, shelve: Shelve, tmp_path: Path) -> None:
    shelve("rows", rows=160)
    run = str(tmp_path / "run")
    options = ("--clients", "4", "--ridge", "0.01", "--keep", "gradients", "--server-share", "0.2")
    assert probekit("train", "rows", *options, "--run", run)[0] == 0
    code, value, _ = probekit("unlearn", run, "--client", "0", "--server-only")
    assert (code, value["bounds"]["weights"], value["checkable_by"]) == (0, None, "server alone")
    assert "gradient round" in value["bounds"]["why"]


def test_bad_requests(trained: Path, probekit: Probekit, tmp_path: Path) -> None:
    for arguments, code, words in (
        (("--client", "7"), 2, "this run has clients 0 to 3"),
        (("--client", "0", "--client", "1", "--client", "2", "--client", "3"), 2, "nothing would remain"),
        ((), 2, "must name something"),
        (("--client", "0", "--method", "exakt"), 3, "exact"),
        (("--client", "0", "--method", "fedremoval:newton"), 3, "cholesky"),
        (("--sample", "ffffffffffff"), 2, "means 0 samples"),
        (("--relabel", "abc"), 2, "ID=NUMBER"),
        (("--client", "0", "--key", str(tmp_path / "no.pem")), 3, "openssl"),
        (("--client", "0", "--test", "nowhere"), 3, "no set"),
    ):
        found, _, said = probekit("unlearn", str(trained), *arguments)
        assert (found, words in said) == (code, True), (arguments, found, said)
    assert RunFolder.open(trained).state == 1
    assert probekit("unlearn", str(tmp_path / "nowhere"), "--client", "0")[0] == 3


def test_forgeries_fail_with_exit_code_6(trained: Path, probekit: Probekit, tmp_path: Path) -> None:
    probekit("unlearn", str(trained), "--client", "2")
    good = certificate(trained).read_text()
    forged = tmp_path / "forged.json"
    places = [place for place, letter in enumerate(good) if letter.isdigit()]
    for place in places[:: max(1, len(places) // 25)]:
        forged.write_text(good[:place] + str((int(good[place]) + 1) % 10) + good[place + 1 :])
        assert probekit("verify", str(forged), "--run", str(trained))[0] == 6, place
    forged.write_text(good)
    assert probekit("verify", str(forged), "--run", str(trained))[0] == 0
    sealed = json.loads(good)
    sealed["certificate"]["residual"]["norm"] = 0.0
    forged.write_text(json.dumps(sealed, sort_keys=True, indent=1) + "\n")
    assert probekit("verify", str(forged), "--run", str(trained))[0] == 6
    assert probekit("verify", str(certificate(trained)), "--head", str(trained / "states" / "0001" / "head"))[0] == 6
    assert probekit("verify", str(certificate(trained)), "--head", str(trained / "states" / "0002" / "head"))[0] == 0


def test_a_tampered_run_fails(trained: Path, probekit: Probekit) -> None:
    probekit("unlearn", str(trained), "--client", "2")
    ledger = trained / "ledger.jsonl"
    good = ledger.read_text()
    ledger.write_text(good.replace('"client', '"Client', 1) if '"client' in good else good.replace("train", "trail", 1))
    assert probekit("verify", str(certificate(trained)), "--run", str(trained))[0] == 6
    ledger.write_text(good)
    statistics = next((trained / "states" / "0002" / "kept" / "statistics").iterdir())
    data = bytearray(statistics.read_bytes())
    data[-9] ^= 1
    statistics.unlink()
    statistics.write_bytes(data)
    assert probekit("verify", str(certificate(trained)), "--run", str(trained))[0] in (4, 6)
    assert probekit("unlearn", str(trained), "--client", "1")[0] in (4, 6)


def test_signatures(trained: Path, probekit: Probekit, tmp_path: Path) -> None:
    mine, other = new_private_key(), new_private_key()
    for name, key in (("key.pem", mine), ("mine.pub", public_key_of(mine)), ("other.pub", public_key_of(other))):
        (tmp_path / name).write_bytes(key)
    code, value, said = probekit("unlearn", str(trained), "--client", "2", "--key", str(tmp_path / "key.pem"))
    assert code == 0, said
    base = ("verify", value["certificate"], "--run", str(trained), "--public-key")
    assert probekit(*base, str(tmp_path / "mine.pub"))[0] == 0
    assert probekit(*base, str(tmp_path / "other.pub"))[0] == 6


def test_noise_is_fixed_in_advance_and_a_bound_too_large_for_it_is_refused(
    trained: Path,
    probekit: Probekit,
    tmp_path: Path,
) -> None:
    base = ("unlearn", str(trained), "--client", "2", "--sigma", "0.001", "--epsilon", "1", "--delta", "1e-5")
    code, _, said = probekit(*base, "--method", "fedremoval")
    assert (code, "fedremoval-pcg" in said) == (2, True)
    assert RunFolder.open(trained).state == 1
    code, value, said = probekit(*base, "--release", str(tmp_path / "released"))
    assert code == 0, said
    assert value["privacy"]["largest_bound"] >= value["bounds"]["weights"]
    assert any("released head" in caveat for caveat in value["privacy"]["caveats"])
    noise = load_head(tmp_path / "released").params - load_head(trained / "states" / "0002" / "head").params
    assert 0.0005 < noise.std() < 0.002
    assert probekit("unlearn", str(trained), "--client", "1", "--release", str(tmp_path / "x"))[0] == 2


def holds(folder: Path, secret: bytes) -> list[Path]:
    """The files below a folder that contain these bytes."""
    return [path for path in folder.rglob("*") if path.is_file() and secret in path.read_bytes()]


def test_purge_leaves_no_byte_of_the_forgotten(trained: Path, probekit: Probekit, store: DiskStore) -> None:
    opened = RunFolder.open(trained)
    statistics = opened.trained().statistics
    assert statistics is not None
    secrets = [np.ascontiguousarray(getattr(statistics["2"], name)).tobytes() for name in ("gram", "moment")]
    embeddings, partition = opened.embeddings(store), opened.partition()
    rows = [embeddings.embeddings[int(row)].tobytes() for row in partition.clients["2"]]
    old_head = opened.head().params.tobytes()
    probekit("unlearn", str(trained), "--client", "2")
    (trained / "report").mkdir()
    (trained / "report" / "report.md").write_text("client 2 was ...")
    assert all(holds(trained, secret) for secret in [*secrets, old_head])
    code, value, said = probekit("purge", str(trained), "--rows", "--yes")
    assert (code, value["cache"]["remains"]) == (0, []), said
    assert value["cache"]["rows"] == len(rows)
    for secret in [*secrets, *rows, old_head]:
        assert not holds(trained, secret)
    assert not (trained / "report").exists()
    for row in rows:
        assert not holds(store.root, row)
    assert probekit("verify", str(certificate(trained)), "--run", str(trained), "--rows")[0] == 0
    assert probekit("unlearn", str(trained), "--client", "1")[0] == 0
    assert probekit("verify", str(certificate(trained, 3)), "--run", str(trained), "--rows")[0] == 0
    code, _, said = probekit("evaluate", str(trained))
    assert code == 0, said


def test_purging_twice_or_too_early(trained: Path, probekit: Probekit) -> None:
    code, _, said = probekit("purge", str(trained), "--yes")
    assert (code, "nothing was unlearned yet" in said) == (2, True)
    assert probekit("unlearn", str(trained), "--client", "2", "--purge")[0] == 0
    code, _, said = probekit("purge", str(trained), "--yes")
    assert (code, "purged already" in said) == (2, True)
    assert RunFolder.open(trained).states() == [2]


def _forget(path: Path, root: Path) -> None:
    Run.open(path, store=DiskStore(root)).unlearn("2")


def test_killed_while_unlearning_the_run_is_the_old_or_the_new_one(
    trained: Path,
    probekit: Probekit,
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
        opened = RunFolder.open(run)
        with opened.lock():
            opened.at().check()
            seen.add(opened.state)
        assert probekit("unlearn", str(run), "--client", "2")[0] == 0
        assert RunFolder.open(run).state == 2


def _copy(run: Path, target: Path) -> Path:
    import shutil

    shutil.copytree(run, target)
    return target
