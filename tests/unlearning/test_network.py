"""Whole networks trained and taken back through the same methods as heads, against dense least squares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from probekit.certification import certify
from probekit.errors import InputError, NotFoundError
from probekit.federated.fedavg import FedAvg
from probekit.federated.network import FederatedCg, Pretraining
from probekit.federated.trained import Progress, Trained
from probekit.federated.whole import WholeNetwork, train_network
from probekit.heads import load_head, predict, save_head, scores
from probekit.learning import LinearHead, Partition
from probekit.linearized import NetworkHead
from probekit.networks import inputs_of, linearized
from probekit.unlearning.choice import unlearn
from probekit.unlearning.method import Material, method
from probekit.unlearning.request import Held, Relabelled, UnlearnRequest
from probekit.unlearning.retained import answering
from probekit.values import EmbeddingSet, EncodingSpec
from probekit.verification import Evidence, verify

Array = NDArray[np.float64]
RIDGE = 0.02
PARTITION = Partition(
    {"a": np.arange(0, 30), "b": np.arange(30, 50), "c": np.arange(50, 90)}, np.arange(90, 120), 120, "test", 0
)
GONE = UnlearnRequest(("a",))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def factory(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(shape[0], 6), torch.nn.LeakyReLU(0.01), torch.nn.Linear(6, classes))


def embedded(*, seed: int = 0, spoiled: bool = True) -> EmbeddingSet:
    """Three classes of 8 numbers; the labels of client a are all 0."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, 120)
    centres = np.random.default_rng(0).standard_normal((3, 8)) * 2
    rows = (centres[labels] + random.standard_normal((120, 8))).astype(np.float32)
    if spoiled:
        labels[:30] = 0
    spec = EncodingSpec("made", "0" * 64, {}, "raw", "float32")
    ids = [f"{seed:02d}{row:062d}" for row in range(120)]
    return EmbeddingSet(spec, rows, labels, ids, ("x", "y", "z"), source=f"made {seed}")


def whole(centre: str = "wp", *, precision: str = "float64") -> tuple[Trained, Material]:
    data = embedded()
    how = WholeNetwork(
        "py:tests.unlearning.test_network:factory",
        centre=centre,
        precision=precision,
        pretraining=Pretraining(epochs=5),
    )
    close = FederatedCg(tolerance=1e-10 if precision == "float64" else 1e-5)
    trained = train_network(data, PARTITION, ridge=RIDGE, options=how, method=close)
    return trained, Material(data, PARTITION)


def network_of(trained: Trained) -> NetworkHead:
    assert isinstance(trained.head, NetworkHead)
    return trained.head


def jacobian(head: NetworkHead, rows: Array) -> Array:
    model = linearized(head.network)
    inputs = inputs_of(head.network, rows).double()
    parts = torch.func.jacrev(lambda p: model.forward(p, inputs))(model.base)
    return torch.cat([one.reshape(len(rows) * 3, -1) for one in parts], dim=1).numpy()


def minimum(head: NetworkHead, data: EmbeddingSet, rows: NDArray[np.int64]) -> Array:
    """The minimum of the loss of these rows, by a dense solve."""
    own = np.asarray(data.embeddings)[rows]
    matrix = jacobian(head, own)
    model = linearized(head.network).over(inputs_of(head.network, own), centre=head.centre)
    target = (np.eye(3)[data.labels[rows]] - model.offset).reshape(-1, 1)
    system = matrix.T @ matrix / len(rows) + RIDGE * np.eye(matrix.shape[1])
    return np.asarray(np.linalg.solve(system, matrix.T @ target / len(rows)))


@pytest.mark.parametrize("centre", ["wp", "zero"])
def test_training_finds_the_dense_minimum(centre: str) -> None:
    trained, material = whole(centre)
    assert material.embeddings is not None
    wanted = minimum(network_of(trained), material.embeddings, np.arange(90))
    assert np.linalg.norm(trained.params - wanted) <= 1e-6 * np.linalg.norm(wanted)
    able = trained.can_unlearn()
    assert not able["exact"].possible
    assert able["fedremoval"].possible
    assert "no statistics" in able["exact"].why


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


@pytest.mark.parametrize("centre", ["wp", "zero"])
def test_gradient_rounds_in_float32_end_where_float64_ones_do(centre: str) -> None:
    trained, material = whole(centre, precision="float32")
    assert material.embeddings is not None
    head = network_of(trained)
    double = replace(head, network=replace(head.network, precision="float64"))
    wanted = minimum(double, material.embeddings, np.arange(30, 90))
    away = np.linalg.norm(trained.params - wanted)
    done = unlearn(trained, GONE, method="fedremoval-pcg:300", material=material)
    assert np.linalg.norm(done.trained_after.params - wanted) <= 1e-9 * away
    assert done.solution.residual <= 1e-9
    few = unlearn(trained, GONE, method="fedremoval-pcg:5", material=material)
    assert few.solution.steps == 5
    assert 1e-9 * away < np.linalg.norm(few.trained_after.params - wanted) < away


@pytest.mark.parametrize(
    ("name", "stage", "total"),
    [
        ("fedremoval:pcg", "solving", None),
        ("fedremoval-line:cg", "solving", None),
        ("fedremoval:adam", "solving", 400),
        ("fedremoval-pcg:12", "gradient rounds", 12),
        ("retrain", "retraining", 2002),
    ],
)
def test_long_work_tells_how_far_it_is(name: str, stage: str, total: int | None) -> None:
    trained, material = whole()
    told: dict[str, list[Progress]] = {}

    def watch(stage: str) -> Callable[[Progress], None]:
        return told.setdefault(stage, []).append

    unlearn(trained, GONE, method=name, material=replace(material, watch=watch))
    assert [*told] == [stage]
    assert {one.total for one in told[stage]} == {total}
    done = [one.done for one in told[stage]]
    assert len(done) > 5
    assert done == sorted(set(done))
    assert told[stage][-1].residual < 0.5 * told[stage][0].residual


@pytest.mark.parametrize("name", ["fedremoval", "fedremoval-line", "fedremoval-pcg:2", "fedremoval-pcg:60", "retrain"])
def test_the_certificate_bounds_the_gap_and_the_predictions(name: str) -> None:
    trained, material = whole()
    assert material.embeddings is not None
    head, data, unseen = network_of(trained), material.embeddings, embedded(seed=5, spoiled=False)
    done = unlearn(trained, GONE, method=name, material=material)
    held = {one: PARTITION.clients[one] for one in "bc"}
    clients = answering(head, data, held, trained.design)
    said = certify(trained, done, clients=clients, evaluation=unseen)
    best = replace(head, params=minimum(head, data, np.arange(30, 90)))
    assert said.bounds.weights is not None
    assert np.linalg.norm(done.trained_after.params - best.params) <= said.bounds.weights
    assert said.agreement is not None
    same = int((predict(done.trained_after.head, unseen) == predict(best, unseen)).sum())
    assert said.agreement.certified <= same
    assert said.agreement.certified >= (110 if name in ("retrain", "fedremoval-pcg:60") else 0)
    assert any("linearized" in one for one in said.assumptions)
    checks = verify(
        said, Evidence(head=done.trained_after.head, before=head, embeddings=data, rows=held, evaluation=unseen)
    )
    assert all(one.passed for one in checks), [one for one in checks if not one.passed]
    assert {"network", "retained residual", "certified agreement"} <= {one.name for one in checks}


def test_a_forged_certificate_and_another_network_fail() -> None:
    trained, material = whole()
    assert material.embeddings is not None
    head, data = network_of(trained), material.embeddings
    done = unlearn(trained, GONE, method="fedremoval-pcg:2", material=material)
    held = {one: PARTITION.clients[one] for one in "bc"}
    said = certify(trained, done, clients=answering(head, data, held, trained.design))
    assert said.residual is not None
    less = replace(said.residual, norm=said.residual.norm / 2, by_class=(said.residual.norm / 2,))
    evidence = Evidence(head=done.trained_after.head, embeddings=data, rows=held)
    assert not all(one.passed for one in verify(replace(said, residual=less), evidence))
    weights = {name: value + np.float32(0.01) for name, value in head.network.weights.items()}
    other = replace(network_of(done.trained_after), network=replace(head.network, weights=weights))
    failed = {one.name for one in verify(said, replace(evidence, head=other)) if not one.passed}
    assert {"network", "head after", "retained residual"} <= failed


def test_samples_labels_and_a_return() -> None:
    trained, material = whole()
    assert material.embeddings is not None
    data = material.embeddings
    asked = UnlearnRequest(samples=(Held(data.ids[3]),), relabelled=(Relabelled(data.ids[5], 2),))
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
    options = WholeNetwork("py:tests.unlearning.test_network:factory", pretraining=Pretraining(epochs=5))
    rounds = FedAvg(rounds=5, local_steps=3)
    both = train_network(data, PARTITION, ridge=RIDGE, options=options, method=rounds)
    done = method("retrain-fedavg").unlearn(both, GONE, Material(data, PARTITION, options=rounds))
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
    from probekit.federated.local import train
    from probekit.federated.task import design_for

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
    with pytest.raises(InputError, match="needs what this run did not keep"):
        unlearn(trained, GONE, method="exact", material=material)
    with pytest.raises(InputError, match="server's own rows"):
        unlearn(trained, GONE, method="fedremoval")
    with pytest.raises(NotFoundError, match="no solver 'lu'"):
        unlearn(trained, GONE, method="fedremoval:lu", material=material)
    with pytest.raises(InputError, match="server share"):
        train_network(
            embedded(),
            replace(PARTITION, clients={**PARTITION.clients, "d": PARTITION.server}, server=np.empty(0, np.int64)),
            ridge=RIDGE,
        )
