"""Run: a trained head in a folder, its history, and the rows that it is about."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from probekit.arrays import Ids
from probekit.cache import Cache
from probekit.cache.runs import note_run, noted_runs
from probekit.certificates.certificate import Certificate, certify
from probekit.embeddings import EmbeddingSet, Encoding, Rows
from probekit.errors import CorruptError, InputError, SolverError
from probekit.federated.client import LocalData
from probekit.federated.federation import Federation, InProcess, Transport
from probekit.federated.federation import single_thread as single_thread
from probekit.federated.state import KeptStatistics, State
from probekit.federated.transports.kept import KeptFirst
from probekit.files import write_bytes
from probekit.heads import BaseHead, Head, load_head
from probekit.linear.model import LinearModel
from probekit.linear.stats import normalized
from probekit.objective import Model, Squares
from probekit.progress import Progress, silent
from probekit.records import dump, record_name
from probekit.runs import layout
from probekit.runs.layout import AnyEvent, Commitment, Description, Erased, Unlearned
from probekit.runs.rows import (
    SERVER,
    TEST,
    TRAINING,
    ClientSets,
    Mask,
    RunFiles,
    RunRows,
    fingerprint_of,
    state_fingerprint,
)

if TYPE_CHECKING:
    from probekit.runs.erase import Erasure
    from probekit.runs.evaluate import RunEvaluation
    from probekit.runs.unlearn import Unlearning
    from probekit.runs.verify import VerifyResult

SERVER_NAME = "server"
Connect = Callable[[Mapping[str, LocalData]], Transport]


@contextmanager
def connection(transport: str | None) -> Iterator[Connect]:
    """What makes clients of rows: None in this process, "ray" or "ray:HOST:PORT" on Ray."""
    if transport is None:
        yield InProcess
        return
    name, colon, address = transport.partition(":")
    if name != "ray" or (colon and not address):
        raise InputError(f"--transport must be ray or ray:HOST:PORT; found {transport!r}.")
    from probekit.federated.transports.ray import RayTransport, cluster

    with cluster(address):
        connect: Connect = RayTransport.of
        yield connect


@dataclass(frozen=True, eq=False)
class StoredState:
    """A state of a run on the disk; its files are read when they are asked for."""

    run: Path
    number: int
    description: Description
    fingerprint: str
    commitment: Ids

    @classmethod
    def newest(cls, run: Path) -> Self:
        description, content = layout.read_description(run)
        commitment = layout.read_record(run / layout.COMMITMENT, Commitment).leaves
        fingerprint = fingerprint_of(content, commitment)
        return cls(run, layout.state_numbers(run)[-1], description, fingerprint, commitment)

    @property
    def folder(self) -> Path:
        return layout.state_folder(self.run, self.number)

    @cached_property
    def events(self) -> tuple[AnyEvent, ...]:
        return layout.read_events(self.folder)

    @cached_property
    def all_rows(self) -> RunRows:
        """The rows of the partition: the retained, and the forgotten that were not erased."""
        rows = layout.read_record(self.run / layout.ROWS, RunRows)
        if rows.leaves.max(initial=-1) >= len(self.commitment):
            raise CorruptError(
                f"{self.run / layout.ROWS} names leaves that the run does not have. "
                f"{layout.RESTORE}"
            )
        return rows

    @cached_property
    def rows(self) -> RunRows:
        """The retained rows."""
        return self.all_rows.take(~self.forgotten)

    @cached_property
    def forgotten(self) -> Mask:
        """Which of all rows are forgotten."""
        return layout.forgotten(self.all_rows, self.events)

    @property
    def clients(self) -> set[str]:
        """The names of all clients that the run has or had."""
        requests = [event for event in self.events if isinstance(event, Unlearned)]
        forgotten = {name for event in requests for name in event.clients}
        return {*self.all_rows.clients, *forgotten} - {""}

    @cached_property
    def state(self) -> State:
        self.description.options.trainer()  # whose module knows the records of a plugin
        return layout.read_record(self.folder / layout.KEPT, State)

    @cached_property
    def head(self) -> BaseHead:
        return load_head(self.folder / layout.HEAD)

    @cached_property
    def certificate(self) -> Certificate | None:
        return layout.read_certificate(self.folder)

    @property
    def ridge(self) -> float:
        """By the certificate where there is one, which is small; a state may have many sums."""
        return self.state.ridge if self.certificate is None else self.certificate.ridge

    @cached_property
    def state_fingerprint(self) -> str:
        """S: of exactly the rows that this state retains."""
        return state_fingerprint(self.fingerprint, self.commitment[np.sort(self.rows.leaves)])


@dataclass(frozen=True, eq=False)
class RunData:
    """The rows of a run that are in the cache, as clients, test rows and the server's.

    A client is here with all of its rows or not at all. classes: of all rows, here or not.
    """

    rows: RunRows
    classes: tuple[str, ...]
    description: Description
    encoding: Encoding
    matrix: Rows

    @classmethod
    def of(cls, rows: RunRows, description: Description, cache: Cache) -> Self:
        """Which rows are here is looked up; they are read when they are used."""
        is_cached = cached_rows(rows, description, cache)
        training = rows.roles == TRAINING
        incomplete = np.unique(rows.holders[training & ~is_cached])
        is_cached &= ~(training & np.isin(rows.holders, incomplete))
        present = rows.take(is_cached)
        matrix = matrix_of(present, description, cache)
        return cls(present, rows.classes, description, description.read_encoding(), matrix)

    def federation(
        self, model: Model, kept: KeptStatistics | None = None, connect: Connect = InProcess
    ) -> Federation:
        """The clients; of a ridge head, kept statistics answer for them where they can."""
        if self.description.options.network is not None:
            from probekit.runs.networks import check_code

            check_code(self.description.options.network)
        live = connect(self.client_sets())
        if kept is None or not isinstance(model.loss, Squares):
            return Federation.of(live, model)
        return Federation.of(KeptFirst(kept.parts, live), model)

    def server(self, model: Model) -> Federation | None:
        """The server's rows, as a federation of one."""
        rows = self.server_rows
        return None if rows is None else Federation.of(InProcess({SERVER_NAME: rows}), model)

    @property
    def server_rows(self) -> EmbeddingSet | None:
        """Those with a label; None where there are none."""
        rows = self._of_role(SERVER)
        return None if rows is None or not len(rows.labeled()) else rows.labeled()

    @property
    def test(self) -> EmbeddingSet | None:
        return self._of_role(TEST)

    def client_sets(self) -> ClientSets:
        """Each client's training rows, as heads see them."""
        sets = self.rows.client_sets(self.matrix, self.encoding, self.classes)
        normalize = self.description.options.normalize
        return {name: normalized(rows, normalize) for name, rows in sets.items()}

    def _of_role(self, role: int) -> EmbeddingSet | None:
        """As heads see them."""
        rows = self.rows.role_set(self.matrix, self.encoding, self.classes, role)
        return None if rows is None else normalized(rows, self.description.options.normalize)

    def head(self, state: State) -> BaseHead:
        return head_of(state, self.rows, self.description)


def cached_rows(rows: RunRows, description: Description, cache: Cache) -> Mask:
    """Which rows are in the cache; of statistics files there is nothing else."""
    if isinstance(rows, RunFiles):
        return np.ones(len(rows), bool)
    return cache.entry(description.read_encoding()).index().holds(rows.ids)


def matrix_of(rows: RunRows, description: Description, cache: Cache) -> Rows:
    """The embeddings of rows that are in the cache; of files the digests of their sums."""
    if isinstance(rows, RunFiles):
        return rows.ids
    return cache.entry(description.read_encoding()).rows(rows.ids, description.width)


def certify_state(
    state: State, retained: Federation, *, test: EmbeddingSet | None, class_labels: bool
) -> tuple[Certificate | None, tuple[str, ...]]:
    """What is proven about a state and its retained rows; a note where that is nothing."""
    try:
        return certify(state, retained, test=test, class_labels=class_labels), ()
    except (InputError, SolverError) as error:
        return None, (f"This head has no certificate. {error}",)


def head_of(state: State, rows: RunRows, description: Description) -> BaseHead:
    """What predicts, of a state that retains these rows."""
    rule = state.ridge_choice.rule
    options = description.options
    fields: dict[str, Any] = {
        "names": rows.classes,
        "task": rows.task,
        "normalize": options.normalize,
        "temperature": 1.0 if options.head == "logistic" else None,
        "encoding": description.read_encoding(),
        "fit": {
            "head": options.head,
            "ridge": state.ridge,
            "ridge_choice": "manual" if rule is None else record_name(rule),
        },
        "dataset": description.source,
    }
    if not isinstance(state.model, LinearModel):
        from probekit.networks.head import NetworkHead, TrainedNetwork
        from probekit.networks.network import Network

        assert isinstance(state.model, Network)
        return NetworkHead(trained=TrainedNetwork(state.model, state.params), **fields)
    return Head(
        weights=np.ascontiguousarray(state.params[:-1]),
        intercept=np.ascontiguousarray(state.params[-1]),
        **fields,
    )


def write_state(
    folder: Path,
    rows: RunRows,
    state: State,
    certificate: Certificate | None,
    events: Sequence[AnyEvent],
    description: Description,
) -> None:
    """Write a state of these retained rows into a new folder."""
    head_of(state, rows, description).save(folder / layout.HEAD)
    write_bytes(folder / layout.KEPT, dump(state))
    write_bytes(folder / layout.CERTIFICATE, layout.dump_certificate(certificate))
    write_bytes(folder / layout.HISTORY, layout.dump_events(events))


class Run:
    """A folder that `train` wrote. Its newest state counts."""

    def __init__(
        self,
        folder: Path | str,
        *,
        cache: Cache | Path | str | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        """Open a run. notes: of the training that made it."""
        self.folder = layout.find_run(Path(folder))
        self.options = layout.read_description(self.folder)[0].options
        self.notes = notes
        self.cache = cache if isinstance(cache, Cache) else Cache(cache)
        self._newest: StoredState | None = None

    def __repr__(self) -> str:
        newest = self.newest
        return f"Run({str(self.folder)!r}, state {newest.number}, {newest.rows.size:,} rows)"

    @property
    def newest(self) -> StoredState:
        number = layout.state_numbers(self.folder)[-1]
        if self._newest is None or self._newest.number != number:
            self._newest = StoredState.newest(self.folder)
        return self._newest

    @property
    def head(self) -> BaseHead:
        return self.newest.head

    @property
    def certificate(self) -> Certificate | None:
        return self.newest.certificate

    @property
    def fingerprint(self) -> str:
        """F: of the options and of all rows that were committed."""
        return self.newest.fingerprint

    @property
    def state_fingerprint(self) -> str:
        """S: of exactly the rows that the newest state retains."""
        return self.newest.state_fingerprint

    def rows_of(self, role: int) -> EmbeddingSet | None:
        """The retained rows of a role (TRAINING, TEST or SERVER) that are in the cache."""
        rows = self.newest.rows
        members = rows.take(rows.roles == role)
        if not len(members):
            return None
        data = RunData.of(members, self.newest.description, self.cache)
        return data.rows.role_set(data.matrix, data.encoding, rows.classes, role)

    def accuracy(self) -> float | None:
        """The share of the test rows that the head gets right; None without classes or rows."""
        rows = self.rows_of(TEST)
        if rows is None or rows.labels is None:
            return None
        return float((self.head.predict(rows) == rows.labels).mean())

    def note_place(self) -> None:
        """Tell the cache where the run is; it may have been moved, or its training killed."""
        run_id = self.newest.description.id
        noted = noted_runs(self.cache).get(run_id)
        if noted is None or not noted.done or noted.folder(self.cache) != self.folder:
            note_run(self.cache, run_id, self.folder, done=True)

    def unlearn(
        self,
        *,
        client: str | Collection[str] = (),
        sample: str | Collection[str] = (),
        where: str | None = None,
        method: str = "auto",
        dry_run: bool = False,
        progress: Progress = silent,
    ) -> Unlearning:
        """Forget clients, samples (ids, or their first digits) or rows where COLUMN=VALUE."""
        from probekit.runs.unlearn import unlearn_rows

        return unlearn_rows(
            self,
            clients=_listed(client),
            samples=_listed(sample),
            where=where,
            method=method,
            dry_run=dry_run,
            progress=progress,
        )

    def erase(
        self,
        *,
        client: str | Collection[str] = (),
        sample: str | Collection[str] = (),
        where: str | None = None,
        others: bool = False,
        gone: Collection[str] = (),
        progress: Progress = silent,
    ) -> Erasure:
        """Remove clients, samples or rows where COLUMN=VALUE from the run and the cache for good.

        others: other runs that share the rows may be changed too. gone: ids of runs that are lost.
        """
        from probekit.runs.erase import erase_rows, plan_erasure

        plan = plan_erasure(
            self.folder,
            cache=self.cache,
            clients=_listed(client),
            samples=_listed(sample),
            where=where,
            gone=gone,
            progress=progress,
        )
        return erase_rows(plan, others=others, progress=progress)

    def summary(self) -> list[str]:
        """The newest state in a few lines."""
        newest = self.newest
        accuracy = self.accuracy()
        options = self.options
        lines = [
            f"ridge: {newest.ridge:.4g} ({options.ridge_origin}), "
            f"intercept {options.chosen_intercept}"
        ]
        event = newest.events[-1]
        if not isinstance(event, Erased):
            cost = event.cost
            lines.append(
                f"rounds: {cost.rounds:,}, bytes to clients: {cost.sent:,}, from clients: "
                f"{cost.received:,}"
            )
        if accuracy is not None:
            lines.append(f"accuracy: {accuracy:.4f} on the test rows")
        if newest.certificate is not None:
            lines += newest.certificate.statements
        return [
            *lines,
            f"fingerprint of the run: {newest.fingerprint}",
            f"fingerprint of this state: {newest.state_fingerprint}",
        ]

    def verify(
        self,
        *,
        fingerprint: str | None = None,
        forgot: str | Collection[str] = (),
        within: float | None = None,
        progress: Progress = silent,
    ) -> VerifyResult:
        """Check everything that the run says against its rows; `verify_run` says how."""
        from probekit.runs.verify import verify_run

        return verify_run(
            self.folder,
            cache=self.cache,
            fingerprint=fingerprint,
            forgot=forgot,
            within=within,
            progress=progress,
        )

    def evaluate(
        self, data: object = "test", *, progress: Progress = silent, **reading: Any
    ) -> RunEvaluation:
        """The heads before, after, retrained and at the minimum, on the run's test rows or others.

        reading: how `data` are read, as in `probe`.
        """
        from probekit.probing.probe import reading_options
        from probekit.runs.evaluate import evaluate_run

        return evaluate_run(self, data, reading=reading_options(reading), progress=progress)

    def report(
        self,
        path: Path | str = "report.html",
        *,
        data: object = "test",
        progress: Progress = silent,
    ) -> Path:
        """Evaluate, and write a page about it."""
        from probekit.report.page import write_page
        from probekit.report.run import describe_run

        evaluation = self.evaluate(data, progress=progress)
        return write_page([describe_run(evaluation)], Path(path))

    def to_dict(self) -> dict[str, Any]:
        newest = self.newest
        certificate = newest.certificate
        return {
            "run": str(self.folder),
            "id": newest.description.id,
            "state": newest.number,
            "clients": newest.rows.counts(),
            "rows": sum(newest.rows.counts().values()),
            "test_rows": int((newest.rows.roles == TEST).sum()),
            "server_rows": int((newest.rows.roles == SERVER).sum()),
            "classes": list(newest.rows.classes),
            "ridge": newest.ridge,
            "fingerprint": newest.fingerprint,
            "state_fingerprint": newest.state_fingerprint,
            "head": newest.head.digest,
            "accuracy": self.accuracy(),
            "certificate": None if certificate is None else certificate.to_dict(),
        }


def _listed(names: str | Collection[str]) -> Collection[str]:
    """One name, or several."""
    return [names] if isinstance(names, str) else names
