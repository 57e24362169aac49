"""Certificates of random problems against rational arithmetic, and what the verifier says of them and of mutants.

The truth is computed in fractions and shares nothing with `probekit.certificates`.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.certificates import bounds
from probekit.certificates.certificate import Certificate, certificate_text, read_certificate
from probekit.certificates.certify import certify
from probekit.certificates.verdicts import FALSE, PROVEN
from probekit.certificates.verify import Evidence, verify
from probekit.errors import ProbekitError
from probekit.federated.methods.closed_form import ClosedForm
from probekit.federated.partition import partition
from probekit.federated.rows import design_for
from probekit.federated.training import train
from probekit.unlearning.choice import unlearn
from probekit.unlearning.method import Material
from probekit.unlearning.request import UnlearnRequest
from probekit.values import EmbeddingSet, EncodingSpec

Matrix = list[list[Fraction]]
SPEC = EncodingSpec("test", "0" * 64, {}, "proj", dtype="float64")
SCALES = (-150, -80, -20, -3, 0, 0, 0, 0, 3, 20, 80, 150)


def some_ids(count: int) -> list[str]:
    return [hashlib.sha256(str(row).encode()).hexdigest() for row in range(count)]


@dataclass(frozen=True)
class Case:
    """A random problem after a removal: its certificate, the evidence, and what makes up the truth."""

    certificate: Certificate
    evidence: Evidence
    rows: NDArray[np.float64]
    labels: NDArray[np.int64]
    classes: int
    intercept: str
    view: str
    balanced: bool
    ridge: float
    ordinary: bool


def made(seed: int) -> Case | None:
    """The problem of a seed; None where training or unlearning refuses it."""
    random = np.random.default_rng(seed)
    n, d, k = (int(random.integers(*pair)) for pair in ((8, 30), (1, 5), (2, 4)))
    power = int(random.choice(SCALES))
    rows = (random.normal(size=(n, d)) + random.normal(size=d) * random.choice([0, 1, 30])) * 10.0**power
    rows = rows * np.geomspace(1, 10.0 ** random.uniform(-4, 0), d)
    if random.random() < 0.15:
        rows[:, 0] = rows[:, -1]
    if random.random() < 0.15:
        rows[n // 2 :] = rows[: n - n // 2]
    if random.random() < 0.1 and abs(power) < 40:
        rows = rows * 10.0 ** random.uniform(-100, 100, (n, 1))
        power = 99
    labels = random.integers(0, k, n)
    intercept, view = (
        str(random.choice(x)) for x in (["penalised", "free", "none"], ["none"] * 2 + ["centre", "standardise"])
    )
    balanced = bool(random.random() < 0.3)
    plain = view == "none" and not balanced
    method = str(
        random.choice(["exact", "retrain", *(["fedremoval", "fedremoval-line", "fedremoval-pcg:2"] if plain else [])])
    )
    ridge = float(10.0 ** random.uniform(-8, 0) * (1 if view == "standardise" or power == 99 else 10.0 ** (2 * power)))
    ids = [hashlib.sha256(f"{seed} {row}".encode()).hexdigest() for row in range(n)]
    whole = EmbeddingSet(SPEC, rows, labels, ids, class_names=tuple("abc"[:k]))
    divided = partition(labels, "iid", clients=3, server_share=0.2, seed=seed)
    gone = str(random.integers(0, 3))
    try:
        design = design_for(whole, intercept=intercept, per_class=balanced)
        how = ClosedForm(standardise=view, class_weight="balanced" if balanced else None)
        with np.errstate(all="ignore"):
            trained = train(whole, divided, design=design, ridge=ridge, method=how)
            done = unlearn(trained, UnlearnRequest.of([gone]), method=method, material=Material(whole, divided))
    except ProbekitError:
        return None
    seen = whole.select(np.arange(min(n, 6)))
    found, _ = read_certificate(certificate_text(certify(trained, done, evaluation=seen)))
    held = {name: own for name, own in divided.clients.items() if name != gone}
    after = done.trained_after
    evidence = Evidence(after.head, trained.head, after.statistics, whole, held, evaluation=seen)
    kept = np.concatenate([*held.values()])
    return Case(
        found, evidence, rows[kept], labels[kept], k, intercept, view, balanced, ridge, ordinary=abs(power) <= 3
    )


def solved(matrix: Matrix, right: Matrix) -> Matrix | None:
    """Gauss and Jordan; None where there is no one solution."""
    rows = [[*a, *b] for a, b in zip(matrix, right, strict=True)]
    for i in range(len(rows)):
        pivot = next((r for r in range(i, len(rows)) if rows[r][i]), None)
        if pivot is None:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for j in range(len(rows)):
            if j != i and rows[j][i]:
                rows[j] = [a - rows[j][i] * b for a, b in zip(rows[j], rows[i], strict=True)]
    return [row[len(rows) :] for row in rows]


@dataclass(frozen=True)
class Truth:
    """The minimum, the head's distance to it and gradient there, and what is taken off rows without a bias."""

    minimum: Matrix
    away: Matrix
    gradient: Matrix
    centre: list[Fraction]


def truth_of(case: Case) -> Truth | None:
    """In fractions; None where there is no single minimum, or rounding decides what the minimum is."""
    rows = [[Fraction(x) for x in row] for row in case.rows.tolist()]
    n, d, k = len(rows), len(rows[0]), case.classes
    counts = np.bincount(case.labels, minlength=k).tolist()
    present = sum(count > 0 for count in counts)
    weights = [Fraction(n, present * c) if case.balanced and c else Fraction(1) for c in counts]
    mean = [sum((row[j] for row in rows), Fraction(0)) / n for j in range(d)]
    squares = [sum((row[j] ** 2 for row in rows), Fraction(0)) / n for j in range(d)]
    variance = [square - m**2 for square, m in zip(squares, mean, strict=True)]
    if case.view == "standardise" and any(v <= square / 10**9 for v, square in zip(variance, squares, strict=True)):
        return None
    centre = [Fraction(0)] * d if case.view == "none" else mean
    pulls = variance if case.view == "standardise" else [Fraction(1)] * d
    seen = [[*row, Fraction(1)] for row in rows]
    if case.intercept == "none":
        seen = [[a - b for a, b in zip(row, centre, strict=True)] for row in rows]
    each = [weights[label] for label in case.labels.tolist()]
    total, size, ridge = sum(each, Fraction(0)), len(seen[0]), Fraction(case.ridge)

    def mean_of(values: list[Fraction]) -> Fraction:
        return sum((w * v for w, v in zip(each, values, strict=True)), Fraction(0)) / total

    matrix = [[mean_of([row[a] * row[b] for row in seen]) for b in range(size)] for a in range(size)]
    for j in range(d):
        matrix[j][j] += ridge * pulls[j]
    if case.intercept == "penalised":
        last = [*centre, Fraction(1)]
        matrix = [[matrix[a][b] + ridge * last[a] * last[b] for b in range(size)] for a in range(size)]
    right = [
        [
            mean_of([row[a] * (label == q) for row, label in zip(seen, case.labels.tolist(), strict=True)])
            for q in range(k)
        ]
        for a in range(size)
    ]
    minimum = solved(matrix, right)
    if minimum is None:
        return None
    assert case.evidence.head is not None
    head = [[Fraction(x) for x in row] for row in case.evidence.head.params[:size].tolist()]
    away = [[head[a][q] - minimum[a][q] for q in range(k)] for a in range(size)]
    gradient = [
        [sum((matrix[a][j] * head[j][q] for j in range(size)), Fraction(0)) - right[a][q] for q in range(k)]
        for a in range(size)
    ]
    return Truth(minimum, away, gradient, centre)


def violated(case: Case, truth: Truth) -> list[str]:
    """The claims of a certificate that are not so."""
    said, found = case.certificate.bounds, []
    pairs = [
        (a, b) for left, right in zip(truth.away, truth.gradient, strict=True) for a, b in zip(left, right, strict=True)
    ]
    if said.weights is not None and sum(a * a for a, _ in pairs) > Fraction(said.weights) ** 2:
        found.append("weights")
    if said.excess_loss is not None and sum(a * b for a, b in pairs) / 2 > Fraction(said.excess_loss):
        found.append("excess_loss")
    d = case.rows.shape[1]
    for q in range(case.classes):
        squares = sum(truth.away[j][q] ** 2 for j in range(d))
        bias = (
            truth.away[d][q] if case.intercept != "none" else sum(truth.centre[j] * truth.away[j][q] for j in range(d))
        )
        left = Fraction(said.outputs or 0) - max(bias, -bias)
        if said.outputs is not None and (left < 0 or squares > left**2):
            found.append("outputs")
    agreement, head, seen = case.certificate.agreement, case.evidence.head, case.evidence.evaluation
    if agreement is not None and head is not None and seen is not None:
        same = 0
        for row in seen.to_numpy().tolist():
            x = [Fraction(v) for v in row]
            x = [*x, Fraction(1)] if case.intercept != "none" else [a - b for a, b in zip(x, truth.centre, strict=True)]
            sides = (head.params[: len(x)].tolist(), truth.minimum)
            tops = [
                max(range(case.classes), key=lambda q: sum(v * Fraction(side[j][q]) for j, v in enumerate(x)))
                for side in sides
            ]
            same += tops[0] == tops[1]
        if agreement.certified > same:
            found.append("agreement")
    return found


def judged(seeds: range) -> tuple[int, Counter[tuple[str, str]]]:
    """How many problems were certified, and the verdicts on those of ordinary size; asserts what must never be."""
    verdicts: Counter[tuple[str, str]] = Counter()
    bounded = 0
    for seed in seeds:
        case = made(seed)
        if case is None:
            continue
        for evidence in (replace(case.evidence, embeddings=None, rows=None), case.evidence):
            found = verify(case.certificate, evidence)
            assert [one for one in found if one.verdict == FALSE] == [], seed
            if case.ordinary:
                verdicts.update((one.name, one.verdict) for one in found)
        truth = truth_of(case)
        if truth is not None:
            assert violated(case, truth) == [], seed
            bounded += case.certificate.bounds.weights is not None
    return bounded, verdicts


def enough(bounded: int, verdicts: Counter[tuple[str, str]], problems: int) -> None:
    assert bounded > problems // 3
    for name in ("weights", "outputs", "residual", "curvature", "excess-loss", "agreement"):
        proven = verdicts[name, PROVEN]
        assert proven >= 0.97 * sum(count for (claim, _), count in verdicts.items() if claim == name), name


def test_no_claim_is_violated_and_no_honest_certificate_called_false() -> None:
    """C4, C11: outputs with and without a bias, at scales from 1e-150 to 1e150."""
    enough(*judged(range(120)), 120)


@pytest.mark.slow
def test_nor_in_five_hundred_more() -> None:
    enough(*judged(range(1000, 1500)), 500)


Mutant = Callable[[Any], Any]

MUTANTS: dict[str, tuple[str, Mutant]] = {
    "half the weights' bound": (
        "weights",
        lambda c: replace(c, bounds=replace(c.bounds, weights=c.bounds.weights / 2)),
    ),
    "half the outputs'": ("outputs", lambda c: replace(c, bounds=replace(c.bounds, outputs=c.bounds.outputs / 2))),
    "no bias in the outputs": (
        "outputs",
        lambda c: replace(c, bounds=replace(c.bounds, outputs=c.bounds.outputs / math.sqrt(2))),
    ),
    "half the excess": (
        "excess-loss",
        lambda c: replace(c, bounds=replace(c.bounds, excess_loss=c.bounds.excess_loss / 2)),
    ),
    "twice the curvature": (
        "curvature",
        lambda c: replace(c, curvature=replace(c.curvature, value=c.curvature.value * 2)),
    ),
    "half the residual": ("residual", lambda c: replace(c, residual=replace(c.residual, norm=c.residual.norm / 2))),
    "half of a class's": (
        "residual",
        lambda c: replace(c, residual=replace(c.residual, by_class=tuple(x / 2 for x in c.residual.by_class))),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_of_the_certifier_are_called_false(name: str) -> None:
    """C4: where a bound is tight, a certifier that halves it, or drops a factor, is caught."""
    claim, mutant = MUTANTS[name]
    random = np.random.default_rng(3)
    # one column and a ridge that outweighs the rows: the curvature is about the same in all directions
    rows, labels = random.normal(size=(60, 1)) * 0.01, np.arange(60) % 2
    whole = EmbeddingSet(SPEC, rows, labels, some_ids(60), class_names=("a", "b"))
    divided = partition(labels, "iid", clients=3, server_share=0.2, seed=1)
    trained = train(whole, divided, ridge=1e4, method=ClosedForm())
    done = unlearn(trained, UnlearnRequest.of(["1"]), method="exact")
    moved = done.trained_after.params + np.array([[1.0, 0.0], [1.0, 0.0]]) * 1e-3
    off = replace(
        done, trained_after=replace(done.trained_after, head=trained.problem.head(moved, ridge=1e4, recipe={}))
    )
    honest = certify(trained, off)
    evidence = Evidence(off.trained_after.head, statistics=off.trained_after.statistics)
    assert {one.name: one.verdict for one in verify(honest, evidence)}[claim] == PROVEN
    assert {one.name: one.verdict for one in verify(mutant(honest), evidence)}[claim] == FALSE


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("intercept", ["penalised", "free", "none"])
def test_the_worst_row_of_norm_1_stays_within_the_outputs_bound(intercept: str, centred: bool) -> None:
    """C4: a row of norm 1 is longer to the parameters than itself: by the bias, or by what centring takes off."""
    random = np.random.default_rng(5)
    # as for the mutants, so that the bound has no room for a factor left out
    rows, labels = random.normal(size=(60, 1)) * 0.01 + 4 * centred, np.arange(60) % 2
    whole = EmbeddingSet(SPEC, rows, labels, some_ids(60), class_names=("a", "b"))
    divided = partition(labels, "iid", clients=3, server_share=0.2, seed=1)
    how = ClosedForm(standardise="centre" if centred else "none")
    design = design_for(whole, intercept=intercept)
    trained = train(whole, divided, ridge=1e4, method=how, design=design)
    done = unlearn(trained, UnlearnRequest.of(["1"]), method="exact")
    minimum = done.trained_after.head.params
    off = trained.problem.params(done.trained_after.head) + np.array([1e-3, 0.0])
    head = trained.problem.head(off, ridge=1e4, recipe=done.trained_after.head.recipe)
    if centred and intercept == "none":  # its bias is what centring makes of its weights
        kept = np.concatenate([own for name, own in divided.clients.items() if name != "1"])
        head = replace(head, params=np.vstack([head.params[:-1], -rows[kept].mean(0) @ head.params[:-1]]))
    moved = replace(done, trained_after=replace(done.trained_after, head=head))
    bound = certify(trained, moved).bounds.outputs
    assert bound is not None
    away = head.params - minimum  # the worst row lies along the weights, on the side of the bias
    worst = np.linalg.norm(away[:-1], axis=0) + np.abs(away[-1])
    assert worst.max() <= bound


@pytest.mark.parametrize("scale", [1e-155, 1e-140, 1e-78, 1e78, 1e140, "mixed"])
@pytest.mark.parametrize("intercept", ["penalised", "none"])
def test_rows_of_any_scale_are_bounded_or_told_not_to_be(intercept: str, scale: float | str) -> None:
    """C11: no bound of 0 for a head that is off, no division by zero, no overflow, and no false alarm."""
    random = np.random.default_rng(2)
    factors = 10.0 ** random.uniform(-100, 100, (60, 1)) if isinstance(scale, str) else np.full((60, 1), scale)
    rows, labels = random.normal(size=(60, 3)) * factors, np.arange(60) % 2
    whole = EmbeddingSet(SPEC, rows, labels, some_ids(60), class_names=("a", "b"))
    divided = partition(labels, "iid", clients=3, server_share=0.2, seed=1)
    size = float(np.abs(rows).max())
    ridge = float(np.clip(0.1 * size**2 if size < 1e150 else 1e300, 1e-300, 1e300))
    try:
        with np.errstate(all="ignore"):
            trained = train(whole, divided, ridge=ridge, design=design_for(whole, intercept=intercept))
            done = unlearn(trained, UnlearnRequest.of(["1"]), method="fedremoval-line")
    except ProbekitError as error:
        assert str(error).endswith(".")  # noqa: PT017
        return
    with np.errstate(all="ignore"):
        honest, _ = read_certificate(certificate_text(certify(trained, done)))
    after = done.trained_after
    held = {name: own for name, own in divided.clients.items() if name != "1"}
    for evidence in (
        Evidence(after.head, trained.head, after.statistics),
        Evidence(after.head, trained.head, after.statistics, whole, held),
    ):
        assert [one for one in verify(honest, evidence) if one.verdict == FALSE] == []
    assert honest.bounds.weights is None or honest.bounds.weights > 0


def test_a_certifier_that_leaves_rounding_out_is_called_false(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many heads at their minimum, some have a larger gradient than float64 alone sees."""
    monkeypatch.setattr(bounds, "gamma", lambda *_: 0.0)
    false = 0
    for seed in range(40):
        case = made(seed)
        if case is not None and case.ordinary:
            found = verify(case.certificate, replace(case.evidence, embeddings=None, rows=None))
            false += any(one.verdict == FALSE for one in found if one.name in ("residual", "weights", "curvature"))
    assert false > 0
