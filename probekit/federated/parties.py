"""The members of a federation's folder as clients of a run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from probekit.errors import InputError, MissingClientsError
from probekit.federated.envelope import QUESTION, Envelope
from probekit.federated.files import ANSWERS, LATE, QUESTIONS, FilesCarrier
from probekit.federated.membership import FILES, FederationFolder, safe_name
from probekit.federated.party import Description
from probekit.federated.remote import Carrier, RemoteFederation, Sender


@dataclass(eq=False)
class RemoteParty:
    """The members of a federation, by whatever way questions reach them."""

    folder: FederationFolder
    wait: float = 0.0
    note: Callable[[str], None] = field(default=lambda text: None, repr=False)

    @property
    def name(self) -> str:
        """The folder, by which a run finds them again."""
        return str(self.folder.path.absolute())

    @cached_property
    def description(self) -> Description:
        """What their cards say."""
        cards = self.folder.members
        if not cards:
            raise MissingClientsError(
                f"{self.folder.path} has no members. Nodes join with `probekit federate node join`, and their cards "
                "are added with `probekit federate add`."
            )
        first = next(iter(cards.values()))
        counts = {name: card.rows for name, card in cards.items()}
        keys = {name: bytes.fromhex(card.key) for name, card in cards.items()}
        return Description(first.encoding, first.dimension, first.classes, counts, keys, first.targets)

    def clients(
        self,
        problem: Any,
        *,
        job: str,
        names: Collection[str] | None = None,
        at_least: int | None = None,
        timeout: float | None = None,
    ) -> RemoteFederation:
        """Those named (None: all), ready to be asked about a problem."""
        known = self.description.keys
        unknown = sorted(set(names or ()) - set(known))
        if unknown and at_least is None:
            raise MissingClientsError(f"Client {unknown[0]} is no member of {self.folder.name} any more.")
        members = {name: key for name, key in known.items() if names is None or name in names}
        sender = Sender(self.folder.id, self.folder.key)
        given: Any = {"job": job, "at_least": at_least, "timeout": timeout, "note": self.note}
        return RemoteFederation(problem, members, self.carrier, sender, self._place(job), **given)

    @cached_property
    def carrier(self) -> Carrier:
        """How questions reach them."""
        if self.folder.transport == FILES:
            return FilesCarrier(self.folder.path / "exchange", wait=self.wait)
        from probekit.federated.flower.grid import open_carrier

        return open_carrier(self.folder.path)

    def close(self) -> None:
        """Let go of what carries questions, where it holds something."""
        getattr(vars(self).get("carrier"), "close", lambda: None)()

    def finish(self, job: str) -> None:
        """Drop the questions and answers of a job that is done: what is needed of them is in the run."""
        place = self._place(job)
        asked = {path.name.partition("-")[2] for path in place.glob("*-*")}
        for path in (self.folder.path / "exchange").glob(f"*/*{QUESTIONS}"):
            if Envelope.read(path.read_bytes(), QUESTION)[0].question[:32] in asked:
                for end in (ANSWERS, LATE, QUESTIONS):
                    path.with_suffix(end).unlink(missing_ok=True)
        shutil.rmtree(place, ignore_errors=True)

    def _place(self, job: str) -> Path:
        if not job:
            raise InputError("A job needs a name, by which an interrupted one goes on.")
        return self.folder.path / "jobs" / safe_name(job)


def party_at(path: Path, **options: Any) -> RemoteParty:
    """The members of the federation in a folder."""
    return RemoteParty(FederationFolder.open(path), **options)
