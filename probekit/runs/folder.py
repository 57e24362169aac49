"""Run folders: what was trained from what, every state it has been in, and the ledger of what was done.

run.json               schema, config, digests of the inputs, the current state and the ledger's last entry
partition.safetensors  who holds which rows, and which rows of the cached set took part
environment.json       timings.json       ledger.jsonl       states/0001/ ...       transitions/0002.json ...
openings/000001.json   what stands sealed in the ledger, closed to others; purge erases what the forgotten were in

Row numbers count the rows that took part, those with a label and an embedding; `rows` leads back to the cached
set. A run appears whole, under its name, once everything is written. A new state is written aside, then entered
in the ledger, then named in run.json: whenever the process dies, the run is the old one or the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.cache import DiskStore
from probekit.cache.journal import refuse
from probekit.custody.seals import Openings, opened
from probekit.errors import CorruptError, InputError, NotFoundError
from probekit.federated.trained import Trained
from probekit.files import ASIDE, acquire, replaced, restore_folder, storing, sync_folder, write_json
from probekit.models.heads import Head
from probekit.registry import nearest
from probekit.runs import commitments, layout, ledger, tensors
from probekit.runs.cached import cached_rows
from probekit.runs.commitments import CommittedStep
from probekit.runs.erasure import erase_purged
from probekit.runs.layout import LEDGER, NOTE, PARTITION, lock_of, state_folder
from probekit.runs.ledger import Event, LedgerEntry
from probekit.runs.openings import (
    CERTIFICATES,
    OPENINGS,
    certificate_openings,
    drop_numbers,
    write_openings,
)
from probekit.runs.state_writing import Arrays, write_state
from probekit.runs.states import StateFolder
from probekit.syncing import together
from probekit.values import EmbeddingSet, Json, Partition


class RunFolder:
    """A run folder that is there. What it says is what run.json said when it was opened or last locked."""

    def __init__(self, path: Path, note: dict[str, Any]) -> None:
        self.path, self._note = path, note
        self._lock = lock_of(path)
        self._ledger = ledger.LedgerFile(path / LEDGER)
        self.waiting: Callable[[str], None] | None = None

    @classmethod
    def open(cls, path: Path | str, *, unfinished: bool = False) -> RunFolder:
        """The run in a folder; one in which a purge was interrupted only to who comes to finish it (`unfinished`)."""
        path = Path(path)
        if not (path / NOTE).is_file() and replaced(path).exists():
            with lock_of(path):
                restore_folder(path)
        if not (path / NOTE).is_file():
            near = [str(found.parent) for found in sorted(path.parent.glob(f"*/{NOTE}"))]
            hint = nearest(str(path), near) if near else "`probekit train` makes one."
            raise NotFoundError(f"{path} is not a run folder: it has no {NOTE}. {hint}")
        if not unfinished:
            refuse(path)
        return cls(path, layout.read_note(path))

    @property
    def config(self) -> dict[str, Any]:
        """The options of the run, as resolved when it was trained."""
        return dict(self._note["config"])

    @property
    def inputs(self) -> dict[str, Any]:
        """What it was trained on: the set's name and digest, the digests of the rows used, the spec, the partition."""
        return dict(self._note["inputs"])

    @property
    def state(self) -> int:
        """The number of the current state."""
        return int(self._note["state"])

    def states(self) -> list[int]:
        """The states that are still there, up to the current one; of a purged one only its certificate is."""
        return [number for number in layout.states(self.path) if number <= self.state]

    def entries(self) -> list[LedgerEntry]:
        """The ledger, its chain checked."""
        return self._ledger.entries(self._note["ledger"], locked=self._lock.is_locked)

    def at(self, number: int | None = None) -> StateFolder:
        """A state by its number, or the current one."""
        number = self.state if number is None else number
        if number not in self.states():
            there = ", ".join(map(str, self.states()))
            raise NotFoundError(f"{self.path} has no state {number}: it has {there}, and {self.state} is current.")
        stated = self.made().get(number)
        if stated is None:
            raise CorruptError(
                f"The ledger of {self.path} has no entry for state {number}, or its file in {OPENINGS}/ is missing. "
                "Restore it from a copy."
            )
        return StateFolder.open(state_folder(self.path, number), stated)

    def made(self) -> dict[int, str]:
        """The sha256 of what was trained, by the number of its state, as the ledger has them; unless erased."""
        entries = [one for one in self.entries() if "trained" in one.outputs]
        return {one.state: str(one.outputs["trained"]) for one in entries if opened(one.outputs["trained"])}

    def trained(self, state: int | None = None) -> Trained:
        """All that training (or the last unlearning) left; clients' statistics are read when asked for."""
        return self.at(state).trained()

    def head(self, state: int | None = None) -> Head:
        """The head alone."""
        return self.at(state).head()

    def partition(self) -> Partition:
        """Who held which rows when the run was trained."""
        return layout.read_partition(self._partition_path(), self._note["partition"])[0]

    def rows(self) -> NDArray[np.int64] | None:
        """The rows of the cached set that took part, in order; None: all of them."""
        return layout.read_partition(self._partition_path(), self._note["partition"])[1]

    def _partition_path(self) -> Path:
        rebased = self.path / f"partition-{self._note['partition']}.safetensors"
        return rebased if rebased.exists() else self.path / PARTITION

    def embeddings(self, store: DiskStore) -> EmbeddingSet:
        """The rows that the run was trained on, from the cache; refused if they are no longer the same."""
        if (asked := self.inputs.get("federation")) is not None:
            raise NotFoundError(
                f"{self.path} was trained across the federation {asked}: its rows lie with the clients."
            )
        return cached_rows(self.path, self.inputs, self.rows(), store)

    def server_set(self, store: DiskStore) -> EmbeddingSet | None:
        """The server's own rows, where the others lie with the clients; None: there are none, or all lie in the cache.

        In the run's partition they come first.
        """
        if not self.inputs.get("set") or "federation" not in self.inputs:
            return None
        return cached_rows(self.path, self.inputs, self.rows(), store)

    @contextmanager
    def lock(self, *, purging: bool = False) -> Iterator[None]:
        """Held while the run changes; first puts right what a killed process left. May be nested.

        Refuses while a purge is unfinished, except to the one that is `purging`.
        """
        with storing(self.path.parent):
            acquire(self._lock, f"Another process is changing {self.path}; waiting for it to finish.", self.waiting)
        try:
            if self._lock.lock_counter == 1:
                if not purging:
                    refuse(self.path)
                self._note = layout.read_note(self.path)
                self._recover()
            yield
        finally:
            self._lock.release()

    def commit(
        self, trained: Trained, row_ids: Mapping[str, bytes] | None = None, keys: Mapping[str, bytes] | None = None
    ) -> CommittedStep:
        """What the run would commit to with this as its next state; ids of rows where they changed, keys who join."""
        before = self.at().commitments()
        contents = commitments.contents_of(trained, row_ids or {}, before)
        if before is None:
            return CommittedStep.begin(contents, self.state + 1)
        return before.following(contents, self.state, keys)

    def write_state(
        self,
        trained: Trained,
        event: Event,
        *,
        texts: Mapping[str, str] | None = None,
        committed: CommittedStep | None = None,
        openings: Openings | None = None,
        begun: Arrays | None = None,
    ) -> int:
        """Make this the run's state, at once, with further files of it; gives its number.

        openings: of what stands sealed in its certificate. begun: what of it stands aside already.
        """
        with self.lock(), storing(self.path):
            number, aside = self.state + 1, layout.next_state(self.path)
            step = committed or self.commit(trained)
            if step.transition is not None:
                event = replace(event, inputs={**event.inputs, "root": step.transition.before.digest})
            with together():  # until the ledger's entry makes it the state, a power cut may take it
                outputs = write_state(aside, trained, step.commitments, texts=texts, begun=begun)
                aside.rename(state_folder(self.path, number))
                sync_folder(self.path / "states")
                if step.transition is not None:
                    commitments.write_transition(self.path, step.transition)
                write_openings(certificate_openings(self.path, number), openings or {})
            self._enter(event, {"state": number, "root": step.root.plain, **outputs})
            return number

    def record(self, event: Event, outputs: Mapping[str, Json] | None = None) -> None:
        """Enter something in the ledger that leaves the state as it is."""
        with self.lock():
            self._enter(event, {"state": self.state, **(outputs or {})})

    def rebase(self, embeddings: EmbeddingSet, name: str, partition: Partition) -> None:
        """Let the run stand on another set: the rows that are left of its own, when the others are erased."""
        with self.lock():
            digest = embeddings.digest
            inputs = {**self.inputs, "name": name, "set": digest, "rows": digest, "count": len(embeddings)}
            written = layout.write_partition(self.path / f"{ASIDE}partition", partition, None)
            (self.path / f"{ASIDE}partition").rename(self.path / f"partition-{written}.safetensors")
            sync_folder(self.path)
            self._write_note({"inputs": {**inputs, "partition": partition.digest}, "partition": written})

    def drop_partitions(self) -> None:
        """Remove partitions that the run stood on before."""
        layout.drop_partitions(self._partition_path())

    def fork(self, path: Path, *, force: bool = False) -> RunFolder:
        """A copy of the run as it is now, under another name."""
        if path.absolute() == self.path.absolute():
            raise InputError(f"{path} cannot be copied onto itself. Choose another folder.")
        with self.lock(), layout.appearing(path, force=force) as aside:
            tensors.copy_linked(self.path, aside)
            aside.chmod(0o700)  # an earlier version's run may be open to others
        return RunFolder.open(path)

    def _enter(self, event: Event, outputs: Mapping[str, Json]) -> None:
        entry = self._ledger.add(ledger.follow(self.entries()[-1], event, outputs))
        self._switch(entry)

    def _switch(self, entry: LedgerEntry) -> None:
        self._write_note({"state": entry.outputs["state"], "ledger": entry.digest})

    def _write_note(self, changes: Mapping[str, Json]) -> None:
        note = {**self._note, **changes}
        write_json(self.path / NOTE, note)
        self._note = note

    def _recover(self) -> None:
        """Finish a change whose ledger entry and state are there; drop what is left of any other."""
        entry = self._ledger.beyond(self._note["ledger"])
        if entry is not None and self._whole(entry):
            self._switch(entry)
        self._ledger.cut(self._note["ledger"])
        layout.drop_leftovers(self.path, self.state)
        for folder in (commitments.TRANSITIONS, f"{OPENINGS}/{CERTIFICATES}"):
            drop_numbers(self.path / folder, self.state)
        self.erase()

    def erase(self) -> None:
        """Erase the salts of all that purges made go."""
        if erase_purged(self.path, self.entries()):
            self._ledger.forget()

    def _whole(self, entry: LedgerEntry) -> bool:
        """Whether what an entry tells of is there."""
        state, made = entry.outputs.get("state"), entry.outputs.get("trained")
        if made is None or state != self.state + 1:
            return made is None and state == self.state
        try:
            StateFolder.open(state_folder(self.path, self.state + 1), str(made)).check()
        except CorruptError:
            return False
        return True


class OpenRun:
    """A run folder and the cache that its rows are in: what every verb of a run works on."""

    def __init__(self, folder: RunFolder, store: DiskStore) -> None:
        self.folder, self.store = folder, store
        folder.waiting = store.waiting

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder.path

    @property
    def state(self) -> int:
        """The number of the current state: 1 after training, one more after every request."""
        return self.folder.state
