"""How much each client matters: the bound is never below the distance, and the poisoned client stands out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from probekit.errors import InputError
from probekit.federated.training import train
from probekit.linear.design import SCALINGS
from probekit.unlearning.influence import influences
from tests.unlearning.conftest import make_run


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("keep", ["statistics", "gradients"])
def test_bounds_and_distances(scaling: str, keep: str) -> None:
    run = make_run(scheme="dirichlet:0.5", scaling=scaling, keep=keep, ridge=0.05 if scaling == "mean" else 5.0)
    found = influences(run.trained)
    assert {one.client for one in found} == set(run.trained.counts)
    for one in found:
        distance = float(np.linalg.norm(run.trained.params - run.oracle(run.rows_without(one.client))))
        assert one.bound is not None
        assert distance <= one.bound * (1 + 1e-9)
        if keep == "statistics":
            assert one.distance == pytest.approx(distance, rel=1e-7)
        else:
            assert one.distance is None


def test_at_the_minimum_it_is_e6() -> None:
    run = make_run()
    one = next(one for one in influences(run.trained) if one.client == "2")
    rows = run.partition.clients["2"]
    X = np.hstack([run.embeddings.to_numpy()[rows], np.ones((len(rows), 1))])
    own = X.T @ (X @ run.trained.params - np.eye(3)[run.embeddings.labels[rows]]) / len(X)
    own = own + 0.1 * run.trained.params
    rest = sum(run.trained.counts.values()) - len(rows)
    assert one.bound == pytest.approx(len(rows) / rest * float(np.linalg.norm(own)) / 0.1, rel=1e-7)


def test_a_client_with_wrong_labels_comes_first() -> None:
    run = make_run(seed=4)
    labels = run.embeddings.labels.copy()
    labels[run.partition.clients["3"]] = 0
    poisoned = train(replace(run.embeddings, labels=labels), run.partition, ridge=0.01)
    assert influences(poisoned)[0].client == "3"


def test_no_bound_without_certain_curvature_and_refusals() -> None:
    free = make_run(design={"intercept": "free"})
    assert all(one.bound is None and one.distance is not None for one in influences(free.trained))
    with pytest.raises(InputError, match='keep="gradients"'):
        influences(make_run(keep="nothing").trained)
    with pytest.raises(InputError, match="at least two"):
        influences(make_run(clients=1).trained)
