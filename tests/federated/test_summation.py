"""Sums that do not remember: one order for everybody, and after any stream the bits of a tree made anew."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from probekit.errors import InputError, MismatchError
from probekit.federated.in_process import InProcess
from probekit.federated.summation import (
    ROWS_PER_COLUMN,
    Branch,
    Leaf,
    StatisticsTree,
    fold,
    key_of,
    least_rows,
    order,
    trie,
)
from probekit.federated.sums import Sum
from probekit.linear.design import ClientStats, Design
from probekit.linear.statistics import statistics
from probekit.models.linear_problem import HeadProblem

DESIGN = Design(3, 2)

Array = NDArray[np.float64]


def stats_of(number: int, design: Design = DESIGN, *, rows: int = 5) -> ClientStats:
    drawn = np.random.default_rng(number)
    return statistics(drawn.normal(size=(rows, design.dimension)), drawn.integers(0, design.classes, rows), design)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_stream_gives_the_tree_of_those_left(stream: list[tuple[bool, int]]) -> None:
    held = {"first": stats_of(99)}
    tree = StatisticsTree.of(held)
    for adding, number in stream:
        name = str(number)
        if adding:
            held[name] = stats_of(number, rows=1 + 7 * (number % 5))
            tree = tree.including(name, held[name])
        elif name in held:
            del held[name]
            tree = tree.without(name)
        if number % 3 == 0:
            assert tree.total.count == sum(one.count for one in held.values())  # sums made on the way change nothing
    anew = StatisticsTree.of(dict(sorted(held.items())))
    assert tree.total.digest == anew.total.digest
    assert dict(tree) == held
    plain = sum((one.gram for one in held.values()), np.zeros((4, 4)))
    assert np.allclose(tree.total.gram, plain, rtol=1e-12)


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry per addition."""
    found: list[int] = []
    plain: Callable[[Sum, Sum], None] = Sum.add

    def counted(self: Sum, other: Sum) -> None:
        found.append(other.count)
        plain(self, other)

    monkeypatch.setattr(Sum, "add", counted)
    return found


def test_a_removal_adds_few_matrices_and_changes_no_other_tree(added: list[int]) -> None:
    tree = StatisticsTree.of({str(number): stats_of(number, rows=20) for number in range(256)})
    before = tree.total.digest
    assert len(list(tree.complements())) == 256  # makes the partial sums, as a first removal does
    added.clear()
    smaller = tree.without("17")
    assert smaller.total.count == 255 * 20
    assert depth_of(tree, "17") - 1 <= len(added) <= 3 * math.log2(256)
    assert tree.total.digest == before
    assert smaller.including("17", stats_of(17, rows=20)).total.digest == before


def test_a_total_alone_takes_no_more_additions_than_clients_and_keeps_no_partial_sum(added: list[int]) -> None:
    tree = StatisticsTree.of({str(number): stats_of(number, rows=20) for number in range(256)})
    assert tree.total.count == 256 * 20
    assert len(added) == 255
    assert isinstance(tree.root, Branch)
    for side in (tree.root.low, tree.root.high):
        assert isinstance(side, Branch)
        assert side.known == []


def test_a_removal_adds_its_bucket_anew_and_the_sums_on_the_way_up(added: list[int]) -> None:
    tree = StatisticsTree.of({str(number): stats_of(number) for number in range(256)})
    assert len(list(tree.complements())) == 256
    bucket = [leaf.name for leaf in bucket_of(tree, "17")]
    added.clear()
    assert tree.without("17").total.count == 255 * 5
    assert len(added) <= len(bucket) - 2 + depth_of(tree, "17")


def test_everybody_left_out_in_turn() -> None:
    held = {str(number): stats_of(number) for number in range(9)}
    found = dict(StatisticsTree.of(held).complements())
    assert set(found) == set(held)
    for name, others in found.items():
        wanted = sum((one.gram for other, one in held.items() if other != name), np.zeros((4, 4)))
        assert np.allclose(others.gram, wanted, rtol=1e-12)


def test_the_last_client_leaves_nothing_and_strangers_are_refused() -> None:
    tree = StatisticsTree.of({"a": stats_of(1)})
    assert tree.without("a").total.count == 0
    assert list(tree.without("a").complements()) == []
    with pytest.raises(InputError, match="client b"):
        tree.without("b")
    with pytest.raises(InputError, match="at least one"):
        StatisticsTree.of({})
    with pytest.raises(MismatchError, match="client b"):
        tree.including("b", stats_of(1, Design(4, 2)))
    with pytest.raises(MismatchError, match="client b"):
        StatisticsTree.of({"a": stats_of(1), "b": stats_of(1, Design(4, 2))})


def test_a_stream_stays_cheap_and_leaves_earlier_trees_as_they_were(added: list[int]) -> None:
    tree = StatisticsTree.of({str(number): stats_of(number, rows=20) for number in range(256)})
    before = tree.total.gram.copy()
    added.clear()
    changed, requests = tree, 100
    for number in range(requests):
        changed = changed.without(str(number))
        assert changed.total.count == (255 - number) * 20
    assert len(added) <= requests * 3 * math.log2(256)
    assert np.array_equal(tree.total.gram, before)


def test_a_tree_is_a_mapping_in_the_order_given() -> None:
    held = {str(number): stats_of(number) for number in (3, 1, 2)}
    tree = StatisticsTree.of(held)
    assert StatisticsTree.of(tree) is tree
    assert list(tree) == ["3", "1", "2"]
    assert tree["1"] is held["1"]
    assert len(tree) == 3
    assert "4" not in tree


COUNTS = st.dictionaries(st.integers(0, 60).map(str), st.integers(1, 40), min_size=1, max_size=25)


@given(COUNTS, st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_a_fold_over_any_order_of_clients_gives_the_same_bits(counts: dict[str, int], seed: int) -> None:
    drawn = np.random.default_rng(seed)
    values = {name: drawn.normal(size=3) * 10.0 ** drawn.integers(-8, 8) for name in counts}
    names = list(counts)
    random.Random(seed).shuffle(names)

    def folded(some: list[str]) -> tuple[Sum, list[str]]:
        asked: list[str] = []

        def get(name: str) -> Sum:
            asked.append(name)
            return Sum({"x": values[name]}, {"y": float(values[name][0])}, counts[name])

        return fold(trie({name: counts[name] for name in some}), least_rows(4), get), asked

    (one, asked), (other, _) = folded(list(counts)), folded(names)
    assert one.arrays["x"].tobytes() == other.arrays["x"].tobytes()
    assert one.values == other.values
    assert one.count == sum(counts.values())
    assert asked == order(counts) == sorted(counts, key=key_of)
    for name in names:
        assert np.array_equal(values[name], folded([name])[0].arrays["x"])  # a sum never changes what it is made of


@given(COUNTS, st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_clients_asked_and_statistics_kept_are_added_to_the_same_bits(counts: dict[str, int], seed: int) -> None:
    held = {name: stats_of(seed + int(name), rows=rows) for name, rows in counts.items()}
    names = list(held)
    random.Random(seed).shuffle(names)
    problem = HeadProblem(DESIGN)
    clients = InProcess(problem, {name: problem.hold_statistics(held[name]) for name in names})
    total = problem.stats(clients.ask("statistics").total().arrays)
    assert total.digest == StatisticsTree.of(held).total.digest


def nodes(node: Leaf | Branch) -> list[Leaf | Branch]:
    return [node] if isinstance(node, Leaf) else [node, *nodes(node.low), *nodes(node.high)]


def bucket_of(tree: StatisticsTree, name: str) -> tuple[Leaf, ...]:
    """The clients that are added one after the other with this one, by looking at every branch."""
    assert tree.root is not None
    least = ROWS_PER_COLUMN * tree.design.columns
    for node in nodes(tree.root):
        if isinstance(node, Branch) and name in [leaf.name for leaf in node.leaves]:
            if min(node.low.count, node.high.count) < least:
                return node.leaves
        elif isinstance(node, Leaf) and node.name == name:
            return (node,)
    raise AssertionError(name)


@given(COUNTS)
@settings(max_examples=60, deadline=None)
def test_a_bucket_has_rows_enough_and_is_added_one_after_the_other(counts: dict[str, int]) -> None:
    held = {name: stats_of(int(name), rows=rows) for name, rows in counts.items()}
    tree, least = StatisticsTree.of(held), least_rows(DESIGN.columns)
    buckets = {bucket_of(tree, name) for name in held}
    assert sum(len(one) for one in buckets) == len(held)
    assert len(buckets) == 1 or all(sum(leaf.count for leaf in one) >= least for one in buckets)
    if len(buckets) == 1:
        wanted: Array = np.zeros((4, 4))
        for name in order(counts):
            wanted = wanted + held[name].gram
        assert tree.total.gram.tobytes() == wanted.tobytes()
    assert tree.root is not None
    assert tree.total.count == sum(counts.values())
    kept = [node for node in nodes(tree.root) if isinstance(node, Branch) and node.known]
    assert len(kept) <= max(2 * len(buckets) - 1, 1)  # no sums are kept inside a bucket


def depth_of(tree: StatisticsTree, name: str) -> int:
    """How many sums have to be made anew when this client leaves: the branches above its bucket, and that."""
    assert tree.root is not None
    above = [one for one in nodes(tree.root) if isinstance(one, Branch) and name in [leaf.name for leaf in one.leaves]]
    inside = [one for one in above if min(one.low.count, one.high.count) < ROWS_PER_COLUMN * tree.design.columns]
    first = inside[0].leaves if inside else ()
    return sum(len(one.leaves) > len(first) for one in above) + bool(inside)


def test_the_sum_of_a_bucket_that_lost_a_client_is_kept(added: list[int]) -> None:
    tree = StatisticsTree.of({str(number): stats_of(number) for number in range(256)})
    assert len(list(tree.complements())) == 256
    smaller = tree.without("17")
    assert smaller.total.count == 255 * 5
    there = {leaf.name for leaf in bucket_of(tree, "17")}
    other = next(name for name in smaller if name not in there)
    added.clear()
    least = smaller.without(other)
    whole = least.total.digest
    assert len([count for count in added if count == 5]) < len(bucket_of(tree, other))  # and nobody of 17's bucket
    assert whole == StatisticsTree.of(dict(least.items())).total.digest
