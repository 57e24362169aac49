"""A Grid of our own: replies are fetched each on its own, and one that hangs or is lost holds up nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probekit.federated.flower.carrier import LOST, Reply
from probekit.federated.flower.executor import packed
from probekit.federated.flower.grid import OwnGrid
from probekit.files import write_json
from tests.federated.flower.parties import Party


class Announced(SimpleNamespace):
    """A response of the SuperLink that announces replies."""

    def __init__(self, messages_list: list[Any], message_object_trees: list[Any]) -> None:
        super().__init__(messages_list=messages_list, message_object_trees=message_object_trees)


def message(to: str) -> Any:
    """A reply as Flower gives it."""
    return SimpleNamespace(
        metadata=SimpleNamespace(reply_to_message_id=to), has_error=lambda: False, content=packed(to.encode())
    )


class Slow:
    """flwr's Grid, for which some replies take until they are released, and some are lost."""

    def __init__(self) -> None:
        self.asked, self.release = list[set[str]](), threading.Event()
        self._client: Any = SimpleNamespace(PullMessages=self.announce, PullObject=None, ConfirmMessageReceived=None)

    def announce(self, request: Any) -> Announced:
        self.asked.append(set(request.message_ids))
        return Announced([message(to) for to in sorted(request.message_ids)], [None] * len(request.message_ids))

    @property
    def _runtime_client(self) -> Any:
        return self._client

    def pull_messages(self, sent: list[str]) -> list[Any]:
        [found] = self._client.PullMessages(None).messages_list
        if found.metadata.reply_to_message_id == "hangs":
            assert self.release.wait(20)
        if found.metadata.reply_to_message_id == "lost":
            raise ConnectionError("the line broke")
        return [found]


@pytest.fixture
def grids(tmp_path: Path) -> Iterator[tuple[OwnGrid, Slow]]:
    """Ours over that."""
    party = Party(tmp_path).make({})
    write_json(party.folder / "flower" / "superlink.json", {"address": "127.0.0.1:1"})
    grid, below = OwnGrid(party.folder), Slow()
    vars(grid)["_grid"] = below
    yield grid, below
    below.release.set()


def pulled(grid: OwnGrid, sent: set[str], count: int) -> set[Reply]:
    """So many replies to these messages."""
    found, end = set[Reply](), time.monotonic() + 20
    while len(found) < count:
        found |= set(grid.pull(sent - {one.to for one in found}))
        assert time.monotonic() < end
    return found


def test_a_reply_that_hangs_holds_up_no_other_and_is_not_asked_for_twice(grids: tuple[OwnGrid, Slow]) -> None:
    grid, below = grids
    assert pulled(grid, {"a", "hangs", "b"}, 2) == {Reply("a", b"a"), Reply("b", b"b")}
    assert grid.pull({"hangs"}) == []
    below.release.set()
    assert pulled(grid, {"hangs"}, 1) == {Reply("hangs", b"hangs")}
    assert sum("hangs" in one for one in below.asked) == 1


def test_one_that_comes_when_nobody_waits_for_it_any_more_is_dropped(grids: tuple[OwnGrid, Slow]) -> None:
    grid, below = grids
    assert grid.pull({"hangs"}) == []
    below.release.set()
    assert pulled(grid, {"next"}, 1) == {Reply("next", b"next")}


def test_a_reply_that_is_lost_on_the_way_is_said(grids: tuple[OwnGrid, Slow]) -> None:
    assert pulled(grids[0], {"lost"}, 1) == {Reply("lost", code=LOST, why="the line broke")}
