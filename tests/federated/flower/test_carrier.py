"""The loop that carries questions: whatever the Grid below does, each member's reply comes once, and none of before."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from probekit.errors import NotFoundError
from probekit.federated.federation import Missing
from probekit.federated.flower import carrier, tls
from probekit.federated.flower.carrier import AwayError, Connection, EndedError, FlowerCarrier, Reply
from probekit.federated.flower.executor import SMALL, packed, unpacked

KEYS = {name: tls.public_node_key(tls.new_node_key()) for name in "ab"}
NUMBERS = {tls.registered_key(key): number for number, key in enumerate(KEYS.values(), 1)}
FOREIGN = Array("uint8", (1,), "numpy.ndarray", b"x")
Step = Callable[["Scripted"], list[Reply]]


def reply(sent: str, content: bytes = b"", *, error: int | None = None) -> Reply:
    """What came back for a message."""
    return Reply(sent, content, error, "so it is" if error else "")


class Scripted:
    """A Grid that does as it is told: one step for each look at replies."""

    def __init__(self, *steps: Step, nodes: Mapping[bytes, int] = NUMBERS) -> None:
        self.steps, self.known, self.sent, self.asked = list(steps), nodes, list[tuple[int, bytes]](), list[list[str]]()
        self.started = dict.fromkeys(nodes, Connection("1", until=60.0))

    def nodes(self) -> Mapping[bytes, int]:
        return self.known

    def connections(self) -> Mapping[bytes, Connection]:
        return dict(self.started)

    def push(self, node: int, content: bytes, *, seconds: float) -> str | None:
        self.sent.append((node, content))
        return f"m{len(self.sent)}"

    def pull(self, sent: Iterable[str]) -> list[Reply]:
        self.asked.append(list(sent))
        return self.steps.pop(0)(self) if self.steps else []

    def close(self) -> None: ...


def raising(error: Exception) -> Step:
    """A step that fails."""

    def step(_: Scripted) -> list[Reply]:
        raise error

    return step


def carried(grid: Scripted, timeout: float | None = 5) -> dict[str, bytes | Missing]:
    """What comes back for one question to both."""
    found = list(FlowerCarrier(grid, KEYS).carry({"a": b"to a", "b": b"to b"}, timeout=timeout))
    assert len(found) == 2
    return dict(found)


def both(*numbers: int) -> Step:
    """Both answer, to messages of these numbers."""
    return lambda _: [reply(f"m{number}", b"%d" % number) for number in numbers]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by itself whenever somebody sleeps."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(carrier, "time", SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0], sleep=sleep))


def test_replies_come_as_they_arrive() -> None:
    grid = Scripted(lambda _: [reply("m2", b"from b")], lambda _: [reply("m1", b"from a")])
    assert list(carried(grid).items()) == [("b", b"from b"), ("a", b"from a")]
    assert grid.sent == [(1, b"to a"), (2, b"to b")]


def test_who_does_not_answer_is_late_and_what_comes_later_is_not_looked_at() -> None:
    grid = Scripted(lambda _: [reply("m1", b"from a")])
    using = FlowerCarrier(grid, KEYS)
    first = dict(using.carry({"a": b"1", "b": b"1"}, timeout=5))
    assert first == {"a": b"from a", "b": Missing("late", "it did not answer in time.")}
    grid.steps = [lambda _: [reply("m4", b"b's second"), reply("m3", b"a's second")]]
    assert dict(using.carry({"a": b"2", "b": b"2"}, timeout=5)) == {"a": b"a's second", "b": b"b's second"}
    assert grid.asked[-1] == ["m3", "m4"]


@pytest.mark.parametrize(
    ("code", "reason"), [(5, "gone"), (2, "cannot"), (7, "cannot")], ids=["not connected", "raised", "refused"]
)
def test_an_error_of_flower_has_a_reason(code: int, reason: str) -> None:
    found = carried(Scripted(lambda _: [reply("m1", error=code), reply("m2", b"from b")]))
    assert isinstance(found["a"], Missing)
    assert found["a"].reason == reason
    assert found["b"] == b"from b"


def test_a_lost_reply_is_asked_for_again_but_not_for_ever() -> None:
    grid = Scripted(lambda _: [reply("m1", error=3), reply("m2", b"from b")], both(3))
    assert carried(grid) == {"a": b"3", "b": b"from b"}
    lost = [lambda _, number=number: [reply(f"m{number}", error=3)] for number in (1, 3, 4)]
    found = carried(Scripted(*lost, both(2)))
    assert found == {"a": Missing("late", "its answer expired."), "b": b"2"}


def test_a_superlink_that_is_away_is_waited_for() -> None:
    assert carried(Scripted(raising(AwayError()), raising(AwayError()), both(1, 2))) == {"a": b"1", "b": b"2"}


def test_a_node_that_did_not_report_again_yet_is_not_given_up() -> None:
    grid = Scripted(raising(AwayError()), lambda _: [reply("m1", error=5), reply("m2", b"2")], both(3))
    assert carried(grid) == {"a": b"3", "b": b"2"}


def test_a_run_that_ended_is_followed_by_another_for_those_who_had_not_answered() -> None:
    grid = Scripted(lambda _: [reply("m1", b"1")], raising(EndedError()), both(3))
    assert carried(grid) == {"a": b"1", "b": b"3"}
    assert grid.sent[2:] == [(2, b"to b")]


def test_without_a_limit_a_superlink_is_waited_for_long_but_not_for_ever() -> None:
    with pytest.raises(NotFoundError, match="did not answer for 300 s"):
        carried(Scripted(*[raising(AwayError())] * 1000), timeout=None)


def test_a_node_that_was_started_anew_is_asked_again_but_not_for_ever() -> None:
    def restart(grid: Scripted) -> list[Reply]:
        grid.started[tls.registered_key(KEYS["b"])] = Connection(f"2, look {len(grid.asked)}")
        return []

    nothing: list[Step] = [lambda _: []] * 30
    grid = Scripted(lambda _: [reply("m1", b"from a")], restart, *nothing, lambda _: [reply("m3", b"from b")])
    assert carried(grid, timeout=60) == {"a": b"from a", "b": b"from b"}
    assert grid.sent == [(1, b"to a"), (2, b"to b"), (2, b"to b")]
    grid = Scripted(lambda _: [reply("m1", b"from a")], *[restart] * 200)
    found = carried(grid, timeout=None)["b"]
    assert isinstance(found, Missing)
    assert (found.reason, found.why) == ("gone", "its node was started anew 3 times without answering.")


def test_a_node_that_took_its_leave_is_waited_for_a_while() -> None:
    key = tls.registered_key(KEYS["b"])

    def leave(grid: Scripted) -> list[Reply]:
        grid.started[key] = Connection("1", left=2.0, until=2.0)
        return [reply("m1", b"from a"), reply("m2", error=5)]

    def come_back(grid: Scripted) -> list[Reply]:
        grid.started[key] = Connection("3", left=2.0, until=63.0)
        return []

    nothing: list[Step] = [lambda _: []] * 20
    grid = Scripted(leave, *nothing, come_back, *nothing, lambda _: [reply("m3", b"from b")])
    assert carried(grid, timeout=60) == {"a": b"from a", "b": b"from b"}
    found = carried(Scripted(leave), timeout=None)["b"]
    assert found == Missing("gone", "its node left and did not come back.")


@pytest.mark.parametrize(
    "connection", [Connection("1", left=60.0, until=60.0), Connection("1", left=-50.0, until=-50.0)]
)
def test_a_node_that_was_killed_or_left_long_ago_is_not_waited_for(connection: Connection) -> None:
    def die(grid: Scripted) -> list[Reply]:
        grid.started[tls.registered_key(KEYS["b"])] = connection
        return [reply("m1", b"from a"), reply("m2", error=5)]

    assert carried(Scripted(die))["b"] == Missing("gone", "its node is not connected.")


def test_who_never_connected_is_gone() -> None:
    key = tls.registered_key(KEYS["a"])
    found = carried(Scripted(both(1), nodes={key: 1}))
    assert found == {"a": b"1", "b": Missing("gone", "its node was never connected.")}


@pytest.mark.parametrize("size", [0, 1, SMALL, SMALL + 1, 3 * SMALL])
def test_bytes_come_out_as_they_went_in(size: int) -> None:
    content = os.urandom(size)
    assert unpacked(packed(content)) == content


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"probekit": {}},
        RecordDict({"probekit": ArrayRecord({"content": FOREIGN})}),
        RecordDict({"probekit": ConfigRecord({"content": b"x"})}),
        RecordDict({"probekit": ConfigRecord({"content": b"x", "schema": "probekit.v0"})}),
        RecordDict({"probekit": ConfigRecord({"content": "x", "schema": "probekit.v1"})}),
    ],
)
def test_a_reply_that_is_none_of_ours_is_garbage(content: Any) -> None:
    message = SimpleNamespace(
        metadata=SimpleNamespace(reply_to_message_id="m1"), has_error=lambda: False, content=content
    )
    found = carried(Scripted(lambda _: [Reply.of(message)], both(2)))
    assert isinstance(found["a"], Missing)
    assert found["a"].reason == "garbage"
    message.content = packed(b"ours")
    assert Reply.of(message) == Reply("m1", b"ours")
