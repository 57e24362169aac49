"""Training across clients that live in this process: one closed-form round, or FedAvg."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from probekit.federated.choice import Choice, choose
from probekit.federated.client import Quadratics, client_statistics, quadratics
from probekit.federated.fedavg import Clients, FedAvg, Rounds, run_rounds
from probekit.federated.server import client_weights, merge
from probekit.federated.simulation import fits_a_stack, from_rows, from_statistics
from probekit.federated.task import ClosedForm, Task, method_named, task_of
from probekit.federated.trained import NUMBER_BYTES, Gradients, Progress, ServerSet, Traffic, Trained
from probekit.linear.design import ClientStats, Design, Solution
from probekit.linear.objective import SIGMA, draw_objective, refuse_unhidden
from probekit.linear.ridge import fit, recipe_of
from probekit.linear.views import system_of
from probekit.models.heads import LinearHead, head_of
from probekit.values import EmbeddingSet, Partition, frozen


def train(
    embeddings: EmbeddingSet,
    partition: Partition,
    *,
    ridge: float | str | Choice | None = None,
    method: str | ClosedForm | FedAvg = "closed-form",
    scaling: str = "mean",
    design: Design | None = None,
    keep: str | None = None,
    objective_noise: float | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Trained:
    """The head of all clients' rows, with what the server keeps for unlearning; the server's rows are not
    trained on.

    `ridge`: a number, "auto" (or "auto:loo", "auto:kfold", "auto:clients"), or what `choose` gave.
    `keep`: "statistics" (exact unlearning; the default of the closed form), "gradients" (the paper's; the
    default of FedAvg) or "nothing". FedAvg's objective is the mean of the clients' mean ridge losses, each
    with its share of the rows; ridge in "sum" scaling is divided by the number of rows.
    `objective_noise`: the sigma of a secret linear term that hides what a removal leaves behind (closed form
    only); the term is drawn anew, stands in `Trained.objective` and must be told to nobody.
    """
    chosen = method_named(method)
    task = _task(embeddings, partition, chosen, ridge=ridge, scaling=scaling, design=design, keep=keep)
    server = None
    if len(partition.server):
        server = ServerSet(client_statistics(embeddings, partition.server, task.design), partition.server)
    if objective_noise is not None:
        _refuse_unhidden(task, chosen)
    if isinstance(chosen, FedAvg):
        trained = _by_rounds(task, chosen, progress)
    else:
        trained = _at_once(task, chosen, objective_noise)
    return replace(trained, server=server)


def _task(
    embeddings: EmbeddingSet,
    partition: Partition,
    method: ClosedForm | FedAvg,
    *,
    ridge: float | str | Choice | None,
    **options: Any,
) -> Task:
    """The task with its ridge chosen where it was left open. The choice's statistics are not computed again."""
    if not isinstance(ridge, str | Choice):
        return task_of(embeddings, partition, method, ridge=ridge, **options)
    task = task_of(embeddings, partition, method, ridge=1.0 if isinstance(ridge, str) else ridge.ridge, **options)
    if isinstance(ridge, str):
        fitted = method if isinstance(method, ClosedForm) else ClosedForm()
        ridge = choose(embeddings, partition, design=task.design, how=ridge, scaling=task.scaling, method=fitted)
    return replace(task, ridge=ridge.ridge, parts=ridge.parts)


def _refuse_unhidden(task: Task, method: ClosedForm | FedAvg) -> None:
    """Refuse objective noise where it would hide nothing."""
    if isinstance(method, FedAvg):
        return refuse_unhidden(method="fedavg")
    return refuse_unhidden(
        ridge=task.ridge,
        intercept=task.design.intercept,
        arithmetic=task.design.arithmetic,
        fit_view=method.view if isinstance(method.view, str) else method.view.name,
        weighted=method.class_weight is not None,
        normalised=method.normalise_classes,
        keep=task.keep,
    )


def _at_once(task: Task, method: ClosedForm, objective_noise: float | None) -> Trained:
    parts = task.each() if task.keep != "nothing" else None
    total = merge(parts.values() if parts is not None else task.stream())
    objective = None if objective_noise is None else draw_objective(total, objective_noise)
    fitted = fit(
        total,
        task.ridge,
        scaling=task.scaling,
        view=method.view,
        class_weight=method.class_weight,
        normalise_classes=method.normalise_classes,
        solver=method.solver,
        objective=objective,
    )
    head, solution = head_of(fitted), fitted.solution
    if objective is not None:
        head = replace(head, recipe={**head.recipe, SIGMA: objective_noise})
    number = len(task.partition.clients)
    traffic = {
        "statistics": Traffic(up=number * task.statistics_bytes),
        "head": Traffic(down=number * (task.design.dimension + 1) * task.design.classes * NUMBER_BYTES),
    }
    trained = _trained(task, head, solution, how="closed-form")
    if parts is not None and task.keep == "gradients":
        params = trained.params
        at_head = {name: quadratics([one], task.mean_ridge).gradients(params)[0] for name, one in parts.items()}
        trained = replace(trained, gradients=Gradients(at_head))
    kept = parts if task.keep == "statistics" else None
    return replace(trained, traffic=traffic, statistics=kept, objective=objective)


def _by_rounds(task: Task, options: FedAvg, progress: Callable[[Progress], None] | None) -> Trained:
    stacked = options.batch_size is None and fits_a_stack(len(task.partition.clients), task.design)
    parts = task.each() if stacked or task.keep == "statistics" else None
    merged = merge(parts.values() if parts is not None else task.stream())
    total = quadratics([merged], task.mean_ridge)
    clients: Clients
    if stacked and parts is not None:
        losses = quadratics(list(parts.values()), task.mean_ridge)
        clients = from_statistics(parts, losses, total=total, options=options)
    else:
        clients = from_rows(
            task.embeddings, task.partition, task.design, ridge=task.mean_ridge, total=total, options=options
        )
    shape = (task.design.columns, task.design.classes)
    rounds = run_rounds(clients, options, shape=shape, progress=progress)
    head, solution = _averaged(task, rounds, merged, total)
    trained = _trained(task, head, solution, how="fedavg", weights=options.weights)
    return replace(
        trained,
        rounds=rounds.done,
        losses=rounds.losses,
        learning_rate=rounds.learning_rate,
        statistics=parts if task.keep == "statistics" else None,
        gradients=_gradients(clients, rounds) if task.keep != "nothing" else None,
        history=rounds.history,
        traffic=_round_traffic(task, rounds),
    )


def _averaged(task: Task, rounds: Rounds, merged: ClientStats, total: Quadratics) -> tuple[LinearHead, Solution]:
    """The rounds' outcome as a head, and how far it is from the minimum of the common loss."""
    bias = np.zeros((task.design.dimension + 1 - task.design.columns, task.design.classes))
    residual = float(np.linalg.norm(total.gradients(rounds.params)) / np.linalg.norm(total.linear))
    note = "The residual is that of the common loss; FedAvg with several local steps settles elsewhere."
    recipe = {
        **recipe_of(merged, scaling=task.scaling, system=system_of(merged)),
        "solver": "fedavg",
        "learning_rate": rounds.learning_rate,
        "rounds": rounds.done,
        "residual": residual,
        "exact_unlearning": False,
    }
    classes = tuple(map(str, range(task.design.classes)))
    params = np.vstack([rounds.params, bias])
    head = LinearHead(params, classes, task.ridge, view=task.design.view, recipe=recipe)
    return head, Solution(rounds.params, residual, rounds.done, "fedavg", note)


def _gradients(clients: Clients, rounds: Rounds) -> Gradients:
    everyone = np.arange(len(clients.names))
    at_head = clients.gradients(rounds.params, everyone)
    at_own = clients.gradients(rounds.last_uploads, rounds.last_participants)
    return Gradients(
        {name: frozen(one) for name, one in zip(clients.names, at_head, strict=True)},
        {clients.names[c]: frozen(one) for c, one in zip(rounds.last_participants, at_own, strict=True)},
    )


def _round_traffic(task: Task, rounds: Rounds) -> Mapping[str, Traffic]:
    """What was sent. Statistics make the gradients known; without them each client sends two more blocks.

    The gradients at the head need one more pass after the last average: the head going down, the gradients
    up.
    """
    number = len(task.partition.clients)
    sent = {"rounds": Traffic(up=rounds.uploaded * task.block, down=rounds.uploaded * task.block)}
    if task.keep == "statistics":
        sent["statistics"] = Traffic(up=number * task.statistics_bytes)
    if task.keep == "gradients":
        sent["gradients at local weights"] = Traffic(up=len(rounds.last_participants) * task.block)
        sent["gradients at the head"] = Traffic(up=number * task.block)
    sent["head"] = Traffic(down=number * task.block)
    return sent


def _trained(task: Task, head: LinearHead, solution: Solution, *, how: str, weights: str = "size") -> Trained:
    """The head with its classes' names and the encoding it belongs to, and who it was trained by."""
    counts = {name: len(rows) for name, rows in task.partition.clients.items()}
    shares = client_weights(np.array(list(counts.values())), weights)
    named = replace(
        head,
        classes=task.embeddings.class_names or head.classes,
        spec_digest=task.embeddings.spec.digest,
    )
    return Trained(
        head=named,
        method=how,
        design=task.design,
        ridge=task.ridge,
        scaling=task.scaling,
        counts=counts,
        weights=dict(zip(counts, shares.tolist(), strict=True)),
        solution=solution,
    )
