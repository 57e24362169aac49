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
LOOK = 3.0
"""Seconds between two looks for nodes that were started anew."""
REST = 45.0
"""Seconds that a node has to come back after it took its leave in order, as for an update."""
_LONGEST = 12 * 3600.0
LOST = 3
_LOST, _GONE, _STRANGE = (LOST, 4), 5, -1
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


@dataclass(frozen=True)
class Connection:
    """When a node connected last, when it left last, and until when it would count as there without a new word."""

    started: str = ""
    left: float = 0.0
    until: float = 0.0


class Grid(Protocol):
    """What is needed of Flower's Grid; each call may raise AwayError or EndedError."""

    def nodes(self) -> Mapping[bytes, int]:
        """The number of each node that was ever connected, by its public key."""

    def connections(self) -> Mapping[bytes, Connection]:
        """When each node came and left, by its public key, as far as that is known."""

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
        self._seen = dict[bytes, float]()

    def carry(
        self, parcels: Mapping[str, bytes], *, timeout: float | None = None
    ) -> Iterator[tuple[str, bytes | Missing]]:
        """Each member's reply as it arrives, or why there is none."""
        until = time.monotonic() + (_LONGEST if timeout is None else timeout)
        errand = _Errand(self._grid, self._keys, parcels, until, self._seen)
        reached, away = time.monotonic(), -SETTLE
        while errand.open and time.monotonic() < until:
            try:
                yield from errand.send()
                replies = self._grid.pull(errand.waiting)
                reached = time.monotonic()
                for reply in replies:  # by the id of what it replies to: one to an earlier question is not among them
                    yield from errand.take(reply, settling=reached < away + SETTLE)
                yield from errand.look()
            except EndedError:
                errand.begin_again()
                continue
            except AwayError as error:
                away = time.monotonic()
                if timeout is None and away > reached + AWAY:
                    raise NotFoundError(f"The SuperLink did not answer for {AWAY:g} s. Start it again.") from error
                time.sleep(1)
                continue
            time.sleep(0 if replies and not errand.todo else POLL)
        for name in errand.open:
            yield name, Missing("late", "it did not answer in time.")

    def close(self) -> None:
        """End the run at the SuperLink."""
        self._grid.close()


class _Errand:
    """One question on its way: who is still to be sent it, whose reply is awaited, who left and may come back."""

    def __init__(
        self,
        grid: Grid,
        keys: Mapping[str, bytes],
        parcels: Mapping[str, bytes],
        until: float,
        seen: dict[bytes, float],
    ) -> None:
        """seen: until when each node counted as there, at most; kept from question to question."""
        self.grid, self.keys, self.parcels, self.until, self.seen = grid, keys, parcels, until, seen
        self.todo, self.waiting, self.resting = list(parcels), dict[str, str](), dict[str, float]()
        self.tries, self.looked = Counter[str](), time.monotonic()
        self.numbers: Mapping[bytes, int] = {}
        self.started: dict[str, Connection] = {}

    @property
    def open(self) -> list[str]:
        """Who has not replied."""
        return [*self.todo, *self.waiting.values(), *self.resting]

    def begin_again(self) -> None:
        """Everybody who has not replied is sent it once more."""
        self.todo = self.open
        self.waiting.clear()
        self.resting.clear()

    def send(self) -> Iterator[tuple[str, Missing]]:
        """Send what is to do, each on its own, so that a failure between leaves no doubt about which went."""
        if self.todo:
            connections = self._connections()
        while self.todo:
            name = self.todo[0]
            key = self.keys[name]
            if key not in self.numbers:
                self.numbers = self.grid.nodes()
            node, seconds = self.numbers.get(key), max(1.0, self.until - time.monotonic())
            sent = None if node is None else self.grid.push(node, self.parcels[name], seconds=seconds)
            del self.todo[0]
            self.started[name] = connections.get(key, Connection())
            self.tries[name] += 1
            if sent:
                self.waiting[sent] = name
            else:
                yield name, Missing("gone", "its node was never connected.")

    def take(self, reply: Reply, *, settling: bool) -> Iterator[tuple[str, bytes | Missing]]:
        """What a reply says; lost on its way to us, or from a node that comes back, it is asked for once more."""
        name = self.waiting.pop(reply.to)
        if (reply.code in _LOST and self.tries[name] < TRIES) or (reply.code == _GONE and settling):
            self.todo.append(name)
        elif reply.code == _GONE and self._rests(name):
            self.resting[name] = time.monotonic() + REST
        else:
            yield name, reply.content if reply.code is None else _missing(reply.code, reply.why)

    def _connections(self) -> Mapping[bytes, Connection]:
        found = self.grid.connections()
        for key, one in found.items():
            self.seen[key] = max(self.seen.get(key, 0.0), one.until)
        return found

    def _rests(self, name: str) -> bool:
        """Whether a node took its leave in order and just now, or is there again already.

        One that was killed counts as there until its time is over; one that says that it leaves, does not.
        """
        key = self.keys[name]
        now = self._connections().get(key, Connection())
        if self.tries[name] >= TRIES or now.started != self.started[name].started:
            return self.tries[name] < TRIES
        return 0 < now.left < self.seen.get(key, 0.0) - 1 and time.time() < now.left + REST

    def look(self) -> Iterator[tuple[str, Missing]]:
        """Ask those again that were started anew since: what a node had taken and not answered is lost with it."""
        if time.monotonic() < self.looked + LOOK:
            return
        self.looked, now = time.monotonic(), self._connections()
        changed = [name for name in self.open if now.get(self.keys[name], Connection()).started != self._start(name)]
        for name in changed:
            self.resting.pop(name, None)
            self.waiting = {sent: other for sent, other in self.waiting.items() if other != name}
            if self.tries[name] < TRIES:
                self.todo.append(name)
            else:
                yield name, Missing("gone", f"its node was started anew {self.tries[name]} times without answering.")
        for name in [name for name, end in self.resting.items() if time.monotonic() > end]:
            del self.resting[name]
            yield name, Missing("gone", "its node left and did not come back.")

    def _start(self, name: str) -> str:
        return self.started.get(name, Connection()).started


def _missing(code: int, why: str) -> Missing:
    if code == _GONE:
        return Missing("gone", "its node is not connected.")
    if code in _LOST:
        return Missing("late", "its answer expired.")
    return Missing("garbage" if code == _STRANGE else "cannot", f"{why}.")
