"""Honest certificates pass with any material; a changed byte, head or number does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from probekit.certificates.certificate import (
    Certificate,
    certificate_text,
    read_certificate,
    signed_bytes,
)
from probekit.certificates.certify import certify
from probekit.certificates.verify import Evidence, verify
from probekit.custody.signatures import check_signature, new_private_key, public_key_of, sign
from probekit.errors import InputError, VerificationError
from probekit.linear.design import INTERCEPTS, SCALINGS
from probekit.unlearning.method import Unlearned, Unlearner
from probekit.unlearning.methods.exact import Exact
from probekit.unlearning.methods.line import FedRemovalLine
from probekit.unlearning.methods.pcg import FedRemovalPcg
from probekit.unlearning.methods.retrain import Retrain
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import UnlearnRequest
from tests.unlearning.conftest import Run, embedding_set, make_run, require_verified

FORGET = UnlearnRequest.of(["1"])


def failed(certificate: Certificate, evidence: Evidence) -> set[str]:
    return {check.name for check in verify(certificate, evidence) if not check.passed}


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
        rows=run.held("1"),
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
        replace(evidence, statistics=None, embeddings=None, rows=None, clients=run.online("1")),
        Evidence(),
        Evidence(statistics=evidence.statistics),
    ):
        require_verified(verify(certificate, less))
    without_head = {check.name for check in verify(certificate, Evidence(statistics=evidence.statistics))}
    assert {"who is retained", "statistics after", "statistics could be of rows"} <= without_head


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
            rows=run.held("1"),
        )
        require_verified(verify(certify(run.trained, unlearned), evidence))
        bare = replace(unlearned, trained_after=replace(after, statistics=None))
        asked = certify(run.trained, bare, clients=run.online("1"))
        require_verified(verify(asked, replace(evidence, statistics=None, embeddings=None, clients=run.online("1"))))
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
    "objective": (lambda c: replace(c, objective={}), "objective"),
    "design": (
        lambda c: replace(c, objective={name: one for name, one in c.objective.items() if name != "design"}),
        "objective",
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forgeries_with_a_right_digest_are_found(made: Made, name: str) -> None:
    _, _, certificate, evidence = made
    forge, check = FORGERIES[name]
    forged = forge(certificate)
    rewritten, _ = read_certificate(certificate_text(forged))
    assert check in failed(rewritten, evidence)


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
    after, same = unlearned.trained_after, unlearned.trained_after.head
    nudged = after.problem.head(after.params + 1e-3, ridge=same.ridge, recipe=same.recipe)
    assert "head after" in failed(certificate, replace(evidence, head=nudged))
    assert "head before" in failed(certificate, replace(evidence, before=nudged))
    statistics = dict(evidence.statistics or {})
    statistics["0"] = replace(statistics["0"], moment=statistics["0"].moment[:, ::-1].copy())
    assert "statistics after" in failed(certificate, replace(evidence, statistics=statistics))
    moved = run.embeddings.to_numpy().copy()
    moved[run.held("1")["0"][0]] += 0.5
    changed = replace(run.embeddings, embeddings=moved)
    found = failed(certificate, replace(evidence, embeddings=changed))
    assert {"statistics of client 0", "retained residual"} <= found
    fewer = {name: rows for name, rows in run.held("1").items() if name != "0"}
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
