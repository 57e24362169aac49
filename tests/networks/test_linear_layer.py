"""A network that is one linear layer, from 0: every method and the certificate see a head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from probekit.arrays import hex_id
from probekit.certificates.bounds import SLACK
from probekit.certificates.certificate import certify
from probekit.embeddings import EmbeddingSet
from probekit.federated.federation import Federation, InProcess
from probekit.federated.local import LocalPlan, Sgd
from probekit.federated.state import State, Trainer
from probekit.federated.training.cg import ConjugateGradients
from probekit.federated.training.closed_form import ClosedForm
from probekit.federated.training.fedavg import FedAvg
from probekit.federated.training.knot import KnotTraining
from probekit.linear.model import LinearModel
from probekit.networks.network import Network
from probekit.objective import CrossEntropy, Loss, Squares
from tests.networks.loops import as_head
from tests.networks.modules import CLASSES, model_of, samples_of
from tests.oracles import one_hot, relative_error, ridge_by_lstsq
from tests.unlearning.problems import forget

RIDGE = 0.1
LEAVER = "b"
HISTORY = frozenset({"history"})
FULL = LocalPlan(0.05, steps=4)
BATCHES = LocalPlan(0.02, epochs=1, batch_size=6, optimizer=Sgd(0.5))


def layer(loss: Loss, **options: Any) -> Network:
    """From weights of 0, as a head."""
    model = model_of("linear", loss=loss, **options)
    zeros = {"weights": np.zeros_like(model.weights), "canary": np.zeros_like(model.canary)}
    return replace(model, **zeros)


def clients(count: int = 3, *, seed: int = 0) -> dict[str, EmbeddingSet]:
    model = model_of("linear")
    return {
        "abcd"[number]: samples_of(model, 14 + number, seed=seed + number)
        for number in range(count)
    }


class Pair:
    """The same clients about a layer and about a head, each with a server."""

    def __init__(self, loss: Loss, **options: Any) -> None:
        self.rows = clients()
        self.models = (layer(loss, **options), LinearModel(6, CLASSES, loss, "penalized"))
        self.asked = [Federation.of(InProcess(self.rows), model) for model in self.models]
        server = {"server": samples_of(model_of("linear"), 40, seed=9)}
        self.servers = [Federation.of(InProcess(server), model) for model in self.models]

    def trained(self, *trainers: Trainer) -> list[State]:
        """By a trainer, or one for each."""
        pairs = zip(self.asked, (trainers[0], trainers[-1]), strict=True)
        return [trainer.train(asked, ridge=RIDGE) for asked, trainer in pairs]

    def error(self, states: list[State], methods: tuple[str, str], **request: Any) -> float:
        """Of what the layer's method changes, against what the head's does."""
        request = request or {"clients": {LEAVER}}
        after = [
            forget(state, asked, method, server=server, **request)
            for state, asked, method, server in zip(
                states, self.asked, methods, self.servers, strict=True
            )
        ]
        changes = as_head(after[0].params) - as_head(states[0].params)
        return relative_error(changes, after[1].params - states[1].params)


METHODS = [
    *("retrain", "cf:rounds=3", "sga", "sga:max_norm=none,clip=0.1,rate_scale=1", "pga:post=2"),
    *("federaser", "federaser:lengths=mean", "fedrecovery", "fedrecovery:weights=sum"),
    *("starfish:warmup=1,correction=2,tuning=1", "flipping:post=1"),
    "ferrari:columns=0:2,steps=5,draws=2",
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("plan", "loss", "linearize"),
    [
        (FULL, Squares(), True),
        (BATCHES, CrossEntropy(), False),
    ],
)
def test_methods_by_rounds(method: str, plan: LocalPlan, loss: Loss, linearize: bool) -> None:
    pair = Pair(loss, linearize=linearize)
    states = pair.trained(FedAvg(6, plan, keep=HISTORY))
    assert pair.error(states, (method, method)) < 1e-10


@pytest.mark.parametrize(
    ("method", "of_head"),
    [
        ("fedremoval:cg,tolerance=1e-13", "fedremoval"),
        ("fedremoval-line:cg,tolerance=1e-13", "fedremoval-line"),
        ("fedremoval-pcg:rounds=40", "exact"),
        *[(name, name) for name in ("fedremoval:sgd,rate=0.05", "fedremoval:adam,batch_size=8")],
    ],
)
def test_steps_with_the_servers_curvature(method: str, of_head: str) -> None:
    pair = Pair(Squares())
    states = pair.trained(FedAvg(6, FULL, keep=frozenset({"gradients"})))
    assert pair.error(states, (method, of_head)) < 1e-10


@pytest.mark.parametrize("method", ["exact", "retrain", "rounds:distance=1e-12"])
@pytest.mark.parametrize("what", ["a client", "samples"])
def test_methods_that_end_at_the_minimum(method: str, what: str) -> None:
    pair = Pair(Squares())
    states = pair.trained(ConjugateGradients(tolerance=1e-13), ClosedForm())
    ids = frozenset(hex_id(identity) for identity in pair.rows[LEAVER].ids[:5])
    request: dict[str, Any] = {"samples": {LEAVER: ids}} if what == "samples" else {}
    assert pair.error(states, (method, "exact"), **request) < 1e-10


def test_clusters() -> None:
    pair = Pair(Squares(), linearize=False)
    states = pair.trained(KnotTraining(2, FedAvg(4, BATCHES)))
    assert pair.error(states, ("knot", "knot")) < 1e-10


@pytest.mark.parametrize("loss", [Squares(), CrossEntropy()])
def test_certificates(loss: Loss) -> None:
    """|g| / ridge bounds the distance for both, up to a margin; a head's may be sharper."""
    pair = Pair(loss)
    states = pair.trained(FedAvg(6, FULL))
    test = samples_of(model_of("linear"), 30, seed=5)
    of_layer, of_head = (
        certify(state, asked, test=test) for state, asked in zip(states, pair.asked, strict=True)
    )
    best = ConjugateGradients(tolerance=1e-12).train(pair.asked[0], ridge=RIDGE).params
    distance = float(np.linalg.norm(states[0].params - best))
    assert of_layer.residual == pytest.approx(of_head.residual, rel=1e-6)
    assert of_layer.distance == pytest.approx(of_layer.residual / RIDGE, rel=1e-6)
    assert distance <= of_layer.distance
    assert distance <= of_head.distance <= SLACK * of_layer.distance
    assert of_layer.certified_rows <= of_head.certified_rows
    assert (of_layer.rows, of_layer.test_rows) == (of_head.rows, 30)


def test_a_certificate_of_the_minimum_keeps_almost_every_class() -> None:
    pair = Pair(Squares())
    states = pair.trained(ConjugateGradients(tolerance=1e-10), ClosedForm())
    rows = np.concatenate([client.to_numpy() for client in pair.rows.values()])
    labels = np.concatenate([client.labels for client in pair.rows.values()])
    expected = ridge_by_lstsq(rows, one_hot(labels, CLASSES), RIDGE, intercept="penalized")
    test = samples_of(model_of("linear"), 30, seed=5)
    certificate = certify(states[0], pair.asked[0], test=test)
    distance = float(np.linalg.norm(as_head(states[0].params) - expected))
    assert distance <= certificate.distance < 1e-9
    assert certificate.certified_rows == 30
