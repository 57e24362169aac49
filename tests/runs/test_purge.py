"""A purge that is killed anywhere is finished by the same command; other runs are named; certificates stay."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit import Run
from probekit.cache import DiskStore, journal
from probekit.cache.audit import verify
from probekit.cache.journal import JOURNAL
from probekit.cache.users import registered
from probekit.errors import InputError, NotFoundError, OtherRunsError, UnfinishedError
from probekit.runs.folder import RunFolder
from probekit.runs.rows import PURGE
from tests.conftest import tree
from tests.power import Disk, killed_at
from tests.runs.conftest import Opened
from tests.shelves import Shelve, shelve

__all__ = ["shelve"]
EVERY = int(os.environ.get("PROBEKIT_KILL_EVERY", "4"))
"""Of how many steps one is a place to be killed at; 1 takes minutes."""


class World:
    """A cache and three runs on one set: two forgot clients 2 and 0, one did not. `pristine` is a copy of all of it."""

    def __init__(self, root: Path) -> None:
        self.root, self.pristine = root, root.with_name("pristine")

    def fill(self, shelve: Shelve, store: DiskStore) -> None:
        """Train, forget, and note what must be gone afterwards."""
        shelve("rows", rows=60)
        for name in ("a", "b", "c"):
            Run.train(self.root / name, "rows", clients=3, ridge="0.1", store=store)
        run = Run.open(self.root / "a", store=store)
        embeddings, partition = run.folder.embeddings(store), run.folder.partition()
        gone = partition.clients["2"].tolist()
        statistics = run.trained().statistics
        assert statistics is not None
        self.rows = [np.asarray(embeddings.embeddings[row]).tobytes() for row in gone]
        self.ids = [bytes.fromhex(embeddings.ids[row]) for row in gone]
        self.kept = [np.ascontiguousarray(statistics["2"].gram).tobytes(), run.head().params.tobytes()]
        for name in ("a", "b"):
            for client in ("2", "0"):
                Run.open(self.root / name, store=store).unlearn(client)
        shutil.copytree(self.root, self.pristine)

    def reset(self) -> None:
        """As it was."""
        shutil.rmtree(self.root)
        shutil.copytree(self.pristine, self.root)

    def open(self, name: str = "a") -> Run:
        """A run, to purge it."""
        return Run.open(self.root / name, store=DiskStore(self.root / "cache", unfinished=True), unfinished=True)

    def left(self, secrets: list[bytes], folder: str) -> list[Path]:
        """The files of a folder in which any of these are."""
        paths = [path for path in (self.root / folder).rglob("*") if path.is_file()]
        return [path for path in paths if any(secret in path.read_bytes() for secret in secrets)]

    def check(self, name: str = "a", *, rows: bool = True) -> None:
        """A run is purged, and goes on working."""
        assert not list(self.root.rglob(JOURNAL))
        run = Run.open(self.root / name, store=DiskStore(self.root / "cache"))
        assert self.left(self.kept, name) == []
        assert [entry.action for entry in run.folder.entries()].count(PURGE) == 1
        assert run.folder.states() == [run.state]
        for state in range(2, run.state + 1):
            assert (run.path / "states" / f"{state:04d}" / "certificate.json").is_file()
        if rows:
            assert self.left([*self.rows, *self.ids], "cache") == []
            assert verify(run.store)[0] == []
            assert run.folder.embeddings(run.store).digest == run.folder.inputs["rows"]
            assert run.verify(rows=True).certificate.is_file()
            with pytest.raises(InputError, match="purged already"):
                run.purge(rows=True)


@pytest.fixture
def world(tmp_path: Path, shelve: Shelve, store: DiskStore) -> World:
    """The cache is in it."""
    made = World(tmp_path / "world")
    made.root.mkdir()
    inside = DiskStore(made.root / "cache")
    store.root, store.sets, store.tombstones = inside.root, inside.sets, inside.tombstones
    made.fill(shelve, store)
    return made


def again(world: World, job: Callable[[], object]) -> None:
    """Give the command again: until then everything else refuses."""
    if (world.root / "cache" / JOURNAL).exists():
        with pytest.raises(UnfinishedError, match=re.escape(f"probekit purge {world.root / 'a'} --rows --yes")):
            DiskStore(world.root / "cache")
    if (world.root / "a" / JOURNAL).exists():
        with pytest.raises(UnfinishedError):
            RunFolder.open(world.root / "a")
        with pytest.raises(UnfinishedError):
            Run.train(world.root / "a", "rows", force=True, store=DiskStore(world.root / "cache", unfinished=True))
    try:
        job()
    except InputError as error:
        assert "purged already" in str(error)  # noqa: PT017


def erase(world: World) -> Any:
    """The command."""
    return world.open().purge(rows=True, yes=True)


def test_killed_at_every_step_a_purge_of_rows_is_finished_by_the_same_command(world: World) -> None:
    """C15: the run was rebased before its rows were erased, and the repeat called that a success."""
    others = {name: tree(world.root / name) for name in ("b", "c")}
    for step in count(0, EVERY):
        world.reset()
        died = killed_at(lambda: erase(world), step)
        if died:
            again(world, lambda: erase(world))
        world.check()
        assert {name: tree(world.root / name) for name in others} == others
        if not died:
            break
    assert step > 60


def test_whenever_the_power_fails_a_purge_is_finished_by_the_same_command(world: World) -> None:
    """C22: folders were not made safe after an unlink."""
    disk = Disk(world.root)
    with disk.watching():
        assert erase(world).complete
    for state in range(len(disk.states)):
        disk.cut(state)
        if state < len(disk.states) - 1:
            again(world, lambda: erase(world))
        world.check()
    disk.close()


def test_killed_at_every_step_a_purge_of_the_run_alone_is_finished(world: World) -> None:
    for step in count(0, EVERY):
        world.reset()
        died = killed_at(lambda: world.open().purge(), step)
        if died:
            again(world, lambda: world.open().purge())
        world.check(rows=False)
        if not died:
            break
    assert step > 10


def test_killed_between_any_two_steps_with_another_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both runs are purged in the end, whichever of them it is asked for again; the third is untouched."""
    seen: list[str] = []
    untouched = tree(world.root / "c")
    for stop in count():
        world.reset()
        seen.clear()

        def reached(step: str, stop: int = stop) -> None:
            seen.append(step)
            if len(seen) > stop:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(journal, "reached", reached)
            try:
                world.open().purge(rows=True, also_runs=True, yes=True)
                break
            except KeyboardInterrupt:
                pass
        name = "b" if stop % 2 and "journalled" in seen else "a"
        world.open(name).purge(rows=True, also_runs=True, yes=True)
        for purged in ("a", "b"):
            world.check(purged)
        assert tree(world.root / "c") == untouched
    assert {"journalled", "tombstones", "run switched", "rows dropped", "searched", "recorded", "run struck"} <= {*seen}


def test_other_runs_are_named_and_asked_about(world: World, store: DiskStore) -> None:
    """C16, C21: other runs on the same set were broken without a word."""
    assert registered(store.root) == [world.root / name for name in ("a", "b", "c")]
    before = tree(world.root)
    with pytest.raises(OtherRunsError, match="Nothing was changed") as error:
        world.open().purge(rows=True)
    forgot, uses = error.value.runs
    assert "it forgot them too" in forgot
    assert f"still trained on {2 * 20} of them" in uses
    with pytest.raises(OtherRunsError) as error:
        world.open().purge(rows=True, also_runs=True)
    assert error.value.runs == (uses,)
    assert tree(world.root) == before
    shutil.rmtree(world.root / "c")
    done = world.open().purge(rows=True, also_runs=True)
    assert (done.also_purged, done.other_runs) == ((str(world.root / "b"),), ())
    assert any("not where they were" in line and str(world.root / "c") in line for line in done.unreached)


def test_a_copy_registers_itself(world: World, store: DiskStore) -> None:
    Run.open(world.root / "b", store=store).fork(world.root / "d")
    assert world.root / "d" in registered(store.root)


def test_what_is_still_found_keeps_a_purge_open(world: World) -> None:
    """C16: exit 6 without a reason, then "purged already"."""
    stray = world.root / "cache" / "stray"
    stray.write_bytes(b"x" + world.rows[0])
    hidden = world.root / "a" / "old.safetensors"
    shutil.copy(next((world.root / "a" / "states" / "0001" / "head").glob("*.safetensors")), hidden)
    done = erase(world)
    assert not done.complete
    assert (done.cache.remains, done.remains) == (("stray",), (str(hidden),))
    with pytest.raises(UnfinishedError):
        RunFolder.open(world.root / "a")
    stray.unlink()
    hidden.unlink()
    assert erase(world).complete
    world.check()


def test_files_with_another_name_outside_are_told(world: World) -> None:
    head = next((world.root / "a" / "states" / "0001" / "head").glob("*.safetensors"))
    os.link(head, world.root / "elsewhere")
    done = world.open().purge()
    assert any("1 of the removed files, which have another name outside" in line for line in done.unreached)


def test_rows_can_be_erased_after_the_rest(world: World) -> None:
    world.open().purge()
    done = erase(world)
    assert (done.complete, done.cache.rows) == (True, 2 * 20)
    with pytest.raises(InputError, match="purged already"):
        erase(world)


def test_a_purge_that_did_not_begin_is_begun_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(step: str) -> None:
        raise KeyboardInterrupt(step)

    with monkeypatch.context() as patch:
        patch.setattr(journal, "reached", stop)  # after the journal of the first run, before that of the cache
        with pytest.raises(KeyboardInterrupt):
            world.open().purge(rows=True, also_runs=True, yes=True)
    assert not (world.root / "cache" / JOURNAL).exists()
    assert world.open().purge().complete
    world.check(rows=False)
    assert world.open("b").purge().complete


def test_a_run_that_was_moved_meanwhile_is_finished(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(step: str) -> None:
        if step == "tombstones":
            raise KeyboardInterrupt(step)

    with monkeypatch.context() as patch:
        patch.setattr(journal, "reached", stop)
        with pytest.raises(KeyboardInterrupt):
            erase(world)
    (world.root / "a").rename(world.root / "moved")
    other = Run.open(world.root / "moved", store=DiskStore(world.root / "another"), unfinished=True)
    with pytest.raises(UnfinishedError, match="name that cache"):
        other.purge()
    with pytest.raises(UnfinishedError):
        world.open("b").purge(rows=True, yes=True)
    assert world.open("moved").purge().complete
    world.check("moved")


def test_an_old_certificate_is_found_after_a_purge(world: World, opened: Opened, store: DiskStore) -> None:
    """C16: earlier certificates were deleted."""
    world.open().purge()
    run = opened(world.root / "a")
    assert run.unlearn("2").already_done
    with pytest.raises(NotFoundError, match="no state 2"):
        run.trained(2)
