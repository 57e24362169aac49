"""Whatever erases, killed or without power at any instant: given again it finishes, and said nothing before that."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from probekit.cache import DiskStore, journal
from probekit.cache.audit import verify
from probekit.cache.erasure import purge
from probekit.cache.journal import JOURNAL, pending
from probekit.errors import InputError, NotFoundError
from tests.conftest import tree
from tests.power import FORK, Disk, killed_after
from tests.runs import test_erase_interruption, test_purge
from tests.shelves import Shelve, shelve

__all__ = ["shelve"]
pytestmark = pytest.mark.slow
INSTANTS = 60
"""Of how many prefixes one is replayed; 0: as many as a command has time for."""


@dataclass(frozen=True)
class Erasure:
    """A command that erases, in a world of runs and a cache, and what must hold after it.

    `others`: folders that it must leave as they are.
    """

    world: Callable[[Path], Any]
    job: Callable[[Any], object]
    check: Callable[[Any], None]
    others: tuple[str, ...] = ()


def _purge(world: test_purge.World) -> None:
    try:
        assert world.open().purge(rows=True, yes=True).complete
    except InputError as error:
        assert "purged already" in str(error)  # noqa: PT017


def _cache_purge(world: test_purge.World) -> None:
    store = DiskStore(world.root / "cache", unfinished=True)
    if pending(store.root) is not None:
        assert purge(store).remains == ()
        return
    try:
        assert purge(store, samples=[one.hex() for one in world.ids], yes=True).remains == ()
    except NotFoundError as error:
        assert "means 0 samples" in str(error)  # noqa: PT017


def _check_cache(world: test_purge.World) -> None:
    store = DiskStore(world.root / "cache")
    assert not list(world.root.rglob(JOURNAL))
    assert world.left([*world.rows, *world.ids, *(one.hex().encode() for one in world.ids)], "cache") == []
    assert verify(store)[0] == []
    assert len(store.open("rows")) == 40
    assert len(store.erased(one.hex() for one in world.ids)) == 20


ERASURES = {
    "purge": Erasure(test_purge.World, _purge, lambda world: world.check(), ("b", "c")),
    "cache purge": Erasure(test_purge.World, _cache_purge, _check_cache, ("a", "b", "c")),
    "erase": Erasure(
        test_erase_interruption.World, lambda world: world.erase(), lambda world: world.check(world.erase())
    ),
}


@pytest.fixture(params=ERASURES)
def erasure(request: pytest.FixtureRequest) -> Erasure:
    """Each of them."""
    return ERASURES[request.param]


@pytest.fixture
def world(erasure: Erasure, tmp_path: Path, shelve: Shelve, store: DiskStore) -> Any:
    """Where it works."""
    made = erasure.world(tmp_path / "world")
    made.root.mkdir()
    inside = DiskStore(made.root / "cache")
    store.root, store.sets, store.tombstones = inside.root, inside.sets, inside.tombstones
    made.fill(shelve, store)
    return made


def _others(erasure: Erasure, world: Any) -> dict[str, Any]:
    return {name: tree(world.root / name) for name in erasure.others}


def _dying(job: Callable[[], object], last: int, said: Path) -> None:
    """Do a job and die at the step of this number of the order."""
    steps = count()

    def reached(step: str) -> None:
        if next(steps) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    journal.reached = reached
    job()
    said.touch()


def test_killed_at_every_step_of_the_order(erasure: Erasure, world: Any, tmp_path: Path) -> None:
    """C15: after each of the steps that custody has, in every loop."""
    before, said = _others(erasure, world), tmp_path / "said"
    for step in count():
        world.reset()
        process = FORK.Process(target=_dying, args=(lambda: erasure.job(world), step, said))
        process.start()
        process.join(120)
        assert process.exitcode in (0, -signal.SIGKILL)
        assert said.exists() == (process.exitcode == 0)
        if not said.exists():
            erasure.job(world)
        erasure.check(world)
        assert _others(erasure, world) == before
        if said.exists():
            break
    assert step > 5


def test_killed_at_sixty_further_instants(erasure: Erasure, world: Any, tmp_path: Path) -> None:
    before, said, drawn = _others(erasure, world), tmp_path / "said", random.Random(11)
    began = time.perf_counter()
    killed_after(lambda: erasure.job(world), 120, said)
    took, unfinished, instants = time.perf_counter() - began, 0, 0
    while instants < INSTANTS or unfinished <= INSTANTS // 4:
        instants += 1
        assert instants < 10 * INSTANTS
        world.reset()
        said.unlink(missing_ok=True)
        began = time.perf_counter()
        killed_after(lambda: erasure.job(world), took * drawn.random(), said)
        if said.exists():  # on a machine that grew faster, kill it sooner
            took = min(took, time.perf_counter() - began)
        else:
            unfinished += 1
            erasure.job(world)
        erasure.check(world)
        assert _others(erasure, world) == before


def test_every_prefix_of_fsyncs_and_renames(erasure: Erasure, world: Any) -> None:
    """C22: names that were not made safe may be lost, or be there: both are tried, and bytes are there if made safe."""
    before, disk = _others(erasure, world), Disk(world.root)
    with disk.watching():
        erasure.job(world)
    assert min(len(disk.states), len(disk.ahead)) > 10
    for ahead, states in ((False, disk.states), (True, disk.ahead)):
        for state in range(len(states)):
            disk.cut(state, ahead=ahead)
            erasure.job(world)
            erasure.check(world)
            assert _others(erasure, world) == before
    disk.close()
