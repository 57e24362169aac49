"""KNOT (Su and Li, 2023): the clusters of the forgotten train again, the others are left alone.

The result is clustered training without the forgotten, for the clusters that were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from probekit.federated.state import State
from probekit.federated.training.knot import Cluster, Clusters, KnotTraining
from probekit.records import record
from probekit.unlearning.local import continued_questions
from probekit.unlearning.removal import Need, Promise, Questions, Removal


@record("method/knot")
@dataclass(frozen=True)
class Knot:
    """For runs that `knot` trained; a ridge that a rule chose stays, for the other clusters."""

    promise: ClassVar[Promise] = "retrained"

    def needs(self, removal: Removal) -> frozenset[Need]:
        return frozenset({Need.CLUSTERS, Need.RETAINED, Need.RETAINED_ROWS})

    def questions(self, removal: Removal) -> Sequence[Questions]:
        trainer = removal.state.trainer
        assert isinstance(trainer, KnotTraining)
        fedavg = trainer.fedavg
        questions: list[Questions] = []
        for cluster in self.touched(removal):
            members = self.members(cluster, removal)
            if members:
                group = replace(removal, retained=removal.retained.only(members))
                rounds = continued_questions(fedavg, group, range(fedavg.rounds))
                questions += [
                    item if item.clients else replace(item, clients=members) for item in rounds
                ]
        return questions

    def unlearn(self, removal: Removal) -> State:
        trainer = removal.state.trainer
        assert isinstance(trainer, KnotTraining)
        choice = removal.state.ridge_choice
        touched = self.touched(removal)
        parts = []
        for cluster in removal.kept(Clusters).parts:
            members = self.members(cluster, removal)
            if cluster not in touched:
                parts.append(cluster)
            elif members:
                parts.append(trainer.cluster(removal.retained, members, ridge=choice.value))
        clusters = Clusters(tuple(parts))
        stale = replace(choice, stale=choice.rule is not None)
        return removal.finish(clusters.mean(), clusters, ridge=stale)

    def touched(self, removal: Removal) -> list[Cluster]:
        """The clusters of clients that leave or forget samples."""
        clusters = removal.kept(Clusters).parts
        return [part for part in clusters if removal.request.touched & set(part.members)]

    def members(self, cluster: Cluster, removal: Removal) -> list[str]:
        return [name for name in cluster.members if name in removal.clients]
