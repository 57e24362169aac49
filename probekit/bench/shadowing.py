"""KLoM and U-LiRA of a method: many trainings on random rows, of which some are forgotten by it.

Minima of ridge heads, doing nothing to them and one step from them come from one kernel; all else is trained, forgotten
and asked, shadow by shadow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from probekit.bench.forgetting import NOTHING, Forgotten, as_declared
from probekit.bench.scenario import RETRAININGS, Scenario, folder_of
from probekit.evaluation.shadow_attacks import klom, likelihood_attack
from probekit.evaluation.shadows import (
    LARGEST_KERNEL,
    KernelShadows,
    ShadowDraw,
    draws_around,
    margins,
    masks,
    random_draws,
)
from probekit.federated.trained import Trained
from probekit.federated.training import train
from probekit.files import make_folder, new_file
from probekit.registry import spec_of
from probekit.unlearning.choice import carried_out
from probekit.unlearning.method import Material, method
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import UnlearnRequest
from probekit.values import Array, Indices, Partition

LEAVING = "leaving"
ONE_STEP = "one-step"
Numbers = dict[str, float | None]


@dataclass(eq=False)
class ShadowTables:
    """Margins of all clients' rows under shadows of a scenario, (shadows, rows)."""

    scenario: Scenario

    @cached_property
    def pool(self) -> Indices:
        """The numbers of all clients' rows."""
        return np.concatenate([*self.scenario.rows.partition.clients.values()])

    @cached_property
    def labels(self) -> Indices:
        """Their classes."""
        return self.scenario.rows.embeddings.labels[self.pool]

    def closed(self, spec: str, found: Forgotten | None = None) -> str:
        """The closed form that a method's shadows have here; empty: none."""
        problem, trained, rows = self.scenario.trained.problem, self.scenario.trained, self.scenario.rows
        minimum = "minimum" in getattr(self.scenario.key.trainer, "traits", ())
        plain = {"statistics", "quadratic", "plain"} <= problem.traits and problem.design.intercept != "free"
        many = len(self.pool) + len(rows.partition.server)
        if not (minimum and plain and trained.ridge > 0 and many <= LARGEST_KERNEL):
            return ""
        if spec == NOTHING:
            return NOTHING
        if "minimum" in method(spec).traits:
            return "exact"
        usual = ":" not in spec_of(method(spec)) and self.scenario.key.setting.model.removal_ridge is None
        return ONE_STEP if usual and found is not None and found.last is not None and found.last.one_step else ""

    @cached_property
    def kernel(self) -> KernelShadows:
        """Of the clients' rows, and the server's after them."""
        rows, trained = self.scenario.rows, self.scenario.trained
        every = np.concatenate([self.pool, rows.partition.server])
        some = rows.embeddings.select(every)
        public = np.arange(len(self.pool), len(every))
        how: Any = {"ridge": trained.ridge, "scaling": trained.scaling, "public": public}
        return KernelShadows(some.to_numpy(), some.labels, trained.problem.design, **how)

    def table(self, spec: str, draws: Sequence[ShadowDraw], form: str = "") -> Array:
        """After forgetting by a method: from the kernel, or called."""
        if form:
            return self.kernel.margins(draws, (form,))[form][:, : len(self.pool)]
        return np.stack([margins(self._called(spec, draw), self.labels) for draw in draws])

    def _called(self, spec: str, draw: ShadowDraw) -> Array:
        """The scores of all clients' rows after a training on some of them, of which some leave as one client."""
        scenario, pool = self.scenario, self.pool
        rows, model, trainer = scenario.rows, scenario.key.setting.model, scenario.key.trainer
        stay, server = pool[draw.retained], rows.partition.server
        others = max(1, scenario.key.setting.clients.number - 1)
        picked = np.concatenate([stay, pool[draw.forgotten], server])
        end = len(stay) + len(draw.forgotten)
        clients = {str(number): np.arange(number, len(stay), others) for number in range(others)}
        clients[LEAVING] = np.arange(len(stay), end)
        parts = Partition(clients, np.arange(end, len(picked)), len(picked), "shadow", scenario.key.seed)
        some, problem = rows.embeddings.select(picked), scenario.trained.problem
        keep = "statistics" if "statistics" in problem.traits and "statistics" in trainer.keeps else None
        how: Any = {"problem": problem, "ridge": model.ridge, "method": trainer, "keep": keep}
        trained: Trained = train(some, parts, **how)
        params = trained.params
        if spec != NOTHING:
            unlearner = method(spec)
            seen = as_declared(trained, unlearner, model.removal_ridge)
            given = Material(some, parts, options=trainer)
            params = carried_out(Removal(seen, UnlearnRequest((LEAVING,)), given), unlearner).trained_after.params
        return np.asarray(trained.problem.scores(scenario.head(params), rows.embeddings.embeddings[pool]))


def shadowed(scenario: Scenario, spec: str, found: Forgotten, root: Path, counts: tuple[int, int]) -> Numbers:
    """KLoM on the forgotten rows and U-LiRA on all; `counts`: how many shadows are called, and how many are closed.

    Margins after forgetting are held against retraining on other draws, so that retraining itself is at the floor.
    """
    tables = ShadowTables(scenario)
    form, reference = tables.closed(spec, found), RETRAININGS[scenario.reference]
    count, total, seed = counts[bool(form)], len(tables.pool), scenario.key.seed
    gone = np.flatnonzero(np.isin(tables.pool, scenario.forgotten))
    around, again = (draws_around(total, gone, count=count, seed=seed, again=other) for other in (False, True))
    drawn = random_draws(total, count=count, seed=seed)
    alike = tables.closed(reference)
    one, other = (
        _kept(folder_of(root, scenario.key), f"{what}-{count}", partial(tables.table, reference, draws, alike))
        for what, draws in (("around", around), ("again", again))
    )
    same = spec == reference or (bool(form) and form == alike)
    far = klom(one if same else tables.table(spec, around, form), other, again=one, rows=gone)
    attack = likelihood_attack(tables.table(spec, drawn, form), masks(drawn, total)).attack
    hits = attack.found[0][1]
    return {
        "klom": far.mean,
        "klom_floor": far.floor,
        "ulira_auc": attack.auc,
        "ulira_auc_low": attack.low,
        "ulira_auc_high": attack.high,
        "ulira_tpr": hits.value,
        "ulira_tpr_low": hits.low,
        "ulira_tpr_high": hits.high,
        "shadows": float(count),
    }


def _kept(folder: Path, name: str, made: Callable[[], Array]) -> Array:
    """An array that belongs to a scenario, computed once."""
    path = folder / f"shadows-{name}.npy"
    if not path.is_file():
        make_folder(folder)
        array = made()
        with new_file(path) as handle:
            np.save(handle, array, allow_pickle=False)
    return np.asarray(np.load(path, allow_pickle=False))
