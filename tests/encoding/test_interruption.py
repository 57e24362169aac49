"""kill -9 at any instant, two processes at once, a full disk: the cache ends as if nothing had happened."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.cache import DiskStore
from probekit.cache.audit import verify
from probekit.encoding.extract import ExtractProgress, extract
from probekit.errors import StorageError
from tests.conftest import PixelBackbone, pairs, tree

ROWS = 160
FORK = multiprocessing.get_context("fork")


class Slow(PixelBackbone):
    """Takes a moment for each batch."""

    def encode(self, batch: Any) -> NDArray[np.float32]:
        """One vector per picture, a little later."""
        time.sleep(0.004)
        return super().encode(batch)


def work(root: Path, *, workers: int = 0, report: Path | None = None) -> None:
    """The same command, again and again."""
    seen: list[ExtractProgress] = []
    store = DiskStore(root)
    settings: dict[str, Any] = {"batch_size": 8, "save_rows": 8, "num_workers": workers}
    found = extract(Slow(), pairs(ROWS), store=store, progress=seen.append, **settings)
    store.sets.give_name("set", found.digest)
    if report is not None:
        report.write_text(json.dumps([seen[-1].encoded, seen[-1].reused]))


def start(job: Callable[..., None], *arguments: Any, **named: Any) -> Any:
    """A process of its own for a job."""
    process = FORK.Process(target=job, args=arguments, kwargs=named)
    process.start()
    return process


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], float]:
    """The files of a run that nothing disturbed, and how long it took."""
    root = tmp_path_factory.mktemp("untouched")
    began = time.perf_counter()
    process = start(work, root)
    process.join()
    assert process.exitcode == 0
    return tree(root), time.perf_counter() - began


@pytest.mark.parametrize(("seed", "workers"), [(0, 0), (1, 0), (2, 0), (3, 2)])
def test_killed_at_random_instants(
    tmp_path: Path, untouched: tuple[dict[str, str], float], seed: int, workers: int
) -> None:
    """Ten kills a run, four runs: in the end the files are the same to the byte, and the cache was sound all along."""
    files, seconds = untouched
    chance, kills, rounds = random.Random(seed), 0, 0
    while kills < 10:
        rounds += 1
        root = tmp_path / f"round-{rounds}"
        while kills < 10:
            process = start(work, root, workers=workers)
            process.join(chance.uniform(0, 0.6 * seconds))
            if process.exitcode is not None:
                break
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            kills += 1
            problems, _ = verify(DiskStore(root))
            assert problems == []
        process = start(work, root, workers=workers)
        process.join()
        assert process.exitcode == 0
        assert tree(root) == files
    assert kills == 10


class Stuck(PixelBackbone):
    """In another process than its own it says which, and never ends."""

    def __init__(self, said: Path) -> None:
        super().__init__()
        self.said, self.home = said, os.getpid()

    def preprocess(self, sample: Any) -> Any:
        """At once here, never there."""
        if os.getpid() != self.home:
            (self.said / str(os.getpid())).touch()
            time.sleep(60)
        return super().preprocess(sample)


def _stuck(root: Path, said: Path) -> None:
    extract(Stuck(said), pairs(ROWS), store=DiskStore(root), batch_size=8, num_workers=2)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")
def test_workers_die_with_a_killed_extraction(tmp_path: Path) -> None:
    """Left alone, one that is stuck would hold its parent's locks and pipes for good."""
    said = tmp_path / "said"
    said.mkdir()
    process = start(_stuck, tmp_path / "cache", said)
    while len(list(said.iterdir())) < 2:
        time.sleep(0.01)
        assert process.exitcode is None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    end = time.monotonic() + 30
    while left := [one.name for one in said.iterdir() if _runs(one.name)]:
        assert time.monotonic() < end, left
        time.sleep(0.02)


def _runs(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_an_interrupted_run_keeps_what_it_had(tmp_path: Path) -> None:
    process = start(work, tmp_path)
    while not list(tmp_path.rglob("pieces/*.safetensors")):
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGINT)
    process.join()
    report = tmp_path / "report"
    work(tmp_path, report=report)
    encoded, reused = json.loads(report.read_text())
    assert reused >= 8
    assert encoded + reused == ROWS


def test_two_processes_at_once_share_the_work(tmp_path: Path, untouched: tuple[dict[str, str], float]) -> None:
    root, reports = tmp_path / "cache", [tmp_path / "a", tmp_path / "b"]
    both = [start(work, root, report=report) for report in reports]
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    assert sum(json.loads(report.read_text())[0] for report in reports) == ROWS
    assert tree(root) == untouched[0]


def _work_with_little_room(root: Path, limit: int, report: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        work(root)
    except StorageError as error:
        report.write_bytes(str(error).encode()[:limit])


@pytest.mark.parametrize("limit", [1_000, 2_600, 12_000])
def test_a_full_disk_loses_nothing_that_was_written(
    tmp_path: Path, untouched: tuple[dict[str, str], float], limit: int
) -> None:
    """The canary, a piece or the final shard does not fit: a sentence, and the same command continues later."""
    root, report = tmp_path / "cache", tmp_path / "report"
    process = start(_work_with_little_room, root, limit, report)
    process.join()
    assert "disk is full" in report.read_text()
    assert verify(DiskStore(root))[0] == []
    work(root, report=report)
    encoded, reused = json.loads(report.read_text())
    assert encoded + reused == ROWS
    assert (reused > 0) == (limit == 12_000)
    assert tree(root) == untouched[0]
