"""Clients on machines of their own: every question is signed, every answer is checked, and kept until the work is done.

How bytes travel is a carrier's matter, a small file each. What is accepted lies in the job's folder: when the process
that asks is killed, the same command asks on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from probekit.errors import CorruptError, MissingClientsError, ProbekitError
from probekit.federated.envelope import ANSWER, QUESTION, Envelope
from probekit.federated.federation import REASONS, Answers, Missing
from probekit.federated.in_process import Asked
from probekit.federated.membership import safe_name
from probekit.federated.message import OWN, Answer, Ask, decode
from probekit.files import make_folder, write_bytes


class Carrier(Protocol):
    """How signed questions get to clients and their answers come back; `remedy`: what to do about a bad answer."""

    @property
    def remedy(self) -> str: ...

    def carry(self, parcels: Mapping[str, bytes], *, timeout: float | None) -> Iterator[tuple[str, bytes | Missing]]:
        """Bring each client its bytes; gives each one's reply as it comes, or why there is none."""


@dataclass(frozen=True)
class Sender:
    """Who asks: the federation's id, and the private key (PEM) that signs its questions."""

    federation: str
    key: bytes = field(repr=False)


@dataclass(eq=False)
class RemoteFederation(Asked):
    """Clients on machines of their own.

    problem: what is trained; it is sent to every client first.
    members: their raw public keys, by name.
    carrier, sender: how questions travel, and who signs them.
    folder: where accepted answers are kept for the job.
    job: what the work is called; another attempt at it has the same name and folder.
    at_least: how many clients are enough, of those that are asked; None: all of them.
    timeout: after how many seconds a client is late; None: the carrier's own patience.
    note: called with a sentence about a client that is missing.
    """

    problem: Any
    members: Mapping[str, bytes]
    carrier: Carrier
    sender: Sender
    folder: Path
    job: str = ""
    at_least: int | None = None
    timeout: float | None = None
    note: Callable[[str], None] = field(default=lambda text: None, repr=False)
    _missing: dict[tuple[str, str], Missing] = field(default_factory=dict, init=False, repr=False)
    _remembers: dict[str, int] = field(default_factory=dict, init=False, repr=False)

    @property
    def clients(self) -> tuple[str, ...]:
        """Those who take part."""
        return tuple(self.counts)

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """The rows of each client that takes part, as it says itself."""
        return {name: one.count for name, one in self._defined.items()}

    @cached_property
    def missing(self) -> dict[str, Missing]:
        """Members that do not take part, and why."""
        lacking = (name for name in self.members if name not in self._defined)
        return {name: self._missing[self._define.digest, name] for name in lacking}

    def offers(self, kind: str, how: str = "each") -> bool:
        """Whether all of them say that they can answer, and may."""
        return bool(self._defined) and all(kind in one.values for one in self._defined.values())

    def ask(self, kind: str, *arguments: Any, **options: Any) -> Answers:
        """The answers of these clients to a question; see `Asked.ask`."""
        given = {"at_least": self.at_least, "timeout": self.timeout, **options}
        asked = len(options.get("clients") or self.clients)
        if given["at_least"] is not None:
            given["at_least"] = min(given["at_least"], asked)
        return super().ask(kind, *arguments, **given)

    def post(self, ask: Ask, names: Sequence[str], *, timeout: float | None) -> None:
        """Send a question, and keep what is answered."""
        self._send(ask, names, timeout)

    def reply(self, ask: Ask, name: str) -> Answer | Missing:
        """The answer that was kept, or why there is none."""
        found = self._kept(ask, name)
        return self._missing[ask.digest, name] if found is None else found

    @cached_property
    def _define(self) -> Ask:
        """The question that brings the problem."""
        spec = getattr(self.problem, "spec_digest", "") or None
        plan = {"backend": self.problem.backend, "plain": dict(self.problem.plain), "spec": spec}
        return Ask("define", self.problem.arrays, plan, job=self.job, problem=self.problem.digest)

    @cached_property
    def _defined(self) -> Mapping[str, Answer]:
        """What each client that takes part said to the problem: its rows, and the questions that it can answer."""
        self._send(self._define, tuple(self.members), self.timeout)
        replies = {name: self.reply(self._define, name) for name in self.members}
        found = {name: one for name, one in replies.items() if isinstance(one, Answer)}
        wanted = len(self.members) if self.at_least is None else min(self.at_least, len(self.members))
        if len(found) < wanted:
            lacking = {name: one for name, one in replies.items() if isinstance(one, Missing)}
            first, why = next(iter(lacking.items()))
            more = f" {len(lacking) - 1} more cannot." if len(lacking) > 1 else ""
            raise MissingClientsError(
                f"{wanted} clients have to take part, {len(found)} can. Client {first}: {why.reason}, {why.why}{more} "
                "Ask again when they can, or ask for fewer (`at_least`)."
            )
        return found

    def _place(self, ask: Ask, name: str) -> Path:
        return self.folder / f"{ask.number:06d}-{ask.digest[:32]}" / f"{safe_name(name)}.answer"

    def _kept(self, ask: Ask, name: str) -> Answer | None:
        """An answer that was accepted earlier."""
        place = self._place(ask, name)
        if not place.is_file():
            return None
        found, remembers = self.accepted(place.read_bytes(), ask, name)
        if remembers:
            self._remembers[name] = remembers
        return found if isinstance(found, Answer) else None

    def _send(self, ask: Ask, names: Sequence[str], timeout: float | None) -> None:
        awaited = [name for name in names if not self._place(ask, name).is_file()]
        if not awaited:
            return
        make_folder(self._place(ask, awaited[0]).parent, closed=True)
        parcels = {name: self._parcel(ask, name) for name in awaited}
        for name, content in self.carrier.carry(parcels, timeout=timeout):
            if name not in parcels or self._place(ask, name).is_file():
                continue  # a second answer, or somebody's who was not asked
            found = content if isinstance(content, Missing) else self._judged(content, ask, name)
            if isinstance(found, Missing):
                self._missing[ask.digest, name] = found
                self.note(f"Client {name}: {found.reason}, {found.why}")
                continue
            self._missing.pop((ask.digest, name), None)
            assert isinstance(content, bytes)
            write_bytes(self._place(ask, name), content, mode=0o600)
        for name in awaited:
            if not self._place(ask, name).is_file():
                self._missing.setdefault((ask.digest, name), Missing("late", "it did not answer in time."))

    def _parcel(self, ask: Ask, name: str) -> bytes:
        remembers = self._remembers.get(name, 0)
        sender = self.sender
        question = Envelope(QUESTION, sender.federation, name, ask.digest, ask.number, remembers, ask.encoded)
        return question.sealed(sender.key)

    def _judged(self, content: bytes, ask: Ask, name: str) -> Answer | Missing:
        """The answer in bytes, or what is wrong with it."""
        try:
            found, _ = self.accepted(content, ask, name)
        except ProbekitError as error:
            return Missing("garbage", f"{error} {self.carrier.remedy}".strip())
        fault = "" if isinstance(found, Missing) or ask.kind == "define" else self._fault(found, ask)
        return Missing("garbage", fault) if fault else found

    def _fault(self, found: Answer, ask: Ask) -> str:
        said = self._defined[found.client].count
        if ask.rows == OWN and found.count != said:
            return f"it speaks of {found.count} rows, and of {said} when the work began."
        return super()._fault(found, ask)

    def accepted(self, content: bytes, ask: Ask, name: str) -> tuple[Answer | Missing, int]:
        """A signed answer of this client to this question, and the number from which it remembers something."""
        given: Any = {"key": self.members[name], "federation": self.sender.federation, "client": name}
        envelope = Envelope.open(content, ANSWER, **given)
        if envelope.question != ask.digest:
            raise CorruptError(
                f"This answers question {envelope.question[:16]}, not {ask.digest[:16]}: it is an old one."
            )
        return read_answer(envelope.content, ask.digest, name), envelope.remembers


def read_answer(content: bytes, digest: str, name: str) -> Answer | Missing:
    """The answer in bytes, or why there is none; that of another client or to another question is garbage."""
    note, _, _ = decode(content)
    whose, to = str(note.get("client")), str(note.get("ask"))
    if (whose, to) != (name, digest):
        raise CorruptError(f"This is client {whose}'s answer to {to[:16]}, not {name}'s to {digest[:16]}.")
    if "missing" in note:
        if note["missing"] not in REASONS:
            raise CorruptError(f"There is no reason {note['missing']!r} for not answering.")
        return Missing(note["missing"], str(note.get("why")))
    return Answer.decode(content)[0]
