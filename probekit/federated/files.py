"""Questions and answers that travel as files: in a folder that both sides see, on a stick, by mail, in a bucket.

Every client has a folder of its own below the common one. In it lie signed questions, `NAME.question`, and for each of
these `NAME.answer`, or `NAME.late` if it was closed before that. Files appear whole or not at all, and what a file is
follows from what it holds: an answer that came by mail is taken in under whatever name it has.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

from probekit.errors import CorruptError, InputError, NotFoundError, Pending, ProbekitError, VerificationError
from probekit.federated.envelope import ANSWER, QUESTION, Envelope
from probekit.federated.federation import Missing
from probekit.federated.membership import safe_name
from probekit.files import read_limited, write_bytes

MOST = 2**32
"""The size of an answer that is read at all."""
INTERVAL = 0.05
"""Seconds between two looks for answers."""
QUESTIONS, ANSWERS, LATE = ".question", ".answer", ".late"


@dataclass(eq=False)
class FilesCarrier:
    """Puts questions into clients' folders and looks for answers there.

    folder: the common folder. wait: how many seconds to look before `Pending` is raised. pause: called with the seconds
    until the next look.
    """

    remedy: ClassVar[str] = "Delete its .answer file to have it answered again."
    folder: Path
    wait: float = 0.0
    pause: Callable[[float], None] = field(default=time.sleep, repr=False)

    def carry(self, parcels: Mapping[str, bytes], *, timeout: float | None) -> Iterator[tuple[str, bytes | Missing]]:
        """Each client's answer. After `timeout` seconds the question is closed for the others, for good."""
        places = {
            name: self.folder / safe_name(name) / f"{_name(content)}{QUESTIONS}" for name, content in parcels.items()
        }
        for name, place in places.items():
            if not place.exists():
                write_bytes(place, parcels[name])
        started = time.monotonic()
        while True:
            for name in [name for name, place in places.items() if closed(place)]:
                place = places.pop(name)
                late = place.with_suffix(LATE).exists()
                yield name, Missing("late", LATE_TEXT) if late else _answer(place.with_suffix(ANSWERS))
            waited = time.monotonic() - started
            if not places:
                return
            if timeout is not None and waited >= timeout:
                for name, place in places.items():
                    write_bytes(place.with_suffix(LATE), b"")
                    yield name, Missing("late", LATE_TEXT)
                return
            if timeout is None and waited >= self.wait:
                raise Pending(
                    f"Still awaited: {', '.join(places)}. Their questions lie in {self.folder}. Give the same command "
                    "again when the answers are there.",
                    tuple(places),
                )
            self.pause(INTERVAL)


LATE_TEXT = "it did not answer in time."


class Answering(Protocol):
    """Whoever answers signed questions, as a node does."""

    name: str

    def answer(self, content: bytes) -> bytes: ...


def serve(node: Answering, folder: Path) -> int:
    """Answer every open question of a client in a common folder, in their order; gives how many these were."""
    found = questions_to(node.name, folder)
    for path in found:
        answer_file(node, path)
    return len(found)


def questions_to(name: str, folder: Path) -> list[Path]:
    """The open questions of a client in a common folder, in their order."""
    found = []
    for path in (folder / safe_name(name)).glob(f"*{QUESTIONS}"):
        if closed(path):
            continue
        with suppress(CorruptError, FileNotFoundError):  # still on its way, or its job is done
            content = path.read_bytes()
            found.append((Envelope.read(content, QUESTION)[0].number, path))
    return [path for _, path in sorted(found)]


def answer_file(node: Answering, question: Path) -> Path:
    """Answer the question in a file, beside it."""
    place = question.with_suffix(ANSWERS)
    write_bytes(place, node.answer(question.read_bytes()))
    return place


def open_questions(folder: Path) -> dict[str, list[Path]]:
    """Questions without an answer, by client."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob(f"*/*{QUESTIONS}")):
        if not closed(path):
            found.setdefault(Envelope.read(path.read_bytes(), QUESTION)[0].client, []).append(path)
    return found


def take_in(folder: Path, answer: Path, *, federation: str, members: Mapping[str, bytes]) -> str:
    """Put an answer that came from elsewhere into its place; gives the client whose it is.

    Refused by name: what was altered, what is not a member's or of another federation, what answers no open question.
    """
    content = _answer(answer)
    if isinstance(content, Missing):
        raise VerificationError(f"{answer.name}: {content.why}")
    try:
        said, signature = Envelope.read(content, ANSWER)
    except CorruptError as error:
        raise VerificationError(f"{answer.name} is not an answer: {error}") from error
    if said.federation != federation:
        raise VerificationError(f"{answer.name} is of federation {said.federation[:16]}, not of this one.")
    if said.client not in members:
        raise VerificationError(f"{answer.name} is of {said.client}, who is not a member of this federation.")
    try:
        said.check(signature, members[said.client])
    except ProbekitError as error:
        raise VerificationError(f"{answer.name}, client {said.client}: {error}") from error
    for path in (folder / safe_name(said.client)).glob(f"*{QUESTIONS}"):
        if Envelope.read(path.read_bytes(), QUESTION)[0].question == said.question:
            if closed(path):
                raise InputError(f"{answer.name}, client {said.client}: its question was answered or closed already.")
            write_bytes(path.with_suffix(ANSWERS), content)
            return said.client
    raise VerificationError(
        f"{answer.name}, client {said.client}: it answers question {said.question[:16]}, which nobody asks here: an "
        "old one, or sent again. Take the answer to the open question."
    )


def there(path: Path) -> Path:
    """The path, if a file is there."""
    if not path.is_file():
        raise NotFoundError(f"There is no file {path}. Give questions to a node, and answers to a federation.")
    return path


def closed(path: Path) -> bool:
    """Whether a question was answered, or is too late to be."""
    return any(path.with_suffix(end).exists() for end in (ANSWERS, LATE))


def _answer(path: Path) -> bytes | Missing:
    """The bytes of an answer; of none that is larger than any, not even for a moment."""
    there(path)
    try:
        return read_limited(path, MOST)
    except ValueError as error:
        return Missing("garbage", f"{error}.")


def _name(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
