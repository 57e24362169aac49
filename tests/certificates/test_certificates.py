"""Certificates hold, and say who can check them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.certificates.certificate import (
    GRADIENT,
    SCALAR,
    SERVER,
    STATISTICS,
    Bounds,
)
from probekit.certificates.certify import certify
from probekit.errors import InputError
from probekit.federated.methods.closed_form import ClosedForm
from probekit.federated.methods.fedavg import FedAvg
from probekit.linear.design import INTERCEPTS, SCALINGS
from probekit.models.serving import predict
from probekit.unlearning.method import Unlearned, Unlearner
from probekit.unlearning.methods.exact import Exact
from probekit.unlearning.methods.fedremoval import FedRemoval
from probekit.unlearning.methods.line import FedRemovalLine
from probekit.unlearning.methods.pcg import FedRemovalPcg
from probekit.unlearning.methods.retrain import Retrain, RetrainFedAvg
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import UnlearnRequest
from probekit.values import EmbeddingSet
from tests.unlearning.conftest import Run, embedding_set, make_run

Array = NDArray[np.float64]
FORGET = UnlearnRequest.of(["1"])


def test_the_gap_never_exceeds_the_certificate_and_the_references_own_bound() -> None:
    """Over 500 problems: well and badly conditioned, tiny server sets, every method and intercept."""
    tried, checked, exact_gaps = 0, 0, []
    for seed in range(130):
        random = np.random.default_rng(seed)
        run = make_run(
            seed=seed,
            clients=4,
            server=float(random.choice([0.02, 0.1, 0.3])),
            scheme=str(random.choice(["iid", "dirichlet:0.5"])),
            ridge=10.0 ** random.uniform(-9, 0),
            scaling=SCALINGS[seed % 2],
            design={"intercept": INTERCEPTS[seed % 3]},
            data={
                "rows": int(random.integers(60, 160)),
                "dimension": int(random.integers(2, 24)),
                "classes": int(random.integers(2, 5)),
                "spread": 10.0 ** random.uniform(-5, 0),
                "shift": float(random.choice([0.0, 10.0])),
            },
        )
        reference = run.oracle(run.rows_without("1"))
        for method in (Exact(), FedRemoval(), FedRemovalLine(), FedRemovalPcg(int(random.integers(1, 9)))):
            tried += 1
            unlearned = method.unlearn(Removal(run.trained, FORGET))
            after = unlearned.trained_after
            anew = run.trained.problem.head(reference, ridge=run.trained.ridge, recipe={})
            certificate = certify(run.trained, unlearned, reference=anew)
            bound, other = certificate.bounds.weights, certificate.reference
            if bound is None or other is None:
                assert run.trained.problem.design.intercept == "free"
                continue
            checked += 1
            gap = float(np.linalg.norm(after.params - reference))
            assert other.distance == pytest.approx(gap)
            assert gap <= bound + other.bound
            if unlearned.method == "exact":
                exact_gaps.append(bound)
            by_clients = certify(
                run.trained, replace(unlearned, trained_after=replace(after, statistics=None)), clients=run.online("1")
            )
            asked = by_clients.bounds.weights
            if asked is not None:
                assert gap <= asked + other.bound
                assert bound <= asked * (1 + 1e-6) + other.bound
    assert tried >= 500
    assert checked >= 0.9 * tried
    assert np.median(exact_gaps) < 1e-5


@pytest.mark.parametrize("method", [Exact(), FedRemoval(), FedRemovalPcg(4)])
@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_certified_rows_never_change_class(method: Unlearner, intercept: str) -> None:
    rates = []
    for seed in range(12):
        run = make_run(seed=seed, ridge=0.02, design={"intercept": intercept, "view": "l2"}, data={"dimension": 10})
        unlearned = method.unlearn(Removal(run.trained, FORGET, run.material))
        test = embedding_set(400, 10, seed=seed, shift=0.4)
        certificate = certify(run.trained, unlearned, evaluation=test)
        agreed = certificate.agreement
        assert agreed is not None
        truth = Retrain().unlearn(Removal(run.trained, FORGET, run.material)).trained_after.head
        same = predict(unlearned.trained_after.head, test.embeddings) == predict(truth, test.embeddings)
        assert agreed.certified <= int(same.sum())
        assert agreed.curved is not None
        assert max(agreed.plain, agreed.curved) <= agreed.certified
        rates.append(agreed.rate)
    assert np.mean(rates) > (0.99 if isinstance(method, Exact) else 0.01)


def certified_masks(run: Run, unlearned: Unlearned, test: EmbeddingSet) -> NDArray[np.bool_]:
    """Row by row: is the row certified when it is the whole set?"""
    found = []
    for row in range(len(test)):
        one = certify(run.trained, unlearned, evaluation=test.select(np.array([row]))).agreement
        assert one is not None
        found.append(one.certified == 1)
    return np.array(found)


def test_row_by_row_no_certified_row_differs_from_retraining() -> None:
    run = make_run(ridge=0.02, server=0.05, scheme="dirichlet:0.3", data={"dimension": 10})
    unlearned = FedRemovalPcg(1).unlearn(Removal(run.trained, FORGET))
    test = embedding_set(80, 10, seed=9)
    truth = Retrain().unlearn(Removal(run.trained, FORGET, run.material)).trained_after.head
    same = predict(unlearned.trained_after.head, test.embeddings) == predict(truth, test.embeddings)
    mask = certified_masks(run, unlearned, test)
    assert 0 < mask.sum() < len(mask)
    assert same[mask].all()


def test_who_can_check_and_what_is_missing() -> None:
    run = make_run(keep="gradients")
    plain = FedRemoval().unlearn(Removal(run.trained, FORGET))
    alone = certify(run.trained, plain)
    assert alone.checkable_by == SERVER
    assert alone.bounds.weights is None
    assert "gradient round" in alone.bounds.why
    line = FedRemovalLine().unlearn(Removal(run.trained, FORGET, run.material))
    assert certify(run.trained, line).checkable_by == SCALAR
    asked = certify(run.trained, plain, clients=run.online("1"))
    assert asked.checkable_by == GRADIENT
    assert asked.curvature is not None
    assert asked.curvature.source == "ridge"
    kept = make_run()
    full = certify(kept.trained, Exact().unlearn(Removal(kept.trained, FORGET)))
    assert full.checkable_by == STATISTICS
    assert full.curvature is not None
    assert full.curvature.source == "statistics"
    free = make_run(keep="gradients", design={"intercept": "free"})
    no_bound = certify(free.trained, FedRemoval().unlearn(Removal(free.trained, FORGET)), clients=free.online("1"))
    assert no_bound.bounds.weights is None
    assert "free intercept" in no_bound.bounds.why


def test_the_papers_terms_and_concentration_stand_beside_and_are_no_bounds_of_ours() -> None:
    run = make_run(design={"view": "l2"}, ridge=0.05)
    certificate = certify(run.trained, FedRemoval().unlearn(Removal(run.trained, FORGET)))
    assert [term.value is not None for term in certificate.paper] == [True, True, True]
    assert certificate.concentration is not None
    assert certificate.concentration.probability == pytest.approx(0.99)
    assert certificate.concentration.weights is not None
    assert "assumption" in certificate.concentration.why
    assert certificate.bounds.weights is not None
    gap = float(
        np.linalg.norm(
            FedRemoval().unlearn(Removal(run.trained, FORGET)).trained_after.params - run.oracle(run.rows_without("1"))
        )
    )
    assert gap <= certificate.concentration.weights
    server, design = run.partition.server, run.trained.problem.design
    rows = run.rows_without("1")
    unit = run.embeddings.to_numpy() / np.linalg.norm(run.embeddings.to_numpy(), axis=1, keepdims=True)
    X = np.hstack([unit, np.ones((len(unit), 1))])
    apart = X[rows].T @ X[rows] / len(rows) - X[server].T @ X[server] / len(server)
    smallest = np.linalg.eigvalsh(X[server].T @ X[server] / len(server) + 0.05 * np.eye(design.columns))[0]
    assert certificate.paper[2].value == pytest.approx(4 * (np.linalg.norm(apart, 2) / smallest) ** 2)
    bare = replace(run.trained, statistics=None)
    unknown = certify(bare, FedRemoval("adam").unlearn(Removal(bare, FORGET, run.material)))
    assert all(term.value is None and "not computable" in term.why for term in unknown.paper)


def test_fedavg_as_reference() -> None:
    options = FedAvg(rounds=60, local_steps=4)
    run = make_run(method=options, keep="statistics", scheme="dirichlet:0.4")
    reference = (
        RetrainFedAvg().unlearn(Removal(run.trained, FORGET, replace(run.material, options=options))).trained_after.head
    )
    certificate = certify(run.trained, Exact().unlearn(Removal(run.trained, FORGET)), reference=reference)
    assert certificate.reference is not None
    assert certificate.bounds.weights is not None
    assert certificate.bounds.weights < 1e-9 < certificate.reference.distance
    assert certificate.reference.distance <= certificate.bounds.weights + certificate.reference.bound


def test_views_are_certified_and_normalised_classes_refused() -> None:
    viewed = make_run(method=ClosedForm(standardise="standardise", class_weight="balanced"), design={"per_class": True})
    unlearned = Exact().unlearn(Removal(viewed.trained, FORGET))
    certificate = certify(viewed.trained, unlearned, evaluation=embedding_set(50, seed=3))
    assert certificate.bounds.weights is not None
    assert certificate.bounds.weights < 1e-8
    assert certificate.agreement is not None
    assert certificate.agreement.rate == 1
    normalised = make_run(method=ClosedForm(normalise_classes=True))
    with pytest.raises(InputError, match="normalised"):
        certify(normalised.trained, Exact().unlearn(Removal(normalised.trained, FORGET)))


def test_infinite_bounds_become_none_in_json() -> None:
    run = make_run()
    certificate = certify(run.trained, Exact().unlearn(Removal(run.trained, FORGET)))
    infinite = replace(certificate, bounds=Bounds(weights=float("inf")))
    plain: Any = infinite.plain["bounds"]
    assert plain["weights"] is None
