"""Questions to the members of a federation over Flower's Grid, whoever holds it, and their replies as they arrive."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from probekit.errors import NotFoundError
from probekit.federated.federation import Missing
from probekit.federated.flower.executor import unpacked
from probekit.federated.flower.tls import registered_key

POLL = 0.25
AWAY = 300.0
"""Seconds that a question without a time limit waits for a SuperLink that is away."""
SETTLE = 60.0
"""Seconds after it was away in which a SuperLink may take nodes for lost that have not reported again yet."""
TRIES = 3
_LONGEST = 12 * 3600.0
_LOST, _GONE, _STRANGE = (3, 4), 5, -1
"""Flower's codes: the message or its reply is no longer there; the node is not connected. Ours: it is not of ours."""


class AwayError(Exception):
    """The SuperLink cannot be reached now."""


class EndedError(Exception):
    """Our run is no more, and its messages with it; the next call begins another."""


@dataclass(frozen=True)
class Reply:
    """What came back for a message: the bytes of a node, or an error of Flower's (its code, and why)."""

    to: str
    content: bytes = field(default=b"", repr=False)
    code: int | None = None
    why: str = ""

    @classmethod
    def of(cls, message: Any) -> Reply:
        """Of a message as Flower gives it."""
        to = message.metadata.reply_to_message_id
        if message.has_error():
            return cls(to, code=message.error.code, why=message.error.reason)
        try:
            return cls(to, unpacked(message.content))
        except ValueError as error:
            return cls(to, code=_STRANGE, why=str(error))


class Grid(Protocol):
    """The three calls of Flower's Grid; each may raise AwayError or EndedError."""

    def nodes(self) -> Mapping[bytes, int]:
        """The number of each node that was ever connected, by its public key."""

    def push(self, node: int, content: bytes, *, seconds: float) -> str | None:
        """Send a message; its id, or None where the node cannot be sent any."""

    def pull(self, sent: Iterable[str]) -> list[Reply]:
        """The replies to these messages that are there, each once."""

    def close(self) -> None:
        """End the run."""


class FlowerCarrier:
    """Carries signed questions to members, known by the keys of their SuperNodes, and brings back what they reply."""

    remedy: ClassVar[str] = "Look at its node's log."

    def __init__(self, grid: Grid, members: Mapping[str, str]) -> None:
        """members: the public key that each member's SuperNode is registered with."""
        self._grid = grid
        self._keys = {name: registered_key(key) for name, key in members.items()}
        self._nodes: Mapping[bytes, int] = {}

    def carry(
        self, parcels: Mapping[str, bytes], *, timeout: float | None = None
    ) -> Iterator[tuple[str, bytes | Missing]]:
        """Each member's reply as it arrives, or why there is none."""
        until = time.monotonic() + (_LONGEST if timeout is None else timeout)
        todo, waiting, tries = dict(parcels), dict[str, str](), Counter[str]()
        reached, away = time.monotonic(), -SETTLE
        while (todo or waiting) and time.monotonic() < until:
            try:
                yield from self._send(todo, waiting, tries, until)
                replies = self._grid.pull(waiting)
                reached = time.monotonic()
            except EndedError:
                todo |= {name: parcels[name] for name in waiting.values()}
                waiting.clear()
                continue
            except AwayError as error:
                away = time.monotonic()
                if timeout is None and away > reached + AWAY:
                    raise NotFoundError(f"The SuperLink did not answer for {AWAY:g} s. Start it again.") from error
                time.sleep(1)
                continue
            for reply in replies:  # by the id of what it replies to: one to an earlier question is not among them
                name = waiting.pop(reply.to)
                if _again(reply.code, tries[name], time.monotonic() < away + SETTLE):
                    todo[name] = parcels[name]
                else:
                    yield name, reply.content if reply.code is None else _missing(reply.code, reply.why)
            time.sleep(0 if replies and not todo else POLL)
        for name in (*todo, *waiting.values()):
            yield name, Missing("late", "it did not answer in time.")

    def close(self) -> None:
        """End the run at the SuperLink."""
        self._grid.close()

    def _send(
        self, todo: dict[str, bytes], waiting: dict[str, str], tries: Counter[str], until: float
    ) -> Iterator[tuple[str, Missing]]:
        """Send what is to do, each on its own, so that a failure between leaves no doubt about which went."""
        for name in list(todo):
            key = self._keys[name]
            if key not in self._nodes:
                self._nodes = self._grid.nodes()
            node = self._nodes.get(key)
            seconds = max(1.0, until - time.monotonic())
            sent = None if node is None else self._grid.push(node, todo[name], seconds=seconds)
            if sent:
                waiting[sent] = name
                tries[name] += 1
            else:
                yield name, Missing("gone", "its node was never connected.")
            del todo[name]


def _again(code: int | None, tries: int, settling: bool) -> bool:
    """Whether to ask once more: the reply was lost on its way to us, or the node has not reported again yet."""
    return (code in _LOST and tries < TRIES) or (code == _GONE and settling)


def _missing(code: int, why: str) -> Missing:
    if code == _GONE:
        return Missing("gone", "its node is not connected.")
    if code in _LOST:
        return Missing("late", "its answer expired.")
    return Missing("garbage" if code == _STRANGE else "cannot", f"{why}.")
