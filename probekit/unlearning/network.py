"""What unlearning asks of a whole network: its clients' answers, the server's curvature, rows whose class is certain.

The losses, steps and certificates are those of heads; what differs is that a curvature has no matrix: the server's
rows' dual, or a subspace of them, inverts it. What is told of the outcome is computed in float64, whatever the network
was trained in; steps on the way there may be rougher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from probekit.errors import InputError, NotFoundError
from probekit.federated.network_clients import Holding, hold
from probekit.federated.trained import Progress
from probekit.jacobian.curvature import CurvatureSolver
from probekit.jacobian.kernel import Factors, batch_factors, factors
from probekit.jacobian.linearize import LinearizedRows
from probekit.jacobian.memory import free_memory
from probekit.linear import spectrum
from probekit.linear.solvers import Operator, Solver
from probekit.linear.squares import Squares
from probekit.models.heads import NetworkHead
from probekit.models.networks import inputs_of, linearized
from probekit.registry import nearest
from probekit.unlearning.adam import F2L2, AdamSteps
from probekit.unlearning.retained import LocalClients
from probekit.values import EmbeddingSet

SOLVERS: dict[str, CurvatureSolver | AdamSteps] = {
    "cholesky": CurvatureSolver(),
    "dual": CurvatureSolver("dual"),
    "pcg": CurvatureSolver("pcg"),
    "cg": CurvatureSolver("cg"),
    "adam": AdamSteps(),
    "f2l2": F2L2,
}
DUAL_VALUES = 6000
"""The largest dual whose eigenvalues are computed to tell the effective dimension."""
BLOCK_ROWS = 4096
ROOM = 1.01
"""What float32 may be off by in a sum of squares, and more."""

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class NetworkAnswers(LocalClients):
    """Clients that answer for a linearized network; what bounds its rounding is computed when asked for."""

    def energies(self) -> Mapping[str, float]:
        """Each client's |J|^2, at most: as found in float32, and its own rounding."""
        squares = self.squares if self.rough is None else self.rough.squares
        return {name: ROOM * _energy(_rows(one).cast(torch.float32)) for name, one in squares.items()}

    def aims(self) -> Mapping[str, float]:
        """Each client's |Y - offset|^2."""
        return {name: _lacking(one) for name, one in self.squares.items()}


def network_clients(head: NetworkHead, embeddings: EmbeddingSet, rows: Mapping[str, Indices]) -> NetworkAnswers:
    """Clients that answer from these rows of the set."""
    exact = _holdings(head, embeddings, rows, precision="float64")
    if head.network.precision == "float64":
        return NetworkAnswers(exact, {})
    rough = _holdings(head, embeddings, rows, precision=head.network.precision)
    return NetworkAnswers(exact, {}, NetworkAnswers(rough, {}))


def _holdings(
    head: NetworkHead, embeddings: EmbeddingSet, rows: Mapping[str, Indices], *, precision: str
) -> dict[str, Squares]:
    model = linearized(head.network, precision=precision)
    share = free_memory(model.device) // 2
    total = max(1, sum(len(held) for held in rows.values()))
    squares: dict[str, Squares] = {}
    for name, held in rows.items():
        inputs = inputs_of(head.network, np.asarray(embeddings.embeddings[held]))
        memory = max(share * len(held) // total, share // 32)
        squares[name] = hold(model, inputs, embeddings.labels[held], centre=head.centre, memory=memory, name=name)
    return squares


def server_squares(head: NetworkHead, embeddings: EmbeddingSet, rows: Indices) -> Squares:
    """The squares of the server's own rows."""
    return network_clients(head, embeddings, {"the server": rows}).squares["the server"]


def solver_named(name: str, *, watch: Callable[[Progress], None] | None = None) -> Solver:
    """How the server's system is solved: by its dual or preconditioned iterations ("cholesky": whichever fits)."""
    if name not in SOLVERS:
        raise NotFoundError(f"FedRemoval of a network has no solver {name!r}. {nearest(name, list(SOLVERS))}")
    found = SOLVERS[name]
    if watch is None:
        return found
    total = found.steps if isinstance(found, AdamSteps) else None
    return replace(found, watch=lambda done, residual, _: watch(Progress(done, total, residual=residual)))


def server_inverse(squares: Squares, ridge: float) -> Operator:
    """The inverse of the server's curvature, exact or close: a preconditioner.

    Not damped as in training: a removal starts near its end, in directions of little curvature.
    """
    return CurvatureSolver().inverse(_rows(squares), ridge)


def effective_dimension(squares: Squares, ridge: float) -> float | None:
    """tr H (H + ridge)^-1 of the server's rows, from the eigenvalues of their kernel; None where that is too large."""
    rows = _rows(squares)
    if rows.count * rows.classes > DUAL_VALUES:
        return None
    held = factors(rows)
    kernel = np.asarray(held.kernel(held).double().cpu().numpy()) / rows.count
    return spectrum.effective_dimension(np.linalg.eigvalsh(kernel), ridge)


def factoring(squares: Squares) -> int:
    """The operations of factoring the rows' dual."""
    rows = _rows(squares)
    return (rows.count * rows.classes) ** 3 // 3


def rank_at_most(squares: Squares) -> int:
    """In how many directions the rows can have any curvature."""
    rows = _rows(squares)
    return min(rows.count * rows.classes, rows.model.size)


def certain(head: NetworkHead, embeddings: EmbeddingSet, *, bound: float) -> tuple[NDArray[np.bool_], Array]:
    """For which rows retraining provably predicts the same class, and how far each row's scores may be off.

    A lead over class b is off by at most |J_a - J_b| bound, for parameters within `bound` of retraining.
    """
    sure, sizes = [np.zeros(0, bool)], [np.zeros(0)]
    for leads, needs, blocks in _examined(head, embeddings, bound):
        sure.append(np.asarray((leads > needs).all(axis=1)))
        sizes.append(np.sqrt(np.einsum("nkk->nk", blocks).max(axis=1)) * bound)
    return np.concatenate(sure), np.concatenate(sizes)


def closest(head: NetworkHead, embeddings: EmbeddingSet, *, bound: float) -> tuple[Array, Array]:
    """Of each row, the class that comes closest to overtaking: how far it is behind, and how far that must be."""
    found = [(np.zeros(0), np.zeros(0))]
    for leads, needs, _ in _examined(head, embeddings, bound):
        place, rival = np.arange(len(leads)), np.argmin(leads - needs, axis=1)
        found.append((leads[place, rival], needs[place, rival]))
    return np.concatenate([one for one, _ in found]), np.concatenate([one for _, one in found])


def _examined(head: NetworkHead, embeddings: EmbeddingSet, bound: float) -> Iterator[tuple[Array, Array, Array]]:
    """Some rows at a time: each class's distance behind the first, how far that may be off, the rows' kernels.

    The first itself is infinitely far behind.
    """
    model = linearized(head.network, precision="float64")
    for start in range(0, len(embeddings), BLOCK_ROWS):
        inputs = inputs_of(head.network, np.asarray(embeddings.embeddings[start : start + BLOCK_ROWS]))
        rows = model.over(inputs, centre=head.centre)
        scores, blocks = rows.outputs(head.params), np.concatenate([_blocks(one) for one in batch_factors(rows)])
        top, place = scores.argmax(axis=1), np.arange(len(scores))
        diagonal = np.einsum("nkk->nk", blocks)
        apart = diagonal + diagonal[place, top][:, None] - 2 * blocks[place, top]
        leads, needs = scores[place, top][:, None] - scores, np.sqrt(np.maximum(apart, 0)) * bound
        leads[place, top] = np.inf
        yield leads, needs, blocks


def _lacking(squares: Squares) -> float:
    assert isinstance(squares, Holding)
    return float(np.square(squares.targets - squares.rows.offset).sum())


def _energy(rows: LinearizedRows) -> float:
    return float(sum(np.einsum("nkk->", _blocks(batch)) for batch in batch_factors(rows)))


def _blocks(batch: Factors) -> Array:
    """Each row's own k by k kernel J_x J_x^T."""
    return np.asarray(batch.blocks().double().cpu().numpy())


def _rows(squares: Squares) -> LinearizedRows:
    if not isinstance(squares, Holding):
        raise InputError(f"This is for the rows of a linearized network; found {type(squares).__name__}.")
    return squares.rows
