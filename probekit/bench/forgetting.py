"""A method on a scenario: all its requests, one after the other, and what they took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from probekit.errors import InputError
from probekit.evaluation.footprint import footprint
from probekit.federated.trained import Trained
from probekit.unlearning.choice import carried_out
from probekit.unlearning.method import FROM_ROWS, Cost, Unlearned, choices_of, method, missing
from probekit.unlearning.removal import Removal
from probekit.values import Array

if TYPE_CHECKING:
    from probekit.bench.scenario import Scenario

NOTHING = "nothing"
"""The baseline that leaves the head as it is; it is no method, and nobody can ask a run for it."""


class NotPossible(InputError):  # noqa: N818
    """A method that needs what a setting does not have."""


@dataclass(frozen=True, eq=False)
class Forgotten:
    """Where a method ended; `last` is its answer to the last request. `facts` stand in the table as they are."""

    params: Array
    cost: Cost
    facts: dict[str, Any]
    last: Unlearned | None = None

    @property
    def plain(self) -> dict[str, Any]:
        """All but where it ended, for a file."""
        return {"cost": asdict(self.cost), "facts": self.facts}

    @classmethod
    def known(cls, params: Array, plain: Mapping[str, Any]) -> Forgotten:
        """What `plain` said of these parameters."""
        return cls(params, Cost(**plain["cost"]), dict(plain["facts"]))


def unlearned(scenario: Scenario, spec: str) -> Forgotten:
    """What a method makes of all requests of a scenario."""
    if spec == NOTHING:
        facts: dict[str, Any] = {"retained_online": False, "target_online": False, "storage": 0, "note": ""}
        return Forgotten(scenario.trained.params, Cost(), facts)
    unlearner = method(spec)
    before = as_declared(scenario.trained, unlearner, scenario.key.setting.model.removal_ridge)
    storage, cost, material, online = 0, Cost(), scenario.material(), {"retained": False, "target": False}
    done = None
    for request in scenario.requests:
        removal = Removal(before, request, material)
        if why := missing(unlearner, removal):
            raise NotPossible(why)
        done = carried_out(removal, unlearner)
        taken = footprint(removal, done)
        online = {party: online[party] or getattr(taken, f"{party}_online") for party in online}
        storage, cost, before = max(storage, taken.storage), _added(cost, done.cost), done.trained_after
        if request.by_row:
            material = replace(material, embeddings=removal.rest.embeddings, partition=removal.rest.partition)
    params = np.asarray(before.params)
    facts = {f"{party}_online": value for party, value in online.items()}
    if done is not None and "epsilon_delta" in unlearner.traits:
        facts["statement"] = done.note
    return Forgotten(params, cost, {**facts, "storage": storage, "note": done.note if done else ""}, done)


def as_declared(trained: Trained, unlearner: Any, ridge: float | None = None) -> Trained:
    """The trained state as a method may see it, with another ridge unless it trains anew.

    Kept statistics are for those that declare them: others would find answers that their clients have to send.
    """
    needs = {one[:2] for need in unlearner.needs for one in choices_of(need)}
    if ridge is not None and FROM_ROWS not in unlearner.traits:
        trained = replace(trained, ridge=ridge)
    return trained if ("kept", "statistics") in needs else replace(trained, statistics=None)


def _added(one: Cost, two: Cost) -> Cost:
    return Cost(*(getattr(one, name) + getattr(two, name) for name in ("up", "down", "rounds", "flops", "seconds")))
