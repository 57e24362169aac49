"""The one order in which clients' answers are added: it depends on who is there and on nothing else.

Clients are sorted by the sha256 of their names, as leaves of a binary trie. A branch with rows enough on both sides is
the sum of its two sides; any other is a bucket, whose clients are added one after the other. So every transport gives
the same bits, a stream of removals ends in the bits of training anew, and taking a client out re-adds one bucket and
the sums on the way up. Nothing is ever subtracted.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Self

from probekit.errors import InputError, MismatchError
from probekit.federated.sums import Sum, read_ahead
from probekit.linear.design import ClientStats, Design

KEY_BITS = 256
ROWS_PER_COLUMN = 4
"""A bucket has at least this many rows per column of the problem, so that there are few partial sums."""


def least_rows(columns: int) -> int:
    """The rows that a bucket has at least."""
    return ROWS_PER_COLUMN * columns


@dataclass(frozen=True, eq=False)
class Leaf:
    """One client, its number of rows, and its statistics where they are at hand."""

    name: str
    key: int
    count: int
    part: ClientStats | None = None


@dataclass(frozen=True, eq=False)
class Branch:
    """Two subtrees whose keys first differ in `bit`, counted from the top; `key` is any key below."""

    bit: int
    key: int
    low: Leaf | Branch
    high: Leaf | Branch
    known: list[ClientStats] = field(default_factory=list)
    """The sum of all below, once it was made."""

    @cached_property
    def count(self) -> int:
        """The rows of both."""
        return self.low.count + self.high.count

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """The clients below, in the order of their keys."""
        return (*_leaves(self.low), *_leaves(self.high))

    def sides(self, key: int) -> tuple[Node, Node]:
        """The side that a key belongs to, and the other."""
        return (self.high, self.low) if _bit(key, self.bit) else (self.low, self.high)


Node = Leaf | Branch


def trie(counts: Mapping[str, int]) -> Node:
    """The trie of these clients and their numbers of rows."""
    leaves = sorted((Leaf(name, key_of(name), count) for name, count in counts.items()), key=lambda leaf: leaf.key)
    return _built(leaves)


def order(clients: Iterable[str]) -> list[str]:
    """The clients in the order in which they are added."""
    return sorted(clients, key=key_of)


def fold(node: Node, least: int, get: Callable[[str], Sum]) -> Sum:
    """The sum of all clients below a node; clients are got one after the other, in the order of their keys."""
    if isinstance(node, Branch) and not is_bucket(node, least):
        found = fold(node.low, least, get)
        found.add(fold(node.high, least, get))
        return found
    first, *others = _leaves(node)
    found = get(first.name)
    for leaf in others:
        found.add(get(leaf.name))
    return found.settle()


@dataclass(frozen=True, eq=False)
class StatisticsTree(Mapping[str, ClientStats]):
    """The statistics of some clients with their partial sums. A change gives a new tree that shares the rest."""

    design: Design
    root: Node | None = None
    parts: Mapping[str, ClientStats] = field(default_factory=dict)
    keep_sums: bool = False
    """Whether partial sums are worth their memory: once clients come and go, or where the tree is to be written."""

    @classmethod
    def of(cls, statistics: Mapping[str, ClientStats], *, keep_sums: bool = False) -> StatisticsTree:
        """The tree of these clients; a tree is given back as it is."""
        if isinstance(statistics, StatisticsTree):
            return statistics
        if not statistics:
            raise InputError("A tree of statistics needs at least one client; found none.")
        design = next(iter(statistics.values())).design
        for name, one in statistics.items():
            _check_design(name, one, design)
        leaves = [Leaf(name, key_of(name), one.count, one) for name, one in statistics.items()]
        return cls(design, _built(sorted(leaves, key=lambda leaf: leaf.key)), dict(statistics), keep_sums)

    def __getitem__(self, name: str) -> ClientStats:
        return self.parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    def items(self) -> ItemsView[str, ClientStats]:
        """As of a dictionary, at its speed."""
        return self.parts.items()

    def values(self) -> ValuesView[ClientStats]:
        """As of a dictionary, at its speed."""
        return self.parts.values()

    @property
    def least(self) -> int:
        """The rows of a bucket."""
        return least_rows(self.design.columns)

    @property
    def total(self) -> ClientStats:
        """The statistics of all clients together."""
        if self.root is None:
            return ClientStats.zero(self.design)
        if isinstance(self.root, Branch) and not self.root.known and not self.keep_sums:
            whole = fold(self.root, self.least, lambda name: Sum.of(self.parts[name]))
            self.root.known.append(whole.stats(self.design))
        return _total(self.root, self.least).loaded.dense

    def without(self, *names: str) -> Self:
        """The tree without these clients."""
        root, parts = self.root, dict(self.parts)
        for name in names:
            if name not in parts or root is None:
                raise InputError(f"Cannot take client {name} out: these sums do not hold it.")
            root = _removed(root, key_of(name))
            del parts[name]
        return type(self)(self.design, root, parts, keep_sums=True)

    def including(self, name: str, statistics: ClientStats) -> Self:
        """The tree with this client, whose statistics replace any it had."""
        _check_design(name, statistics, self.design)
        tree = self.without(name) if name in self.parts else self
        leaf = Leaf(name, key_of(name), statistics.count, statistics)
        root: Node = leaf if tree.root is None else _inserted(tree.root, leaf)
        return type(self)(self.design, root, {**tree.parts, name: statistics}, keep_sums=True)

    def complements(self) -> Iterator[tuple[str, ClientStats]]:
        """For every client the sum of all others, with about two additions per client."""
        if self.root is not None:
            yield from self._complements(self.root, ClientStats.zero(self.design))

    def _complements(self, node: Node, others: ClientStats) -> Iterator[tuple[str, ClientStats]]:
        if isinstance(node, Leaf):
            yield node.name, others
            return
        yield from self._complements(node.low, _total(node.high, self.least) + others)
        yield from self._complements(node.high, _total(node.low, self.least) + others)


def _total(node: Node, least: int) -> ClientStats:
    if isinstance(node, Leaf):
        assert node.part is not None
        return node.part
    if not node.known:
        node.known.append(_summed(node, least))
    return node.known[0]


def _summed(node: Branch, least: int) -> ClientStats:
    """The sum of a branch, to the bit that of its two sides; the sums on a path made anew are not kept.

    Adding along the path in place takes one matrix instead of one per level: memory that was never used before
    costs several times the additions. A sum that is missing beside the path is made and kept, as is the bucket's.
    """
    beside: list[ClientStats] = []
    while not is_bucket(node, least) and (missing := _missing(node)) is not None:
        beside.append(_total(node.low if missing is node.high else node.high, least))
        node = missing
    with read_ahead(reversed(beside)) as ahead:
        parts = [_total(one, least) for one in (_leaves(node) if is_bucket(node, least) else (node.low, node.high))]
        found = Sum.of(parts[0])
        for part in parts[1:]:
            found.add(Sum.of(part))
        found.settle()
        if beside and is_bucket(node, least):  # the only one that takes many additions to make again
            node.known.append(found.copy().stats(parts[0].design))
        for one in ahead:
            found.add(one)
        return found.stats(parts[0].design)


def _missing(node: Branch) -> Branch | None:
    """The side whose sum is not known, where it is the only one."""
    unknown = [side for side in (node.low, node.high) if isinstance(side, Branch) and not side.known]
    return unknown[0] if len(unknown) == 1 else None


def is_bucket(node: Branch, least: int) -> bool:
    """Whether a branch has too few rows on one of its sides: its clients are added one after the other."""
    return min(node.low.count, node.high.count) < least


def _leaves(node: Node) -> tuple[Leaf, ...]:
    return (node,) if isinstance(node, Leaf) else node.leaves


def _check_design(name: str, statistics: ClientStats, design: Design) -> None:
    if statistics.design is not design and statistics.design != design:
        raise MismatchError(
            f"Cannot sum statistics of different designs: client {name} has {statistics.design}, the others "
            f"{design}. Compute all with the same options."
        )


@lru_cache(maxsize=1 << 18)
def key_of(name: str) -> int:
    """A client's place in the trie."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest())


def _bit(key: int, place: int) -> int:
    return key >> (KEY_BITS - 1 - place) & 1


def _parting(one: int, other: int) -> int:
    """The first bit in which two keys differ."""
    return KEY_BITS - (one ^ other).bit_length()


def _joined(one: Node, other: Node) -> Branch:
    bit = _parting(one.key, other.key)
    low, high = (other, one) if _bit(one.key, bit) else (one, other)
    return Branch(bit, low.key, low, high)


def _built(leaves: list[Leaf]) -> Node:
    keys = [leaf.key for leaf in leaves]

    def between(start: int, stop: int) -> Node:
        if stop - start == 1:
            return leaves[start]
        bit = _parting(keys[start], keys[stop - 1])
        below = KEY_BITS - 1 - bit
        cut = bisect_left(keys, keys[stop - 1] >> below << below, start, stop)
        return Branch(bit, keys[start], between(start, cut), between(cut, stop))

    return between(0, len(leaves))


def _inserted(node: Node, leaf: Leaf) -> Node:
    if isinstance(node, Leaf) or _parting(node.key, leaf.key) < node.bit:
        return _joined(node, leaf)
    side, other = node.sides(leaf.key)
    return _joined(_inserted(side, leaf), other)


def _removed(node: Node, key: int) -> Node | None:
    if isinstance(node, Leaf):
        return None
    side, other = node.sides(key)
    rest = _removed(side, key)
    return other if rest is None else _joined(rest, other)
