"""Whole networks trained and taken back through the same methods as heads, against dense least squares."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from probekit.certificates.certify import certify
from probekit.certificates.verdicts import FALSE, PROVEN
from probekit.certificates.verify import Evidence, verify
from probekit.errors import InputError, NotFoundError
from probekit.federated.in_process import InProcess
from probekit.federated.methods.cg import FederatedCg
from probekit.federated.methods.fedavg import FedAvg
from probekit.federated.networks import train_network
from probekit.federated.rows import design_for
from probekit.federated.training import train
from probekit.models.heads import LinearHead, NetworkHead
from probekit.models.jvp import WholeNetwork
from probekit.models.pretraining import Pretraining
from probekit.models.serving import load_head, predict, save_head, scores
from probekit.unlearning.choice import can_unlearn, unlearn
from probekit.unlearning.method import Material, method
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import Relabelled, SampleRef, UnlearnRequest
from probekit.values import Partition
from tests.unlearning.small_network import (
    GONE,
    PARTITION,
    RIDGE,
    Array,
    embedded,
    jacobian,
    minimum,
    network_of,
    whole,
)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("centre", ["wp", "zero"])
def test_training_finds_the_dense_minimum(centre: str) -> None:
    trained, material = whole(centre)
    assert material.embeddings is not None
    wanted = minimum(network_of(trained), material.embeddings, np.arange(90))
    assert np.linalg.norm(trained.params - wanted) <= 1e-6 * np.linalg.norm(wanted)
    able = can_unlearn(trained, material)
    assert able["fedremoval"] == able["retrain"] == ""
    assert "a head on embeddings" in able["exact"]


@pytest.mark.parametrize("centre", ["wp", "zero"])
def test_every_method_against_dense_algebra(centre: str) -> None:
    trained, material = whole(centre)
    assert material.embeddings is not None
    head, data = network_of(trained), material.embeddings
    wanted = minimum(head, data, np.arange(30, 90))
    away = np.linalg.norm(trained.params - wanted)

    def gap(name: str) -> float:
        return float(
            np.linalg.norm(unlearn(trained, GONE, method=name, material=material).trained_after.params - wanted)
        )

    assert gap("retrain") <= 1e-6 * np.linalg.norm(wanted)
    assert gap("fedremoval-pcg:200") <= 1e-5 * away
    assert gap("fedremoval-pcg:12") < gap("fedremoval-pcg:3") < away
    matrix = jacobian(head, np.asarray(data.embeddings)[90:])
    curvature = matrix.T @ matrix / 30 + RIDGE * np.eye(matrix.shape[1])
    rows = jacobian(head, np.asarray(data.embeddings)[30:90])
    system = rows.T @ rows / 60 + RIDGE * np.eye(rows.shape[1])
    gradient = system @ (trained.params - wanted)
    for name in ("fedremoval", "fedremoval:dual", "fedremoval:pcg", "fedremoval:cg"):
        step = trained.params - unlearn(trained, GONE, method=name, material=material).trained_after.params
        assert np.allclose(step, np.linalg.solve(curvature, gradient), rtol=1e-4, atol=1e-6), name
    line = unlearn(trained, GONE, method="fedremoval-line", material=material)

    def loss(params: Array) -> float:
        off = params - wanted
        return float((off.T @ system @ off).item() / 2)

    assert line.loss_change is not None
    assert np.isclose(loss(line.trained_after.params) - loss(trained.params), line.loss_change, rtol=1e-5)
    assert line.loss_change < 0


@pytest.mark.parametrize("name", ["fedremoval", "fedremoval-line", "fedremoval-pcg:2", "fedremoval-pcg:60", "retrain"])
def test_the_certificate_bounds_the_gap_and_the_predictions(name: str) -> None:
    trained, material = whole()
    assert material.embeddings is not None
    head, data, unseen = network_of(trained), material.embeddings, embedded(seed=5, spoiled=False)
    done = unlearn(trained, GONE, method=name, material=material)
    held = {one: PARTITION.clients[one] for one in "bc"}
    clients = InProcess.of(trained.problem, data, held)
    said = certify(trained, done, clients=clients, evaluation=unseen)
    best = replace(head, params=minimum(head, data, np.arange(30, 90)))
    assert said.bounds.weights is not None
    assert np.linalg.norm(done.trained_after.params - best.params) <= said.bounds.weights
    assert said.agreement is not None
    same = int((predict(done.trained_after.head, unseen) == predict(best, unseen)).sum())
    assert said.agreement.certified <= same
    assert said.agreement.certified >= (110 if name in ("retrain", "fedremoval-pcg:60") else 0)
    assert any("linearized" in one for one in said.assumptions)
    findings = verify(
        said, Evidence(head=done.trained_after.head, before=head, embeddings=data, rows=held, evaluation=unseen)
    )
    verdicts = {one.name: one.verdict for one in findings}
    assert FALSE not in verdicts.values(), findings
    assert {verdicts[one] for one in ("residual", "curvature", "weights", "excess-loss", "retained")} == {PROVEN}


def test_a_forged_certificate_and_another_network_fail() -> None:
    trained, material = whole()
    assert material.embeddings is not None
    head, data = network_of(trained), material.embeddings
    done = unlearn(trained, GONE, method="fedremoval-pcg:2", material=material)
    held = {one: PARTITION.clients[one] for one in "bc"}
    said = certify(trained, done, clients=InProcess.of(trained.problem, data, held))
    assert said.residual is not None
    less = replace(said.residual, norm=said.residual.norm / 2, by_class=(said.residual.norm / 2,))
    evidence = Evidence(head=done.trained_after.head, embeddings=data, rows=held)
    assert "residual" in {one.name for one in verify(replace(said, residual=less), evidence) if one.verdict == FALSE}
    weights = {name: value + np.float32(0.01) for name, value in head.network.weights.items()}
    other = replace(network_of(done.trained_after), network=replace(head.network, weights=weights))
    failed = {one.name for one in verify(said, replace(evidence, head=other)) if one.verdict == FALSE}
    assert {"objective", "head"} <= failed


def test_samples_labels_and_a_return() -> None:
    trained, material = whole()
    assert material.embeddings is not None
    data = material.embeddings
    asked = UnlearnRequest(samples=(SampleRef(data.ids[3]),), relabelled=(Relabelled(data.ids[5], 2),))
    done = unlearn(trained, asked, method="retrain", material=material)
    labels = data.labels.copy()
    labels[5] = 2
    rows = np.delete(np.arange(90), 3)
    wanted = minimum(network_of(trained), replace(data, labels=labels), rows)
    assert np.linalg.norm(done.trained_after.params - wanted) <= 1e-6 * np.linalg.norm(wanted)
    gone = unlearn(trained, GONE, method="retrain", material=material)
    back = unlearn(gone.trained_after, UnlearnRequest(added=("a",)), method="fedremoval-pcg:200", material=material)
    assert np.linalg.norm(back.trained_after.params - trained.params) <= 1e-4 * np.linalg.norm(trained.params)


def test_retraining_by_fedavg_repeats_the_runs_own_rounds() -> None:
    data = embedded()
    options = WholeNetwork("py:tests.unlearning.small_network:factory", pretraining=Pretraining(epochs=5))
    rounds = FedAvg(rounds=5, local_steps=3)
    both = train_network(data, PARTITION, ridge=RIDGE, options=options, method=rounds)
    done = method("retrain-fedavg").unlearn(Removal(both, GONE, Material(data, PARTITION, options=rounds)))
    kept = np.arange(30, 120)
    alone = train_network(
        data.select(kept),
        Partition({"b": np.arange(20), "c": np.arange(20, 60)}, np.arange(60, 90), 90, "test", 0),
        ridge=RIDGE,
        options=options,
        method=rounds,
    )
    assert np.allclose(done.trained_after.params, alone.params, rtol=1e-8, atol=1e-10)


def test_the_step_says_beforehand_what_the_servers_rows_are_worth() -> None:
    trained, material = whole()
    done = unlearn(trained, GONE, method="fedremoval", material=material)
    matrix = jacobian(network_of(trained), np.asarray(embedded().embeddings)[90:])
    values = np.linalg.eigvalsh(matrix.T @ matrix / 30)
    dimension = float((values / (values + RIDGE)).sum())
    assert 4 * dimension > 30
    assert f"effective dimension {dimension:.1f}" in done.warnings[0]


def test_a_linear_network_is_the_embedding_backend() -> None:
    data = embedded()
    options = WholeNetwork("py:tests.unlearning.test_network:linear", centre="zero", pretraining=Pretraining(epochs=2))
    network = train_network(data, PARTITION, ridge=RIDGE, options=options, method=FederatedCg(tolerance=1e-13))
    head = train(data, PARTITION, ridge=RIDGE, design=design_for(data))
    assert isinstance(head.head, LinearHead)
    assert np.allclose(scores(network.head, data), scores(head.head, data), rtol=0, atol=1e-8)
    gone = unlearn(network, GONE, method="retrain", material=Material(data, PARTITION)).trained_after
    exact = unlearn(head, GONE, method="exact").trained_after
    assert np.abs(scores(gone.head, data) - scores(exact.head, data)).max() < 1e-6


def linear(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    return torch.nn.Linear(shape[0], classes)


def test_a_network_head_is_kept_and_loaded(tmp_path: object) -> None:
    trained, _ = whole()
    folder = save_head(trained.head, f"{tmp_path}/head")
    again = load_head(folder)
    assert isinstance(again, NetworkHead)
    assert again.digest == trained.head.digest
    data = embedded(seed=3)
    assert np.array_equal(scores(again, data), scores(trained.head, data))
    with pytest.raises(InputError, match="rows of 8 numbers"):
        scores(again, np.zeros((2, 5), np.float32))


def test_bad_requests_are_refused() -> None:
    trained, material = whole()
    with pytest.raises(InputError, match="Cannot forget client z: this run has clients a, b, c"):
        unlearn(trained, UnlearnRequest(("z",)), method="fedremoval", material=material)
    with pytest.raises(InputError, match="needs what this run does not have: a head on embeddings"):
        unlearn(trained, GONE, method="exact", material=material)
    with pytest.raises(InputError, match="also give the embedding set"):
        unlearn(trained, GONE, method="fedremoval")
    with pytest.raises(NotFoundError, match="no solver 'lu'"):
        unlearn(trained, GONE, method="fedremoval:lu", material=material)
    with pytest.raises(InputError, match="server share"):
        train_network(
            embedded(),
            replace(PARTITION, clients={**PARTITION.clients, "d": PARTITION.server}, server=np.empty(0, np.int64)),
            ridge=RIDGE,
        )
