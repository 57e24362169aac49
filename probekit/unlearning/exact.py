"""Exact removal: the retained clients' statistics, summed anew and solved. Nothing is subtracted.

The outcome is the minimum of the retained loss: what closed-form training on the rest gives, to rounding in
float64 arithmetic, to the last bit in exact arithmetic. (FedAvg with several local steps would settle
elsewhere.)
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from probekit.federated.client import penalty
from probekit.federated.task import ClosedForm
from probekit.federated.trained import Gradients, Trained
from probekit.linear.design import ClientStats, Solution
from probekit.linear.ridge import fit
from probekit.models.heads import LinearHead, head_of
from probekit.unlearning.method import NOTHING, Cost, Material, Unlearned, require, without_argument
from probekit.unlearning.remainder import named_head, penalised_gradients, remaining_statistics, trained_after
from probekit.unlearning.request import UnlearnRequest
from probekit.unlearning.retained import from_statistics, mean_ridge
from probekit.unlearning.tree import StatisticsTree

NOTE = "The head is the minimum of the retained loss, as closed-form training on the rest gives it."


@dataclass(frozen=True)
class Exact:
    """Re-sums the retained clients' statistics and solves."""

    name: str = "exact"
    needs: frozenset[str] = frozenset({"statistics"})

    def unlearn(self, trained: Trained, request: UnlearnRequest, material: Material = NOTHING) -> Unlearned:
        """The head of the retained statistics."""
        start = time.perf_counter()
        require(self, trained, material)
        parts, server = remaining_statistics(trained, request, material)
        tree = tree_of(trained, parts, material)
        head, solution = refit(trained, tree.total, material)
        cost = _cost(trained, tree, time.perf_counter() - start)
        after = trained_after(
            trained,
            head,
            solution,
            counts={name: one.count for name, one in parts.items()},
            method=self.name,
            cost=cost,
            statistics=parts,
            gradients=_gradients(trained, parts, head),
            server=server,
        )
        return Unlearned(after, request, self.name, solution, cost, NOTE, tree=tree)


def load(argument: str) -> Exact:
    """The method, for the registry."""
    without_argument("exact", argument)
    return Exact()


def refit(trained: Trained, total: ClientStats, material: Material = NOTHING) -> tuple[LinearHead, Solution]:
    """The head of these statistics, fitted as the run's head was (with its own linear term) and named as it is."""
    options = {**fit_options(trained, material), "objective": trained.objective}
    found = fit(total, trained.ridge, scaling=trained.scaling, **options)
    return named_head(trained, head_of(found)), found.solution


def fit_options(trained: Trained, material: Material = NOTHING) -> dict[str, Any]:
    """How the run's closed form was fitted: its options where given, else what the head's recipe says."""
    if isinstance(material.options, ClosedForm):
        return dict(vars(material.options))
    recipe = trained.head.recipe
    return {
        "view": recipe.get("fit_view", "none"),
        "class_weight": recipe.get("class_weight"),
        "normalise_classes": bool(recipe.get("normalise_classes")),
    }


def tree_of(trained: Trained, parts: Mapping[str, ClientStats], material: Material) -> StatisticsTree:
    """The tree of these statistics; the material's, changed where they differ, if it is this run's."""
    tree, kept = material.tree, trained.statistics
    if tree is None or kept is None or any(tree.leaves.get(name) is not one for name, one in kept.items()):
        return StatisticsTree.of(parts)
    for name in [name for name in tree.leaves if name not in parts]:
        tree = tree.without(name)
    for name, one in parts.items():
        if tree.leaves.get(name) is not one:
            tree = tree.including(name, one)
    return tree


def _gradients(trained: Trained, parts: Mapping[str, ClientStats], head: LinearHead) -> Gradients | None:
    """The clients' gradients at the new head, where the run kept them at the old one."""
    if trained.gradients is None:
        return None
    params = head.params[: trained.design.columns]
    ridge = mean_ridge(trained, sum(one.count for one in parts.values()))
    return penalised_gradients(from_statistics(parts).gradients(params), penalty(trained.design, ridge) * params)


def _cost(trained: Trained, tree: StatisticsTree, seconds: float) -> Cost:
    """Additions of matrices, a Cholesky factorisation and two triangular solves."""
    d, k = trained.design.columns, trained.design.classes
    return Cost(flops=len(tree.leaves) * d * (d + k) + d**3 // 3 + 2 * d * d * k, seconds=seconds)
