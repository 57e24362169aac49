"""Rounds in a method: the run's own training goes on, and others begin with what the clients say of their curvature."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from probekit.federated.methods.fedavg import FedAvg
from probekit.federated.partition import partition
from probekit.federated.training import train
from probekit.testing.planted import planted_set
from probekit.unlearning.method import Material
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import UnlearnRequest
from probekit.unlearning.rounds import averaged, fits, local_plan, retained_rounds

RIDGE = 0.05


def test_rounds_are_the_affine_map_of_fedavg() -> None:
    data = planted_set(120)
    split = partition(data.labels, "dirichlet:0.5", clients=4, seed=2)
    options = FedAvg(rounds=6, local_steps=3)
    trained = train(data, split, ridge=RIDGE, method=options)
    removal = Removal(trained, UnlearnRequest(("1",)), Material(data, split, options=options))
    plan = local_plan(removal)
    assert (plan.steps, plan.rate, plan.ridge) == (3, trained.learning_rate, RIDGE)
    found = retained_rounds(removal, trained.params, plan, 2)
    wanted = trained.params
    for _ in range(2):
        uploads = {}
        for name, rows in split.clients.items():
            if name != "1":
                X = np.hstack([np.asarray(data.embeddings, float)[rows], np.ones((len(rows), 1))])
                Y, own = np.eye(wanted.shape[1])[data.labels[rows]], wanted
                for _ in range(3):
                    own = own - plan.rate * (X.T @ (X @ own - Y) / len(rows) + RIDGE * own)
                uploads[name] = own * len(rows)
        wanted = np.asarray(sum(uploads.values())) / sum(removal.counts.values())
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-13)


def test_a_run_without_rounds_asks_for_a_rate() -> None:
    data = planted_set(120)
    split = partition(data.labels, "iid", clients=4, seed=2)
    trained = train(data, split, ridge=RIDGE, method="closed-form", keep="statistics")
    removal = Removal(trained, UnlearnRequest(("1",)), Material(data, split))
    plan = local_plan(removal, steps=4)
    rows = [
        np.hstack([np.asarray(data.embeddings, float)[own], np.ones((len(own), 1))]) for own in split.clients.values()
    ]
    largest = [np.linalg.eigvalsh(X.T @ X / len(X))[-1] + RIDGE for X in [rows[0], *rows[2:]]]
    np.testing.assert_allclose(plan.rate, 1 / max(largest), rtol=1e-6)
    assert (plan.steps, plan.batch) == (4, None)
    climbed = fits(removal.target, trained.params, replace(plan, sign=-1.0))
    assert list(climbed) == ["1"]
    mean = averaged(removal, {**fits(removal.retained, trained.params, plan), **climbed})
    assert mean.shape == trained.params.shape
