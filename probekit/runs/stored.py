"""Statistics in files, read when asked for: what a client sent, and sums of many clients."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.cache.matrices import map_tensors, write_tensors
from probekit.federated.spill import LazyStats
from probekit.federated.summation import Branch, Node, StatisticsTree, is_bucket
from probekit.linear.design import ClientStats, Design
from probekit.linear.roots import RootStats
from probekit.linear.targets import TargetDesign
from probekit.runs.tensors import DOUBLE, check, link
from probekit.values import Array


class StoredStats(LazyStats):
    """Statistics in a file of a run: a root stays in memory, sums only while somebody uses them."""

    def __init__(
        self, design: Design, count: int, digest: str, load: Callable[[], ClientStats], *, place: int, file: Any
    ) -> None:
        super().__init__(design, count, digest, load)
        vars(self).update(place=place, file=file, _read=None)

    place: int
    """The client's place in the order of clients."""
    file: Any
    """The pack, or the sha256 of the file of a sum."""

    @property
    def loaded(self) -> ClientStats:
        """The statistics."""
        found: ClientStats | None = self._read() if callable(self._read) else self._read
        if found is None:
            found = self._load()
            object.__setattr__(self, "_read", found if isinstance(found, RootStats) else weakref.ref(found))
        return found

    _read: Any


def write_sums(folder: Path, statistics: Mapping[str, ClientStats]) -> dict[str, str]:
    """Write or link the partial sums that are known; gives their files' sha256 by the place in the tree.

    The sum of all is not kept: the next removal changes it whoever leaves.
    """
    several = isinstance(statistics, StatisticsTree) and isinstance(statistics.design, TargetDesign)
    if not isinstance(statistics, StatisticsTree) or statistics.design.per_class or several:
        return {}
    made: dict[str, str] = {}
    for node in branches(statistics):
        if node is statistics.root or not node.known:
            continue
        known = node.known[0]
        if isinstance(known, StoredStats):
            link(known.file, folder / known.file.name)
            made[address(node)] = known.file.stem
            continue
        sums = {
            "gram": packed(known.gram),
            "moment": np.ascontiguousarray(known.moment, DOUBLE),
            "class_counts": known.class_counts.astype("<i8"),
        }
        made[address(node)] = write_tensors(folder, {n: (a.shape, a.dtype, [a]) for n, a in sums.items()}, None)
    return made


def branches(tree: StatisticsTree) -> Iterator[Branch]:
    """The branches down to buckets: those whose sums are made of other sums or of one bucket."""
    todo: list[Node] = [] if tree.root is None else [tree.root]
    while todo:
        node = todo.pop()
        if isinstance(node, Branch):
            yield node
            if not is_bucket(node, tree.least):
                todo += [node.low, node.high]


def address(node: Branch) -> str:
    """A branch's place in the trie: how many bits its keys share, and which."""
    return f"{node.bit}:{node.key >> (256 - node.bit):x}"


def stored_sum(path: Path, sha256: str, design: Design, count: int) -> StoredStats:
    """A partial sum in a file."""

    def load() -> ClientStats:
        check(path, sha256)
        arrays = map_tensors(path)[0]
        return ClientStats(design, unpacked(arrays["gram"], design.columns), arrays["moment"], arrays["class_counts"])

    return StoredStats(design, count, sha256, load, place=0, file=path)


def triangle_length(columns: int) -> int:
    """How many numbers a triangle has."""
    return columns * (columns + 1) // 2


@lru_cache(maxsize=1)
def _lower(columns: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    return np.tril_indices(columns)


def packed(gram: Array) -> Array:
    """The lower triangle of a symmetric matrix."""
    return np.ascontiguousarray(gram[_lower(len(gram))], DOUBLE)


def unpacked(triangle: Array, columns: int) -> Array:
    """The symmetric matrix with this lower triangle."""
    low, high = _lower(columns)
    matrix = np.empty((columns, columns))
    matrix[low, high] = matrix[high, low] = triangle
    return matrix
