"""Honest certificates are proven as far as the material goes; a changed byte, head or number is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from probekit.certificates.certificate import (
    Certificate,
    certificate_text,
    read_certificate,
    signed_bytes,
)
from probekit.certificates.certify import certify
from probekit.certificates.verdicts import FALSE, INTACT, PROVEN, VERDICTS, verdict_of
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
from tests.unlearning.conftest import Run, embedding_set, make_run

FORGET = UnlearnRequest.of(["1"])


def verdicts(certificate: Certificate, evidence: Evidence) -> dict[str, str]:
    """The worst verdict of every claim."""
    found: dict[str, str] = {}
    for one in verify(certificate, evidence):
        found[one.name] = min(found.get(one.name, PROVEN), one.verdict, key=VERDICTS.index)
    return found


def false(certificate: Certificate, evidence: Evidence) -> set[str]:
    return {name for name, verdict in verdicts(certificate, evidence).items() if verdict == FALSE}


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


NUMBERS = {"residual", "curvature", "weights", "excess-loss", "outputs", "agreement", "reference"}


def test_with_all_material_every_claim_is_proven(made: Made) -> None:
    _, _, certificate, evidence = made
    found = verdicts(certificate, evidence)
    assert set(found.values()) == {PROVEN}, found
    assert found.keys() >= {*NUMBERS, "head", "before", "retained", "statistics", "objective", "statements"}
    assert verdict_of(verify(certificate, evidence)) == PROVEN


def test_with_less_material_less_is_proven_and_nothing_false(made: Made) -> None:
    run, _, certificate, evidence = made
    sums = {"statistics", "retained"}
    for less, open_claims in (
        (replace(evidence, embeddings=None, rows=None), sums),
        (replace(evidence, statistics=None), {"statistics"}),
        (replace(evidence, statistics=None, embeddings=None, rows=None), sums | NUMBERS),
        (replace(evidence, head=None), NUMBERS | {"head", "statistics"}),
        (replace(evidence, evaluation=None), {"agreement"}),
        (replace(evidence, reference=None), {"reference"}),
        (replace(evidence, before=None), {"before"}),
        (Evidence(), NUMBERS | sums | {"head", "before"}),
    ):
        found = verify(certificate, less)
        assert {one.name for one in found if one.verdict == INTACT} == open_claims
        assert all(one.wanted for one in found if one.verdict == INTACT)
        assert verdict_of(found) == INTACT
        assert verdict_of(found, ["statements"]) == PROVEN
    asked = replace(evidence, statistics=None, embeddings=None, rows=None, clients=run.online("1"))
    assert verdicts(certificate, asked)["residual"] == PROVEN
    with pytest.raises(InputError, match="makes no claim 'weight'"):
        verdict_of(verify(certificate, evidence), ["weight"])


@pytest.mark.parametrize("method", [Exact(), FedRemovalLine(), FedRemovalPcg(3)])
@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_honest_certificates_are_proven(method: Unlearner, intercept: str, scaling: str) -> None:
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
        assert verdict_of(verify(certify(run.trained, unlearned), evidence)) == PROVEN
        bare = replace(unlearned, trained_after=replace(after, statistics=None))
        asked = certify(run.trained, bare, clients=run.online("1"))
        answered = replace(evidence, statistics=None, embeddings=None, rows=None, clients=run.online("1"))
        assert not false(asked, answered)
        assert verdicts(asked, answered)["residual"] == PROVEN
        assert not false(asked, replace(evidence, statistics=None))


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


def by_class(certificate: Certificate) -> Certificate:
    """One class's residual and rounding made smaller; all together stay as they are."""
    assert certificate.residual is not None
    zero = (0.0,) * len(certificate.residual.by_class)
    return replace(certificate, residual=replace(certificate.residual, by_class=zero, rounding_by_class=zero))


FORGERIES: dict[str, tuple[Forgery, str]] = {
    "residual": (smaller_residual, "residual"),
    "by class": (by_class, "residual"),
    "curvature": (larger_curvature, "curvature"),
    "bound": (lambda c: replace(c, bounds=replace(c.bounds, weights=1e-12)), "weights"),
    "infinite": (lambda c: replace(c, bounds=replace(c.bounds, weights=-1.0)), "weights"),
    "loss": (lambda c: replace(c, bounds=replace(c.bounds, excess_loss=1e-12)), "excess-loss"),
    "outputs": (lambda c: replace(c, bounds=replace(c.bounds, outputs=1e-12)), "outputs"),
    "who": (lambda c: replace(c, retained={**c.retained, "1": 5}), "retained"),
    "counts": (lambda c: replace(c, retained={**c.retained, "0": 5}), "retained"),
    "head": (lambda c: replace(c, after={**c.after, "head": "0" * 64}), "head"),
    "before": (lambda c: replace(c, before={**c.before, "head": "0" * 64}), "before"),
    "statistics": (lambda c: replace(c, after={**c.after, "statistics": "0" * 64}), "statistics"),
    "ridge": (lambda c: replace(c, objective={**c.objective, "ridge": 0.2}), "residual"),
    "assumptions": (lambda c: replace(c, assumptions=()), "statements"),
    "caveats": (lambda c: replace(c, caveats=c.caveats[1:]), "statements"),
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
    assert check in false(rewritten, evidence)
    assert verdict_of(verify(rewritten, evidence), ["statements"]) == FALSE


AGREEMENTS = {
    "certified": {"certified": 61},
    "plain": {"plain": 61},
    "curved": {"curved": 61},
    "median_bound": {"median_bound": 1e-12},
    "largest_bound": {"largest_bound": 1e-12},
    "rows": {"rows": 59},
    "set_digest": {"set_digest": "0" * 64},
}


@pytest.mark.parametrize("name", AGREEMENTS)
def test_each_number_of_a_forged_agreement_is_found(made: Made, name: str) -> None:
    _, _, certificate, evidence = made
    assert certificate.agreement is not None
    changed: Any = AGREEMENTS[name]
    forged = replace(certificate, agreement=replace(certificate.agreement, **changed))
    assert false(forged, evidence) == {"agreement"}


def test_a_forged_reference_is_found(made: Made) -> None:
    _, _, certificate, evidence = made
    assert certificate.reference is not None
    for changed in ({"distance": 0.0}, {"bound": 0.0}, {"head": "0" * 64}):
        forged = replace(certificate, reference=replace(certificate.reference, **changed))
        assert false(forged, evidence) == {"reference"}, changed


def test_a_claim_of_an_unknown_kind_is_not_proven(made: Made) -> None:
    _, _, certificate, evidence = made
    later = replace(certificate, unknown=({"kind": "moon", "value": 1},))
    again, _ = read_certificate(certificate_text(later))
    assert again.unknown == later.unknown
    assert verdicts(again, evidence)["moon"] == INTACT


def test_a_bias_that_nothing_fitted_is_found() -> None:
    run = make_run(design={"intercept": "none"})
    unlearned = Exact().unlearn(Removal(run.trained, FORGET))
    after = unlearned.trained_after
    evidence = Evidence(head=after.head, statistics=after.statistics)
    assert not false(certify(run.trained, unlearned), evidence)
    plain: Any = after.head
    head = replace(plain, params=np.vstack([plain.params[:-1], np.full((1, 3), 0.1)]))
    certificate = certify(run.trained, unlearned)
    forged = replace(certificate, after={**certificate.after, "head": head.digest})
    assert "head" in false(forged, replace(evidence, head=head))


def test_a_method_that_leaves_the_forgotten_in_is_not_certified(made: Made) -> None:
    """C14: the certifier does not believe a method; nor does the verifier believe the certifier."""
    run, unlearned, _, _ = made
    after = unlearned.trained_after
    with pytest.raises(InputError, match="differs in 1"):
        certify(run.trained, replace(unlearned, trained_after=replace(after, statistics=run.trained.statistics)))
    statistics = dict(after.statistics or {})
    gone = (run.trained.statistics or {})["1"]
    hidden = {**statistics, "0": statistics["0"] + gone}
    with pytest.raises(InputError, match="changed the statistics of client 0"):
        certify(run.trained, replace(unlearned, trained_after=replace(after, statistics=hidden)))


def test_a_swapped_head_statistics_and_rows_are_found(made: Made) -> None:
    run, unlearned, certificate, evidence = made
    swapped = false(certificate, replace(evidence, head=run.trained.head))
    assert {"head", "residual", "weights"} <= swapped
    after, same = unlearned.trained_after, unlearned.trained_after.head
    nudged = after.problem.head(after.params + 1e-3, ridge=same.ridge, recipe=same.recipe)
    assert "head" in false(certificate, replace(evidence, head=nudged))
    assert "before" in false(certificate, replace(evidence, before=nudged))
    statistics = dict(evidence.statistics or {})
    statistics["0"] = replace(statistics["0"], moment=statistics["0"].moment[:, ::-1].copy())
    assert "statistics" in false(certificate, replace(evidence, statistics=statistics))
    moved = run.embeddings.to_numpy().copy()
    moved[run.held("1")["0"][0]] += 0.5
    changed = replace(run.embeddings, embeddings=moved)
    assert "statistics" in false(certificate, replace(evidence, embeddings=changed))
    assert "residual" in false(certificate, replace(evidence, embeddings=changed, statistics=None))
    fewer = {name: rows for name, rows in run.held("1").items() if name != "0"}
    assert "retained" in false(certificate, replace(evidence, rows=fewer))


def test_a_forged_change_of_loss_is_found() -> None:
    run = make_run(ridge=0.01, server=0.05)
    unlearned = FedRemovalLine().unlearn(Removal(run.trained, FORGET))
    certificate = certify(run.trained, unlearned)
    evidence = Evidence(
        head=unlearned.trained_after.head,
        before=run.trained.head,
        statistics=unlearned.trained_after.statistics,
    )
    assert verdicts(certificate, evidence)["loss-change"] == PROVEN
    bounds = replace(certificate.bounds, loss_change=-1.0)
    assert "loss-change" in false(replace(certificate, bounds=bounds), evidence)


def test_signatures(made: Made) -> None:
    _, _, certificate, evidence = made
    key, other = new_private_key(), new_private_key()
    signature = sign(signed_bytes(certificate), key)
    text = certificate_text(certificate, signature=signature)
    again, found = read_certificate(text)
    signed = replace(evidence, signature=found, public_key=public_key_of(key))
    assert verdicts(again, signed)["signature"] == PROVEN
    assert verdicts(again, replace(signed, public_key=None))["signature"] == INTACT
    for unknown in (None, public_key_of(key)):
        assert "signature" in false(replace(again, method="exact"), replace(signed, public_key=unknown))
    assert "signature" in false(again, replace(signed, public_key=public_key_of(other)))
    assert "signature" in false(again, replace(signed, signature=None))
    assert "signature" not in verdicts(again, replace(signed, signature=None, public_key=None))
    raw = bytes(range(32))
    check_signature(b"content", sign(b"content", raw), bytes.fromhex(sign(b"content", raw)["key"]))
    with pytest.raises(VerificationError):
        check_signature(b"contend", sign(b"content", raw), bytes.fromhex(sign(b"content", raw)["key"]))
    with pytest.raises(InputError, match="cannot be read"):
        sign(b"content", b"not a key")
    with pytest.raises(VerificationError, match="wanted"):
        check_signature(b"content", {"algorithm": "rsa"}, bytes.fromhex(sign(b"content", raw)["key"]))
