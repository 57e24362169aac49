"""`erase` killed before any change of the disk, and the power cut after any fsync: the same command finishes it."""

from __future__ import annotations

import os
import shutil
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from probekit.cache import DiskStore
from probekit.custody.columns import salted
from probekit.errors import UnfinishedError
from probekit.runs.bundle_check import AnswerResult, Bundle
from probekit.runs.erasing import EraseResult, erase
from probekit.runs.register import Register
from probekit.runs.run import Run
from tests.power import Disk, killed_at
from tests.shelves import Shelve, shelve

__all__ = ["shelve"]
EVERY = int(os.environ.get("PROBEKIT_KILL_EVERY", "17"))
"""Of how many steps one is a place to be killed at; 1 takes an hour."""
PEOPLE = [f"p{row % 12}" for row in range(60)]


class World:
    """A cache, two runs on one set, and a test set; person p7 is in all of them. `pristine` is a copy."""

    def __init__(self, root: Path) -> None:
        self.root, self.pristine = root, root.with_name("pristine")

    def fill(self, shelve: Shelve, store: DiskStore) -> None:
        """Train, and note what must be gone afterwards."""
        whole = shelve("rows", rows=60, columns={"patient": salted(PEOPLE)})
        test = shelve("test", rows=20, seed=4, columns={"patient": salted(["p7", "x"] * 10)})
        for name in ("a", "b"):
            Run.train(self.root / name, "rows", clients=3, ridge="0.1", seed=ord(name), store=store)
        own = [row for row, who in enumerate(PEOPLE) if who == "p7"]
        rows = [np.asarray(whole.embeddings[row]).tobytes() for row in own]
        rows += [np.asarray(test.embeddings[row]).tobytes() for row in range(0, 20, 2)]
        ids = [whole.ids[row] for row in own] + [test.ids[row] for row in range(0, 20, 2)]
        columns = [whole.columns["patient"][row].tobytes() for row in own]
        self.needles = [*rows, *columns, *map(bytes.fromhex, ids), *(one.encode() for one in ids)]
        shutil.copytree(self.root, self.pristine)

    def reset(self) -> None:
        """Everything as it was."""
        shutil.rmtree(self.root)
        shutil.copytree(self.pristine, self.root)

    def erase(self) -> EraseResult:
        """The command, as whoever comes to finish it gives it."""
        store = DiskStore(self.root / "cache", unfinished=True)
        runs = [Run.open(self.root / name, store=store, unfinished=True) for name in ("a", "b")]
        return erase(runs, subjects=["patient=p7"], reference="r-1")

    def finish(self) -> EraseResult:
        """The same again; as the library says of what is not finished, nothing else may be begun."""
        book = Register(self.root / "erasures")
        if book.pending() is not None:
            store = DiskStore(self.root / "cache", unfinished=True)
            with pytest.raises(UnfinishedError):
                erase([Run.open(self.root / "a", store=store, unfinished=True)], clients=["1"])
        return self.erase()

    def check(self, done: EraseResult) -> None:
        """Nothing is found, nothing was done twice, and the papers are all there."""
        assert done.complete
        for path in (self.root / "cache").rglob("*"):
            if path.is_file():
                data = path.read_bytes()
                assert not any(one in data for one in self.needles), path
        store = DiskStore(self.root / "cache")
        for name in ("a", "b"):
            run = Run.open(self.root / name, store=store)
            actions = [one.action for one in run.folder.entries()]
            assert (run.state, actions.count("unlearn"), actions.count("purge")) == (2, 1, 1)
            assert len(run.folder.embeddings(store)) == 55
            case = done.register / "r-1"
            opened = Bundle(case / f"bundle-{name}-0002.zip").receipt(
                case / f"answer-{name}-0002.json", client=None, public_key=None
            )
            assert isinstance(opened, AnswerResult)
            assert len(opened.opened) == 5
        assert Register(done.register).pending() is None
        assert [len(one.runs) for one in Register(done.register).records()] == [2]


@pytest.fixture
def world(shelve: Shelve, tmp_path: Path, store: DiskStore) -> World:
    """All of it, in one folder."""
    made = World(tmp_path / "world")
    made.root.mkdir()
    inside = DiskStore(made.root / "cache")
    store.root = inside.root  # what `shelve` puts things into
    store.sets, store.tombstones = inside.sets, inside.tombstones
    made.fill(shelve, store)
    return made


def test_killed_before_any_step_the_same_command_finishes_it(world: World) -> None:
    """C15, C16: for several runs and the cache."""
    for step in count(0, EVERY):
        world.reset()
        died = killed_at(world.erase, step)
        world.check(world.finish() if died else world.erase())
        if not died:
            break
    assert step > 150


def test_whenever_the_power_fails_the_same_command_finishes_it(world: World) -> None:
    """C22: after every so many fsyncs."""
    disk = Disk(world.root)
    with disk.watching():
        done = world.erase()
    assert done.complete
    for state in range(0, len(disk.states) - 1, EVERY):
        disk.cut(state)
        world.check(world.finish())
    disk.cut(len(disk.states) - 1)
    world.check(world.erase())
    disk.close()
    assert len(disk.states) > 100
