"""Certificates hold, say who can check them, and do not survive a changed byte, head or number."""

from __future__ import annotations

import json
from collections.abc import Callable
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
    Certificate,
    certificate_text,
    read_certificate,
    signed_bytes,
)
from probekit.certificates.certify import certify
from probekit.certificates.checks import require_verified
from probekit.certificates.verify import Evidence, verify
from probekit.custody.signatures import check_signature, new_private_key, public_key_of, sign
from probekit.errors import InputError, VerificationError
from probekit.federated.in_process import InProcess
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


def retained(run: Run) -> dict[str, NDArray[np.int64]]:
    return {name: rows for name, rows in run.partition.clients.items() if name != "1"}


def online(run: Run) -> InProcess:
    return InProcess.of(run.trained.problem, run.embeddings, retained(run))


def failed(certificate: Certificate, evidence: Evidence) -> set[str]:
    return {check.name for check in verify(certificate, evidence) if not check.passed}


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
            anew = replace(
                after.head,
                params=np.vstack(
                    [reference, *np.zeros((after.head.params.shape[0] - len(reference), 1, reference.shape[1]))]
                ),
            )
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
                run.trained, replace(unlearned, trained_after=replace(after, statistics=None)), clients=online(run)
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
    asked = certify(run.trained, plain, clients=online(run))
    assert asked.checkable_by == GRADIENT
    assert asked.curvature is not None
    assert asked.curvature.source == "ridge"
    kept = make_run()
    full = certify(kept.trained, Exact().unlearn(Removal(kept.trained, FORGET)))
    assert full.checkable_by == STATISTICS
    assert full.curvature is not None
    assert full.curvature.source == "statistics"
    free = make_run(keep="gradients", design={"intercept": "free"})
    no_bound = certify(free.trained, FedRemoval().unlearn(Removal(free.trained, FORGET)), clients=online(free))
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
    viewed = make_run(method=ClosedForm(view="standardise", class_weight="balanced"), design={"per_class": True})
    unlearned = Exact().unlearn(Removal(viewed.trained, FORGET))
    certificate = certify(viewed.trained, unlearned, evaluation=embedding_set(50, seed=3))
    assert certificate.bounds.weights is not None
    assert certificate.bounds.weights < 1e-8
    assert certificate.agreement is not None
    assert certificate.agreement.rate == 1
    normalised = make_run(method=ClosedForm(normalise_classes=True))
    with pytest.raises(InputError, match="normalised"):
        certify(normalised.trained, Exact().unlearn(Removal(normalised.trained, FORGET)))


@pytest.fixture
def made() -> tuple[Run, Unlearned, Certificate, Evidence]:
    run = make_run(ridge=0.05)
    unlearned = FedRemovalPcg(2).unlearn(Removal(run.trained, FORGET))
    test = embedding_set(60, seed=8)
    reference = Retrain().unlearn(Removal(run.trained, FORGET, run.material)).trained_after.head
    certificate = certify(run.trained, unlearned, evaluation=test, reference=reference)
    after = unlearned.trained_after
    evidence = Evidence(
        head=after.head,
        before=run.trained.head,
        statistics=after.statistics,
        embeddings=run.embeddings,
        rows=retained(run),
        evaluation=test,
        reference=reference,
    )
    return run, unlearned, certificate, evidence


Made = tuple[Run, Unlearned, Certificate, Evidence]


def test_an_honest_certificate_passes_with_any_material(made: Made) -> None:
    run, _, certificate, evidence = made
    checks = verify(certificate, evidence)
    require_verified(checks)
    assert len(checks) > 15
    for less in (
        replace(evidence, embeddings=None, rows=None),
        replace(evidence, statistics=None),
        replace(evidence, statistics=None, embeddings=None, rows=None),
        replace(evidence, statistics=None, embeddings=None, rows=None, clients=online(run)),
        Evidence(),
    ):
        require_verified(verify(certificate, less))


@pytest.mark.parametrize("method", [Exact(), FedRemovalLine(), FedRemovalPcg(3)])
@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_honest_certificates_pass(method: Unlearner, intercept: str, scaling: str) -> None:
    for seed, ridge in ((1, 1e-7), (2, 0.1)):
        run = make_run(seed=seed, ridge=ridge, scaling=scaling, design={"intercept": intercept}, data={"spread": 1e-3})
        unlearned = method.unlearn(Removal(run.trained, FORGET, run.material))
        after = unlearned.trained_after
        evidence = Evidence(
            head=after.head,
            before=run.trained.head,
            statistics=after.statistics,
            embeddings=run.embeddings,
            rows=retained(run),
        )
        require_verified(verify(certify(run.trained, unlearned), evidence))
        bare = replace(unlearned, trained_after=replace(after, statistics=None))
        asked = certify(run.trained, bare, clients=online(run))
        require_verified(verify(asked, replace(evidence, statistics=None, embeddings=None, clients=online(run))))
        require_verified(verify(asked, evidence))


def test_the_text_comes_back_and_every_changed_byte_is_seen(made: Made) -> None:
    _, _, certificate, _ = made
    text = certificate_text(certificate)
    again, signature = read_certificate(text)
    assert again == certificate
    assert signature is None
    assert again.digest == certificate.digest
    random = np.random.default_rng(0)
    for place in [*range(40), *random.integers(0, len(text), 300).tolist()]:
        for letter in "7x ":
            if text[place] != letter:
                with pytest.raises(VerificationError):
                    read_certificate(text[:place] + letter + text[place + 1 :])
    for bad in ("", "[]", "{}", text[:-5], json.dumps({"certificate": {}, "signature": None})):
        with pytest.raises(VerificationError):
            read_certificate(bad)
    assert VerificationError.exit_code == 6


Forgery = Callable[[Certificate], Certificate]


def smaller_residual(certificate: Certificate) -> Certificate:
    """A residual a tenth of the true one, with all that follows from it made to fit."""
    residual, curvature = certificate.residual, certificate.curvature
    assert residual is not None
    assert curvature is not None
    less = replace(residual, norm=residual.norm / 10, by_class=tuple(one / 10 for one in residual.by_class))
    bounds = replace(
        certificate.bounds,
        weights=less.bound / curvature.value,
        outputs=float(less.class_bounds.max()) / curvature.value,
    )
    return replace(certificate, residual=less, bounds=bounds)


def larger_curvature(certificate: Certificate) -> Certificate:
    residual, curvature = certificate.residual, certificate.curvature
    assert residual is not None
    assert curvature is not None
    more = replace(curvature, value=curvature.value * 3)
    bounds = replace(
        certificate.bounds,
        weights=residual.bound / more.value,
        outputs=float(residual.class_bounds.max()) / more.value,
    )
    return replace(certificate, curvature=more, bounds=bounds)


FORGERIES: dict[str, tuple[Forgery, str]] = {
    "residual": (smaller_residual, "retained residual"),
    "curvature": (larger_curvature, "smallest curvature"),
    "bound": (lambda c: replace(c, bounds=replace(c.bounds, weights=1e-12)), "bound = residual / curvature"),
    "no residual": (lambda c: replace(c, residual=None), "bound = residual / curvature"),
    "loss": (lambda c: replace(c, bounds=replace(c.bounds, excess_loss=1e-12)), "excess loss"),
    "outputs": (lambda c: replace(c, bounds=replace(c.bounds, outputs=1e-12)), "outputs"),
    "who": (lambda c: replace(c, retained={**c.retained, "1": 5}), "forgotten clients are gone"),
    "counts": (lambda c: replace(c, retained={**c.retained, "0": 5}), "who is retained"),
    "head": (lambda c: replace(c, after={**c.after, "head": "0" * 64}), "head after"),
    "statistics": (lambda c: replace(c, after={**c.after, "statistics": "0" * 64}), "statistics after"),
    "ridge": (lambda c: replace(c, objective={**c.objective, "ridge": 0.2}), "retained residual"),
    "request": (lambda c: replace(c, request={}), "request"),
    "design": (lambda c: replace(c, objective={}), "objective"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forgeries_with_a_right_digest_are_found(made: Made, name: str) -> None:
    _, _, certificate, evidence = made
    forge, check = FORGERIES[name]
    forged = forge(certificate)
    rewritten, _ = read_certificate(certificate_text(forged))
    assert check in failed(rewritten, evidence)
    with pytest.raises(VerificationError, match="checks failed"):
        require_verified(verify(rewritten, evidence))


def test_a_forged_agreement_and_distance_are_found(made: Made) -> None:
    _, _, certificate, evidence = made
    assert certificate.agreement is not None
    assert certificate.reference is not None
    boasting = replace(certificate, agreement=replace(certificate.agreement, certified=60))
    if certificate.agreement.certified < 59:
        assert "certified agreement" in failed(boasting, evidence)
    nearer = replace(certificate, reference=replace(certificate.reference, distance=0.0))
    assert "distance measured" in failed(nearer, evidence)
    other = replace(certificate, agreement=replace(certificate.agreement, set_digest="0" * 64))
    assert "certified agreement" in failed(other, evidence)


def test_a_swapped_head_statistics_and_rows_are_found(made: Made) -> None:
    run, unlearned, certificate, evidence = made
    swapped = failed(certificate, replace(evidence, head=run.trained.head))
    assert {"head after", "retained residual"} <= swapped
    nudged = replace(unlearned.trained_after.head, params=unlearned.trained_after.head.params + 1e-3)
    assert "head after" in failed(certificate, replace(evidence, head=nudged))
    assert "head before" in failed(certificate, replace(evidence, before=nudged))
    statistics = dict(evidence.statistics or {})
    statistics["0"] = replace(statistics["0"], moment=statistics["0"].moment[:, ::-1].copy())
    assert "statistics after" in failed(certificate, replace(evidence, statistics=statistics))
    moved = run.embeddings.to_numpy().copy()
    moved[retained(run)["0"][0]] += 0.5
    changed = replace(run.embeddings, embeddings=moved)
    found = failed(certificate, replace(evidence, embeddings=changed))
    assert {"statistics of client 0", "retained residual"} <= found
    fewer = {name: rows for name, rows in retained(run).items() if name != "0"}
    assert "rows of retained clients" in failed(certificate, replace(evidence, rows=fewer))


def test_a_forged_change_of_loss_is_found() -> None:
    run = make_run(ridge=0.01, server=0.05)
    unlearned = FedRemovalLine().unlearn(Removal(run.trained, FORGET))
    certificate = certify(run.trained, unlearned)
    evidence = Evidence(
        head=unlearned.trained_after.head,
        before=run.trained.head,
        statistics=unlearned.trained_after.statistics,
    )
    assert not failed(certificate, evidence)
    bounds = replace(certificate.bounds, loss_change=-1.0)
    assert "change of the retained loss" in failed(replace(certificate, bounds=bounds), evidence)


def test_signatures(made: Made) -> None:
    _, _, certificate, evidence = made
    key, other = new_private_key(), new_private_key()
    signature = sign(signed_bytes(certificate), key)
    text = certificate_text(certificate, signature=signature)
    again, found = read_certificate(text)
    signed = replace(evidence, signature=found, public_key=public_key_of(key))
    require_verified(verify(again, signed))
    assert "signature" in failed(again, replace(signed, public_key=public_key_of(other)))
    assert "signature" in failed(replace(again, method="exact"), signed)
    assert "signature" in failed(again, replace(signed, signature=None))
    raw = bytes(range(32))
    check_signature(b"content", sign(b"content", raw), bytes.fromhex(sign(b"content", raw)["key"]))
    with pytest.raises(VerificationError):
        check_signature(b"contend", sign(b"content", raw), bytes.fromhex(sign(b"content", raw)["key"]))
    with pytest.raises(InputError, match="cannot be read"):
        sign(b"content", b"not a key")
    with pytest.raises(VerificationError, match="wanted"):
        check_signature(b"content", {"algorithm": "rsa"}, bytes.fromhex(sign(b"content", raw)["key"]))


def test_infinite_bounds_become_none_in_json() -> None:
    run = make_run()
    certificate = certify(run.trained, Exact().unlearn(Removal(run.trained, FORGET)))
    infinite = replace(certificate, bounds=Bounds(weights=float("inf")))
    plain: Any = infinite.plain["bounds"]
    assert plain["weights"] is None
