"""Sums that do not remember: after any stream of changes they are, to the bit, those of a tree made anew."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from probekit.errors import InputError, MismatchError
from probekit.federated.summation import StatisticsTree
from probekit.linear.design import ClientStats, Design
from probekit.linear.statistics import statistics
from probekit.unlearning import tree as tree_module

DESIGN = Design(3, 2)


def stats_of(number: int, design: Design = DESIGN) -> ClientStats:
    random = np.random.default_rng(number)
    return statistics(random.normal(size=(5, design.dimension)), random.integers(0, design.classes, 5), design)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_stream_gives_the_tree_of_those_left(stream: list[tuple[bool, int]]) -> None:
    held = {"first": stats_of(99)}
    tree = StatisticsTree.of(held)
    for adding, number in stream:
        name = str(number)
        if adding:
            held[name] = stats_of(number)
            tree = tree.including(name, held[name])
        elif name in held:
            del held[name]
            tree = tree.without(name)
    anew = StatisticsTree.of(dict(sorted(held.items())))
    assert tree.total.digest == anew.total.digest
    assert set(tree.leaves) == set(held)
    plain = sum((one.gram for one in held.values()), np.zeros((4, 4)))
    assert np.allclose(tree.total.gram, plain, rtol=1e-12)


def test_a_removal_adds_few_matrices_and_changes_no_other_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = StatisticsTree.of({str(number): stats_of(number) for number in range(256)})
    before = tree.total.digest
    added = 0
    plain = tree_module._add

    def counted(sums: tuple[NDArray[Any], ...], part: ClientStats) -> None:
        nonlocal added
        added += 1
        plain(sums, part)

    monkeypatch.setattr(tree_module, "_add", counted)
    smaller = tree.without("17")
    assert smaller.total.count == 255 * 5
    assert added <= 3 * math.log2(256)
    assert added >= tree.depth("17") - 1
    assert tree.total.digest == before
    assert smaller.including("17", stats_of(17)).total.digest == before


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
    with pytest.raises(InputError, match="client b"):
        tree.without("b")
    with pytest.raises(InputError, match="at least one"):
        StatisticsTree.of({})
    with pytest.raises(MismatchError, match="client b"):
        tree.including("b", stats_of(1, Design(4, 2)))
    with pytest.raises(MismatchError, match="client b"):
        StatisticsTree.of({"a": stats_of(1), "b": stats_of(1, Design(4, 2))})


def test_a_stream_stays_cheap_and_leaves_earlier_trees_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = StatisticsTree.of({str(number): stats_of(number) for number in range(256)})
    before = tree.total.gram.copy()
    added = 0
    plain = tree_module._add

    def counted(sums: tuple[NDArray[Any], ...], part: ClientStats) -> None:
        nonlocal added
        added += 1
        plain(sums, part)

    monkeypatch.setattr(tree_module, "_add", counted)
    changed, requests = tree, 100
    for number in range(requests):
        changed = changed.without(str(number))
        assert changed.total.count == (255 - number) * 5
    assert added <= requests * 3 * math.log2(256)
    assert np.array_equal(tree.total.gram, before)
