"""Whole networks taken back by the command line, and their certificates."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from probekit.certificates.certificate import certificate_text, read_certificate
from probekit.federated.in_process import InProcess
from probekit.federated.methods.fedavg import FedAvg
from probekit.federated.training import Training
from probekit.models.problem import problem_of
from probekit.models.serving import load_head, predict
from probekit.runs import ledger
from probekit.runs.folder import RunFolder
from probekit.runs.rows import rows_at
from tests.cli.conftest import Probekit
from tests.cli.networks.shop import (
    FIRST,
    RIDGE,
    Shop,
    certificate,
    minimum,
    network_head,
    sentence,
)


def test_auto_asks_the_clients_and_the_certificate_holds(trained: Path, probekit: Probekit, shop: Shop) -> None:
    code, value, said = probekit("unlearn", trained, "--client", "1", "--test", "test")
    assert (code, value.get("state"), value.get("method")) == (0, 2, "fedremoval-pcg:10"), said
    assert value["retained"] == {"0": 24, "2": 24}
    gap = np.linalg.norm(network_head(trained, 2).params - minimum(trained, shop.store, 2))
    before = np.linalg.norm(network_head(trained, 1).params - minimum(trained, shop.store, 2))
    assert gap <= value["bounds"]["weights"] < 0.1 * before
    assert value["agreement"]["certified"] == 45
    code, checked, said = probekit("verify", certificate(trained), "--run", trained, "--test", "test")
    assert (code, checked["verified"]) == (0, True), said
    names = {one["name"] for one in checked["checks"]}
    assert {"head after", "head before", "network", "who is retained", "retained residual"} <= names
    assert any("linearized around w_p" in one for one in checked["assumptions"])


@pytest.mark.parametrize(
    "method", ["fedremoval", "fedremoval:dual", "fedremoval:pcg", "fedremoval-line", "fedremoval-pcg:3", "retrain"]
)
def test_every_method_stays_within_its_bound(trained: Path, probekit: Probekit, shop: Shop, method: str) -> None:
    code, value, said = probekit("unlearn", trained, "--client", "2", "--method", method)
    assert (code, value.get("method")) == (0, method), said
    wanted = minimum(trained, shop.store, 2)
    gap = np.linalg.norm(network_head(trained, 2).params - wanted)
    assert gap <= value["bounds"]["weights"]
    if method == "retrain":
        assert gap <= 1e-5 * np.linalg.norm(wanted)
    assert probekit("verify", certificate(trained), "--run", trained)[0] == 0
    code, value, _ = probekit("unlearn", trained, "--client", "2", "--method", method)
    assert (code, value["already_done"], value["state"]) == (0, True, 2)
    assert RunFolder.open(trained).states() == [1, 2]


def test_retraining_by_fedavg_is_for_runs_of_fedavg(trained: Path, probekit: Probekit, shop: Shop) -> None:
    code, _, said = probekit("unlearn", trained, "--client", "2", "--method", "retrain-fedavg")
    assert (code, "FedAvg options" in sentence(said)) == (2, True)
    steps = ("--method", "fedavg", "--rounds", "3", "--local-steps", "4")
    assert probekit("train", "grey", *FIRST, *steps, "--run", "r")[0] == 0
    code, value, said = probekit("unlearn", "r", "--client", "2", "--method", "retrain-fedavg")
    assert (code, value.get("method"), value["cost"]["rounds"] >= 3) == (0, "retrain-fedavg", True), said
    found, head = RunFolder.open("r"), network_head(Path("r"))
    embeddings, partition = rows_at(found, shop.store, 2)
    left = {name: held for name, held in partition.clients.items() if name != "2"}
    problem = problem_of(head)
    clients = InProcess.of(problem, embeddings, left)
    wanted = FedAvg(rounds=3, local_steps=4).train(Training(problem, clients, RIDGE)).params
    assert np.allclose(network_head(Path("r"), 2).params, wanted, rtol=1e-8, atol=1e-10)
    assert probekit("verify", certificate(Path("r")), "--run", "r")[0] == 0


def test_samples_labels_and_a_return(trained: Path, probekit: Probekit, shop: Shop) -> None:
    opened = RunFolder.open(trained)
    embeddings, partition = opened.embeddings(shop.store), opened.partition()
    first, second = (int(row) for row in partition.clients["0"][:2])
    label = (int(embeddings.labels[second]) + 1) % 3
    for state, asked in enumerate(
        (
            ("--sample", embeddings.ids[first]),
            ("--relabel", f"0/{embeddings.ids[second]}={label}"),
            ("--client", "1"),
            ("--add", "1"),
        ),
        start=2,
    ):
        more = ("--method", "fedremoval-pcg:60") if state > 3 else ()
        code, value, said = probekit("unlearn", trained, *asked, *more)
        assert (code, value.get("state")) == (0, state), said
        wanted = minimum(trained, shop.store, state)
        assert np.linalg.norm(network_head(trained, state).params - wanted) <= 1e-4 * np.linalg.norm(wanted), asked
        assert probekit("verify", certificate(trained, state), "--run", trained)[0] == 0
    assert value["retained"] == {"0": 23, "1": 24, "2": 24}
    left, divided = rows_at(RunFolder.open(trained), shop.store, 5)
    assert embeddings.ids[first] not in left.ids
    assert left.labels[left.ids.index(embeddings.ids[second])] == label
    assert len(divided.clients["0"]) == 23


def test_what_w_p_was_pretrained_on_cannot_be_taken_out(trained: Path, probekit: Probekit, shop: Shop) -> None:
    opened = RunFolder.open(trained)
    sample = opened.embeddings(shop.store).ids[int(opened.partition().server[0])]
    for asked in (("--sample", sample), ("--relabel", f"{sample}=1")):
        code, _, said = probekit("unlearn", trained, *asked)
        assert (code, "the network was pretrained on it" in sentence(said)) == (2, True)
    assert RunFolder.open(trained).states() == [1]


def test_the_server_alone_certifies_nothing(trained: Path, probekit: Probekit) -> None:
    code, value, said = probekit("unlearn", trained, "--client", "1", "--server-only")
    assert (code, value.get("method"), value["bounds"]["weights"]) == (0, "fedremoval", None), said
    assert (value["checkable_by"], value["cost"]["rounds"]) == ("server alone", 0)
    assert probekit("verify", certificate(trained), "--run", trained)[0] == 0
    code, _, said = probekit("audit", "influence", trained)
    assert (code, "gradients were not kept" in sentence(said)) == (2, True)


def test_nothing_kept_needs_the_rows(probekit: Probekit) -> None:
    assert probekit("train", "grey", *FIRST, "--keep", "nothing", "--run", "r")[0] == 0
    code, _, said = probekit("unlearn", "r", "--client", "0", "--server-only")
    assert (code, "Nothing that this run kept" in sentence(said)) == (2, True)
    code, value, said = probekit("unlearn", "r", "--client", "0")
    assert (code, value.get("method")) == (0, "fedremoval-pcg:10"), said


def test_a_released_network_has_noise(trained: Path, probekit: Probekit, shop: Shop) -> None:
    noise = ("--sigma", "0.02", "--epsilon", "1", "--delta", "1e-5")
    code, _, said = probekit("unlearn", trained, "--client", "1", *noise, "--method", "fedremoval-line")
    assert (code, "fedremoval-pcg" in sentence(said)) == (2, True)
    code, value, said = probekit("unlearn", trained, "--client", "1", *noise, "--release", "out")
    assert code == 0, said
    assert value["privacy"]["largest_bound"] >= value["bounds"]["weights"]
    released = load_head("out")
    assert 0.018 < (released.params - network_head(trained, 2).params).std() < 0.022
    assert predict(released, shop.store.open("test")).shape == (45,)


def test_forgeries_fail_with_exit_code_6(trained: Path, probekit: Probekit) -> None:
    assert probekit("unlearn", trained, "--client", "1", "--method", "fedremoval-line")[0] == 0
    good, forged = certificate(trained).read_text(), Path("forged.json")
    places = [place for place, letter in enumerate(good) if letter.isdigit()]
    for place in places[:: len(places) // 12]:
        forged.write_text(good[:place] + str((int(good[place]) + 1) % 10) + good[place + 1 :])
        assert probekit("verify", forged, "--run", trained)[0] == 6, good[place - 20 : place + 20]
    said, _ = read_certificate(good)
    assert said.residual is not None
    assert said.bounds.weights is not None
    less = replace(said.residual, norm=said.residual.norm / 2, by_class=(said.residual.norm / 2,))
    assert said.curvature is not None
    bound = less.bound / said.curvature.value
    bounds = replace(said.bounds, weights=bound, outputs=bound, excess_loss=bound**2 * said.curvature.value / 2)
    lie = replace(said, residual=less, bounds=bounds)
    forged.write_text(certificate_text(lie))
    assert probekit("verify", forged, "--run", trained)[0] == 6
    heads = trained / "states"
    assert probekit("verify", certificate(trained), "--head", heads / "0001" / "head")[0] == 6
    assert probekit("verify", certificate(trained), "--head", heads / "0002" / "head")[0] == 0
    _enter_in_ledger(trained, lie.digest)
    code, checked, _ = probekit("verify", forged, "--run", trained)
    assert code == 6
    assert "retained residual" in {one["name"] for one in checked["checks"] if not one["passed"]}


def _enter_in_ledger(run: Path, digest: str) -> None:
    """Make the ledger name another certificate for its last state, its chain whole: the work of an insider."""
    opened = RunFolder.open(run)
    entries, path = opened.entries(), run / "ledger.jsonl"
    last = entries[-1]
    event = ledger.Event(last.action, last.inputs, {**last.details, "certificate": digest})
    entry = ledger.follow(entries[-2], event, last.outputs)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    ledger.append(path, entry)
    note = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**note, "ledger": entry.digest}))


def test_a_swapped_head_or_network_in_the_run_fails(trained: Path, probekit: Probekit) -> None:
    assert probekit("unlearn", trained, "--client", "1")[0] == 0
    good = Path(shutil.copytree(trained, "good"))
    shutil.rmtree(trained / "states" / "0002" / "head")
    shutil.copytree(good / "states" / "0001" / "head", trained / "states" / "0002" / "head")
    code, _, said = probekit("verify", certificate(trained), "--run", trained)
    assert code == 4, said
    weights = good / "states" / "0002" / "head" / "model.safetensors"
    tensors = load_file(weights)
    name = next(one for one in tensors if one.endswith("1.bias"))
    weights.unlink()
    save_file({**tensors, name: tensors[name] + np.float32(0.01)}, weights)
    code, _, said = probekit("verify", certificate(good), "--run", good)
    assert code == 4, said


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        (("--client", "1", "--method", "exact"), 2, "of a network use fedremoval-pcg or retrain"),
        (
            ("--client", "1", "--method", "fedremoval:lu"),
            3,
            "no solver 'lu'. Known and close: adam, cg, cholesky, dual",
        ),
        (("--client", "1", "--method", "fedremoval-pcg:none"), 2, "fedremoval-pcg"),
        (("--client", "9"), 2, "this run has clients 0 to 2"),
        (("--client", "0", "--client", "1", "--client", "2"), 2, "nothing would remain"),
        (("--add", "1"), 2, "this run has it already"),
        (("--sample", "ffffffffffff"), 2, "means 0 samples"),
    ],
)
def test_requests_that_cannot_be_met(
    trained: Path, probekit: Probekit, asked: Sequence[str], code: int, words: str
) -> None:
    found, _, said = probekit("unlearn", trained, *asked)
    assert (found, words in sentence(said)) == (code, True), said
    assert RunFolder.open(trained).states() == [1]
