"""What a client does: a pure function from a question, what it holds and what it remembers to an answer.

Answers are sums over the client's rows, and leave the ridge out: whoever asks adds it once. The questions:
`statistics` (Gram, moments, class counts, or the joint root of few rows; with `folds`, sums per fold), `gradient` (half
the gradient of the sum of squares, and half that sum as `loss`), `product` (J^T J v), `curvature` (of a
loss that is no square, at the array "at", applied), `form` (|J v|^2), `scales` (energies, the largest curvature),
`importance` (each parameter's squared derivatives: of the outputs where the loss is a sum of squares, else of every
row's loss), `fit` (local training by a plan), `leave-out` (errors of left-out rows along a path of ridges), `evaluate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import MissingClientsError
from probekit.federated.message import Answer, Ask
from probekit.linear.path import RidgePath
from probekit.linear.roots import RootStats
from probekit.linear.target_client import arrays_of
from probekit.linear.targets import TargetStats
from probekit.models.adapters import fit_adapter
from probekit.models.fitting import FitPlan
from probekit.models.sensitivity import fit_blind
from probekit.values import LABELS

Memory = Mapping[str, Any]
Found = tuple[dict[str, NDArray[Any]], dict[str, float]]


def answer(ask: Ask, holding: Any, memory: Memory, *, name: str = "") -> tuple[Answer, Memory]:
    """A client's answer, and what it remembers afterwards. What it cannot answer raises MissingClientsError."""
    why = unable(ask, holding)
    if why:
        raise MissingClientsError(why)
    chosen = selected(ask, holding)
    arrays, values = QUESTIONS[ask.kind](ask, chosen, name)
    return Answer(name, chosen.count, arrays, values, ("gram",) if "gram" in arrays else ()), memory


def unable(ask: Ask, holding: Any) -> str:
    """Why a question cannot be answered from this holding; empty where it can."""
    if ask.kind not in holding.offers:
        return f"it has nothing to answer {ask.kind!r} from."
    if ask.problem and ask.problem != holding.problem.digest:
        return "it was asked about another problem than it was given."
    if ask.rows.kind != "own" and not hasattr(holding, "ids"):
        return "it knows sums of its rows, not which rows they are of."
    return ""


def selected(ask: Ask, holding: Any) -> Any:
    """What is held of the rows that a question is about."""
    if ask.rows.kind == "own":
        return holding
    inside = np.array([sample in ask.rows.ids for sample in holding.ids], dtype=bool)
    kept = inside if ask.rows.kind == "only" else ~inside
    return replace(holding, rows=holding.rows[kept])


def _statistics(ask: Ask, holding: Any, name: str) -> Found:
    found = [holding.statistics.loaded]
    if isinstance(found[0], TargetStats):
        return arrays_of(found[0]), {}
    if "folds" not in ask.plan and isinstance(found[0], RootStats):
        return {"root": found[0].root, "class_counts": found[0].class_counts}, {}
    if "folds" in ask.plan:
        plan: Any = ask.plan
        from probekit.linear.folds import client_folds

        found = client_folds(holding.picked, holding.labels, holding.problem.design, **plan, name=name)
    each = {field: [getattr(one, field) for one in found] for field in ("gram", "moment", "class_counts")}
    return {field: np.stack(parts) if len(parts) > 1 else parts[0] for field, parts in each.items()}, {}


def _gradient(ask: Ask, holding: Any, name: str) -> Found:
    squares = holding.squares(ask.precision)
    values = {"loss": squares.value(ask.arrays["params"]) / 2} if ask.plan.get("loss") else {}
    return {"gradient": squares.gradient(ask.arrays["params"])}, values


def _product(ask: Ask, holding: Any, name: str) -> Found:
    return {"product": holding.squares(ask.precision).product(ask.arrays["params"])}, {}


def _curvature(ask: Ask, holding: Any, name: str) -> Found:
    return {"product": holding.squares(ask.precision).product(ask.arrays["params"], ask.arrays["at"])}, {}


def _form(ask: Ask, holding: Any, name: str) -> Found:
    v = ask.arrays["params"]
    return {}, {"form": float((v * holding.squares(ask.precision).product(v)).sum())}


def _scales(ask: Ask, holding: Any, name: str) -> Found:
    squares = holding.squares(ask.precision)
    values = {"energy": squares.energy(), "target_energy": squares.target_energy()}
    if "ridge" in ask.plan:
        plan: Any = ask.plan
        ridge, rowwise = float(plan["ridge"]), plan.get("batch") is not None
        largest = squares.largest_row_curvature() + ridge if rowwise else holding.quick.largest_curvature(ridge)
        values["curvature"] = largest
    return {}, values


def _importance(ask: Ask, holding: Any, name: str) -> Found:
    return {"importance": holding.importance(ask.arrays["params"])}, {}


def _fit(ask: Ask, holding: Any, name: str) -> Found:
    plan = FitPlan.from_plain(ask.plan)
    values = {"loss": holding.problem.loss(holding, ask.arrays["params"])} if plan.tells_loss else {}
    fit = fit_blind if plan.noise else fit_adapter if plan.rank is not None else holding.problem.fit
    return {"params": fit(holding, name, plan, ask.arrays)}, values


def _leave_out(ask: Ask, holding: Any, name: str) -> Found:
    from probekit.linear.leaveout import left_out_sums

    ridges, dtype = ask.arrays["ridges"], np.dtype(str(ask.plan["dtype"]))
    if LABELS in ask.arrays:
        return {"squared": holding.left_out(ask.arrays, ask.plan, ridges, dtype), "wrong": np.zeros(len(ridges))}, {}
    path = RidgePath.received(holding.problem.design, ask.arrays, ask.plan)
    squared, wrong = left_out_sums(path, holding.picked, holding.labels, ridges=ridges, dtype=dtype)
    return {"squared": squared, "wrong": wrong}, {}


def _evaluate(ask: Ask, holding: Any, name: str) -> Found:
    """How often each class (down) is given each class (across)."""
    problem, params = holding.problem, ask.arrays["params"]
    head = problem.head(params, ridge=0.0, recipe={})
    guesses = np.argmax(problem.scores(head, holding.picked), axis=1)
    counts = np.zeros((len(head.classes),) * 2, np.int64)
    np.add.at(counts, (holding.labels, guesses), 1)
    return {"confusion": counts}, {"loss": problem.loss(holding, params)}


QUESTIONS: dict[str, Callable[[Ask, Any, str], Found]] = {
    "statistics": _statistics,
    "gradient": _gradient,
    "product": _product,
    "curvature": _curvature,
    "form": _form,
    "scales": _scales,
    "importance": _importance,
    "fit": _fit,
    "leave-out": _leave_out,
    "evaluate": _evaluate,
}
