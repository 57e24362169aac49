"""A client's own machine: signed questions in, signed answers out, as its owner's policy allows.

A node's folder holds node.json (who it is, whose questions it answers, which set it answers from), policy.toml,
log.jsonl, problems/ (what it was asked to train), memory/ (what it remembers, per job) and private/ (its keys). How
questions come and answers go is somebody else's matter: `answer` takes bytes and gives bytes.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from probekit.custody.signatures import raw_public_key
from probekit.errors import CorruptError, InputError, MismatchError, MissingClientsError, ProbekitError, RefusedError
from probekit.federated.client import Memory, answer, selected, unable
from probekit.federated.envelope import ANSWER, QUESTION, Envelope
from probekit.federated.federation import absence
from probekit.federated.message import Answer, Ask, decode, encode
from probekit.federated.node_log import NodeLog
from probekit.federated.policy import Policy
from probekit.files import PRIVATE, make_folder, read_json, write_bytes
from probekit.models.problem import backend_named
from probekit.values import UNLABELLED, EmbeddingSet, Indices

SCHEMA = 1
NODE, POLICY, LOG, KEY = "node.json", "policy.toml", "log.jsonl", "private/node.pem"
KEPT_PROBLEMS = 16
"""Problems whose definitions a node keeps; of a job that asks about an older one it says that it cannot."""


@dataclass(frozen=True)
class Outgoing:
    """What a node would send: the bytes, what they are, and what it would remember afterwards."""

    content: bytes
    ask: Ask | None
    outcome: str
    why: str = ""
    rows: int = 0
    memory: Memory = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """The sha256 of what is sent."""
        return hashlib.sha256(self.content).hexdigest()


@dataclass(eq=False)
class Node:
    """A client's machine.

    folder: the node's own. name: the client's. federation: its id. server: the raw public key whose questions are
    answered. rows: opens the embedding set that is answered from. dry: called with what would be sent; sums of
    rows are then refused, and the refusal says so.
    """

    folder: Path
    name: str
    federation: str
    server: bytes
    rows: Callable[[], EmbeddingSet] = field(repr=False)
    dry: Callable[[Outgoing], None] | None = field(default=None, repr=False)
    _holdings: dict[str, Any] = field(default_factory=dict, init=False, repr=False)
    _log: NodeLog | None = field(default=None, init=False, repr=False)

    @classmethod
    def open(cls, folder: Path, open_set: Callable[[str], EmbeddingSet], **more: Any) -> Node:
        """The node in a folder; its set is opened by `open_set` when it is first asked for."""
        note = read_node(folder)
        found: dict[str, Any] = {name: note[name] for name in ("name", "federation")}
        return cls(folder, **found, server=bytes.fromhex(note["server"]), rows=lambda: open_set(note["set"]), **more)

    @property
    def key(self) -> bytes:
        """Its private key, in PEM; read anew, so that a rotated one is used at once."""
        return (self.folder / KEY).read_bytes()

    @property
    def log(self) -> NodeLog:
        """What it was asked and what it answered."""
        self._log = self._log or NodeLog(self.folder / LOG)
        return self._log

    def answer(self, content: bytes) -> bytes:
        """The signed answer to a signed question. What was asked and answered stands in the log before it leaves."""
        found = self.prepare(content)
        asked = found.ask is not None and found.ask.kind != "define"  # whose answer is what the card says, too
        if self.dry is not None and found.outcome == "answered" and asked:
            self.dry(found)
            assert found.ask is not None
            why = "its owner looks at what would be sent first (a dry run). Ask again."
            found = self._missing(found.ask, content, RefusedError(why))
        return self.send(found, content)

    def send(self, found: Outgoing, content: bytes) -> bytes:
        """What stands ready, once it is in the memory and in the log."""
        self._remember(found, content)
        asked: Any = None if found.ask is None else _asked(found.ask)
        answered: Any = {"outcome": found.outcome, "why": found.why, "rows": found.rows, "digest": found.digest}
        sizes = {"bytes_in": len(content), "bytes_out": len(found.content)}
        self.log.add({"asked": asked, "answered": answered, **sizes})
        return found.content

    def prepare(self, content: bytes) -> Outgoing:
        """What the answer to a signed question would be; nothing is remembered, logged or sent."""
        envelope: Any = None
        try:
            envelope = Envelope.open(content, QUESTION, key=self.server, federation=self.federation, client=self.name)
            ask = Ask.decode(envelope.content)
            if ask.digest != envelope.question or ask.number != envelope.number:
                raise CorruptError("The question is another one than its envelope says.")
        except ProbekitError as error:  # nothing that such a question asks for is done
            number = envelope.number if envelope is not None else 0
            digest = envelope.question if envelope is not None else hashlib.sha256(content).hexdigest()
            note: Any = {"client": self.name, "ask": digest, "missing": "refused", "why": str(error)}
            return Outgoing(self._sealed(digest, number, 0, encode(note, {})), None, "refused", str(error))
        try:
            return self._answered(ask, envelope.remembers)
        except Exception as error:
            return self._missing(ask, content, error)

    def _answered(self, ask: Ask, remembers: int) -> Outgoing:
        policy = Policy.read(self.folder / POLICY)
        if why := policy.refusal(ask):
            raise RefusedError(why)
        memory: Memory = {}
        if ask.kind == "define":
            holding = self._define(ask)
            if why := policy.too_few(holding.count):
                raise RefusedError(why)
            offered = sorted(holding.offers & {*policy.allow})
            found = Answer(self.name, holding.count, {}, dict.fromkeys(offered, 1.0))
        else:
            holding, before = self._holding(ask.problem), self._remembered(ask.job, remembers)
            if why := unable(ask, holding):
                raise MissingClientsError(why)
            if why := policy.too_few(selected(ask, holding).count):
                raise RefusedError(why)
            found, memory = answer(ask, holding, before, name=self.name)
        sealed = self._sealed(ask.digest, ask.number, ask.number if memory else 0, found.encode(ask.digest))
        return Outgoing(sealed, ask, "answered", rows=found.count, memory=memory)

    def _missing(self, ask: Ask, content: bytes, error: Exception) -> Outgoing:
        lack = absence(error)
        note: Any = {"client": self.name, "ask": ask.digest, "missing": lack.reason, "why": lack.why}
        return Outgoing(self._sealed(ask.digest, ask.number, 0, encode(note, {})), ask, lack.reason, lack.why)

    def _sealed(self, question: str, number: int, remembers: int, content: bytes) -> bytes:
        found = Envelope(ANSWER, self.federation, self.name, question, number, remembers, content)
        return found.sealed(self.key)

    def _define(self, ask: Ask) -> Any:
        """Keep what is to be trained, and prepare for it."""
        place = self.folder / "problems" / f"{ask.problem}.define"
        holding = self._made(ask)
        make_folder(place.parent, closed=True)
        write_bytes(place, ask.encoded, mode=PRIVATE)
        for old in sorted(place.parent.glob("*.define"), key=lambda path: path.stat().st_mtime)[:-KEPT_PROBLEMS]:
            old.unlink(missing_ok=True)
            self._holdings.pop(old.stem, None)
        return holding

    def _holding(self, problem: str) -> Any:
        if problem not in self._holdings:
            place = self.folder / "problems" / f"{problem}.define"
            if not place.is_file():
                raise MissingClientsError("it was not told what is trained, or has forgotten it. Begin the job anew.")
            ask = Ask.decode(place.read_bytes())
            if why := Policy.read(self.folder / POLICY).refusal(ask):
                raise RefusedError(why)
            return self._made(ask)
        return self._holdings[problem]

    def _made(self, ask: Ask) -> Any:
        """What the node holds for a problem, prepared once."""
        if ask.problem not in self._holdings:
            plan: Any = ask.plan
            rows = self.rows()
            if plan.get("spec") not in (None, rows.spec.digest):
                raise MismatchError(
                    f"its embeddings are of {rows.spec.backbone} with spec {rows.spec.digest[:12]}, those of the "
                    f"federation have spec {plan['spec'][:12]}. Extract them with the federation's backbone."
                )
            made = backend_named(plan["backend"]).from_plain(plan["plain"], ask.arrays)
            if made.digest != ask.problem:
                raise MismatchError("the problem that was sent is another one here. Install the same version.")
            self._holdings[ask.problem] = made.hold(rows, usable_rows(rows), name=self.name)
        return self._holdings[ask.problem]

    def _memory(self, job: str) -> Path:
        return self.folder / "memory" / hashlib.sha256(job.encode()).hexdigest()[:32]

    def _remembered(self, job: str, number: int) -> Memory:
        """What was remembered after the answer of this number, the last that the server accepted."""
        if number == 0:
            return {}
        place = self._memory(job) / f"{number}.memory"
        if not place.is_file():
            raise MissingClientsError(
                f"it does not remember question {number} of this job, and does not begin anew in silence. Begin the "
                "job anew, or leave this client out."
            )
        note, arrays, _ = decode(place.read_bytes())
        return {**note["plain"], **arrays}

    def _remember(self, found: Outgoing, content: bytes) -> None:
        """Keep what is remembered after this answer beside what was before it: which is accepted is not known yet."""
        if not found.memory or found.ask is None:
            return
        folder, number = self._memory(found.ask.job), found.ask.number
        make_folder(folder, closed=True)
        arrays = {name: value for name, value in found.memory.items() if isinstance(value, np.ndarray)}
        plain = {name: value for name, value in found.memory.items() if name not in arrays}
        write_bytes(folder / f"{number}.memory", encode({"plain": plain}, arrays), mode=PRIVATE)
        before = Envelope.read(content, QUESTION)[0].remembers
        for old in folder.glob("*.memory"):
            if old.stem not in (str(number), str(before)):
                old.unlink(missing_ok=True)

    def forget_jobs(self) -> None:
        """Drop what is remembered of jobs."""
        shutil.rmtree(self.folder / "memory", ignore_errors=True)


def _asked(ask: Ask) -> dict[str, Any]:
    about = {"kind": ask.kind, "digest": ask.digest, "job": ask.job, "number": ask.number}
    return {**about, "problem": ask.problem, "selection": ask.rows.kind}


def read_node(folder: Path) -> dict[str, Any]:
    """What a node's folder says of itself."""
    if not (folder / NODE).is_file():
        raise InputError(f"{folder} is not a node's folder: it has no {NODE}. `probekit federate node join` makes one.")
    note: dict[str, Any] = read_json(folder / NODE, remedy="Join the federation again.")
    if note.get("schema") != SCHEMA:
        raise InputError(
            f"{folder} was made by another version of probekit (schema {note.get('schema')}, here {SCHEMA}). Join "
            "again."
        )
    return note


def usable_rows(rows: EmbeddingSet) -> Indices:
    """The rows with a label and an embedding."""
    good = rows.labels != UNLABELLED
    if rows.masked is not None:
        good &= ~rows.masked
    found: Indices = np.flatnonzero(good).astype(np.int64)
    if not len(found):
        raise InputError("this node has no row with a label and an embedding. Give it a set that has.")
    return found


def public_key(folder: Path) -> bytes:
    """The raw public key of the node in a folder."""
    return raw_public_key((folder / KEY).read_bytes(), private=True)
