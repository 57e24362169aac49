"""Tasks that wait for each other, in this process or in several, of one thread each; what is done stays done."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from threadpoolctl import ThreadpoolController

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Task:
    """Something to compute: a function that another process can import, its arguments, and what must be done before."""

    name: str
    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    after: frozenset[str] = frozenset()


Done = Callable[[Task, Any], Sequence[Task]]
"""Called with a task and what it gave; may bring further tasks."""


def carry_out(tasks: Sequence[Task], done: Done, *, jobs: int = 1) -> None:
    """All tasks, each after those that it waits for, in the order given where nothing waits."""
    if jobs < 2:
        # what is loaded; and what tasks import first, which then keeps to one thread
        with _told(), ThreadpoolController().limit(limits=1):
            _inline(list(tasks), done)
        return
    with _pool(jobs) as pool:
        waiting, ready, running = list(tasks), set[str](), dict[Future[Any], Task]()
        while waiting or running:
            for task in [one for one in waiting if one.after <= ready]:
                if len(running) >= jobs:
                    break
                running[pool.submit(task.call, *task.arguments)] = task
                waiting.remove(task)
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                task = running.pop(future)
                ready.add(task.name)
                waiting[:0] = done(task, future.result())  # first, while what they need is in memory


def _inline(waiting: list[Task], done: Done) -> None:
    ready: set[str] = set()
    while waiting:
        task = next(one for one in waiting if one.after <= ready)
        waiting.remove(task)
        ready.add(task.name)
        waiting[:0] = done(task, task.call(*task.arguments))


@contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Processes of one thread each, which end with this one however it ends."""
    with _told():
        pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_begin, initargs=(os.getpid(),))
        try:
            yield pool
        except BaseException:
            processes = list((getattr(pool, "_processes", None) or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            for one in processes:
                one.terminate()  # a cell is written whole or not at all
            raise
    pool.shutdown()


@contextmanager
def _told() -> Iterator[None]:
    """Say it to NumPy and torch where they are imported meanwhile: they read these variables then."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


def _begin(parent: int) -> None:
    """Ctrl-C is the parent's matter; without a parent there is nobody to work for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()
