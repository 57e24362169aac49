"""Partial sums of clients' statistics: taking a client out, or in, re-adds a handful of matrices.

The tree is a binary trie over the sha256 of the clients' names, branching only where names differ. Its shape
depends on who is in it and on nothing else, so a sum after any stream of removals and additions is, to the
last bit, the sum of a tree made anew: nothing is ever subtracted and nothing drifts. Its depth is about
log2 of the number of clients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from numpy.typing import NDArray

from probekit.errors import InputError, MismatchError
from probekit.linear.design import ClientStats, Design

KEY_BITS = 256


@dataclass(frozen=True, eq=False)
class Leaf:
    """One client."""

    name: str
    key: int
    total: ClientStats


@dataclass(frozen=True, eq=False)
class Branch:
    """Two subtrees whose keys first differ in `bit`, counted from the top; `key` is any key below."""

    bit: int
    key: int
    low: Leaf | Branch
    high: Leaf | Branch

    @cached_property
    def total(self) -> ClientStats:
        """The sum of both."""
        return _summed(self)


Node = Leaf | Branch


@dataclass(frozen=True, eq=False)
class StatisticsTree:
    """The statistics of some clients with their partial sums. A change gives a new tree that shares the rest."""

    design: Design
    root: Node | None = None
    leaves: Mapping[str, ClientStats] = field(default_factory=dict)

    @classmethod
    def of(cls, statistics: Mapping[str, ClientStats]) -> Self:
        """The tree of these clients."""
        if not statistics:
            raise InputError("A tree of statistics needs at least one client; found none.")
        design = next(iter(statistics.values())).design
        for name, one in statistics.items():
            _check_design(name, one, design)
        leaves = sorted((Leaf(name, _key(name), one) for name, one in statistics.items()), key=lambda x: x.key)
        return cls(design, _built(leaves), dict(statistics))

    @property
    def total(self) -> ClientStats:
        """The statistics of all clients together."""
        return ClientStats.zero(self.design) if self.root is None else self.root.total

    def without(self, name: str) -> Self:
        """The tree without this client."""
        if name not in self.leaves or self.root is None:
            raise InputError(f"Cannot take client {name} out: these sums do not hold it.")
        rest = {client: one for client, one in self.leaves.items() if client != name}
        return type(self)(self.design, _removed(self.root, _key(name)), rest)

    def including(self, name: str, statistics: ClientStats) -> Self:
        """The tree with this client, whose statistics replace any it had."""
        _check_design(name, statistics, self.design)
        tree = self.without(name) if name in self.leaves else self
        leaf = Leaf(name, _key(name), statistics)
        root: Node = leaf if tree.root is None else _inserted(tree.root, leaf)
        return type(self)(self.design, root, {**tree.leaves, name: statistics})

    def depth(self, name: str) -> int:
        """How many sums have to be made anew when this client leaves."""
        node, key, depth = self.root, _key(name), 0
        while isinstance(node, Branch):
            node, depth = (node.high if _bit(key, node.bit) else node.low), depth + 1
        return depth

    def complements(self) -> Iterator[tuple[str, ClientStats]]:
        """For every client the sum of all others, with about two additions per client."""
        if self.root is not None:
            yield from _complements(self.root, ClientStats.zero(self.design))


def _check_design(name: str, statistics: ClientStats, design: Design) -> None:
    if statistics.design != design:
        raise MismatchError(
            f"Cannot sum statistics of different designs: client {name} has {statistics.design}, the others "
            f"{design}. Compute all with the same options."
        )


def _key(name: str) -> int:
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
    if len(leaves) == 1:
        return leaves[0]
    bit = _parting(leaves[0].key, leaves[-1].key)
    cut = next(place for place, leaf in enumerate(leaves) if _bit(leaf.key, bit))
    return _joined(_built(leaves[:cut]), _built(leaves[cut:]))


def _inserted(node: Node, leaf: Leaf) -> Node:
    if isinstance(node, Leaf) or _parting(node.key, leaf.key) < node.bit:
        return _joined(node, leaf)
    if _bit(leaf.key, node.bit):
        return _joined(node.low, _inserted(node.high, leaf))
    return _joined(_inserted(node.low, leaf), node.high)


def _removed(node: Node, key: int) -> Node | None:
    if isinstance(node, Leaf):
        return None
    if _bit(key, node.bit):
        rest = _removed(node.high, key)
        return node.low if rest is None else _joined(node.low, rest)
    rest = _removed(node.low, key)
    return node.high if rest is None else _joined(rest, node.high)


def _summed(node: Branch) -> ClientStats:
    """The sum of a branch, to the bit that of its two sides; the sums on a path made anew are not kept.

    Adding along the path in place takes one matrix instead of one per level: memory that was never used before
    costs several times the additions. A sum that is missing beside the path is made and kept.
    """
    beside: list[ClientStats] = []
    while (missing := _missing(node)) is not None:
        beside.append((node.low if missing is node.high else node.high).total)
        node = missing
    first = node.low.total
    gram, moment, counts = first.gram.copy(), first.moment.copy(), first.class_counts.copy()
    for part in [node.high.total, *reversed(beside)]:
        _add((gram, moment, counts), part)
    return ClientStats(first.design, gram, moment, counts)


def _add(sums: tuple[NDArray[Any], ...], part: ClientStats) -> None:
    """Add statistics to such arrays, in place."""
    for one, other in zip(sums, (part.gram, part.moment, part.class_counts), strict=True):
        one += other


def _missing(node: Branch) -> Branch | None:
    """The side whose sum is not known, where it is the only one."""
    unknown = [side for side in (node.low, node.high) if isinstance(side, Branch) and "total" not in vars(side)]
    return unknown[0] if len(unknown) == 1 else None


def _complements(node: Node, others: ClientStats) -> Iterator[tuple[str, ClientStats]]:
    if isinstance(node, Leaf):
        yield node.name, others
        return
    yield from _complements(node.low, node.high.total + others)
    yield from _complements(node.high, node.low.total + others)
