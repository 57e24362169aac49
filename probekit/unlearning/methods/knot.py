"""KNOT (Su and Li, 2023): the forgotten client's cluster goes back to before its first round and trains on without it.

What comes out is what clustered training without the client gives, with the clusters that were; retraining without
clusters is something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from probekit.errors import InputError
from probekit.federated.methods.knot import (
    KEPT_KNOT,
    RESULTS,
    KnotCluster,
    KnotTraining,
    clusters_in,
    kept_clusters,
)
from probekit.unlearning.method import Unlearned
from probekit.unlearning.removal import Removal

TRAINED_SO = "a run in clusters: train with `method=knot`"


@dataclass(frozen=True)
class Knot:
    """Retrains the clusters of the forgotten clients, of a run that was trained by knot.

    `result`: "average" of the clusters, or "best" as the public code: one cluster's model; None: as the run was
    trained.
    """

    name: ClassVar[str] = "knot"
    needs: ClassVar[tuple[Any, ...]] = (
        ("kept", KEPT_KNOT, TRAINED_SO),
        ("trainer", "clusters", TRAINED_SO),
        ("request", "leaving"),
        ("online", "fit"),
        (("trainer", "learning_rate", TRAINED_SO), ("online", "scales")),
        (("trainer", "result", TRAINED_SO), ("online", "evaluate")),
    )
    keeps: ClassVar[tuple[str, ...]] = (KEPT_KNOT,)
    traits: ClassVar[frozenset[str]] = frozenset()
    source: ClassVar[str] = KnotTraining.source
    tunable: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    result: str | None = None

    def __post_init__(self) -> None:
        if self.result not in (None, *RESULTS):
            raise InputError(f"result of knot is one of {', '.join(RESULTS)}; found {self.result!r}.")

    def unlearn(self, removal: Removal) -> Unlearned:
        """The mean of the clusters, those of the forgotten trained anew."""
        options: KnotTraining = removal.material.options
        found, anew, rounds = [], 0, 0
        for one in clusters_in(removal.before.kept[KEPT_KNOT]):
            concerned = removal.forgotten.intersection(one.members)
            left = tuple(name for name in one.members if name in removal.counts)
            if not concerned:
                found.append(one)
            elif left:
                number, cluster = self._retrained(removal, options, one, left)
                found.append(cluster)
                anew, rounds = anew + 1, rounds + options.rounds - number
        if self.result is not None:
            options = replace(options, result=self.result)
        params = options.combined(found, removal.online, removal.problem)
        d, k = removal.problem.shape
        return removal.finish(
            self,
            params=params,
            flops=rounds * (options.local_steps or options.local_epochs or 1) * 4 * removal.rows * d * k,
            note=f"{anew} of {len(found)} clusters trained anew, {rounds} rounds in all: clustered training without "
            "the forgotten, for the clusters that were.",
            rounds=options.rounds,
            learning_rate=options.learning_rate,
            kept={**removal.before.without(removal.forgotten).kept, KEPT_KNOT: kept_clusters(found)},
        )

    def _retrained(
        self, removal: Removal, options: KnotTraining, one: KnotCluster, left: tuple[str, ...]
    ) -> tuple[int, KnotCluster]:
        """A cluster without the forgotten, and the round that it went back to.

        Where the rate or the ridge's share follows from the cluster's rows, its first round would have been another.
        """
        number = min(options.first_round(name) for name in one.members if name in removal.forgotten)
        if options.learning_rate is None or removal.before.scaling == "sum":
            number = 0
        elif number and number not in one.starts:  # the rounds ended before
            return options.rounds, replace(one, members=left)
        begin = (number, one.starts[number]) if number else None
        given: Any = {"ridge": removal.before.ridge, "scaling": removal.before.scaling, "watch": removal.watch}
        made = options.rounds_of(removal.online, removal.problem, left, **given, begin=begin)
        earlier = {at: params for at, params in one.starts.items() if at < number}
        return number, replace(made, starts={**earlier, **made.starts})
