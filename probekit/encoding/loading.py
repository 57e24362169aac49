"""Rows of a dataset, decoded, identified and preprocessed in worker processes, in order."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Container, Generator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice
from typing import Any

from probekit.datasets.pictures import deepest, eight_bits, sample_id
from probekit.errors import SampleError
from probekit.protocols import Dataset, Sample, Trigger
from probekit.values import UNLABELLED

_DIE_WITH_PARENT = 1
"""Linux's PR_SET_PDEATHSIG."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A row on its way to the backbone. No content: the store has it. An error: it cannot be used.

    `deepest` is the highest value of a 16-bit picture that no window was given for.
    """

    number: int
    name: str
    label: int
    client: str | None
    id: str = ""
    content: Any = None
    error: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    deepest: int = 0


@dataclass(frozen=True)
class Prepare:
    """What a worker does with a sample."""

    preprocess: Callable[[Any], Any]
    trigger: Trigger | None
    known: Container[str]
    window: tuple[float, float] | None = None

    def __call__(self, number: int, sample: Sample) -> Prepared:
        try:
            content = sample.content()
            identity, ready = sample_id(content), None
            high = deepest(content) if self.window is None else 0
            if identity not in self.known:
                seen = eight_bits(content, self.window)
                ready = self.preprocess(seen if self.trigger is None else self.trigger(seen))
        except Exception as error:  # whatever a decoder throws concerns this sample alone
            reason = str(error) if isinstance(error, SampleError) else f"{type(error).__name__}: {error}."
            return Prepared(number, sample.name, sample.label, sample.client, error=reason, columns=_kept(sample))
        kept = _kept(sample)
        return Prepared(number, sample.name, sample.label, sample.client, identity, ready, columns=kept, deepest=high)


def _kept(sample: Sample) -> Mapping[str, str]:
    """Further values of a row; samples of plugins may have none."""
    return getattr(sample, "columns", {})


def prepared(
    data: Dataset, prepare: Prepare, *, chunk: int, workers: int | None
) -> Generator[list[Prepared], None, None]:
    """The rows in dataset order, a chunk at a time; a sample that cannot be read carries its error."""
    length = length_of(data)
    if workers is None:  # one per core, but none for a handful of rows; a worker costs a fork, not a memory copy
        workers = min(os.cpu_count() or 1, 8) if (length or 0) > 2 * chunk else 0
    if length is not None and workers:
        yield from _loaded(data, prepare, length, chunk=chunk, workers=workers)
        return
    rows = map(prepare, count(), data) if length is None else (_row(data, prepare, row) for row in range(length))
    while ready := list(islice(rows, chunk)):
        yield ready


def length_of(data: Dataset) -> int | None:
    """How many rows a dataset has; None where it is a stream."""
    try:
        return len(data)
    except TypeError:
        return None


def _row(data: Dataset, prepare: Prepare, number: int) -> Prepared:
    try:
        sample = data[number]
    except SampleError as error:
        return Prepared(number, str(number), UNLABELLED, None, error=str(error))
    return prepare(number, sample)


def _loaded(
    data: Dataset, prepare: Prepare, length: int, *, chunk: int, workers: int
) -> Generator[list[Prepared], None, None]:
    from torch.utils.data import DataLoader

    pack = partial(_pack, data, prepare)  # workers get no model, only the preprocessing
    numbers: Any = range(length)
    begin = partial(_begin_worker, os.getpid())
    for rows, stacked in DataLoader(
        numbers, batch_size=chunk, num_workers=workers, collate_fn=pack, worker_init_fn=begin
    ):
        apart = stacked is not None
        yield [replace(row, content=stacked[row.content]) if apart and row.content is not None else row for row in rows]


def _begin_worker(parent: int, _: int) -> None:
    """A worker leaves Ctrl-C to its parent and, on Linux, dies with it: killed, it would keep locks and pipes open."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)


def _pack(data: Dataset, prepare: Prepare, numbers: list[int]) -> tuple[list[Prepared], Any]:
    """Read rows. Equal tensors are stacked, so that one block of shared memory crosses the process border, not many."""
    import torch

    rows = [_row(data, prepare, number) for number in numbers]
    contents = [row.content for row in rows if row.content is not None]
    tensors = bool(contents) and all(isinstance(content, torch.Tensor) for content in contents)
    if not tensors or len({content.shape for content in contents}) > 1:
        return rows, None
    place = count()
    return [row if row.content is None else replace(row, content=next(place)) for row in rows], torch.stack(contents)
