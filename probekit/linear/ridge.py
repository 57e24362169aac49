"""The closed form: parameters from summed statistics, in one solve.

minimise 1/2 sum_i w_i |x_i W - y_i|^2 + penalty/2 |W|^2, y_i one-hot; penalty = n ridge ("mean") or ridge
("sum").
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.linear.design import SCALINGS, ClientStats, LinearFit, Solution
from probekit.linear.objective import refuse_unhidden
from probekit.linear.solvers import Cholesky, Solver
from probekit.linear.system import ClassWeight, Standardisation, System, system_of
from probekit.linear.targets import TargetStats
from probekit.values import Json

CHOLESKY = Cholesky()
PERTURBED = "A secret linear term is part of the objective."


def fit(
    stats: ClientStats,
    ridge: float,
    *,
    scaling: str = "mean",
    standardise: str | Standardisation = "none",
    class_weight: ClassWeight = None,
    normalise_classes: bool = False,
    solver: Solver = CHOLESKY,
    objective: NDArray[np.float64] | None = None,
) -> LinearFit:
    """The closed form for these statistics.

    ridge, scaling: the penalty, times the rows ("mean") or as it is ("sum").
    standardise: "none", "centre", "standardise", or where to centre and how to scale.
    class_weight: "balanced", or one number per class.
    normalise_classes: divide each class's solved column by its norm, as Fed3R does.
    solver: of the linear system.
    objective: a linear term B: <B, W> is added to what is minimised.
    Gives the parameters, and the solution of the system that was solved (before centring and scaling are undone).
    Real targets are fitted each on the rows that know it, whose number scales its ridge.
    """
    if isinstance(stats, TargetStats):
        unable = {"objective noise": objective is not None, "class weights": class_weight is not None}
        for name, asked in (unable | {"normalised classes": normalise_classes}).items():
            if asked:
                raise InputError(f"Several labels and real targets take no {name}. Leave it out.")
        return _fit_targets(stats, ridge, scaling=scaling, standardise=standardise, solver=solver)
    system = system_of(stats, standardise=standardise, class_weight=class_weight)
    if objective is not None:
        refuse_unhidden(ridge=ridge, normalised=normalise_classes)
        system = system.perturbed(objective)
    solution = solve(system, penalty_of(ridge, scaling, system.weight), solver=solver)
    if objective is not None:
        solution = replace(solution, note=f"{PERTURBED} {solution.note}".strip())
    value = solution.value
    if normalise_classes:
        norms = np.linalg.norm(value, axis=0)
        value = value / np.where(norms > 0, norms, 1.0)
    recipe: dict[str, Json] = {
        **recipe_of(stats, scaling=scaling, system=system),
        "class_weight": class_weight if isinstance(class_weight, str | None) else [*map(float, class_weight)],
        "normalise_classes": normalise_classes,
        "solver": solution.method,
        "note": solution.note,
        "residual": solution.residual,
    }
    return LinearFit(system.lift(value), ridge, stats.design, solution, recipe)


def _fit_targets(
    stats: TargetStats, ridge: float, *, scaling: str, standardise: str | Standardisation, solver: Solver
) -> LinearFit:
    """The closed form of every target on the rows that know it; targets of the same rows are solved together."""
    params, value, found = np.zeros((stats.design.dimension + 1, stats.design.classes)), None, []
    for labels, some in stats.label_groups():
        if not some.count:
            raise InputError(f"No row knows target {labels[0]}, so it cannot be fitted. Leave that target out.")
        system = system_of(some, standardise=standardise)
        solution = solve(system, penalty_of(ridge, scaling, system.weight), solver=solver)
        params[:, labels] = system.lift(solution.value)
        value = np.zeros((len(solution.value), stats.design.classes)) if value is None else value
        value[:, labels] = solution.value
        found.append(solution)
    assert value is not None
    worst = max(found, key=lambda one: one.residual)
    solution = replace(worst, value=value, steps=max(one.steps for one in found))
    view = standardise if isinstance(standardise, str) else standardise.name
    recipe: dict[str, Json] = {
        **_recipe(stats, scaling=scaling, view=view),
        "class_weight": None,
        "targets": stats.design.targets,
        "solver": solution.method,
        "note": solution.note,
        "residual": solution.residual,
    }
    return LinearFit(params, ridge, stats.design, solution, recipe)


def solve(system: System, penalty: float, *, solver: Solver = CHOLESKY) -> Solution:
    """The solution of a system at one penalty; a penalty of zero needs a Gram of full rank."""
    if penalty == 0:
        values = np.linalg.eigvalsh(system.gram)
        rank = int(np.count_nonzero(values > len(values) * np.finfo(np.float64).eps * values[-1]))
        if rank < len(values):
            found = f"found rank {rank} of {len(values)}. Use a ridge above 0, for example 1e-6."
            raise InputError(f"Without a ridge the Gram must have full rank; {found}")
    return solver.solve(system.gram + penalty * np.eye(len(system.gram)), system.moment)


def penalty_of(ridge: float, scaling: str, weight: float) -> float:
    """What is added to the Gram's diagonal: weight times ridge ("mean") or ridge itself ("sum")."""
    if scaling not in SCALINGS:
        raise InputError(f"The ridge's scaling must be one of {', '.join(SCALINGS)}; found {scaling!r}.")
    if not 0 <= ridge < math.inf:
        raise InputError(f"A ridge must be a finite number, 0 or more; found {ridge}.")
    return float(weight * ridge if scaling == "mean" else ridge)


def recipe_of(stats: ClientStats, *, scaling: str, system: System) -> Mapping[str, Json]:
    """What determined a head besides the rows, in plain values."""
    return _recipe(stats, scaling=scaling, view=system.standardisation.name)


def _recipe(stats: ClientStats, *, scaling: str, view: str) -> Mapping[str, Json]:
    design = stats.design
    return {
        "head": "ridge",
        "scaling": scaling,
        "intercept": design.intercept,
        "arithmetic": design.arithmetic,
        "grid": design.grid,
        "fit_view": view,
        "rows": stats.count,
        "exact_unlearning": True,
    }
