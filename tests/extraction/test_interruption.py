"""Kills before every change of the disk, two processes at once, a full disk: the same bytes."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.cache import Cache
from probekit.errors import StorageError
from probekit.extraction import ExtractOptions
from probekit.extraction.extract import extract_dataset
from tests.extraction.samples import GridBackbone, Pictures
from tests.power import killed_at

ROWS = 40
FORK = multiprocessing.get_context("fork")


class Slow(GridBackbone):
    """Takes a moment for each batch."""

    def encode(self, batch: Any) -> NDArray[np.float32]:
        time.sleep(0.005)
        return super().encode(batch)


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("probekit.extraction.extract.SAVE_ROWS", 8)
        yield


def work(root: Path, *, workers: int = 0) -> tuple[int, int]:
    """The command that is given again and again."""
    options = ExtractOptions(batch_size=8, workers=workers)
    dataset = Pictures(range(ROWS))
    extracted = extract_dataset(
        dataset, Slow(), name="set", source="test", cache=Cache(root), options=options
    )
    return extracted.encoded, extracted.reused


def files(root: Path) -> dict[str, str]:
    """The digests of all files that hold results; locks and the memo are no results."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.name.endswith(".lock") and "memo" not in path.name
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("undisturbed")
    assert work(root) == (ROWS, 0)
    return files(root)


def kill_and_finish(folder: Path, undisturbed: dict[str, str], steps: range) -> int:
    """Kill before each of these steps, finish with the same command; returns how many were hit."""
    killed = 0
    for step in steps:
        root = folder / str(step)
        root.mkdir()
        if not killed_at(lambda root=root: work(root), step):  # type: ignore[misc]
            break
        killed += 1
        encoded, reused = work(root)
        assert encoded + reused == ROWS
        assert files(root) == undisturbed, f"killed before step {step}"
    return killed


def test_killed_before_every_third_change_of_the_disk(
    tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    assert kill_and_finish(tmp_path, undisturbed, range(0, 1000, 3)) >= 10


@pytest.mark.slow
def test_killed_before_every_change_of_the_disk(
    tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    assert kill_and_finish(tmp_path, undisturbed, range(1000)) >= 30


def test_ctrl_c_keeps_what_is_saved(tmp_path: Path) -> None:
    process = FORK.Process(target=work, args=(tmp_path,))
    process.start()
    while not list(tmp_path.rglob("pieces/*.safetensors")):
        time.sleep(0.002)
        assert process.exitcode is None
    os.kill(process.pid or 0, signal.SIGINT)
    process.join()
    encoded, reused = work(tmp_path)
    assert reused >= 8
    assert encoded + reused == ROWS


def test_two_processes_at_once_share_the_work(tmp_path: Path, undisturbed: dict[str, str]) -> None:
    queue = FORK.Queue()
    processes = [FORK.Process(target=lambda: queue.put(work(tmp_path))) for _ in range(2)]
    for process in processes:
        process.start()
    encoded = sum(queue.get(timeout=60)[0] for _ in processes)
    for process in processes:
        process.join()
    assert encoded == ROWS
    assert files(tmp_path) == undisturbed


def test_workers_give_the_same_bytes(tmp_path: Path, undisturbed: dict[str, str]) -> None:
    work(tmp_path, workers=2)
    assert files(tmp_path) == undisturbed


def _with_little_room(root: Path, limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        work(root)
    except StorageError:
        os._exit(4)
    os._exit(0)


@pytest.mark.parametrize("limit", [300, 1_500, 4_000])
def test_a_full_disk_loses_nothing_that_was_saved(
    tmp_path: Path, undisturbed: dict[str, str], limit: int
) -> None:
    process = FORK.Process(target=_with_little_room, args=(tmp_path, limit))
    process.start()
    process.join()
    assert process.exitcode == 4
    encoded, reused = work(tmp_path)
    assert encoded + reused == ROWS
    assert files(tmp_path) == undisturbed


class Stuck(GridBackbone):
    """Never finishes preparing in a worker, and notes the worker's number."""

    folder: Path
    parent: int

    def prepare(self, content: Any) -> NDArray[np.float32]:
        if os.getpid() != self.parent:
            (self.folder / str(os.getpid())).touch()
            time.sleep(60)
        return super().prepare(content)


def _stuck(root: Path, folder: Path) -> None:
    backbone = Stuck()
    backbone.folder = folder
    backbone.parent = os.getpid()
    options = ExtractOptions(batch_size=8, workers=2)
    extract_dataset(
        Pictures(range(ROWS)), backbone, name="set", source="test", cache=Cache(root),
        options=options,
    )  # fmt: skip


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")
def test_workers_die_with_a_killed_extraction(tmp_path: Path) -> None:
    folder = tmp_path / "workers"
    folder.mkdir()
    process = FORK.Process(target=_stuck, args=(tmp_path / "cache", folder))
    process.start()
    while len(list(folder.iterdir())) < 2:
        time.sleep(0.01)
        assert process.exitcode is None
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    deadline = time.monotonic() + 30
    while any(_is_running(path.name) for path in folder.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _is_running(process: str) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
