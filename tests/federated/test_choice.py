"""Choosing a ridge by asking clients, against errors of rows that were really left out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.errors import NotFoundError
from probekit.federated.choice import WAYS, choose
from probekit.federated.in_process import InProcess
from probekit.federated.partition import partition
from probekit.federated.rows import design_for, head_problem
from probekit.federated.training import train
from probekit.linear.folds import FOLD_STREAM
from probekit.models.problem import Holding
from probekit.values import EmbeddingSet
from tests.oracles import columns, least_squares, one_hot

Array = NDArray[np.float64]
Parts = list[NDArray[np.int64]]
MakeSet = Callable[..., EmbeddingSet]


def errors(data: EmbeddingSet, parts: Parts, ridges: Array) -> Array:
    """The mean squared error on each part of the head of all others, for every ridge."""
    X, Y = columns(np.asarray(data.embeddings)), one_hot(data.labels, 3)
    found = np.zeros(len(ridges))
    for part in parts:
        others = np.concatenate([one for one in parts if one is not part])
        for place, ridge in enumerate(ridges):
            W = least_squares(X[others], Y[others], penalty=ridge * len(others))
            found[place] += np.square(X[part] @ W - Y[part]).sum()
    return found / sum(len(part) for part in parts) / 3


def folds(name: str, rows: NDArray[np.int64], seed: int) -> Parts:
    """A client's own five folds."""
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return np.array_split(rows[np.random.default_rng([seed, FOLD_STREAM, number]).permutation(len(rows))], 5)


@pytest.mark.parametrize("how", WAYS)
def test_a_ridge_is_chosen_by_the_errors_of_what_is_left_out(make_set: MakeSet, how: str) -> None:
    data = make_set(rows=60, dimension=4)
    split = partition(data.labels, "dirichlet:0.7", clients=4, seed=5)
    clients = InProcess.of(head_problem(data, design_for(data)), data, split.clients)
    found = choose(clients, clients.problem, how=how, seed=3)
    own = {name: folds(name, rows, 3) for name, rows in split.clients.items()}
    parts = {
        "auto:clients": list(split.clients.values()),
        "auto:kfold": [np.concatenate([own[name][number] for name in own]) for number in range(5)],
    }.get(how, [np.array([row]) for row in np.concatenate(list(split.clients.values()))])
    wanted = errors(data, parts, found.validation.ridges)
    assert len(found.validation.ridges) == 45
    np.testing.assert_allclose(found.validation.squared, wanted, rtol=1e-4)
    assert wanted[list(found.validation.ridges).index(found.ridge)] <= wanted.min() * (1 + 1e-6)
    assert train(data, split, ridge=how, seed=3).ridge == found.ridge


def test_who_holds_the_rows_does_not_matter_to_leaving_single_ones_out(make_set: MakeSet) -> None:
    data = make_set()
    problem = head_problem(data, design_for(data))
    one, many = (partition(data.labels, "iid", clients=number, seed=1) for number in (1, 7))
    alone, together = (choose(InProcess.of(problem, data, split.clients), problem) for split in (one, many))
    assert alone.ridge == pytest.approx(together.ridge, rel=1e-12)
    assert alone.effective_dimension == pytest.approx(together.effective_dimension, rel=1e-9)
    assert alone.validation.wrong is not None
    np.testing.assert_allclose(alone.validation.wrong, together.validation.wrong)  # type: ignore[arg-type]


def test_an_unknown_way_is_refused(make_set: MakeSet) -> None:
    data = make_set()
    problem = head_problem(data, design_for(data))
    holdings: dict[str, Holding] = {}
    with pytest.raises(NotFoundError, match="auto:loo"):
        choose(InProcess(problem, holdings), problem, how="auto:lo")
