"""Runs with a secret linear term in their objective: what is trained, forgotten, certified, and refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.certificates.certificate import Certificate, certificate_text, read_certificate
from probekit.certificates.certify import certify
from probekit.certificates.privacy import OBJECTIVE_CAVEATS, guarantee
from probekit.certificates.verdicts import FALSE, INTACT, PROVEN, verdict_of
from probekit.certificates.verify import Evidence, verify
from probekit.errors import InputError
from probekit.federated.methods.closed_form import ClosedForm
from probekit.federated.methods.fedavg import FedAvg
from probekit.federated.trained import Trained
from probekit.unlearning.choice import can_unlearn, unlearn
from probekit.unlearning.influence import influences
from probekit.unlearning.method import Material
from probekit.unlearning.request import Relabelled, SampleRef, UnlearnRequest
from tests.oracles import columns, one_hot
from tests.unlearning.conftest import Run, make_run

SIGMA = 3.0
FORGET = UnlearnRequest.of(["2"])

Array = NDArray[np.float64]


def perturbed_run(**options: Any) -> Run:
    """A run with a linear term, in closed form."""
    return make_run(objective_noise=SIGMA, **options)


def minimum(run: Run, rows: NDArray[np.int64], labels: NDArray[np.int64] | None = None) -> Array:
    """The minimum of the perturbed objective over these rows, from the explicit matrix."""
    trained = run.trained
    assert trained.objective is not None
    given = run.embeddings.labels if labels is None else labels
    X = columns(
        run.embeddings.to_numpy()[rows], intercept=trained.problem.design.intercept, view=trained.problem.design.view
    )
    Y = one_hot(given[rows], trained.problem.design.classes)
    penalty = trained.ridge * (len(rows) if trained.scaling == "mean" else 1)
    return np.asarray(np.linalg.solve(X.T @ X + penalty * np.eye(X.shape[1]), X.T @ Y - trained.objective))


@pytest.mark.parametrize("intercept", ["penalised", "none"])
@pytest.mark.parametrize("scaling", ["mean", "sum"])
def test_training_adds_the_term_and_forgetting_keeps_it(intercept: str, scaling: str) -> None:
    run = perturbed_run(design={"intercept": intercept}, scaling=scaling, ridge=0.1 if scaling == "mean" else 20.0)
    held = np.concatenate([*run.partition.clients.values()])
    np.testing.assert_allclose(run.trained.params, minimum(run, held), rtol=0, atol=1e-10)
    assert np.linalg.norm(run.trained.params - run.oracle(held)) > 1e-2
    assert run.trained.head.recipe["objective_sigma"] == SIGMA
    for method in ("exact", "retrain", "auto"):
        after = unlearn(run.trained, FORGET, method=method, material=run.material).trained_after
        np.testing.assert_allclose(after.params, minimum(run, run.rows_without("2")), rtol=0, atol=1e-10)
        assert after.objective is run.trained.objective
        assert after.head.recipe["objective_sigma"] == SIGMA


def test_the_term_is_drawn_anew_each_time_and_of_that_size() -> None:
    one, other = (perturbed_run(data={"dimension": 60, "classes": 9}).trained.objective for _ in range(2))
    assert one is not None
    assert other is not None
    assert one.std() == pytest.approx(SIGMA, rel=0.15)
    assert not (one == other).any()  # close numbers may come up by chance, equal ones do not


def test_samples_labels_and_clients_taken_back_in() -> None:
    run = perturbed_run()
    ids, labels = run.embeddings.ids, run.embeddings.labels.copy()
    gone, wrong = (int(row) for row in run.partition.clients["1"][:2])
    labels[wrong] = (labels[wrong] + 1) % 3
    request = UnlearnRequest(("2",), (SampleRef(ids[gone]),), (Relabelled(ids[wrong], int(labels[wrong])),))
    after = unlearn(run.trained, request, material=run.material)
    assert after.method == "exact"
    rows = run.rows_without("2")
    np.testing.assert_allclose(after.trained_after.params, minimum(run, rows[rows != gone], labels), rtol=0, atol=1e-10)
    forgotten = unlearn(run.trained, FORGET).trained_after
    back = unlearn(forgotten, UnlearnRequest(added=("2",)), material=run.material).trained_after
    np.testing.assert_allclose(back.params, run.trained.params, rtol=0, atol=1e-10)


def test_in_exact_arithmetic_forgetting_and_retraining_give_the_same_bits() -> None:
    run = perturbed_run(design={"view": "l2", "arithmetic": "exact"})
    exact, anew = (unlearn(run.trained, FORGET, method=name, material=run.material) for name in ("exact", "retrain"))
    assert exact.trained_after.head.digest == anew.trained_after.head.digest


@pytest.mark.parametrize("method", ["fedremoval", "fedremoval:cg", "fedremoval-line", "fedremoval-pcg:3"])
@pytest.mark.parametrize("keep", ["statistics", "nothing"])
def test_methods_that_do_not_know_the_term_are_refused(method: str, keep: str) -> None:
    run = perturbed_run(keep=keep)
    with pytest.raises(InputError, match="Use exact"):
        unlearn(run.trained, FORGET, method=method, material=run.material)
    assert "secret linear term" in can_unlearn(run.trained)["fedremoval"]
    online = Material(clients=run.online("2"))
    if keep == "nothing":
        with pytest.raises(InputError, match="secret linear term"):
            unlearn(run.trained, FORGET, material=online)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": FedAvg(rounds=2)}, "closed form"),
        ({"ridge": 0.0}, "ridge above 0"),
        ({"design": {"intercept": "free"}}, "free intercept"),
        ({"design": {"arithmetic": "fast"}}, "arithmetic fast"),
        ({"method": ClosedForm(standardise="centre")}, r"columns changed \(centre\)"),
        ({"method": ClosedForm(class_weight="balanced"), "design": {"per_class": True}}, "class weights"),
        ({"method": ClosedForm(normalise_classes=True)}, "normalised classes"),
        ({"keep": "gradients"}, "kept gradients"),
        ({"objective_noise": 0.0}, "sigma above 0"),
        ({"objective_noise": float("nan")}, "sigma above 0"),
    ],
)
def test_what_a_term_cannot_hide_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_run(**{"objective_noise": SIGMA, **options})


@dataclass(frozen=True)
class OwnMinimum(ClosedForm):
    """Somebody's own way to the same minimum."""

    name: ClassVar[str] = "own"


@dataclass(frozen=True)
class Namesake(ClosedForm):
    """Has the name, and does not say that it minimises the term too."""

    traits: ClassVar[frozenset[str]] = frozenset()


def test_what_a_method_declares_counts_and_not_its_name() -> None:
    assert make_run(objective_noise=SIGMA, method=OwnMinimum()).trained.objective is not None
    with pytest.raises(InputError, match="minimises the linear term too"):
        make_run(objective_noise=SIGMA, method=Namesake())


def test_influences_are_those_of_the_perturbed_objective() -> None:
    run = perturbed_run()
    for one in influences(run.trained):
        rest = minimum(run, run.rows_without(one.client))
        assert one.distance == pytest.approx(float(np.linalg.norm(rest - run.trained.params)), rel=1e-6)
        assert one.bound is not None
        assert one.distance is not None
        assert one.distance <= one.bound


def certified(run: Run, **options: Any) -> tuple[Trained, Certificate]:
    """A client forgotten exactly, with its certificate and budget."""
    after = unlearn(run.trained, FORGET, material=run.material, **options)
    found = certify(run.trained, after, clients=None if run.trained.statistics else run.online("2"))
    return after.trained_after, replace(found, privacy=guarantee(found).plain)


def evidence(run: Run, after: Trained) -> Evidence:
    """All that a verifier could have, the term included."""
    return Evidence(
        after.head,
        run.trained.head,
        statistics=after.statistics,
        embeddings=run.embeddings,
        rows={name: run.partition.clients[name] for name in after.counts},
        objective=after.objective,
        objective_before=run.trained.objective,
    )


@pytest.mark.parametrize("scaling", ["mean", "sum"])
def test_the_certificate_is_of_the_perturbed_objective(scaling: str) -> None:
    run = perturbed_run(scaling=scaling, ridge=0.1 if scaling == "mean" else 20.0)
    after, found = certified(run)
    assert found.residual is not None
    assert found.residual.norm < 1e-12
    assert found.bounds.weights is not None
    gap = float(np.linalg.norm(after.params - minimum(run, run.rows_without("2"))))
    assert gap <= found.bounds.weights < 1e-8
    said: Any = found.privacy
    assert said["bound"] == pytest.approx(after.rows * found.residual.bound)
    rows = run.rows_without("2")
    X, Y = columns(run.embeddings.to_numpy()[rows]), one_hot(run.embeddings.labels[rows], 3)
    penalty = after.ridge * (len(rows) if scaling == "mean" else 1)
    assert run.trained.objective is not None
    left = X.T @ (X @ after.params - Y) + penalty * after.params + run.trained.objective
    assert np.linalg.norm(left) <= said["bound"] < 1e-8
    assert said["mechanism"] == "objective perturbation"
    assert said["caveats"] == OBJECTIVE_CAVEATS
    assert any("Without that term" in one for one in found.assumptions)
    assert found.objective["objective_sigma"] == SIGMA
    assert verdict_of(verify(read_certificate(certificate_text(found))[0], evidence(run, after))) == PROVEN


def test_a_head_that_was_not_solved_again_has_a_residual_and_is_refused() -> None:
    run = perturbed_run()
    after = unlearn(run.trained, FORGET)
    kept = replace(after, trained_after=replace(after.trained_after, head=run.trained.head))
    found = certify(run.trained, kept)
    rows = run.rows_without("2")
    assert run.trained.objective is not None
    X, Y = columns(run.embeddings.to_numpy()[rows]), one_hot(run.embeddings.labels[rows], 3)
    left = X.T @ (X @ run.trained.params - Y) + 0.1 * len(rows) * run.trained.params + run.trained.objective
    assert found.residual is not None
    assert found.residual.norm * len(rows) == pytest.approx(float(np.linalg.norm(left)), rel=1e-9)
    with pytest.raises(InputError, match="hides a residual of at most"):
        guarantee(found)


def test_a_run_that_kept_nothing_is_certified_by_a_gradient_round() -> None:
    run = perturbed_run(keep="nothing")
    after, found = certified(run, method="retrain")
    assert "gradient round" in found.checkable_by
    assert found.residual is not None
    assert found.residual.norm < 1e-12
    assert verdict_of(verify(found, evidence(run, after))) == PROVEN


def moved(term: Array | None) -> Array:
    assert term is not None
    other = term.copy()
    other[0, 0] += 1e-6
    return other


def forged(**changes: Any) -> Callable[[Certificate], Certificate]:
    return lambda c: replace(c, privacy={**(c.privacy or {}), **changes})


FORGERIES: dict[str, tuple[Callable[[Certificate], Certificate], str]] = {
    "sigma of the budget": (forged(sigma=30.0, largest_bound=6.1463), "privacy"),
    "sigma everywhere": (
        lambda c: replace(forged(sigma=30.0)(c), objective={**c.objective, "objective_sigma": 30.0}),
        "linear-term",
    ),
    "no sigma": (
        lambda c: replace(c, objective={k: v for k, v in c.objective.items() if k != "objective_sigma"}),
        "privacy",
    ),
    "epsilon": (forged(epsilon=1e-3), "privacy"),
    "epsilon above 1": (forged(epsilon=3.0), "privacy"),
    "delta": (forged(delta=1e-12), "privacy"),
    "largest": (forged(largest_bound=9.0), "privacy"),
    "bound": (forged(bound=1e-30), "privacy"),
    "mechanism": (forged(mechanism="output perturbation"), "privacy"),
    "caveats": (forged(caveats=OBJECTIVE_CAVEATS[1:]), "privacy"),
    "not a budget": (lambda c: replace(c, privacy={"mechanism": "objective perturbation"}), "privacy"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_budgets_fail(name: str) -> None:
    run = perturbed_run()
    after, found = certified(run)
    forge, check = FORGERIES[name]
    findings = verify(forge(found), evidence(run, after))
    assert check in {one.name for one in findings if one.verdict == FALSE}, findings


def test_another_term_fails() -> None:
    run = perturbed_run()
    after, found = certified(run)
    whole = evidence(run, after)
    assert after.objective is not None
    for changed, check in (
        (replace(whole, objective=moved(after.objective), objective_before=None), "residual"),
        (replace(whole, objective_before=moved(after.objective)), "linear-term"),
        (replace(whole, objective=100 * after.objective), "linear-term"),
        (replace(whole, objective=after.objective[:-1]), "linear-term"),
        (replace(whole, head=_without_sigma(after.head)), "linear-term"),
    ):
        assert check in {one.name for one in verify(found, changed) if one.verdict == FALSE}


def _without_sigma(head: Any) -> Any:
    return replace(head, recipe={name: one for name, one in head.recipe.items() if name != "objective_sigma"})


def test_without_the_term_all_but_the_residual_is_checked() -> None:
    run = perturbed_run()
    after, found = certified(run)
    blind = replace(evidence(run, after), objective=None, objective_before=None)
    verdicts = {one.name: one.verdict for one in verify(found, blind)}
    assert {verdicts[name] for name in ("curvature", "head", "privacy")} == {PROVEN}
    assert verdicts["residual"] == INTACT
    assert found.curvature is not None
    steep = replace(found, curvature=replace(found.curvature, value=found.curvature.value * 2))
    assert "curvature" in {one.name for one in verify(steep, blind) if one.verdict == FALSE}


def test_a_run_without_a_term_has_no_such_guarantee() -> None:
    run = make_run()
    with pytest.raises(InputError, match="no linear term"):
        guarantee(certify(run.trained, unlearn(run.trained, FORGET)))
