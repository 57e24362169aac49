"""Kills before every change of the disk, a full disk, two processes: the same bytes in the end."""

from __future__ import annotations

import os
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from probekit.cache import Cache
from probekit.cache.removal import collect_garbage, remove
from probekit.cache.verify import verify
from probekit.embeddings import EmbeddingSet
from probekit.errors import StorageError
from tests.cache.examples import (
    embedding_set,
    encoding,
    ids,
    result_files,
    rows,
    save_in_pieces,
    shard_paths,
)
from tests.power import FORK, Disk, killed_at

NUMBERS = (5, 1, 4, 1, 0, 3)
MAX_STEPS = 400


def extract(root: Path) -> EmbeddingSet:
    """What an extraction does: encode what is unknown, in pieces, then save the set."""
    cache = Cache(root)
    entry = cache.entry(encoding())
    with cache.working(encoding(), "set"):
        for start in range(0, len(NUMBERS), 2):
            known = entry.index()
            batch = [n for n in NUMBERS[start : start + 2] if ids(n).tobytes() not in known]
            entry.save(ids(*batch), rows(*batch))
        entry.keep_canary(rows(9))
        return cache.save("set", embedding_set(*NUMBERS))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    root = tmp_path_factory.mktemp("undisturbed")
    extract(root)
    return result_files(root)


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probekit.cache.entry.SHARD_BYTES", 2 * 4 * 4)


def kill_everywhere(
    root: Path, job: Callable[[], object], check: Callable[[], None], template: Path | None = None
) -> int:
    """Kill a job before each of its steps, starting anew each time; returns how many it has."""
    for step in range(MAX_STEPS):
        shutil.rmtree(root, ignore_errors=True)
        if template is not None:
            shutil.copytree(template, root)
        if not killed_at(job, step):
            return step
        check()
    raise AssertionError(f"the job has more than {MAX_STEPS} steps")


def test_killed_extractions_end_with_the_same_bytes(
    tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    root = tmp_path / "cache"

    def finish() -> None:
        opened = extract(root)
        np.testing.assert_array_equal(opened.to_numpy(), rows(*NUMBERS))
        assert result_files(root) == undisturbed

    assert kill_everywhere(root, lambda: extract(root), finish) > 30


def test_a_killed_save_leaves_the_former_set(tmp_path: Path, small_shards: None) -> None:
    template = tmp_path / "template"
    root = tmp_path / "cache"
    former = embedding_set(1, 2)
    later = embedding_set(2, 3, 4, 5)
    Cache(template).save("set", former)

    def check() -> None:
        opened = Cache(root).open("set")
        assert opened.digest in (former.digest, later.digest)
        assert verify(Cache(root)).damages == ()
        np.testing.assert_array_equal(Cache(root).save("set", later).to_numpy(), rows(2, 3, 4, 5))
        assert len(shard_paths(Cache(root))) == 3

    job = lambda: Cache(root).save("set", later)  # noqa: E731
    assert kill_everywhere(root, job, check, template) > 10


@pytest.mark.parametrize("name", ["set", encoding().digest[:10], None])
def test_a_killed_removal_harms_nothing_and_can_be_finished(
    tmp_path: Path, small_shards: None, name: str | None
) -> None:
    template = tmp_path / "template"
    root = tmp_path / "cache"
    cache = Cache(template)
    cache.save("set", embedding_set(1, 6, 2, 3, 7))
    cache.save("set", embedding_set(1, 2, 3))  # rows 6 and 7 are garbage now
    cache.save("other", embedding_set(3, 4))
    cache.save("foreign", embedding_set(1, of=encoding("foreign")))
    save_in_pieces(cache, 8)

    def job() -> None:
        if name is None:
            collect_garbage(Cache(root))
        else:
            remove(Cache(root), name)

    def check() -> None:
        survivor = Cache(root)
        np.testing.assert_array_equal(survivor.open("foreign").to_numpy(), rows(1))
        if name in ("set", None):
            np.testing.assert_array_equal(survivor.open("other").to_numpy(), rows(3, 4))
        gone = [set_name for set_name in survivor.names() if not verify(survivor).ok]
        assert gone == []
        collect_garbage(survivor)
        stored = [len(entry.index()) for entry in survivor.entries()]
        used = {bytes(row) for set_ in survivor.names() for row in survivor.open(set_).ids}
        assert sum(stored) >= len(used)
        for entry in survivor.entries():
            assert all(bytes(row) in used for file in entry.files() for row in file.ids)

    assert kill_everywhere(root, job, check, template) > 3


def test_a_killed_repair_can_be_repeated(tmp_path: Path, small_shards: None) -> None:
    template = tmp_path / "template"
    root = tmp_path / "cache"
    original = embedding_set(1, 2, 3, 4, 5)
    Cache(template).save("set", original)
    damaged = Cache(template).entry(encoding()).shards()[1].path
    damaged.write_bytes(b"damaged")

    def check() -> None:
        verify(Cache(root), repair=True)
        np.testing.assert_array_equal(
            Cache(root).save("set", original).to_numpy(), rows(1, 2, 3, 4, 5)
        )
        assert verify(Cache(root)).damages == ()

    job = lambda: verify(Cache(root), repair=True)  # noqa: E731
    assert kill_everywhere(root, job, check, template) > 3


@pytest.mark.parametrize("ahead", [False, True])
def test_power_cuts_lose_nothing_that_was_saved(
    tmp_path: Path, undisturbed: dict[str, bytes], ahead: bool
) -> None:
    """`ahead`: the disk kept every new name, but only the bytes that were synced."""
    root = tmp_path / "cache"
    root.mkdir()
    disk = Disk(root)
    with disk.watching():
        extract(root)
    states = len(disk.ahead if ahead else disk.states)
    assert states > 10
    durable = 0
    for state in range(states):
        disk.cut(state, ahead=ahead)
        known = Cache(root).entry(encoding()).index()
        count = int((known.locate(ids(*range(6))) >= 0).sum())
        assert count >= durable
        durable = count
        extract(root)
        assert result_files(root) == undisturbed
    disk.close()


def extract_with_little_room(root: Path, limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        extract(root)
    except StorageError:
        os._exit(4)
    os._exit(0)


@pytest.mark.parametrize("limit", [0, 50, 280, 450])
def test_a_full_disk_is_said_and_the_same_call_finishes(
    tmp_path: Path, undisturbed: dict[str, bytes], limit: int
) -> None:
    process = FORK.Process(target=extract_with_little_room, args=(tmp_path, limit))
    process.start()
    process.join(60)
    assert process.exitcode == 4
    extract(tmp_path)
    assert result_files(tmp_path) == undisturbed


def test_two_processes_that_save_at_once(tmp_path: Path) -> None:
    """Each saves its own sets of one encoding, with rows in common."""

    def save_sets(first: int) -> None:
        cache = Cache(tmp_path)
        for number in range(first, first + 8):
            save_in_pieces(cache, number, number + 100)
            wanted = (number, number + 1, number + 100)
            cache.save(f"set{number}", embedding_set(*wanted))

    processes = [FORK.Process(target=save_sets, args=(first,)) for first in (0, 4, 8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    cache = Cache(tmp_path)
    assert len(cache.names()) == 16
    for number in range(16):
        wanted = (number, number + 1, number + 100)
        np.testing.assert_array_equal(cache.open(f"set{number}").to_numpy(), rows(*wanted))
    assert verify(cache).damages == ()
    assert cache.entry(encoding()).pieces() == []


def test_a_second_process_waits_says_so_and_finds_the_work_done(tmp_path: Path) -> None:
    started = FORK.Event()

    def work() -> None:
        cache = Cache(tmp_path)
        with cache.working(encoding(), "photos"):
            started.set()
            time.sleep(0.4)
            save_in_pieces(cache, 1)

    process = FORK.Process(target=work)
    process.start()
    assert started.wait(20)
    notices: list[str] = []
    cache = Cache(tmp_path, notify=notices.append)
    with cache.working(encoding(), "another set"):
        assert notices == []
    with cache.working(encoding(), "photos"):
        assert ids(1).tobytes() in cache.entry(encoding()).index()
    process.join(20)
    assert len(notices) == 1
    assert "photos" in notices[0]


def use_read_only(root: Path, complete: bool) -> None:
    """Save as a user who cannot write here; the exit code says what happened."""
    if os.getuid() == 0:
        os.setuid(65534)
    cache = Cache(root)
    numbers = NUMBERS if complete else (*NUMBERS, 77)
    try:
        with cache.working(encoding(), "set"):
            opened = cache.save("set", embedding_set(*numbers))
        np.testing.assert_array_equal(opened.to_numpy(), rows(*numbers))
        key = cache.memo.key(root / "cache.json", "decoder")
        cache.memo.remember(key or b"k" * 32, b"i" * 32)
        cache.memo.flush()
    except StorageError:
        os._exit(4)
    os._exit(0)


@pytest.mark.parametrize("complete", [True, False])
def test_a_complete_set_of_a_read_only_cache_can_be_used(tmp_path: Path, complete: bool) -> None:
    root = tmp_path / "cache"
    extract(root)
    folders = [root, *(path for path in root.rglob("*") if path.is_dir())]
    for path in [*root.rglob("*"), root]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    for parent in (tmp_path, *tmp_path.parents[:3]):
        if parent.owner() == tmp_path.owner() and parent != Path("/tmp"):
            parent.chmod(parent.stat().st_mode | 0o011)
    try:
        process = FORK.Process(target=use_read_only, args=(root, complete))
        process.start()
        process.join(60)
        assert process.exitcode == (0 if complete else 4)
    finally:
        for folder in folders:
            folder.chmod(0o755)
