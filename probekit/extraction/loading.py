"""Samples decoded, identified and prepared, in order, by worker processes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from probekit.cache import IdIndex
from probekit.data.dataset import Dataset
from probekit.data.pictures import highest_level, sample_id, to_rgb
from probekit.errors import SampleError

MAX_WORKERS = 8
PR_SET_PDEATHSIG = 1


@dataclass
class Prepared:
    """A sample on its way to the backbone: without content where it is cached, or with an error.

    gray_level: the highest value of a 16-bit picture that has no window.
    """

    index: int
    id: bytes = b""
    content: Any = None
    error: str = ""
    gray_level: int = 0


@dataclass(frozen=True)
class Preparation:
    """What a worker does with a sample; it holds no model."""

    dataset: Dataset
    prepare: Callable[[Any], Any]
    cached: Sequence[IdIndex]
    window: tuple[float, float] | None

    def __call__(self, index: int) -> Prepared:
        prepared = Prepared(index)
        try:
            content = self.dataset[index].content()
            prepared.id = sample_id(content)
            if self.is_cached(prepared.id):
                return prepared
            if self.dataset.kind == "image":
                if self.window is None:
                    prepared.gray_level = highest_level(content)
                content = to_rgb(content, self.window)
            prepared.content = self.prepare(content)
        except SampleError as error:
            prepared.error = str(error)
        except Exception as error:  # whatever a decoder raises concerns this sample alone
            prepared.error = f"{type(error).__name__}: {error}"
        return prepared

    def is_cached(self, sample_id: bytes) -> bool:
        return all(sample_id in index for index in self.cached)


def prepared_chunks(
    preparation: Preparation, indices: Sequence[int], *, chunk: int, workers: int | None
) -> Iterator[list[Prepared]]:
    """The samples in order, a chunk at a time."""
    if workers is None:  # a worker costs a fork, which texts or a handful of samples are not worth
        cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        is_worth = preparation.dataset.kind != "text" and len(indices) > 2 * chunk
        workers = min(cores, MAX_WORKERS) if is_worth else 0
    if workers == 0:
        for start in range(0, len(indices), chunk):
            yield [preparation(index) for index in indices[start : start + chunk]]
        return
    from torch.utils.data import DataLoader

    loader: Any = DataLoader(
        indices,  # type: ignore[arg-type]
        batch_size=chunk,
        num_workers=workers,
        collate_fn=partial(_pack, preparation),
        worker_init_fn=partial(start_worker, os.getpid()),
        multiprocessing_context="fork" if sys.platform == "linux" else None,
    )
    for samples, stacked_samples, stacked in loader:
        for sample, content in zip(stacked_samples, stacked.numpy(), strict=True):
            sample.content = content
        yield samples


def start_worker(parent: int, worker: int = 0) -> None:
    """Leave Ctrl-C to the parent and, on Linux, die with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)


def _pack(
    preparation: Preparation, indices: list[int]
) -> tuple[list[Prepared], list[Prepared], Any]:
    """Samples; contents that are arrays of one shape are stacked: one shared block crosses over."""
    import torch

    samples = [preparation(index) for index in indices]
    arrays = [sample for sample in samples if isinstance(sample.content, np.ndarray)]
    if len({(sample.content.shape, sample.content.dtype) for sample in arrays}) != 1:
        return samples, [], torch.empty(0)
    stacked = torch.from_numpy(np.stack([sample.content for sample in arrays]))
    for sample in arrays:
        sample.content = None
    return samples, arrays, stacked
