"""Clients that are reached through files in a folder: who asks and who answers share nothing else.

Every client has a folder of its own below the common one. In it lie questions, `DIGEST.ask`, the problem they are
about, `DIGEST.define`, and for each of these `DIGEST.answer`, or `DIGEST.late` if it was closed before that. All are
messages as `message` writes them, and appear whole or not at all. A question's digest follows from what is asked, the
job and its number there: code that asks in the same order finds the answers of an earlier attempt.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from probekit.errors import CorruptError, InputError, MismatchError, Pending, RefusedError
from probekit.federated.client import Memory, answer
from probekit.federated.federation import REASONS, Missing, absence
from probekit.federated.in_process import Asked
from probekit.federated.message import Answer, Ask, decode, encode
from probekit.files import write_bytes
from probekit.models.problem import backend_named
from probekit.values import EmbeddingSet, Indices

INTERVAL = 0.05
"""Seconds between two looks for answers."""
LONGEST = 60
LAST = "last answer"


def client_folder(folder: Path, name: str) -> Path:
    """Where a client's questions and answers lie; the hash tells apart names that a file system does not."""
    return folder / f"{quote(name, safe='')[:LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


@dataclass(eq=False)
class FilesFederation(Asked):
    """Clients that answer through files.

    folder: the common folder.
    problem: what is trained; it is sent to every client first.
    members: the clients' names, or their numbers of rows, to which what they answer is held.
    job: what the work is called; another attempt at it must have the same name, and a new federation.
    wait: how many seconds to wait for answers before `Pending` is raised.
    pause: called with the seconds until the next look.

    `traffic` counts questions and answers, those of earlier attempts included, but not sending the problem.
    """

    folder: Path
    problem: Any
    members: Mapping[str, int] | Collection[str]
    job: str = ""
    wait: float = 0.0
    pause: Callable[[float], None] = field(default=time.sleep, repr=False)

    @property
    def clients(self) -> tuple[str, ...]:
        """Who they are."""
        return tuple(self.members)

    @property
    def counts(self) -> Mapping[str, int]:
        """Each client's rows, as given or as it says itself."""
        if isinstance(self.members, Mapping):
            return self.members
        return {name: one.count for name, one in self._defined.items()}

    def offers(self, kind: str, how: str = "each") -> bool:
        """Whether all of them say that they can answer."""
        return bool(self.members) and all(kind in one.values for one in self._defined.values())

    def post(self, ask: Ask, names: Sequence[str], *, timeout: float | None) -> None:
        """Put a question into the clients' folders, and wait for the answers."""
        self._put(self._define, names)
        self._put(ask, names)
        self._await(ask, names, timeout)

    def reply(self, ask: Ask, name: str) -> Answer | Missing:
        """The answer in a client's folder."""
        path = self._place(ask, name).with_suffix(".answer")
        if path.with_suffix(".late").exists() or not path.exists():
            return Missing("late", "it did not answer in time.")
        try:
            return read_answer(path.read_bytes(), ask.digest, name)
        except CorruptError as error:
            return Missing("garbage", f"{error} Delete {path.name} to have it answered again.")

    @cached_property
    def _define(self) -> Ask:
        """The question that brings the problem."""
        plan = {"backend": self.problem.backend, "plain": dict(self.problem.plain)}
        return Ask("define", self.problem.arrays, plan, problem=self.problem.digest)

    @cached_property
    def _defined(self) -> Mapping[str, Answer]:
        """What each client said to the problem: its rows, and the questions that it can answer."""
        self._put(self._define, self.clients)
        self._await(self._define, self.clients, None)
        found: dict[str, Answer] = {}
        for name in self.clients:
            one = self.reply(self._define, name)
            if isinstance(one, Missing):
                raise MismatchError(f"Client {name} cannot take part: {one.reason}, {one.why}")
            expected = self.members[name] if isinstance(self.members, Mapping) else one.count
            if one.count != expected:
                raise MismatchError(f"Client {name} has {one.count} rows, {expected} were expected. Count them again.")
            found[name] = one
        return found

    def _place(self, ask: Ask, name: str) -> Path:
        return client_folder(self.folder, name) / file_name(ask)

    def _put(self, ask: Ask, names: Sequence[str]) -> None:
        for path in (self._place(ask, name) for name in names):
            if not path.exists():
                write_bytes(path, ask.encoded)

    def _await(self, ask: Ask, names: Sequence[str], timeout: float | None) -> None:
        """Look until all have answered. After `timeout` the question is closed for the others, for good."""
        started = time.monotonic()
        while True:
            awaited = {name: path for name in names if not closed(path := self._place(ask, name))}
            waited = time.monotonic() - started
            if not awaited:
                return
            if timeout is not None and waited >= timeout:
                for path in awaited.values():
                    write_bytes(path.with_suffix(".late"), b"")
                return
            if timeout is None and waited >= self.wait:
                raise Pending(
                    f"Question {ask.number} ({ask.kind}) of {self.job or 'this job'} waits for "
                    f"{', '.join(awaited)}. Give the same command again when they have answered.",
                    tuple(awaited),
                )
            self.pause(INTERVAL)


@dataclass(eq=False)
class FilesClient:
    """A client that answers through files.

    folder, name: the common folder, and who this is.
    embeddings, rows: a set, and the numbers of the client's rows in it.
    memory: a file for what the client remembers from one question to the next. It is the client's own: keep it outside
    of the common folder.
    decline: says why a question is refused; empty: it is answered.
    """

    folder: Path
    name: str
    embeddings: EmbeddingSet
    rows: Indices
    memory: Path | None = None
    decline: Callable[[Ask], str] = field(default=lambda ask: "", repr=False)
    holdings: dict[str, Any] = field(default_factory=dict, repr=False)

    def serve(self) -> int:
        """Answer every open question once, in their order; gives how many these were."""
        own = client_folder(self.folder, self.name)
        self._ship_last(own)
        found = [self._open(path) for kind in ("define", "ask") for path in own.glob(f"*.{kind}")]
        asks = sorted((ask for ask in found if ask is not None), key=lambda ask: (ask.job, ask.number))
        for ask in asks:
            self._answer(ask, (own / file_name(ask)).with_suffix(".answer"))
        return len(asks)

    def _open(self, path: Path) -> Ask | None:
        """The question in a file, unless it is closed, answered, or lacks something that may still come."""
        if closed(path):
            return None
        try:
            ask = Ask.decode(path.read_bytes())
        except CorruptError:
            return None
        there = path.with_name(f"{ask.problem}.define").exists()
        return ask if there and file_name(ask) == path.name else None

    def _answer(self, ask: Ask, place: Path) -> None:
        before = self._remembered()[0]
        try:
            if why := self.decline(ask):
                raise RefusedError(why)
            holding, memory = self._holding(ask.problem), before
            found = Answer(self.name, holding.count, {}, dict.fromkeys(sorted(holding.offers), 1.0))
            if ask.kind != "define":
                found, memory = answer(ask, holding, before, name=self.name)
            content = found.encode(ask.digest)
        except Exception as error:
            lack, memory = absence(error), before
            content = encode({"client": self.name, "ask": ask.digest, "missing": lack.reason, "why": lack.why}, {})
        if memory:
            self._remember(memory, content, place.name)
        write_bytes(place, content)

    def _holding(self, problem: str) -> Any:
        """What the client holds for a problem, prepared once."""
        if problem not in self.holdings:
            ask: Any = Ask.decode((client_folder(self.folder, self.name) / f"{problem}.define").read_bytes())
            made = backend_named(ask.plan["backend"]).from_plain(ask.plan["plain"], ask.arrays)
            if made.digest != problem:
                raise MismatchError("The problem that was sent is another one here. Install the same version.")
            self.holdings[problem] = made.hold(self.embeddings, self.rows, name=self.name)
        return self.holdings[problem]

    def _remembered(self) -> tuple[Memory, bytes, str]:
        """What was remembered, with the answer that it was changed by, and where that belongs."""
        if self.memory is None or not self.memory.exists():
            return {}, b"", ""
        note, arrays, _ = decode(self.memory.read_bytes())
        content = arrays.pop(LAST).tobytes()
        return {**note["plain"], **arrays}, content, note["place"]

    def _remember(self, memory: Memory, content: bytes, place: str) -> None:
        """Keep memory and answer in one write: a client that is killed before it answers does not answer twice."""
        if self.memory is None:
            raise InputError(f"Client {self.name} has to remember something: give it a file for that (memory=...).")
        arrays = {name: value for name, value in memory.items() if isinstance(value, np.ndarray)}
        plain = {name: value for name, value in memory.items() if name not in arrays}
        arrays[LAST] = np.frombuffer(content, np.uint8)
        write_bytes(self.memory, encode({"plain": plain, "place": place}, arrays))

    def _ship_last(self, own: Path) -> None:
        """Send the last answer if a kill kept it from being sent."""
        _, content, place = self._remembered()
        if place and own.exists() and not (own / place).exists():
            write_bytes(own / place, content)


def closed(path: Path) -> bool:
    """Whether a question was answered, or is too late to be."""
    return any(path.with_suffix(end).exists() for end in (".answer", ".late"))


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


def file_name(ask: Ask) -> str:
    """What the file of a question is called."""
    return f"{ask.problem}.define" if ask.kind == "define" else f"{ask.digest}.ask"
