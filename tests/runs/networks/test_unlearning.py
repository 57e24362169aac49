"""Whole networks taken back by the command line, and their certificates."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from probekit import Run
from probekit.certificates.certificate import certificate_text, read_certificate
from probekit.errors import CacheError, InputError, NotFoundError, ProbekitError, VerificationError
from probekit.federated.in_process import InProcess
from probekit.federated.methods.fedavg import FedAvg
from probekit.federated.training import Training
from probekit.models.problem import problem_of
from probekit.models.serving import load_head, predict
from probekit.runs import ledger
from probekit.runs.bundle_check import Bundle
from probekit.runs.folder import RunFolder
from probekit.runs.rows import rows_at
from probekit.runs.verification import verify_head
from tests.cli.networks.shop import (
    RIDGE,
    Shop,
    certificate,
    minimum,
    network_head,
)
from tests.runs.conftest import Opened
from tests.verdicts import STORY, unproven

OPTIONS: dict[str, Any] = {
    "backend": "jvp",
    "server_share": 0.2,
    "clients": 3,
    "pretrain_epochs": 3,
    "ridge": RIDGE,
}


def test_auto_retrains_and_the_certificate_holds(trained: Path, opened: Opened, shop: Shop) -> None:
    value = opened(trained).unlearn("1", test="test").plain
    assert (value.get("state"), value.get("method")) == (2, "retrain")
    assert value["retained"] == {"0": 24, "2": 24}
    gap = np.linalg.norm(network_head(trained, 2).params - minimum(trained, shop.store, 2))
    before = np.linalg.norm(network_head(trained, 1).params - minimum(trained, shop.store, 2))
    assert gap <= value["bounds"]["weights"] < 0.1 * before
    assert value["distance"] == {"before": pytest.approx(before, rel=1e-3), "after": value["bounds"]["weights"]}
    assert value["agreement"]["certified"] == 45
    checked = opened(trained).verify(certificate(trained), test="test")
    assert unproven(checked) == {*STORY}
    assert any("linearized around w_p" in one for one in checked.assumptions)


@pytest.mark.parametrize(
    "method",
    [
        *("fedremoval", "fedremoval:dual", "fedremoval:pcg", "fedremoval-line", "fedremoval-pcg:3", "retrain"),
        *("cf:3", "sga:5", "fedosd:2"),
    ],
)
def test_every_method_stays_within_its_bound(trained: Path, opened: Opened, shop: Shop, method: str) -> None:
    value = opened(trained).unlearn("2", method=method).plain
    assert value.get("method") == method
    wanted = minimum(trained, shop.store, 2)
    gap = np.linalg.norm(network_head(trained, 2).params - wanted)
    assert gap <= value["bounds"]["weights"]
    if method == "retrain":
        assert gap <= 1e-5 * np.linalg.norm(wanted)
    assert opened(trained).verify(certificate(trained)).intact
    value = opened(trained).unlearn("2", method=method).plain
    assert (value["already_done"], value["state"]) == (True, 2)
    assert RunFolder.open(trained).states() == [1, 2]


def test_retraining_by_fedavg_is_for_runs_of_fedavg(trained: Path, opened: Opened, shop: Shop) -> None:
    with pytest.raises(InputError, match=re.escape("FedAvg options")):
        opened(trained).unlearn("2", method="retrain-fedavg")
    Run.train("r", "grey", **OPTIONS, method="fedavg", rounds=3, local_steps=4, store=shop.store)
    value = opened("r").unlearn("2", method="retrain-fedavg").plain
    assert (value.get("method"), value["cost"]["rounds"] >= 3) == ("retrain-fedavg", True)
    found, head = RunFolder.open("r"), network_head(Path("r"))
    embeddings, partition = rows_at(found, shop.store, 2)
    left = {name: held for name, held in partition.clients.items() if name != "2"}
    problem = problem_of(head)
    clients = InProcess.of(problem, embeddings, left)
    wanted = FedAvg(rounds=3, local_steps=4).train(Training(problem, clients, RIDGE)).params
    assert np.allclose(network_head(Path("r"), 2).params, wanted, rtol=1e-8, atol=1e-10)
    assert opened("r").verify(certificate(Path("r"))).intact


def test_samples_labels_and_a_return(trained: Path, opened: Opened, shop: Shop) -> None:
    folder = RunFolder.open(trained)
    embeddings, partition = folder.embeddings(shop.store), folder.partition()
    first, second = (int(row) for row in partition.clients["0"][:2])
    label = (int(embeddings.labels[second]) + 1) % 3
    requests: list[dict[str, Any]] = [
        {"samples": [embeddings.ids[first]]},
        {"relabel": {f"0/{embeddings.ids[second]}": label}},
        {"client": "1"},
        {"add": ["1"]},
    ]
    for state, asked in enumerate(requests, start=2):
        method = "fedremoval-pcg:60" if state > 3 else "auto"
        value = opened(trained).unlearn(**asked, method=method).plain
        assert value["state"] == state
        wanted = minimum(trained, shop.store, state)
        assert np.linalg.norm(network_head(trained, state).params - wanted) <= 1e-4 * np.linalg.norm(wanted), asked
        assert opened(trained).verify(certificate(trained, state)).intact
    assert value["retained"] == {"0": 23, "1": 24, "2": 24}
    left, divided = rows_at(RunFolder.open(trained), shop.store, 5)
    assert embeddings.ids[first] not in left.ids
    assert left.labels[left.ids.index(embeddings.ids[second])] == label
    assert len(divided.clients["0"]) == 23


def test_what_w_p_was_pretrained_on_cannot_be_taken_out(trained: Path, opened: Opened, shop: Shop) -> None:
    folder = RunFolder.open(trained)
    sample = folder.embeddings(shop.store).ids[int(folder.partition().server[0])]
    requests: list[dict[str, Any]] = [{"samples": [sample]}, {"relabel": {sample: 1}}]
    for request in requests:
        with pytest.raises(InputError, match="the network was pretrained on it"):
            opened(trained).unlearn(**request)
    assert RunFolder.open(trained).states() == [1]


def test_a_client_whose_rows_w_p_was_pretrained_on_cannot_be_taken_out(opened: Opened, shop: Shop) -> None:
    """C8: by class the server's rows are drawn from the clients' own, and the weights they gave stay."""
    Run.train("r", "grey", **{**OPTIONS, "partition": "classes", "clients": None}, store=shop.store)
    for method in ("auto", "fedremoval-pcg:3"):
        with pytest.raises(InputError, match="server's share holds rows of client 1, and the network was pretrained"):
            opened("r").unlearn("1", method=method)
    assert RunFolder.open(Path("r")).states() == [1]


def test_the_server_alone_certifies_nothing(trained: Path, opened: Opened) -> None:
    with pytest.raises(InputError, match="only taken when asked for by name"):
        opened(trained).unlearn("1", server_only=True)
    value = opened(trained).unlearn("1", method="fedremoval", server_only=True).plain
    assert value["distance"] is None
    assert (value.get("method"), value["bounds"]["weights"]) == ("fedremoval", None)
    assert (value["checkable_by"], value["cost"]["rounds"]) == ("server alone", 0)
    assert opened(trained).verify(certificate(trained)).intact
    with pytest.raises(InputError, match=re.escape("gradients were not kept")):
        opened(trained).influence()


def test_nothing_kept_needs_the_rows(opened: Opened, shop: Shop) -> None:
    Run.train("r", "grey", **OPTIONS, keep="nothing", store=shop.store)
    with pytest.raises(InputError, match=re.escape("Nothing that this run kept")):
        opened("r").unlearn("0", server_only=True)
    value = opened("r").unlearn("0").plain
    assert value.get("method") == "retrain"


def test_a_released_network_has_noise(opened: Opened, shop: Shop, tmp_path: Path) -> None:
    trained = tmp_path / "noisy"
    Run.train(trained, "grey", store=shop.store, release=0.02, **OPTIONS)
    with pytest.raises(InputError, match=re.escape("fedremoval-pcg")):
        opened(trained).unlearn("1", method="fedremoval-line")
    value = opened(trained).unlearn("1").plain
    opened(trained).export("out")
    assert value["privacy"]["largest_bound"] >= value["bounds"]["weights"]
    released = load_head("out")
    assert 0.018 < (released.params - network_head(trained, 2).params).std() < 0.022
    assert predict(released, shop.store.open("test")).shape == (45,)


def test_forgeries_fail(trained: Path, opened: Opened, shop: Shop) -> None:
    opened(trained).unlearn("1", method="fedremoval-line")
    good, forged = certificate(trained).read_text(), Path("forged.json")
    places = [place for place, letter in enumerate(good) if letter.isdigit()]
    for place in places[:: len(places) // 12]:
        forged.write_text(good[:place] + str((int(good[place]) + 1) % 10) + good[place + 1 :])
        with pytest.raises(VerificationError):
            opened(trained).verify(forged)
    said, _ = read_certificate(good)
    assert said.residual is not None
    assert said.bounds.weights is not None
    less = replace(said.residual, norm=said.residual.norm / 2, by_class=(said.residual.norm / 2,))
    assert said.curvature is not None
    bound = less.bound / said.curvature.value
    bounds = replace(said.bounds, weights=bound, outputs=bound, excess_loss=bound**2 * said.curvature.value / 2)
    lie = replace(said, residual=less, bounds=bounds)
    forged.write_text(certificate_text(lie))
    with pytest.raises(VerificationError):
        opened(trained).verify(forged)
    heads = trained / "states"
    for state, true in (("0001", False), ("0002", True)):
        assert verify_head(certificate(trained), heads / state / "head", store=shop.store).intact is true
    _enter_in_ledger(trained, lie.digest)
    failed = [one.name for one in opened(trained).verify(forged).findings if one.verdict == "false"]
    assert "residual" in failed


def _enter_in_ledger(run: Path, digest: str) -> None:
    """Make the ledger name another certificate for its last state, its chain whole: the work of an insider."""
    folder = RunFolder.open(run)
    entries, path = folder.entries(), run / "ledger.jsonl"
    last = entries[-1]
    event = ledger.Event(last.action, last.inputs, {**last.details, "certificate": digest})
    entry = ledger.follow(entries[-2], event, last.outputs)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    ledger.append(path, entry)
    note = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**note, "ledger": entry.digest}))


def test_a_swapped_head_or_network_in_the_run_fails(trained: Path, opened: Opened) -> None:
    opened(trained).unlearn("1")
    good = Path(shutil.copytree(trained, "good"))
    shutil.rmtree(trained / "states" / "0002" / "head")
    shutil.copytree(good / "states" / "0001" / "head", trained / "states" / "0002" / "head")
    with pytest.raises(CacheError):
        opened(trained).verify()
    weights = good / "states" / "0002" / "head" / "model.safetensors"
    tensors = load_file(weights)
    name = next(one for one in tensors if one.endswith("1.bias"))
    weights.unlink()
    save_file({**tensors, name: tensors[name] + np.float32(0.01)}, weights)
    with pytest.raises(CacheError):
        opened(good).verify()


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        ({"client": "1", "method": "exact"}, InputError, "of a network use fedremoval-pcg or retrain"),
        (
            {"client": "1", "method": "fedremoval:lu"},
            NotFoundError,
            "no solver 'lu'. Known and close: adam, cg, cholesky, dual",
        ),
        ({"client": "1", "method": "fedremoval-pcg:none"}, InputError, "fedremoval-pcg"),
        ({"client": "9"}, InputError, "this run has clients 0 to 2"),
        ({"clients": ["0", "1", "2"]}, InputError, "nothing would remain"),
        ({"add": ["1"]}, InputError, "this run has it already"),
        ({"samples": ["ffffffffffff"]}, InputError, "means 0 samples"),
    ],
)
def test_requests_that_cannot_be_met(
    trained: Path, opened: Opened, asked: dict[str, Any], error: type[ProbekitError], words: str
) -> None:
    with pytest.raises(error, match=words):
        opened(trained).unlearn(**asked)
    assert RunFolder.open(trained).states() == [1]


def test_a_client_is_erased_from_a_network_and_a_bundle_shows_it(trained: Path, opened: Opened, tmp_path: Path) -> None:
    run = opened(trained)
    done = run.erase("1", register=tmp_path / "book", yes=True)
    assert done.complete
    bundled = Bundle(tmp_path / "book" / done.records[0].runs[0].bundle)
    assert bundled.check(require=["transition", "chain", "statement"]).verdict == "proven"
    run.bundle(tmp_path / "head.zip", head=True)
    found = {one.name: one.verdict for one in Bundle(tmp_path / "head.zip").check().findings}
    assert (found["head"], found["weights"]) == ("proven", "not proven")
    with pytest.raises(InputError, match="no statistics"):
        run.bundle(tmp_path / "sums.zip", sums_for="A")
    assert "sums" not in [one.action for one in run.folder.entries()]
