"""A state of a run with what is at hand to judge it: its rows, its statistics, the head that retraining gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from probekit.errors import CorruptError, InputError, MismatchError, NotFoundError, SolverError
from probekit.federated.client import client_statistics
from probekit.federated.trained import Trained
from probekit.linear.design import ClientStats
from probekit.models.heads import Head, NetworkHead
from probekit.runs.folder import RunFolder
from probekit.runs.unlearning import Rows, rows_at
from probekit.unlearning.exact import refit
from probekit.unlearning.retained import LocalClients, answering
from probekit.unlearning.tree import StatisticsTree

if TYPE_CHECKING:
    from probekit.cache import DiskStore

KEPT, CACHED = "the kept statistics", "the cached rows"
NETWORK = "A whole network has no statistics."
LOGISTIC = "A logistic head has no closed form to retrain by."


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A state, and the retained clients' statistics: `source` says from what, `why` why there are none.

    `held` are the rows that the statistics were made of, where they were made anew.
    """

    run: RunFolder
    number: int
    trained: Trained
    statistics: Mapping[str, ClientStats] | None
    source: str = ""
    why: str = ""
    held: Rows | None = None

    def retrained(self) -> tuple[Head | None, str]:
        """The minimum of the loss of exactly the rows that this state stands for; or why it cannot be had."""
        if isinstance(self.trained.head, NetworkHead) and self.held is not None:
            from probekit.runs.references import retrained_network

            return retrained_network(self.run, self.trained, *self.held), ""
        if self.statistics is None:
            return None, self.why
        try:
            return refit(self.trained, StatisticsTree.of(self.statistics).total)[0], ""
        except (InputError, SolverError) as error:
            return None, str(error)

    @cached_property
    def clients(self) -> LocalClients | None:
        """Clients that answer for a whole network from the cached rows; None: of a head, or nobody is there."""
        if self.held is None or not isinstance(self.trained.head, NetworkHead):
            return None
        rows = {name: self.held[1].clients[name] for name in self.trained.counts}
        return answering(self.trained.head, self.held[0], rows, self.trained.design)

    @property
    def with_statistics(self) -> Trained:
        """What was trained, with the statistics that are at hand."""
        return replace(self.trained, statistics=self.statistics)


def snapshot(run: RunFolder, store: DiskStore, number: int, *, from_rows: bool = False) -> Snapshot:
    """A state of the run; its statistics are those kept or, where none are or it is asked for, of the cached rows."""
    trained = run.trained(number)
    if trained.method == "logistic":
        return Snapshot(run, number, trained, None, why=LOGISTIC)
    if trained.statistics is not None and not from_rows:
        return Snapshot(run, number, trained, trained.statistics, KEPT)
    try:
        held = rows_at(run, store, number)
    except (NotFoundError, MismatchError) as error:
        if from_rows:
            raise
        return Snapshot(
            run, number, trained, None, why=f"No statistics were kept, and the rows are not at hand. {error}"
        )
    if isinstance(trained.head, NetworkHead):
        return Snapshot(run, number, trained, None, CACHED, why=NETWORK, held=held)
    return Snapshot(run, number, trained, _statistics(run, trained, held), CACHED, held=held)


def _statistics(run: RunFolder, trained: Trained, held: Rows) -> dict[str, ClientStats]:
    embeddings, partition = held
    found = {
        name: client_statistics(embeddings, partition.clients[name], trained.design)
        for name in trained.counts
        if name in partition.clients
    }
    if {name: one.count for name, one in found.items()} != dict(trained.counts):
        raise CorruptError(
            f"The rows in the cache are not those that a state of {run.path} stands for: it says "
            f"{sum(trained.counts.values())} rows of {len(trained.counts)} clients, found "
            f"{sum(one.count for one in found.values())} of {len(found)}. Restore the run from a copy, or train again."
        )
    return found
