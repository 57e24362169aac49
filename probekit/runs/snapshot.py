"""A state of a run with what is at hand to judge it: its rows, its statistics, the head that retraining gives."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from probekit.cache import DiskStore
from probekit.errors import CorruptError, InputError, MismatchError, NotFoundError, SolverError
from probekit.federated.client import client_statistics
from probekit.federated.server import merge
from probekit.federated.trained import Trained
from probekit.linear.design import ClientStats
from probekit.models.heads import Head, NetworkHead
from probekit.models.serving import load_head, save_head
from probekit.runs.folder import RunFolder
from probekit.runs.layout import REFERENCES
from probekit.runs.rows import RunRows, rows_at
from probekit.unlearning.exact import refit
from probekit.unlearning.method import Material
from probekit.unlearning.remainder import moved_head, remaining_rows
from probekit.unlearning.retained import LocalClients, answering
from probekit.values import canonical

KEPT, CACHED = "the kept statistics", "the cached rows"
NETWORK = "A whole network has no statistics."
LOGISTIC = "A logistic head has no closed form to retrain by."


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A state, and the retained clients' statistics: `source` says from what, `why` why there are none.

    `rows` are those that the statistics were made of, where they were made anew.
    """

    run: RunFolder
    number: int
    trained: Trained
    statistics: Mapping[str, ClientStats] | None
    source: str = ""
    why: str = ""
    rows: RunRows | None = None

    def retrained(self) -> tuple[Head | None, str]:
        """The minimum of the loss of exactly the rows that this state stands for; or why it cannot be had."""
        if self.rows is not None and isinstance(self.trained.head, NetworkHead):
            return _retrained_network(self.run, self.trained, self.trained.head, self.rows), ""
        if self.statistics is None:
            return None, self.why
        try:
            return refit(self.trained, merge(self.statistics.values()))[0], ""  # in another order than a removal adds
        except (InputError, SolverError) as error:
            return None, str(error)

    def reference(self) -> Head:
        """The retrained head, for those who cannot do without."""
        head, why = self.retrained()
        if head is None:
            raise InputError(f"The retrained head of state {self.number} of {self.run.path} is missing. {why}")
        return head

    @cached_property
    def clients(self) -> LocalClients | None:
        """Clients that answer for a whole network from the cached rows; None: of a head, or nobody is there."""
        if self.rows is None or not isinstance(self.trained.head, NetworkHead):
            return None
        rows = {name: self.rows.partition.clients[name] for name in self.trained.counts}
        return answering(self.trained.head, self.rows.embeddings, rows, self.trained.design)

    @property
    def with_statistics(self) -> Trained:
        """What was trained, with the statistics that are at hand."""
        return replace(self.trained, statistics=self.statistics)


def snapshot(run: RunFolder, store: DiskStore, state: int | None = None, *, from_rows: bool = False) -> Snapshot:
    """A state of the run; its statistics are those kept or, where none are or it is asked for, of the cached rows."""
    number = run.state if state is None else state
    trained = run.trained(number)
    if trained.method == "logistic":
        return Snapshot(run, number, trained, None, why=LOGISTIC)
    if trained.statistics is not None and not from_rows:
        return Snapshot(run, number, trained, trained.statistics, KEPT)
    try:
        rows = rows_at(run, store, number)
    except (NotFoundError, MismatchError) as error:
        if from_rows:
            raise
        why = f"No statistics were kept, and the rows are not at hand. {error}"
        return Snapshot(run, number, trained, None, why=why)
    if isinstance(trained.head, NetworkHead):
        return Snapshot(run, number, trained, None, CACHED, why=NETWORK, rows=rows)
    return Snapshot(run, number, trained, _statistics(run, trained, rows), CACHED, rows=rows)


def _statistics(run: RunFolder, trained: Trained, rows: RunRows) -> dict[str, ClientStats]:
    found = {
        name: client_statistics(rows.embeddings, rows.partition.clients[name], trained.design)
        for name in trained.counts
        if name in rows.partition.clients
    }
    if {name: one.count for name, one in found.items()} != dict(trained.counts):
        raise CorruptError(
            f"The rows in the cache are not those that a state of {run.path} stands for: it says "
            f"{sum(trained.counts.values())} rows of {len(trained.counts)} clients, found "
            f"{sum(one.count for one in found.values())} of {len(found)}. Restore the run from a copy, or train again."
        )
    return found


def _retrained_network(run: RunFolder, trained: Trained, head: NetworkHead, rows: RunRows) -> Head:
    """The network's minimum, made once for each set of retained rows and kept in the run's folder."""
    folder = run.path / REFERENCES / _key(trained, head, rows)
    if folder.exists():
        found = load_head(folder)
        if not isinstance(found, NetworkHead) or found.network.digest != head.network.digest:
            raise CorruptError(f"{folder} holds another network than this run's. Remove it: it will be made anew.")
        return found
    from probekit.unlearning.network_retrain import fit_anew

    anew = fit_anew(trained, remaining_rows(trained, None, Material(*rows)))
    made = moved_head(trained, anew.params, method="retrain", rows=sum(anew.counts.values()))
    folder.parent.mkdir(exist_ok=True)
    save_head(made, folder)
    return made


def _key(trained: Trained, head: NetworkHead, rows: RunRows) -> str:
    """A name for the retained rows, their labels and the loss."""
    hasher = hashlib.sha256(canonical([head.network.digest, head.centre, trained.ridge]).encode())
    ids, labels = rows.embeddings.ids, rows.embeddings.labels
    for name in sorted(trained.counts):
        held = [[ids[row], int(labels[row])] for row in rows.partition.clients[name].tolist()]
        hasher.update(canonical([name, held]).encode())
    return hasher.hexdigest()[:16]
