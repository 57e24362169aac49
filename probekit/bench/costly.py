"""Measures that train or ask again: certified rows, rounds to relearn, shadows. Only where an experiment asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from probekit.bench.forgetting import Forgotten
from probekit.bench.scenario import Scenario
from probekit.bench.shadowing import shadowed
from probekit.certificates.certify import certify
from probekit.evaluation.forgetting import relearn_rounds
from probekit.federated.in_process import InProcess
from probekit.federated.trained import RoundState
from probekit.federated.training import train
from probekit.unlearning.removal import Removal
from probekit.values import Array

Numbers = dict[str, float | None]
MOST_ROUNDS = 20
BACK = 0.9


def certified(scenario: Scenario, spec: str, found: Forgotten, root: Path, shadows: tuple[int, int]) -> Numbers:
    """The share of test rows that provably get the class of the minimum; none of a loss that is not quadratic."""
    if found.last is None or not {"quadratic", "plain"} <= scenario.trained.problem.traits:
        return {}
    whole = Removal(scenario.trained, scenario.everything, scenario.material())
    after = found.last.trained_after
    if "statistics" in after.problem.traits and scenario.trained.statistics is not None:
        judged = replace(found.last, trained_after=replace(after, statistics=whole.statistics, counts=whole.counts))
        clients = None
    else:
        judged, clients = found.last, _retained(scenario, whole, after.problem)
    said = certify(scenario.trained, judged, clients=clients, evaluation=scenario.rows.test).agreement
    return {"certified": 0.0 if said is None else said.rate}


def by_rounds(scenario: Scenario, spec: str, found: Forgotten, root: Path, shadows: tuple[int, int]) -> Numbers:
    """The same without statistics, by a gradient of the retained clients: plain, and with the rounds' products."""
    if found.last is None or not {"quadratic", "plain"} <= scenario.trained.problem.traits:
        return {}
    whole, after = Removal(scenario.trained, scenario.everything, scenario.material()), found.last.trained_after
    judged = replace(found.last, trained_after=replace(after, statistics=None))
    bare = replace(scenario.trained, statistics=None)
    clients = _retained(scenario, whole, after.problem)
    said = certify(bare, judged, clients=clients, evaluation=scenario.rows.test)
    plain = 0.0 if said.agreement is None else said.agreement.rate
    if said.rounds is None:
        return {"certified_plain": plain}
    return {"certified_plain": plain, "certified_rounds": said.rounds.certified / said.rounds.rows}


def _retained(scenario: Scenario, whole: Removal, problem: Any) -> InProcess:
    """The retained clients with the rows that are left to them."""
    by_row = scenario.everything.by_row
    rest = whole.rest.partition.clients if by_row else whole.held
    assert rest is not None
    return InProcess.of(problem, whole.rest.embeddings if by_row else scenario.rows.embeddings, rest)


def relearn(scenario: Scenario, spec: str, found: Forgotten, root: Path, shadows: tuple[int, int]) -> Numbers:
    """How many rounds of FedAvg with everybody bring nine tenths of the forgotten rows' accuracy back."""
    trainer = scenario.key.trainer
    if not hasattr(trainer, "local_steps"):
        return {}
    rows, own = scenario.rows, scenario.forgotten
    once = replace(trainer, rounds=1, **({"keep_history": False} if hasattr(trainer, "keep_history") else {}))
    some, labels = np.asarray(rows.embeddings.embeddings[own]), rows.embeddings.labels[own]
    how: Any = {"problem": scenario.trained.problem, "ridge": scenario.trained.ridge, "keep": "nothing"}

    def step(params: Array) -> Array:
        begin = RoundState(params, 0)
        return np.asarray(train(rows.embeddings, rows.partition, method=once, resume=begin, **how).params)

    def right(params: Array) -> float:
        scores = scenario.trained.problem.scores(scenario.head(params), some)
        return float((scores.argmax(axis=1) == labels).mean())

    known = BACK * right(scenario.trained.params)
    taken = relearn_rounds(found.params, step, right, wanted=known, most=MOST_ROUNDS)
    return {"relearn_rounds": float(MOST_ROUNDS if taken.rounds is None else taken.rounds)}


COSTLY: dict[str, Callable[[Scenario, str, Forgotten, Path, tuple[int, int]], Numbers]] = {
    "certified": certified,
    "certified-rounds": by_rounds,
    "relearn": relearn,
    "shadows": shadowed,
}
"""What each of these groups of metrics computes."""
