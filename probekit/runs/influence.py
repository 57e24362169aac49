"""How much each client matters, before any is removed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from probekit.errors import InputError
from probekit.federated.summation import StatisticsTree
from probekit.models.serving import predict
from probekit.runs.evaluation import EvaluationSet, find_sets
from probekit.runs.folder import OpenRun
from probekit.runs.result import Result
from probekit.runs.snapshot import Snapshot, snapshot
from probekit.unlearning.influence import influences

BOUNDS_ONLY = "the kept gradients: no distances, bounds only"


@dataclass(frozen=True)
class ClientInfluence:
    """How far the head would move without a client (measured, and at most), and how its accuracy would change."""

    client: str
    rows: int
    distance: float | None
    relative: float | None
    bound: float | None
    accuracy_without: float | None
    change: float | None


@dataclass(frozen=True)
class InfluenceResult(Result):
    """Every client's influence on the head of a state, the largest first."""

    run: Path
    state: int
    head: str
    computed_from: str
    judged_on: str
    accuracy: float | None
    clients: tuple[ClientInfluence, ...]


def influence(run: OpenRun, *, test: str | None = None, state: int | None = None) -> InfluenceResult:
    """How far the head would move, and how its accuracy would change, without each client.

    test: a set to judge the accuracy on; none: the server's rows.
    """
    sets, why = find_sets(run.folder, run.store, [test] if test is not None else [])
    here = snapshot(run.folder, run.store, state)
    subject = sets[0] if sets else None
    trained = here.with_statistics
    if here.statistics is None and trained.gradients is None:
        raise InputError(f"How much clients matter cannot be told. {here.why} Its gradients were not kept either.")
    found = influences(trained)
    now, without = _accuracies(here, subject)
    size = float(np.linalg.norm(trained.head.params))
    clients = []
    for one in found:
        relative, after = None if one.distance is None else one.distance / size, without.get(one.client)
        change = None if now is None or after is None else after - now
        clients.append(ClientInfluence(one.client, one.rows, one.distance, relative, one.bound, after, change))
    source = here.source if here.statistics is not None else BOUNDS_ONLY
    judged_on = why if subject is None else f"{len(subject.rows)} rows of {subject.name}: {subject.meaning}"
    return InfluenceResult(run.path, here.number, trained.head.digest, source, judged_on, now, tuple(clients))


def _accuracies(here: Snapshot, subject: EvaluationSet | None) -> tuple[float | None, dict[str, float]]:
    """The accuracy of the head, and of the head without each client where their statistics are at hand."""
    if subject is None:
        return None, {}
    labels = subject.rows.labels
    without = {}
    for name, others in StatisticsTree.of(here.statistics).complements() if here.statistics is not None else ():
        head, _ = here.trained.minimum(others)
        without[name] = float((predict(head, subject.rows) == labels).mean())
    return float((predict(here.trained.head, subject.rows) == labels).mean()), without
