"""A state of a run with what is at hand to judge it: its rows, its statistics, the head that retraining gives."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from probekit.cache import DiskStore
from probekit.errors import CorruptError, InputError, MismatchError, NotFoundError, SolverError
from probekit.federated.federation import Federation
from probekit.federated.sums import add_up
from probekit.federated.trained import Trained
from probekit.files import make_folder
from probekit.linear.design import ClientStats
from probekit.models.heads import Head
from probekit.models.serving import load_head, save_head
from probekit.protocols import Watch, unwatched
from probekit.runs.federation import federation_of
from probekit.runs.folder import RunFolder
from probekit.runs.layout import REFERENCES
from probekit.runs.rows import UNLEARN, RunRows, rows_at
from probekit.unlearning.method import FROM_ROWS, method
from probekit.unlearning.methods.retrain import minimum_trainer, trained_anew
from probekit.values import canonical

KEPT, CACHED = "the kept statistics", "the cached rows"
NO_SUMS = "This problem has no statistics."
NO_MINIMUM = "This loss (logistic, or of a network that is not linearized) is no ridge loss: nothing of it is bounded."


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A state, and the retained clients' statistics: `source` says from what, `why` why there are none.

    `rows` are those that the statistics were made of, where they were made anew.
    """

    run: RunFolder
    store: DiskStore
    number: int
    trained: Trained
    statistics: Mapping[str, ClientStats] | None
    source: str = ""
    why: str = ""
    rows: RunRows | None = None

    def retrained(self, watch: Watch = unwatched) -> tuple[Head | None, str]:
        """The minimum of the loss of exactly the rows that this state stands for; or why it cannot be had.

        Where the loss is not quadratic: what the run's own training comes to on these rows. A state that is it will do.
        """
        if self.statistics is None:
            return (_retrained(self, watch), "") if self.clients is not None else (None, self.why)
        try:
            total = add_up(
                self.statistics.values(), self.trained.problem.design
            )  # in another order than a removal adds
            return self.trained.minimum(total)[0], ""
        except (InputError, SolverError) as error:
            return None, str(error)

    def reference(self, watch: Watch = unwatched) -> Head:
        """The retrained head, for those who cannot do without."""
        head, why = self.retrained(watch)
        if head is None:
            raise InputError(f"The retrained head of state {self.number} of {self.run.path} is missing. {why}")
        return head

    @cached_property
    def clients(self) -> Federation | None:
        """Clients that answer from the cached rows where a problem has no statistics; None: nobody is there."""
        if self.rows is None or self.statistics is not None:
            return None
        return federation_of(self.trained.problem, *self.rows, self.trained.counts)

    @property
    def with_statistics(self) -> Trained:
        """What was trained, with the statistics that are at hand."""
        return replace(self.trained, statistics=self.statistics)


def snapshot(run: RunFolder, store: DiskStore, state: int | None = None, *, from_rows: bool = False) -> Snapshot:
    """A state of the run; its statistics are those kept or, where none are or it is asked for, of the cached rows."""
    number = run.state if state is None else state
    trained = run.trained(number)
    if trained.statistics is not None and not from_rows:
        return Snapshot(run, store, number, trained, trained.statistics, KEPT)
    try:
        rows = rows_at(run, store, number)
    except (NotFoundError, MismatchError) as error:
        if from_rows:
            raise
        why = f"No statistics were kept, and the rows are not at hand. {error}"
        return Snapshot(run, store, number, trained, None, why=why)
    if "statistics" not in trained.problem.traits:
        why = NO_SUMS if "quadratic" in trained.problem.traits else NO_MINIMUM
        return Snapshot(run, store, number, trained, None, CACHED, why=why, rows=rows)
    return Snapshot(run, store, number, trained, _statistics(run, trained, rows), CACHED, rows=rows)


def _statistics(run: RunFolder, trained: Trained, rows: RunRows) -> dict[str, ClientStats]:
    held = {name: rows.partition.clients[name] for name in trained.counts if name in rows.partition.clients}
    found = {name: trained.problem.hold(rows.embeddings, own).statistics for name, own in held.items()}
    if {name: one.count for name, one in found.items()} != dict(trained.counts):
        raise CorruptError(
            f"The cached rows are not those that a state of {run.path} stands for: it says {trained.rows} rows of "
            f"{len(trained.counts)} clients, found {sum(one.count for one in found.values())} of {len(found)}. Restore "
            "the run from a copy, or train again."
        )
    return found


def _retrained(here: Snapshot, watch: Watch) -> Head:
    """The reference by rounds: a state that is it, or made once for each set of rows and kept in the run's folder."""
    run, trained, rows = here.run, here.trained, here.rows
    assert rows is not None
    assert here.clients is not None
    problem, folder = trained.problem, run.path / REFERENCES / _key(trained, rows)
    if folder.exists():
        found = load_head(folder)
        if found.backend != problem.backend or found.params.shape != trained.head.params.shape:
            raise CorruptError(f"{folder} holds another head than this run's. Remove it: it will be made anew.")
        return found
    if (same := _same_rows(here)) is not None:
        return same
    server = None
    if len(rows.partition.server):
        server = problem.hold(rows.embeddings, rows.partition.server, share=0.5, name="the server")
    trainer = minimum_trainer(problem) if {"quadratic", "trainer"} & problem.traits else _own_trainer(run)
    anew = trained_anew(trained, here.clients, trainer, server=server, watch=watch)
    recipe = {**trained.head.recipe, "solver": "retrain", "rows": anew.rows, "exact_unlearning": False}
    made: Head = problem.head(anew.params, ridge=trained.head.ridge, recipe=recipe)
    make_folder(folder.parent, closed=True)
    save_head(made, folder)
    return made


def _same_rows(here: Snapshot) -> Head | None:
    """The head of a state that was trained on the same rows to the same end, so that nothing need be trained again."""
    run, trained = here.run, here.trained
    assert here.rows is not None
    unlearned = {one.state for one in run.entries() if one.action == UNLEARN}
    for number in {here.number: None, **dict.fromkeys(run.states())}:
        other = trained if number == here.number else run.trained(number)
        if dict(other.counts) != dict(trained.counts) or not _is_reference(other, number in unlearned):
            continue
        if number == here.number or _key(other, rows_at(run, here.store, number)) == _key(trained, here.rows):
            return other.head
    return None


def _is_reference(trained: Trained, unlearned: bool) -> bool:
    """Whether a state is what its rows give by themselves, to the minimum where there is one to be found."""
    minimum = "quadratic" in trained.problem.traits
    if not unlearned:
        return not minimum
    try:
        found = method(trained.method).traits
    except NotFoundError:  # somebody's own, which is not here
        return False
    return FROM_ROWS in found and (not minimum or "minimum" in found)


def _own_trainer(run: RunFolder) -> Any:
    from probekit.runs.fitting import trainer_again  # which trains, and most questions do not

    return replace(trainer_again(run.config), ridge=None)


def _key(trained: Trained, rows: RunRows) -> str:
    """A name for the retained rows, their labels and the loss."""
    hasher = hashlib.sha256(canonical([trained.problem.digest, trained.ridge]).encode())
    ids, labels = rows.embeddings.ids, rows.embeddings.labels
    for name in sorted(trained.counts):
        held = [[ids[row], int(labels[row])] for row in rows.partition.clients[name].tolist()]
        hasher.update(canonical([name, held]).encode())
    return hasher.hexdigest()[:16]
