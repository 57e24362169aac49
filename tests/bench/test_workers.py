"""Processes of one thread each, this one included."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from threadpoolctl import ThreadpoolController, threadpool_info

from probekit.bench.workers import THREADS, Task, carry_out


def threads() -> set[int]:
    return {torch.get_num_threads(), *(one["num_threads"] for one in threadpool_info())}


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_task_has_one_thread(jobs: int) -> None:
    seen: list[Any] = []

    def done(task: Task, found: set[int]) -> list[Task]:
        seen.append(found)
        return []

    with ThreadpoolController().limit(limits=2):
        told = {name: os.environ.get(name) for name in THREADS}
        carry_out([Task("a", threads, ())], done, jobs=jobs)
        assert seen == [{1}]
        assert threads() == {2}  # as before
        assert {name: os.environ.get(name) for name in THREADS} == told
