"""Certificates of random problems against rational arithmetic, which shares nothing with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.certificates import bounds, certificate
from probekit.certificates.bounds import Bounds, least_curvature
from probekit.certificates.certificate import Certificate, certify
from probekit.embeddings import EmbeddingSet
from probekit.errors import ProbekitError
from probekit.federated.state import State
from probekit.federated.training.lbfgs import LbfgsRounds
from probekit.registry import configured
from probekit.unlearning.removal import Removal, Request, unlearn
from tests.unlearning.problems import federation, logistic, trained

Matrix = list[list[Fraction]]
Array = NDArray[np.float64]
SCALES = (-100, -20, -3, -1, 0, 0, 0, 0, 1, 3, 20)
METHODS = ("exact", "retrain", "fedremoval", "fedremoval-line", "fedremoval-pcg:2")
SHIFTS = (0.0, 0.0, 0.0, 1e-9, 1e-3, 1.0)
"""How far heads are moved from where a method ended, in units of their norm."""


@dataclass(frozen=True)
class Problem:
    """A state after a removal, the rows that it retains, and test rows."""

    state: State
    removal: Removal
    rows: EmbeddingSet
    test: EmbeddingSet

    def certificates(self) -> Iterator[Certificate]:
        """By statistics and, where all is penalized, by gradients."""
        states = [self.state]
        if self.state.model.intercept == "penalized":
            states.append(replace(self.state, kept=()))
        for state in states:
            try:
                yield certify(state, self.removal.retained, test=self.test, class_labels=False)
            except ProbekitError:  # where rounding outweighs the curvature
                continue


def drawn_rows(random: np.random.Generator) -> EmbeddingSet:
    """Ordinary and extreme rows: repeated, collinear, far from zero, tiny, huge, weighted."""
    count = int(random.integers(12, 60))
    width = int(random.integers(1, 5))
    classes = int(random.integers(2, 4))
    scale = 10.0 ** int(random.choice(SCALES))
    center = random.normal(size=width) * random.choice([0, 1, 30])
    rows = (random.normal(size=(count, width)) + center) * scale
    rows *= np.geomspace(1, 10.0 ** random.uniform(-4, 0), width)
    if random.random() < 0.15:
        rows[:, 0] = rows[:, -1]
    if random.random() < 0.15:
        rows[count // 2 :] = rows[: count - count // 2]
    if random.random() < 0.5 and abs(np.log10(scale)) < 30:
        rows = rows.astype(np.float32)
    labels = random.integers(0, classes, count)
    labels[:classes] = np.arange(classes)
    embeddings = EmbeddingSet.from_numpy(rows, labels)
    if random.random() < 0.2:
        embeddings = replace(embeddings, weights=random.uniform(0.1, 3, count))
    return embeddings


def ridge_problem(seed: int) -> Problem | None:
    """The problem of a seed; None where training or unlearning refuses it."""
    random = np.random.default_rng(seed)
    everything = drawn_rows(random)
    owners = random.integers(0, 4, len(everything))
    owners[:4] = np.arange(4)
    parts = {str(name): everything.take(np.flatnonzero(owners == name)) for name in range(4)}
    server = federation({"server": parts["3"]}) if random.random() < 0.5 else None
    intercept = str(random.choice(["free", "penalized"]))
    asked = federation(parts, intercept=intercept)
    scale = float(np.square(np.asarray(everything.rows, float)).mean())
    ridge = float(10.0 ** random.uniform(-8, 0) * scale ** random.choice([0, 1]))
    method = str(random.choice(METHODS)) if server is not None else "exact"
    try:
        state = trained(asked, ridge=ridge)
        removal = Removal.of(
            state, Request(frozenset({"1"})), asked, server=server, class_labels=False
        )
        after = moved(unlearn(configured(method), removal), random)
    except ProbekitError:
        return None
    retained = everything.take(np.flatnonzero(owners != 1))
    return Problem(after, removal, retained, everything.take(np.arange(6)))


def moved(state: State, random: np.random.Generator) -> State:
    """A head that no method made: the bounds are about any."""
    direction = random.normal(size=state.params.shape)
    size = random.choice(SHIFTS) * np.linalg.norm(state.params) / np.linalg.norm(direction)
    return replace(state, params=state.params + size * direction)


def fractions(array: Array) -> Matrix:
    return [[Fraction(value) for value in row] for row in np.asarray(array, float).tolist()]


def solved(matrix: Matrix, right: Matrix) -> Matrix | None:
    """Gauss and Jordan; None where there is no one solution."""
    rows = [[*left, *other] for left, other in zip(matrix, right, strict=True)]
    size = len(rows)
    for i in range(size):
        pivot = next((r for r in range(i, size) if rows[r][i]), None)
        if pivot is None:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for j in range(size):
            if j != i and rows[j][i]:
                rows[j] = [a - rows[j][i] * b for a, b in zip(rows[j], rows[i], strict=True)]
    return [row[size:] for row in rows]


@dataclass(frozen=True)
class Truth:
    distance_squared: Fraction
    excess_loss: Fraction
    agreeing: int


def truth_of(problem: Problem) -> Truth | None:
    """The minimum over the retained rows, in fractions."""
    rows = [[*row, Fraction(1)] for row in fractions(problem.rows.rows)]
    weights = [Fraction(value) for value in problem.rows.row_weights.tolist()]
    total = sum(weights)
    size = len(rows[0])
    classes = problem.rows.outputs
    hessian = [
        [
            sum(v * z[a] * z[b] for v, z in zip(weights, rows, strict=True)) / total
            for b in range(size)
        ]
        for a in range(size)
    ]
    penalized = problem.state.model.penalized.ravel().tolist()
    for a in range(size):
        hessian[a][a] += Fraction(problem.state.ridge) * Fraction(penalized[a])
    moment = [[Fraction(0)] * classes for _ in range(size)]
    for v, z, label in zip(weights, rows, problem.rows.labels.tolist(), strict=True):
        for a in range(size):
            moment[a][label] += v * z[a] / total
    minimum = solved(hessian, moment)
    if minimum is None:
        return None
    head = fractions(problem.state.params)
    away = [[head[a][q] - minimum[a][q] for q in range(classes)] for a in range(size)]
    moved = [
        [sum(hessian[a][b] * away[b][q] for b in range(size)) for q in range(classes)]
        for a in range(size)
    ]
    excess = sum(away[a][q] * moved[a][q] for a in range(size) for q in range(classes)) / 2
    distance = sum(value**2 for row in away for value in row)
    agreeing = 0
    for row in fractions(problem.test.rows):
        tops = [
            max(range(classes), key=lambda q, w=w, z=(*row, Fraction(1)): sum(
                value * w[a][q] for a, value in enumerate(z)
            ))
            for w in (head, minimum)
        ]  # fmt: skip
        agreeing += tops[0] == tops[1]
    return Truth(distance, excess, agreeing)


def violations(issued: Certificate, truth: Truth) -> list[str]:
    """The claims of a certificate that are not so, compared without any slack."""
    claims = {
        "distance": truth.distance_squared <= Fraction(issued.distance) ** 2,
        "excess_loss": truth.excess_loss <= Fraction(issued.excess_loss),
        "certified_rows": issued.certified_rows <= truth.agreeing,
    }
    return [claim for claim, holds in claims.items() if not holds]


def checked(seeds: range) -> tuple[list[tuple[int, str, str]], int]:
    """The violated claims of these problems, and how many certificates were looked at."""
    found = []
    count = 0
    for seed in seeds:
        problem = ridge_problem(seed)
        truth = None if problem is None else truth_of(problem)
        if problem is None or truth is None:
            continue
        for issued in problem.certificates():
            count += 1
            found += [(seed, issued.evidence, claim) for claim in violations(issued, truth)]
    return found, count


def logistic_problem(seed: int) -> Problem:
    random = np.random.default_rng(seed)
    classes = int(random.integers(2, 4))
    count = int(random.integers(20, 60))
    rows = random.normal(size=(count, int(random.integers(1, 4)))) * 10.0 ** random.uniform(-1, 1)
    labels = random.integers(0, classes, count)
    labels[:classes] = np.arange(classes)
    everything = EmbeddingSet.from_numpy(rows + random.normal(), labels)
    owners = np.arange(count) % 3
    asked = logistic(
        {str(name): everything.take(np.flatnonzero(owners == name)) for name in range(3)}
    )
    state = trained(asked, LbfgsRounds(), ridge=float(10.0 ** random.uniform(-3, 0)))
    removal = Removal.of(state, Request(frozenset({"1"})), asked, class_labels=False)
    method = str(random.choice(["exact", "rounds:1e-3"]))
    after = moved(unlearn(configured(method), removal), random)
    if random.random() < 0.3:
        after = replace(after, params=state.params)
    if random.random() < 0.5:
        after = replace(after, kept=())
    retained = everything.take(np.flatnonzero(owners != 1))
    return Problem(after, removal, retained, everything.take(np.arange(min(count, 20))))


def softmax_loss(Z: Array, Y: Array, W: Array, ridge: float) -> tuple[float, Array, Array]:
    """Value, gradient and full Hessian in long double, a row at a time in the Hessian."""
    scores = Z @ W
    top = scores.max(axis=1, keepdims=True)
    powers = np.exp(scores - top)
    P = powers / powers.sum(axis=1, keepdims=True)
    logs = np.log(powers.sum(axis=1)) + top[:, 0] - (Y * scores).sum(axis=1)
    value = logs.mean() + ridge / 2 * np.square(W).sum()
    gradient = Z.T @ (P - Y) / len(Z) + ridge * W
    hessian = ridge * np.eye(W.size, dtype=np.longdouble)
    for z, p in zip(Z, P, strict=True):
        hessian += np.kron(np.outer(z, z), np.diag(p) - np.outer(p, p)) / len(Z)
    return value, gradient, hessian


def logistic_truth(problem: Problem) -> Truth:
    """The minimum by damped Newton steps on the full Hessian, the last in long double."""
    Z = np.hstack([np.asarray(problem.rows.rows), np.ones((len(problem.rows), 1))])
    Z = Z.astype(np.longdouble)
    Y = np.eye(problem.rows.outputs, dtype=np.longdouble)[problem.rows.labels]
    ridge = problem.state.ridge
    W = np.zeros(problem.state.params.shape, np.longdouble)
    for _ in range(60):
        value, gradient, hessian = softmax_loss(Z, Y, W, ridge)
        step = np.linalg.solve(hessian.astype(float), gradient.astype(float).ravel())
        step = step.reshape(W.shape)
        while softmax_loss(Z, Y, W - step, ridge)[0] > value + 1e-15:
            step = step / 2
        W = W - step
    assert np.linalg.norm(gradient) < 1e-14
    head = problem.state.params
    value, gradient, _ = softmax_loss(Z, Y, W, ridge)
    excess = softmax_loss(Z, Y, head, ridge)[0] - value
    test = np.hstack([np.asarray(problem.test.rows), np.ones((len(problem.test), 1))])
    agreeing = (test @ head).argmax(axis=1) == (test @ W).argmax(axis=1)
    distance = Fraction(float(np.square(head - W).sum()))
    return Truth(distance, Fraction(max(0.0, float(excess) - 1e-17)), int(agreeing.sum()))


def checked_logistic(seeds: range) -> tuple[list[tuple[int, str]], int]:
    """The violated claims, and of how many test rows a class was certified."""
    found = []
    certified = 0
    for seed in seeds:
        problem = logistic_problem(seed)
        truth = logistic_truth(problem)
        for issued in problem.certificates():
            certified += issued.certified_rows
            found += [(seed, claim) for claim in violations(issued, truth)]
    return found, certified


def test_no_bound_is_violated() -> None:
    found, count = checked(range(300))
    assert found == []
    assert count > 300


@pytest.mark.slow
def test_no_bound_of_a_thousand_more_is_violated() -> None:
    found, count = checked(range(1000, 2000))
    assert found == []
    assert count > 1000


def test_no_bound_of_a_logistic_head_is_violated() -> None:
    found, certified = checked_logistic(range(30))
    assert found == []
    assert certified > 300


@pytest.mark.slow
def test_no_bound_of_two_hundred_more_logistic_heads_is_violated() -> None:
    found, certified = checked_logistic(range(1000, 1200))
    assert found == []
    assert certified > 2000


@dataclass(frozen=True)
class Mutant:
    """A certifier with a fault, and the claim that must then be violated somewhere."""

    claim: str
    name: str
    value: object


def blind(self: Bounds, rows: EmbeddingSet) -> NDArray[np.bool_]:
    return np.ones(len(rows), np.bool_)


MUTANTS = {
    "rounding is left out": Mutant("distance", "gamma", lambda operations: 0.0),
    "claims are a tenth smaller": Mutant("distance", "SLACK", 0.9),
    "half of the excess loss": Mutant("excess_loss", "SLACK", 0.7),
    "four times the curvature": Mutant(
        "distance", "least_curvature", lambda *a, **k: 4 * least_curvature(*a, **k)
    ),
    "every row keeps its class": Mutant("certified_rows", "Bounds.keeps_class", blind),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_faults_of_the_certifier_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    for module in (bounds, certificate):
        monkeypatch.setattr(f"{module.__name__}.{mutant.name}", mutant.value, raising=False)
    found, _ = checked(range(120))
    assert mutant.claim in {claim for _, _, claim in found}


def test_the_radius_of_self_concordance_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the Hessian were the same everywhere, which a softmax's is not."""

    def newton(bounds: Bounds, *, decrement: float, longest_row: float) -> Bounds:
        return replace(bounds, excess_loss=decrement**2 / 2)

    monkeypatch.setattr(certificate, "self_concordant", newton)
    assert checked_logistic(range(30, 40))[0]
