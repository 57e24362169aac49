"""What clients can be asked. A query is a record that answers itself; a method may bring its own.

Answers are sums over rows, with their weight beside them, so that a mean is one division.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Protocol

import numpy as np

from probekit.arrays import Array
from probekit.errors import InputError
from probekit.federated.client import ClientData, RowClient
from probekit.federated.local import LocalPlan, LossRecipe, check_work, train_locally
from probekit.linear.model import LinearModel
from probekit.linear.stats import SufficientStats, is_few
from probekit.objective import Model, scores
from probekit.records import record

Arrays = dict[str, Array]
Shapes = dict[str, tuple[int, ...]]

WEIGHT: Shapes = {"weight": (1,)}


def answer_bytes(shapes: Shapes) -> int:
    """The size of an answer of these shapes."""
    return 8 * sum(map(prod, shapes.values()))


class Query(Protocol):
    """A question to a client."""

    def answer(self, client: ClientData) -> Arrays: ...
    def shapes(self, model: Model, rows: int) -> Shapes:
        """What an answer about so many rows must look like: a size limit, then a check."""


@record("query/statistics")
@dataclass(frozen=True)
class Statistics:
    """Sufficient statistics: sums, or a root where rows are few."""

    def answer(self, client: ClientData) -> Arrays:
        stats = client.statistics
        weight = np.array([stats.weight])
        if stats.root is not None:
            return {"root": stats.root, "weight": weight}
        return {
            "gram": stats.gram,
            "moment": stats.moment,
            "target_squares": stats.target_squares,
            "weight": weight,
        }

    def shapes(self, model: Model, rows: int) -> Shapes:
        if not isinstance(model, LinearModel):
            raise InputError(
                f"Sufficient statistics are those of a head; this is a {type(model).__name__}. "
                "Train by cg or fedavg, and keep gradients or history (--keep)."
            )
        columns, targets = model.shape
        if is_few(rows, columns):
            return {"root": (min(rows, columns + targets), columns + targets), **WEIGHT}
        return {
            "gram": (columns, columns),
            "moment": (columns, targets),
            "target_squares": (targets,),
            **WEIGHT,
        }

    @staticmethod
    def read(model: Model, rows: int, arrays: Arrays) -> SufficientStats:
        """The statistics in an answer."""
        weight = float(arrays["weight"][0])
        columns = model.shape[0]
        if "root" in arrays:
            return SufficientStats(rows, weight, columns, root=arrays["root"])
        sums = (arrays["gram"], arrays["moment"], arrays["target_squares"])
        return SufficientStats(rows, weight, columns, *sums)


@record("query/gradient")
@dataclass(frozen=True, eq=False)
class Gradient:
    """The data term's value and gradient."""

    params: Array

    def answer(self, client: ClientData) -> Arrays:
        value, gradient = client.objective.value_and_gradient(self.params)
        weight = np.array([client.weight])
        return {"gradient": gradient, "value": np.array([value]), "weight": weight}

    def shapes(self, model: Model, rows: int) -> Shapes:
        return {"gradient": model.shape, "value": (1,), **WEIGHT}


@record("query/product")
@dataclass(frozen=True, eq=False)
class Product:
    """The data term's curvature times a vector."""

    params: Array
    vector: Array

    def answer(self, client: ClientData) -> Arrays:
        product = client.objective.product(self.params, self.vector)
        return {"product": product, "weight": np.array([client.weight])}

    def shapes(self, model: Model, rows: int) -> Shapes:
        return {"product": model.shape, **WEIGHT}


@record("query/local-fit")
@dataclass(frozen=True, eq=False)
class LocalFit:
    """The parameters after local training, and the weight that they have in an average.

    `params` need not be the model's: they are whatever the recipe's loss is a function of.
    """

    params: Array
    plan: LocalPlan
    recipe: LossRecipe

    def answer(self, client: ClientData) -> Arrays:
        check_work(self.plan, client, self.params.size)
        loss = self.recipe.local_loss(client, self.plan)
        params = train_locally(loss, self.params, self.plan, client.name)
        return {"params": params, "weight": np.array([client.weight])}

    def shapes(self, model: Model, rows: int) -> Shapes:
        return {"params": self.params.shape, **WEIGHT}


@record("query/weight")
@dataclass(frozen=True)
class Weight:
    """The weight of the rows: their number where they have none of their own."""

    def answer(self, client: ClientData) -> Arrays:
        return {"weight": np.array([client.weight])}

    def shapes(self, model: Model, rows: int) -> Shapes:
        return WEIGHT


@record("query/curvature")
@dataclass(frozen=True)
class Curvature:
    """The largest eigenvalue of the mean of z z^T, and its trace; `of_rows`: of any one row.

    Times a loss's largest curvature it bounds that of the client's mean loss (or of any batch's).
    """

    of_rows: bool = False

    def answer(self, client: ClientData) -> Arrays:
        stats = client.statistics
        root = None if stats.root is None else stats.root[:, : stats.columns]
        trace = np.trace(stats.gram) if root is None else np.square(root).sum()
        if self.of_rows:
            largest = _largest_row(client)
        elif root is None:
            largest = float(np.linalg.eigvalsh(stats.gram)[-1] / stats.weight)
        else:
            largest = float(np.linalg.norm(root, 2) ** 2 / stats.weight)
        return {"curvature": np.array([largest]), "trace": np.array([trace / stats.weight])}

    def shapes(self, model: Model, rows: int) -> Shapes:
        if not isinstance(model, LinearModel):
            raise InputError(
                f"The curvature of a {type(model).__name__} is not known beforehand. "
                "Pass a rate (fedavg:rate=1e-3; fedremoval:sgd,rate=1e-3)."
            )
        return {"curvature": (1,), "trace": (1,)}


def _largest_row(client: ClientData) -> float:
    """The largest v |z|^2, weights as a batch's mean takes them."""
    largest = 0.0
    for block in client.rows.blocks():
        X = np.asarray(block.rows, np.float64)
        squares = block.row_weights * (np.einsum("nd,nd->n", X, X) + 1)
        largest = max(largest, float(squares.max()))
    return largest / (client.weight / client.count)


@record("query/evaluate")
@dataclass(frozen=True, eq=False)
class Evaluate:
    """Rows by true class and predicted class."""

    params: Array

    def answer(self, client: ClientData) -> Arrays:
        labels = client.rows.labels
        if labels is None:
            raise InputError(f"Client {client.name} has targets, no classes. Evaluate its errors.")
        predicted = scores(client.model.outputs(client.rows), self.params).argmax(axis=1)
        confusion = np.zeros((client.model.classes, client.model.classes))
        np.add.at(confusion, (labels, predicted), 1.0)
        return {"confusion": confusion}

    def shapes(self, model: Model, rows: int) -> Shapes:
        return {"confusion": (model.classes, model.classes)}


@record("query/copies")
@dataclass(frozen=True)
class Copies:
    """How many rows have these ids, all of which must be here; equal samples have equal ids."""

    ids: frozenset[str]

    def answer(self, client: ClientData) -> Arrays:
        return {"rows": np.array([float(np.count_nonzero(client.rows.has_id(self.ids)))])}

    def shapes(self, model: Model, rows: int) -> Shapes:
        return {"rows": (1,)}


@record("query/restricted")
@dataclass(frozen=True, eq=False)
class Restricted:
    """A query about the rows with these ids (`keep`), or about all others."""

    query: Query
    ids: frozenset[str]
    keep: bool

    def answer(self, client: ClientData) -> Arrays:
        if not isinstance(client, RowClient):
            raise InputError(
                f"Leaving out samples needs rows; client {client.name} has statistics only. "
                "Ask it for a new statistics file."
            )
        rows = client.rows.only(self.ids) if self.keep else client.rows.without(self.ids)
        return self.query.answer(replace(client, rows=rows))

    def shapes(self, model: Model, rows: int) -> Shapes:
        return self.query.shapes(model, rows)
