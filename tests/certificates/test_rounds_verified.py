"""The certificate from the rounds, end to end: counted, verified by another route, and not fooled."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.certificates.certificate import Certificate, certificate_text, read_certificate
from probekit.certificates.certify import certify
from probekit.certificates.verdicts import FALSE, INTACT, PROVEN
from probekit.certificates.verify import Evidence, verify
from probekit.federated.in_process import InProcess
from probekit.federated.partition import partition
from probekit.federated.rows import design_for
from probekit.federated.training import train
from probekit.unlearning.choice import unlearn
from probekit.unlearning.method import Material, Unlearned
from probekit.unlearning.products import PRODUCTS, Products
from probekit.unlearning.request import UnlearnRequest
from probekit.values import EmbeddingSet
from tests.unlearning import small_network
from tests.unlearning.conftest import Run, embedding_set, make_run

Array = NDArray[np.float64]
GONE = "1"


@cache
def forgotten(seed: int = 0) -> tuple[Run, Unlearned, EmbeddingSet, Certificate]:
    """A run of gradients only without a client, with the certificate on rows of the same kind."""
    data: Any = {"dimension": 24, "spread": 0.1}
    run = make_run(seed=seed, keep="gradients", ridge=3e-4, server=0.4, data={"rows": 400, **data})
    done = unlearn(run.trained, UnlearnRequest((GONE,)), method="fedremoval-pcg:6", material=run.material)
    test = embedding_set(300, seed=seed, **data)
    return run, done, test, certify(run.trained, done, clients=run.online(GONE), evaluation=test)


def evidence(seed: int = 0, **more: Any) -> Evidence:
    run, done, test, _ = forgotten(seed)
    found = Evidence(done.trained_after.head, clients=run.online(GONE), evaluation=test)
    return replace(found, **{"products": Products.of(done.trained_after), **more})


def verdicts(certificate: Certificate, given: Evidence) -> dict[str, str]:
    return {one.name: one.verdict for one in verify(certificate, given)}


def test_rows_are_certified_that_the_distance_does_not_certify() -> None:
    run, done, test, made = forgotten()
    assert made.rounds is not None
    assert made.agreement is not None
    assert made.rounds.plain == made.agreement.plain <= len(test) // 7
    assert made.rounds.certified >= len(test) // 2
    truth = run.oracle(run.rows_without(GONE))
    columns = np.hstack([test.to_numpy(), np.ones((len(test), 1))])
    same = (columns @ done.trained_after.params).argmax(axis=1) == (columns @ truth).argmax(axis=1)
    assert same.sum() >= made.rounds.certified


def test_another_route_proves_the_rows_from_answers_and_from_rows() -> None:
    run, _, _, made = forgotten()
    asked = verdicts(made, evidence())
    assert (asked["products"], asked["rounds"], asked["agreement"]) == (PROVEN, PROVEN, PROVEN)
    held = verdicts(made, evidence(embeddings=run.embeddings, rows=run.held(GONE)))
    assert (held["products"], held["rounds"]) == (PROVEN, PROVEN)
    without = verdicts(made, evidence(products=None))
    assert (without["products"], without["rounds"]) == (INTACT, INTACT)
    assert verdicts(made, evidence(clients=None))["rounds"] == INTACT
    assert verdicts(made, evidence(evaluation=None))["rounds"] == INTACT


def test_the_claim_is_read_as_written_and_its_absence_changes_nothing() -> None:
    made = forgotten()[3]
    assert read_certificate(certificate_text(made))[0] == made
    kinds = [one["kind"] for one in replace(made, rounds=None).stored["claims"]]
    assert "rounds" not in kinds


def spoiled(how: str, products: Products, random: Any) -> Products:
    """False products: one, all alike, another federation's, or mere noise."""
    images, ridge = products.images.copy(), products.ridge
    place = int(random.integers(images.shape[1]))
    match how:
        case "scaled":
            images[:, place] *= 1.5
        case "all scaled":
            images = 3 * images - 2 * ridge * products.directions
        case "flipped":
            images[:, place] *= -1
        case "another's":
            other = Products.of(forgotten(1)[1].trained_after)
            assert other is not None
            return replace(other, counts=products.counts)
        case "noise":
            images[:, place] += 0.01 * random.standard_normal(len(images))
        case "slight":
            images += 1e-3 * ridge * random.standard_normal(images.shape)
        case "sum of squares":  # larger than the truth, and yet a possible curvature
            matrix = random.standard_normal((len(images), len(images)))
            images = images + matrix @ (matrix.T @ products.directions) * 0.01
    return replace(products, images=images)


SPOILED = ("scaled", "all scaled", "flipped", "another's", "noise", "slight", "sum of squares")


@pytest.mark.parametrize("how", SPOILED)
def test_false_products_certify_nothing(how: str) -> None:
    run, done, test, _ = forgotten()
    products = Products.of(done.trained_after)
    assert products is not None
    false = spoiled(how, products, np.random.default_rng(0))
    after = replace(done.trained_after, kept={PRODUCTS: false.kept})
    made = certify(run.trained, replace(done, trained_after=after), clients=run.online(GONE), evaluation=test)
    assert made.rounds is None
    assert "from the rounds" in made.warnings[-1]


@pytest.mark.parametrize("how", SPOILED)
def test_who_owns_every_file_cannot_pass_false_products_off(how: str) -> None:
    """The certificate is made to fit them: digest, error and count are the forger's own."""
    run, done, test, made = forgotten()
    products = Products.of(done.trained_after)
    assert products is not None
    assert made.rounds is not None
    false = spoiled(how, products, np.random.default_rng(0))
    forged = replace(made, rounds=replace(made.rounds, products=false.digest, certified=len(test)))
    found = verdicts(forged, evidence(products=false))
    assert found["products"] == FALSE
    boasting = replace(forged, rounds=replace(made.rounds, products=false.digest, certified=len(test), error=1e6))
    assert verdicts(boasting, evidence(products=false))["rounds"] == INTACT
    held = evidence(products=false, embeddings=run.embeddings, rows=run.held(GONE))
    assert verdicts(boasting, held)["rounds"] == FALSE


def test_products_in_another_shape_prove_nothing() -> None:
    made, products = forgotten()[3], evidence().products
    assert products is not None
    assert made.rounds is not None
    for false in (
        replace(products, directions=products.directions[:5], images=products.images[:5]),
        replace(products, images=products.images * np.inf),
        replace(products, directions=products.directions[:, :1] * np.ones((1, products.images.shape[1]))),
    ):
        forged = replace(made, rounds=replace(made.rounds, products=false.digest))
        assert verdicts(forged, evidence(products=false))["rounds"] != PROVEN
    assert verdicts(made, evidence(products=replace(products, images=products.images + 1e-16)))["products"] == FALSE


def test_other_rows_are_not_those_that_were_counted() -> None:
    assert verdicts(forgotten()[3], evidence(evaluation=embedding_set(300, 24, seed=7)))["rounds"] == FALSE


def test_products_know_the_retained_and_go_with_them() -> None:
    run, done, _, _ = forgotten()
    kept = done.trained_after.kept[PRODUCTS]
    assert kept.about == set(run.partition.clients) - {GONE}
    assert PRODUCTS not in done.trained_after.without(["2"]).kept
    again = unlearn(done.trained_after, UnlearnRequest(("2",)), method="fedremoval-line", material=run.material)
    assert PRODUCTS not in again.trained_after.kept
    fewer = unlearn(
        run.trained, UnlearnRequest((GONE,)), method="fedremoval-pcg:6,keep_products=false", material=run.material
    )
    assert not fewer.trained_after.kept
    np.testing.assert_allclose(fewer.trained_after.params, done.trained_after.params, rtol=1e-8, atol=1e-10)
    summed = make_run(ridge=3e-4)
    told = unlearn(summed.trained, UnlearnRequest((GONE,)), method="fedremoval-pcg:2", material=summed.material)
    assert not told.trained_after.kept  # statistics say more


def test_a_network_is_certified_and_verified_from_its_rounds() -> None:
    trained, material = small_network.whole()
    test = small_network.embedded(seed=1, spoiled=False)
    held = {name: rows for name, rows in small_network.PARTITION.clients.items() if name != "a"}
    assert material.embeddings is not None
    clients = InProcess.of(trained.problem, material.embeddings, held)
    certified = []
    for method in ("fedremoval-pcg:8", "fedremoval-pcg:rounds=8,extra=6"):
        done = unlearn(trained, small_network.GONE, method=method, material=material)
        made = certify(trained, done, clients=clients, evaluation=test)
        assert made.rounds is not None
        assert made.rounds.certified >= made.rounds.plain
        certified.append(made.rounds.certified)
        given = Evidence(
            done.trained_after.head, evaluation=test, clients=clients, products=Products.of(done.trained_after)
        )
        found = verdicts(made, given)
        assert (found["products"], found["rounds"], found["agreement"]) == (PROVEN, PROVEN, PROVEN)
        head = small_network.network_of(done.trained_after)
        rows = np.concatenate([*held.values()])
        least = small_network.minimum(head, material.embeddings, rows)
        scores = [trained.problem.scores(replace(head, params=one), test.embeddings) for one in (head.params, least)]
        assert (scores[0].argmax(axis=1) == scores[1].argmax(axis=1)).sum() >= made.rounds.certified
    assert certified[1] >= certified[0] >= 60


def test_a_head_of_1281_parameters_per_class_is_certified_after_ten_rounds() -> None:
    """Rows like a backbone's: of length 1, not around zero, with a spectrum that falls off."""
    random = np.random.default_rng(0)
    labels = random.permutation(np.arange(1400 + 300) % 10)
    scales = np.arange(1, 1281) ** -0.3
    rows = (random.standard_normal((10, 1280))[labels] * 0.5 + random.standard_normal((1700, 1280))) * scales + 0.1
    whole = replace(embedding_set(1700, 1280, 10), embeddings=rows.astype(np.float32), labels=labels)
    data, test = whole.select(np.arange(1400)), whole.select(np.arange(1400, 1700))
    divided = partition(data.labels, "iid", clients=5, server_share=0.1, seed=0)
    trained = train(data, divided, ridge=1.5e-4, design=design_for(data, view="l2"), keep="gradients")
    done = unlearn(trained, UnlearnRequest((GONE,)), method="fedremoval-pcg:10", material=Material(data, divided))
    held = {name: own for name, own in divided.clients.items() if name != GONE}
    clients = InProcess.of(trained.problem, data, held)
    made = certify(trained, done, clients=clients, evaluation=test)
    assert made.rounds is not None
    assert made.rounds.plain < len(test) / 7
    assert made.rounds.certified >= len(test) / 2
    found = verdicts(
        made,
        Evidence(done.trained_after.head, clients=clients, evaluation=test, products=Products.of(done.trained_after)),
    )
    assert (found["products"], found["rounds"]) == (PROVEN, PROVEN)
