"""What the server computes: who takes part, weights, averages. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from probekit.errors import InputError
from probekit.values import Array, Indices

PARTICIPATION_STREAM = 21
WEIGHTS = ("size", "uniform")


def client_weights(counts: Indices, how: str = "size") -> Array:
    """How much each client counts: its share of the rows, or the same for all."""
    if how not in WEIGHTS:
        raise InputError(f"Clients are weighted by size or uniform; found {how!r}.")
    if not len(counts) or counts.min() < 1:
        raise InputError(f"Every client needs a row to be weighted; found counts {counts.tolist()}.")
    return counts / counts.sum() if how == "size" else np.full(len(counts), 1 / len(counts))


def participants(clients: int, fraction: float, *, round_number: int, seed: int) -> Indices:
    """The clients of a round, drawn without replacement."""
    many = taking(clients, fraction)
    if many == clients:
        return np.arange(clients)
    generator = np.random.Generator(np.random.PCG64([seed, PARTICIPATION_STREAM, round_number]))
    return np.sort(generator.choice(clients, many, replace=False))


def taking(clients: int, fraction: float) -> int:
    """How many clients take part in a round."""
    return max(1, round(fraction * clients))


def average(
    start: Array, uploads: Array, weights: Array, *, clients: int, rate: float = 1.0, means: Iterable[slice] = ()
) -> Array:
    """The next global parameters: start + rate * (clients / m) * sum over the m uploads of weight * (upload -
    start).

    The factor clients / m makes a round with sampled clients right in expectation: on average over who is
    drawn it is the round with all of them. With all clients and rate 1 it is the weighted mean, and `means` are the
    rows of which the weighted mean of the uploads is taken in any case.
    """
    found: Array = start + rate * clients / len(uploads) * np.tensordot(weights, uploads - start, axes=1)
    for rows in means:
        found[rows] = np.average(uploads[:, rows], axis=0, weights=weights)
    return found
