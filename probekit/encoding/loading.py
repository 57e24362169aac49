"""Rows of a dataset, decoded, identified and preprocessed in worker processes, in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Generator, Iterator
from dataclasses import dataclass
from typing import Any

from probekit.datasets.pictures import sample_id
from probekit.errors import SampleError
from probekit.protocols import Dataset, Sample, Trigger
from probekit.values import UNLABELLED


@dataclass(frozen=True)
class Prepared:
    """A row on its way to the backbone. No content: the store has it. An error: it cannot be used."""

    number: int
    name: str
    label: int
    client: str | None
    id: str = ""
    content: Any = None
    error: str | None = None


@dataclass(frozen=True)
class _Prepare:
    """What a worker does with a sample."""

    preprocess: Callable[[Any], Any]
    trigger: Trigger | None
    known: Container[str]

    def __call__(self, number: int, sample: Sample) -> Prepared:
        try:
            content = sample.content()
            identity = sample_id(content)
            ready = None
            if identity not in self.known:
                ready = self.preprocess(content if self.trigger is None else self.trigger(content))
        except Exception as error:  # whatever a decoder throws concerns this sample alone
            reason = str(error) if isinstance(error, SampleError) else f"{type(error).__name__}: {error}."
            return Prepared(number, sample.name, sample.label, sample.client, error=reason)
        return Prepared(number, sample.name, sample.label, sample.client, identity, ready)


def prepared(
    data: Dataset,
    *,
    preprocess: Callable[[Any], Any],
    trigger: Trigger | None,
    known: Container[str],
    chunk: int,
    workers: int | None,
) -> Generator[list[Prepared], None, None]:
    """The rows in dataset order, a chunk at a time; a sample that cannot be read carries its error."""
    prepare = _Prepare(preprocess, trigger, known)
    length = length_of(data)
    if length is None:
        yield from _streamed(data, prepare, chunk)
        return
    count = _workers(length, chunk) if workers is None else workers
    if count == 0:
        for start in range(0, length, chunk):
            yield [_row(data, prepare, number) for number in range(start, min(start + chunk, length))]
        return
    yield from _loaded(data, prepare, length, chunk=chunk, workers=count)


def length_of(data: Dataset) -> int | None:
    """How many rows a dataset has; None where it is a stream."""
    try:
        return len(data)
    except TypeError:
        return None


def _row(data: Dataset, prepare: _Prepare, number: int) -> Prepared:
    try:
        sample = data[number]
    except SampleError as error:
        return Prepared(number, str(number), UNLABELLED, None, error=str(error))
    return prepare(number, sample)


def _streamed(data: Dataset, prepare: _Prepare, chunk: int) -> Iterator[list[Prepared]]:
    ready: list[Prepared] = []
    for number, sample in enumerate(data):
        ready.append(prepare(number, sample))
        if len(ready) == chunk:
            yield ready
            ready = []
    if ready:
        yield ready


def _workers(length: int, chunk: int) -> int:
    """One worker per core, but none for a handful of rows; a worker costs a fork, not a memory copy."""
    return min(os.cpu_count() or 1, 8) if length > 2 * chunk else 0


class _Rows:
    """The dataset as torch's DataLoader wants it. Workers get no model: only the preprocessing."""

    def __init__(self, data: Dataset, prepare: _Prepare, length: int) -> None:
        self.data, self.prepare, self.length = data, prepare, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> Prepared:
        return _row(self.data, self.prepare, number)


def _loaded(
    data: Dataset, prepare: _Prepare, length: int, *, chunk: int, workers: int
) -> Generator[list[Prepared], None, None]:
    from torch.utils.data import DataLoader

    loader: DataLoader[Any] = DataLoader(
        _Rows(data, prepare, length),  # type: ignore[arg-type]
        batch_size=chunk,
        shuffle=False,
        num_workers=workers,
        collate_fn=_pack,
        worker_init_fn=_quiet_worker,
        persistent_workers=False,
    )
    for packed in loader:
        yield _unpack(packed)


def _quiet_worker(_: int) -> None:
    """A worker leaves Ctrl-C to its parent."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _pack(rows: list[Prepared]) -> tuple[list[Prepared], list[int], Any]:
    """Stack the arrays of a chunk, so that one block of shared memory crosses the process border instead of many."""
    import torch

    filled = [place for place, row in enumerate(rows) if row.content is not None]
    contents = [rows[place].content for place in filled]
    tensors = bool(contents) and all(isinstance(content, torch.Tensor) for content in contents)
    if not tensors or len({content.shape for content in contents}) > 1:
        return rows, [], None
    bare = list(rows)
    for place in filled:
        row = rows[place]
        bare[place] = Prepared(row.number, row.name, row.label, row.client, row.id)
    return bare, filled, torch.stack(contents)


def _unpack(packed: tuple[list[Prepared], list[int], Any]) -> list[Prepared]:
    rows, filled, stacked = packed
    for place, content in zip(filled, stacked if stacked is not None else (), strict=True):
        row = rows[place]
        rows[place] = Prepared(row.number, row.name, row.label, row.client, row.id, content)
    return rows
