"""The verb: a request to the next state of a run, from the retained rows alone."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec
import numpy as np

from probekit.arrays import hex_id
from probekit.cache import Cache
from probekit.certificates.certificate import Certificate
from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError, NotFoundError
from probekit.federated.federation import Federation, InProcess
from probekit.federated.state import KeptStatistics, State
from probekit.files import new_folder
from probekit.objective import Squares
from probekit.progress import Progress, silent
from probekit.registry import configured, nearest
from probekit.runs import layout
from probekit.runs.layout import Cost, Unlearned
from probekit.runs.rows import SAMPLE, SERVER, TEST, TRAINING, RunFiles, RunRows
from probekit.runs.run import Run, RunData, StoredState, certify_state, single_thread, write_state
from probekit.unlearning.choice import Choice, Facts, MethodPlan, choose, facts, plan, plan_of
from probekit.unlearning.classes import narrow_state
from probekit.unlearning.removal import Removal, Request, unlearn


@dataclass(frozen=True, eq=False)
class Unlearning:
    """What a request did, or would do; `changed` is False then, and where nothing was left to do.

    rows: how many it forgets, test rows and the server's included.
    facts: what a method that promises no minimum did to the retained loss.
    plans: what each method would need, ask and promise, in a dry run.
    """

    run: Run
    clients: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    rows: int = 0
    changed: bool = False
    method: str = ""
    reason: str = ""
    facts: Facts | None = None
    plans: tuple[MethodPlan, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def certificate(self) -> Certificate | None:
        """Of the run's newest state."""
        return self.run.certificate

    def to_dict(self) -> dict[str, Any]:
        return {
            "changed": self.changed,
            "clients_forgotten": list(self.clients),
            "samples_forgotten": list(self.samples),
            "rows_forgotten": self.rows,
            "method": self.method,
            "reason": self.reason,
            "facts": None if self.facts is None else asdict(self.facts),
            "plans": [asdict(item) for item in self.plans],
            **self.run.to_dict(),
        }


def unlearn_rows(
    run: Run,
    *,
    clients: Collection[str] = (),
    samples: Collection[str] = (),
    where: str | None = None,
    method: str = "auto",
    dry_run: bool = False,
    progress: Progress = silent,
) -> Unlearning:
    """Forget clients, samples, or the rows where a column has a value: one of the three."""
    check_request("A request", clients, samples, where)
    with layout.working(run.folder, progress), single_thread():
        stored = run.newest
        rows = stored.all_rows
        _check_clients(clients, stored)
        if isinstance(rows, RunFiles) and not clients:
            raise InputError(
                "Single rows cannot be taken out of sums; this run has statistics files only. Ask "
                "the client for a newer file (summarize --without IDS), and train with it (--add)."
            )
        samples = requested_samples(samples, where, run)
        leaving = (rows.held_by(clients) | rows.with_ids(samples)) & ~stored.forgotten
        if not leaving.any():
            note = "All of this was forgotten before; nothing was changed."
            return Unlearning(run, notes=(note,))
        forgotten = rows.take(leaving)
        _check_pretraining(forgotten, stored)
        request = Unlearning(
            run,
            clients=tuple(name for name in forgotten.clients if name in clients),
            samples=tuple(sorted({hex_id(row) for row in forgotten.ids})) if samples else (),
            rows=forgotten.size,
        )
        return _carry_out(request, forgotten, method, dry_run=dry_run, progress=progress)


def _carry_out(
    request: Unlearning, forgotten: RunRows, method: str, *, dry_run: bool, progress: Progress
) -> Unlearning:
    """Write the state without these rows, or say what each method would need for it."""
    started = time.monotonic()
    run = request.run
    stored = run.newest
    event = Unlearned(layout.now(), request.clients, request.samples, request.rows, "none", Cost())
    retained = layout.retained(stored.all_rows, [*stored.events, event])
    is_classes = retained.targets is None
    if is_classes and len(retained.classes) < 2:
        raise InputError(
            f"A head needs rows of two classes; this request would leave {len(retained.classes)}. "
            "Forget less, or delete the run."
        )
    state = stored.state
    by_sums = not dry_run and _needs_sums_only(request, state, method)
    needed = retained.take(retained.roles == TEST) if by_sums else retained
    data = None
    if len(needed):
        data = RunData.of(needed, stored.description, run.cache)
        data = replace(data, classes=retained.classes)
    done = replace(request, method="none", reason="None of these rows was trained on.")
    if (forgotten.roles == TRAINING).any():
        removal = _removal(request, forgotten, None if by_sums else data, progress)
        if dry_run:
            return _planned(request, removal, method)
        choice = _choice(removal, method)
        state = unlearn(choice.method, removal)
        cost = Cost.of(removal.retained, started)
        event = msgspec.structs.replace(event, method=choice.name, cost=cost)
        done = replace(request, method=choice.name, reason=choice.reason)
        if choice.method.promise == "nothing":
            done = replace(done, facts=facts(removal, state, choice.method))
        classes = stored.rows.classes
        remaining = np.array([classes.index(name) for name in retained.classes])
        state = narrow_state(state, remaining)  # where the method could not
    if dry_run:
        return done
    if by_sums or data is None:
        federation = federation_of_sums(state)
    else:
        federation = data.federation(state.model)
    test = None if data is None else data.test
    certificate, notes = certify_state(state, federation, test=test, class_labels=is_classes)
    events = [*stored.events, event]
    with new_folder(layout.state_folder(run.folder, stored.number + 1)) as aside:
        write_state(aside, retained, state, certificate, events, stored.description)
    return replace(done, changed=True, notes=notes)


def _needs_sums_only(request: Unlearning, state: State, method: str) -> bool:
    """Whether kept statistics suffice, so that no row is looked for."""
    kept = state.get(KeptStatistics)
    return (
        bool(request.clients)
        and method in ("auto", "exact")
        and isinstance(state.model.loss, Squares)
        and kept is not None
        and kept.parts.keys() == state.clients.keys()
    )


def removal_of(run: Run, clients: Collection[str], progress: Progress = silent) -> Removal:
    """A request about whole clients of a run as methods see it; nothing is written."""
    stored = run.newest
    rows = stored.all_rows
    _check_clients(clients, stored)
    leaving = rows.held_by(clients) & ~stored.forgotten
    if not (rows.roles[leaving] == TRAINING).any():
        raise InputError(
            f"Clients that leave must train; {', '.join(clients)} were forgotten before, or have "
            f"no training rows. {nearest('', sorted(stored.rows.counts()))}"
        )
    retained = rows.take(~leaving & ~stored.forgotten)
    data = RunData.of(retained, stored.description, run.cache)
    request = Unlearning(run, clients=tuple(clients))
    return _removal(request, rows.take(leaving), data, progress)


def _removal(
    request: Unlearning, forgotten: RunRows, after: RunData | None, progress: Progress
) -> Removal:
    """The request as methods see it, numbering classes as the state before does.

    after: the retained rows that are here; None: sums suffice.
    """
    stored = request.run.newest
    state = stored.state
    leaving = forgotten.take(forgotten.roles == TRAINING)
    samples = {}
    if request.samples:
        samples = {
            name: frozenset(hex_id(row) for row in leaving.ids[leaving.held_by([name])])
            for name in leaving.clients
        }
    server = None
    if after is None:
        federation = federation_of_sums(state)
    else:
        before = RunData.of(stored.rows, stored.description, request.run.cache)
        federation = before.federation(state.model, state.get(KeptStatistics))
        server = replace(after, classes=before.classes).server(state.model)
    return Removal.of(
        state,
        Request(frozenset() if samples else frozenset(leaving.clients), samples),
        federation,
        server=server,
        class_labels=stored.rows.targets is None,
        progress=progress,
    )


def federation_of_sums(state: State) -> Federation:
    """The clients whose statistics are kept, by these alone."""
    kept = state.get(KeptStatistics)
    return Federation.of(InProcess({} if kept is None else kept.parts), state.model)


def _choice(removal: Removal, method: str) -> Choice:
    if method == "auto":
        return choose(removal)
    return Choice(method, configured(method), "Asked for.")


def _planned(request: Unlearning, removal: Removal, method: str) -> Unlearning:
    choice = _choice(removal, method)
    plans = plan(removal)
    if method not in ("auto", *(item.name for item in plans)):
        plans = (plan_of(method, choice.method, removal), *plans)
    return replace(request, method=choice.name, reason=choice.reason, plans=plans)


def _check_pretraining(forgotten: RunRows, stored: StoredState) -> None:
    """A network remembers the rows on the server that it was pretrained on."""
    rows = int((forgotten.roles == SERVER).sum())
    if rows and stored.description.options.is_pretrained:
        raise InputError(
            f"What is forgotten must be none of the server's rows, on which the network of "
            f"{stored.run} was pretrained; {rows:,} rows of this request are. Delete that run and "
            "train anew, without them or with --pretrain-epochs 0."
        )


def _check_clients(clients: Collection[str], stored: StoredState) -> None:
    names = stored.clients
    for name in clients:
        if name not in names:
            remaining = sorted(stored.rows.counts())
            raise InputError(
                f"Cannot forget client {name!r}: it is none of the {len(remaining)} clients of "
                f"this run. {nearest(name, remaining)}"
            )


def check_request(
    noun: str, clients: Collection[str], samples: Collection[str], where: str | None
) -> None:
    """Refuse what is not about one of the three."""
    if sum(map(bool, (clients, samples, where))) != 1:
        raise InputError(
            f"{noun} is about clients, samples, or rows by a column; found {len(clients)} clients, "
            f"{len(samples)} samples and {where or 'no'} column. Pass one of --client, --sample "
            "and --where."
        )


def requested_samples(samples: Collection[str], where: str | None, run: Run) -> list[str]:
    """The whole ids of samples by their first digits, or of the rows where COLUMN=VALUE."""
    if where is not None:
        return _find_samples(where, run.newest, run.cache)
    return full_ids(samples, run.newest.all_rows) if samples else []


def full_ids(samples: Collection[str], rows: RunRows | EmbeddingSet) -> list[str]:
    """The whole ids of samples that are named by the first digits of theirs."""
    ids = sorted({hex_id(row) for row in rows.ids})
    full = []
    for sample in samples:
        matches = []
        if SAMPLE.fullmatch(sample):
            start = int(np.searchsorted(ids, sample))
            matches = [name for name in ids[start : start + 2] if name.startswith(sample)]
        if len(matches) != 1:
            raise InputError(
                f"A sample is an id of this run, or its first 8 digits or more; {sample!r} fits "
                f"{len(matches)} samples. Find ids with probekit predict --csv."
            )
        full += matches
    return full


def _find_samples(where: str, stored: StoredState, cache: Cache) -> list[str]:
    """The ids of the run's rows where COLUMN=VALUE, by the cached sets of its encoding."""
    column, equals, value = where.partition("=")
    if not column or not equals:
        raise InputError(f"Rows are chosen by COLUMN=VALUE; found {where!r}. Write patient=P7.")
    digest = stored.description.read_encoding().digest
    columns: set[str] = set()
    samples: set[str] = set()
    for name in cache.names():
        if cache.describe(name).encoding.digest != digest:
            continue
        embeddings = cache.open(name)
        columns |= embeddings.columns.keys()
        if column in embeddings.columns:
            rows = embeddings.ids[embeddings.columns[column] == value]
            samples |= {hex_id(row) for row in rows}
    if column not in columns:
        raise NotFoundError(
            f"No cached set of this run's rows has a column {column!r}. "
            f"{nearest(column, sorted(columns))} Extract again with --keep-column {column}."
        )
    samples &= {hex_id(row) for row in stored.all_rows.ids}
    if not samples:
        raise InputError(f"No row of this run has {where}. Check the value.")
    return sorted(samples)
