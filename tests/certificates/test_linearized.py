"""Certificates of linearized networks against written-out Jacobians and long double."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from probekit.certificates.certificate import Certificate, certify
from probekit.certificates.linearized import LinearizedBounds, RowGradients
from probekit.certificates.verify import Enclosure
from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError
from probekit.federated.federation import Federation, InProcess
from probekit.federated.state import State
from probekit.federated.training.cg import ConjugateGradients
from probekit.linear.ridge import RidgeChoice
from probekit.networks.network import Network
from probekit.objective import CrossEntropy
from tests.networks.modules import CLASSES, model_of, samples_of
from tests.oracles import Array, one_hot

RIDGE = 0.05
SHIFTS = (0.0, 1e-9, 1e-4, 0.03, 1.0)
NETWORKS = ("mlp:5-4", "pooled", "linear")


@dataclass(frozen=True, eq=False)
class Problem:
    """Clients of a linearized network, and the same as a ridge problem with a dense matrix."""

    model: Network
    clients: dict[str, EmbeddingSet]
    test: EmbeddingSet

    @property
    def federation(self) -> Federation:
        return Federation.of(InProcess(self.clients), self.model)

    def expanded(self, rows: EmbeddingSet) -> tuple[Array, Array]:
        """f(x; w_p), (n, k), and J, (n, k, p), row by row."""
        module = copy.deepcopy(self.model.network.module).double()
        vector_to_parameters(torch.tensor(self.model.weights), module.parameters())
        weights = list(module.parameters())
        samples = torch.from_numpy(np.asarray(rows.rows, np.float64))
        scores = module(samples.view(-1, *self.model.sample_shape))
        gradients = [
            parameters_to_vector(torch.autograd.grad(score, weights, retain_graph=True))
            for score in scores.flatten()
        ]
        jacobian = torch.stack(gradients).view(*scores.shape, -1)
        return scores.detach().numpy(), jacobian.numpy()

    @cached_property
    def system(self) -> tuple[Array, Array, Array]:
        """J (n k, p), what the first weights leave of the targets, and the center's offset."""
        parts = [self.expanded(rows) for rows in self.clients.values()]
        labels = np.concatenate([rows.labels for rows in self.clients.values()])
        J = np.concatenate([jacobian for _, jacobian in parts])
        rest = one_hot(labels, CLASSES) - np.concatenate([scores for scores, _ in parts])
        return J.reshape(-1, J.shape[-1]), rest.ravel(), self.model.center - self.model.weights

    def loss(self, params: Array) -> float:
        J, rest, _ = self.system
        residual = J @ (params - self.model.weights) - rest
        penalty = RIDGE / 2 * float(np.square(params - self.model.center).sum())
        return float(residual @ residual) / (2 * self.count) + penalty

    @property
    def count(self) -> int:
        return sum(map(len, self.clients.values()))

    @cached_property
    def minimum(self) -> Array:
        """By least squares with rows for the penalty."""
        J, rest, offset = self.system
        root = np.sqrt(self.count * RIDGE)
        stacked = np.vstack([J, root * np.eye(J.shape[1])])
        right = np.concatenate([rest, root * offset])
        return self.model.weights + np.linalg.lstsq(stacked, right, rcond=None)[0]

    def state(self, params: Array) -> State:
        counts = dict(self.federation.clients)
        return State(params, self.model, RidgeChoice(RIDGE), counts, ConjugateGradients())

    def certificate(self, params: Array) -> Certificate:
        return certify(self.state(params), self.federation, test=self.test)

    def enclosure(self, params: Array) -> Enclosure:
        gradients = RowGradients(self.federation, params, RIDGE)
        for rows in self.clients.values():
            gradients.add(rows)
        return gradients.enclose()[0]


def problem_of(name: str, center: str = "wp") -> Problem:
    model = model_of(name, precision="float32", center=center)
    sizes = {"a": 13, "b": 37}
    clients = {key: samples_of(model, size, seed=size) for key, size in sizes.items()}
    return Problem(model, clients, samples_of(model, 30, seed=2))


@pytest.fixture(scope="module", params=[(name, "wp") for name in NETWORKS] + [("mlp:5-4", "zero")])
def problem(request: pytest.FixtureRequest) -> Problem:
    return problem_of(*request.param)


def moved(problem: Problem) -> Iterator[Array]:
    """The minimum, and parameters at several distances from it."""
    generator = np.random.default_rng(0)
    for shift in SHIFTS:
        direction = generator.normal(size=problem.minimum.shape)
        yield problem.minimum + shift * direction / np.linalg.norm(direction)


def test_no_certificate_is_violated(problem: Problem) -> None:
    for params in moved(problem):
        issued = problem.certificate(params)
        assert np.linalg.norm(params - problem.minimum) <= issued.distance
        assert problem.loss(params) - problem.loss(problem.minimum) <= issued.excess_loss + 1e-15
        assert issued.evidence == "linearized"
        assert issued.curvature == pytest.approx(RIDGE)


def test_it_is_the_gradient_over_the_ridge(problem: Problem) -> None:
    J, rest, _ = problem.system
    for params in moved(problem):
        residual = J @ (params - problem.model.weights) - rest
        gradient = J.T @ residual / problem.count + RIDGE * (params - problem.model.center)
        distance = np.linalg.norm(gradient) / RIDGE
        assert distance <= problem.certificate(params).distance <= 1.1 * distance + 1e-8


def test_a_verifier_encloses_the_truth(problem: Problem) -> None:
    for params in moved(problem):
        issued = problem.certificate(params)
        enclosure = problem.enclosure(params)
        distance = np.linalg.norm(params - problem.minimum)
        excess = problem.loss(params) - problem.loss(problem.minimum)
        assert enclosure.distance.least <= distance + 1e-9
        assert enclosure.excess_loss.least <= excess + 1e-14
        assert enclosure.distance.allows(issued.distance)
        assert enclosure.excess_loss.allows(issued.excess_loss)
        assert enclosure.residual.allows(issued.residual)
        assert enclosure.curvature.reaches(issued.curvature)


def test_a_verifier_finds_a_distance_that_is_too_small(problem: Problem) -> None:
    params = list(moved(problem))[-1]
    enclosure = problem.enclosure(params)
    assert enclosure.distance.least > 0.01
    assert enclosure.distance.allows(0.9 * enclosure.distance.least) is False
    assert enclosure.excess_loss.allows(0.9 * enclosure.excess_loss.least) is False
    assert enclosure.residual.allows(0.9 * enclosure.residual.least) is False


def test_certified_rows_keep_their_class_within_the_distance(problem: Problem) -> None:
    """Each row's worst move is along J_top - J_j: certified are those whose lead survives it."""
    scores, J = problem.expanded(problem.test)
    counts = []
    for params in moved(problem):
        issued = problem.certificate(params)
        leads = scores + J @ (params - problem.model.weights)
        tops = leads.argmax(axis=1)
        keeping = 0
        for row, top in enumerate(tops):
            reach = np.linalg.norm(J[row, top] - J[row], axis=1) * issued.distance
            keeping += bool((np.delete(leads[row, top] - leads[row] - reach, top) > 0).all())
        assert 0.9 * keeping <= issued.certified_rows <= keeping
        counts.append(issued.certified_rows)
    assert counts[0] == len(problem.test)
    assert counts[-1] < counts[0]


def long_gradient(problem: Problem, params: Array) -> Any:
    """The mean loss's gradient for an MLP, forward and backward in long double."""
    long = np.longdouble
    model = problem.model
    rows = np.concatenate([np.asarray(part.rows) for part in problem.clients.values()])
    labels = np.concatenate([part.labels for part in problem.clients.values()])

    def parts(vector: Any) -> list[Any]:
        return [vector[span].reshape(shape) for span, shape in model.tensors.values()]

    steps = parts(params.astype(long) - model.weights.astype(long))
    weights = parts(model.weights.astype(long))
    values, changes = rows.astype(long), np.zeros(rows.shape, long)
    inputs, slopes = [], []
    for layer in range(0, len(weights), 2):
        W, b, dW, db = *weights[layer : layer + 2], *steps[layer : layer + 2]
        inputs.append(values)
        changes = changes @ W.T + values @ dW.T + db
        values = values @ W.T + b
        slope = np.where((values > 0) | (layer == len(weights) - 2), long(1), long(0.01))
        slopes.append(slope)
        values, changes = values * slope, changes * slope
    back = values + changes - one_hot(labels, CLASSES)
    gradients: list[Any] = []
    for layer in reversed(range(len(inputs))):
        back = back * slopes[layer]
        gradients = [(back.T @ inputs[layer]).ravel(), back.sum(axis=0), *gradients]
        back = back @ weights[2 * layer]
    penalty = long(RIDGE) * (params.astype(long) - model.center.astype(long))
    return np.concatenate(gradients) / problem.count + penalty


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_rounding_is_less_than_is_assumed(scale: float) -> None:
    problem = problem_of("mlp:5-4")
    clients = {
        name: replace(rows, rows=scale * np.asarray(rows.rows))
        for name, rows in problem.clients.items()
    }
    problem = Problem(problem.model, clients, problem.test)
    exact = problem.model.exact
    for params in moved(problem):
        federation = problem.federation
        bounds = LinearizedBounds.of(federation, params, RIDGE)
        gradients = RowGradients(federation, params, RIDGE)
        total = sum(gradients.add(rows) for rows in clients.values())
        gradient = total / problem.count + RIDGE * (params - exact.center)
        error = np.linalg.norm((long_gradient(problem, params) - gradient).astype(float))
        assert error < bounds.allowance / 10
        assert bounds.residual >= np.linalg.norm(gradient)


@pytest.mark.parametrize("linearize", [True, False])
def test_what_has_no_one_minimum_has_no_certificate(linearize: bool) -> None:
    model = model_of("mlp:5-4", linearize=linearize, loss=CrossEntropy())
    federation = Federation.of(InProcess({"a": samples_of(model, 9)}), model)
    choice = RidgeChoice(0.0 if linearize else RIDGE)
    state = State(model.weights, model, choice, {"a": 9}, ConjugateGradients())
    with pytest.raises(InputError, match="--ridge" if linearize else "--linearize"):
        certify(state, federation)
