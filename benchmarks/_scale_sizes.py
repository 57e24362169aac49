"""The sizes of a federation's problem: what clients send, what is kept of them, and how the server adds it up."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

NUMBER = 8
ANSWER = 250
"""Bytes of an answer without its arrays."""
LEAF, LEAF_CLASS = 215, 7
"""Bytes that a state says of a client in JSON, and of each of its classes."""
PACK_ROWS = 256
SPILLED = 4096
"""Clients from which on their statistics lie in a temporary file while the server adds them, not in memory."""
ROWS_PER_COLUMN = 4


@dataclass(frozen=True)
class Setting:
    """So many clients with so many rows each, of a dimension, in classes that all are equally frequent."""

    clients: int
    rows: int
    dimension: int
    classes: int

    @property
    def columns(self) -> int:
        """With the column of ones."""
        return self.dimension + 1

    @cached_property
    def own_classes(self) -> float:
        """How many classes a client's rows have, on average."""
        return self.classes * (1 - (1 - 1 / self.classes) ** self.rows)

    @property
    def rooted(self) -> bool:
        """Whether a client sends the root of its rows: they take less room than sums."""
        return 2 * self.rows < self.dimension + self.own_classes

    @property
    def triangle(self) -> int:
        """Numbers of half a Gram."""
        return self.columns * (self.columns + 1) // 2

    @property
    def root(self) -> float:
        """Numbers of a root."""
        return self.rows * (self.columns + self.own_classes)

    @property
    def parameters(self) -> int:
        """Bytes of a head."""
        return NUMBER * self.columns * self.classes

    @property
    def dense(self) -> int:
        """Bytes of statistics in memory: a square Gram, moments and counts."""
        return NUMBER * (self.columns**2 + self.columns * self.classes + self.classes)

    @property
    def packed(self) -> int:
        """The same as a sum is written."""
        return NUMBER * (self.triangle + self.columns * self.classes + self.classes)

    @property
    def held(self) -> float:
        """Bytes of a client's statistics in memory."""
        return NUMBER * (self.root + self.classes) if self.rooted else self.dense

    @property
    def answer(self) -> float:
        """Bytes of a client's answer: class counts always travel in full, and so do the moments of a triangle."""
        return ANSWER + (NUMBER * (self.root + self.classes) if self.rooted else self.packed)

    @property
    def spilled(self) -> bool:
        """Whether the server puts statistics into a temporary file as they arrive."""
        return self.clients >= SPILLED

    @property
    def leaf(self) -> float:
        """Bytes of a client's statistics on disk: of its own classes only."""
        numbers = self.root if self.rooted else self.triangle + self.columns * self.own_classes
        return NUMBER * numbers + LEAF + LEAF_CLASS * self.own_classes

    @property
    def packs(self) -> float:
        """Files of clients' statistics."""
        worth = self.rows if self.rooted else self.triangle / self.columns + self.own_classes
        return self.clients / max(1, PACK_ROWS // worth)

    @cached_property
    def tree(self) -> Tree:
        """Of the sums that the server keeps."""
        return tree_of(self.clients, -(-ROWS_PER_COLUMN * self.columns // self.rows))


@dataclass(frozen=True)
class Tree:
    """Partial sums that are written, how many are on the way to a client, and the clients of its bucket."""

    sums: int
    depth: float
    bucket: float


@lru_cache(maxsize=8)
def _keys(clients: int) -> NDArray[np.uint64]:
    """The first bits of the sha256 of the clients' names, in order."""
    found = (hashlib.sha256(str(name).encode()).digest()[:8] for name in range(clients))
    return np.sort(np.frombuffer(b"".join(found), ">u8").astype(np.uint64))


@lru_cache(maxsize=256)
def tree_of(clients: int, least: int) -> Tree:
    """The trie of clients that are called 0, 1, 2, ...: a branch with fewer than `least` on a side is a bucket."""
    keys, todo = _keys(clients), [(0, clients, 0, True)]
    sums, ends = 0, []
    while todo:
        start, stop, depth, passed = todo.pop()
        if stop - start == 1:
            ends.append((depth, 1))
            continue
        bit = int(keys[start] ^ keys[stop - 1]).bit_length() - 1
        cut = int(np.searchsorted(keys, np.uint64(int(keys[stop - 1]) >> bit << bit)))
        bucket = min(cut - start, stop - cut) < least
        sums += not passed or (bucket and depth > 0)
        if bucket:
            ends.append((depth, stop - start))
            continue
        # of a single client and a branch, the branch is added in passing and not kept
        lone = 1 in (cut - start, stop - cut)
        todo += [(start, cut, depth + 1, lone), (cut, stop, depth + 1, lone)]
    depths, sizes = (sum(size * one for one, size in ends) / clients, sum(size**2 for _, size in ends) / clients)
    return Tree(sums, depths, sizes)
