"""Ids are found where they stand, also when their first or last bytes are equal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from probekit.arrays import stack_ids
from probekit.cache.rows import IdIndex
from tests.cache.examples import ids


@given(stored=st.lists(st.integers(0, 50), unique=True), wanted=st.lists(st.integers(0, 60)))
def test_locate_agrees_with_a_dictionary(stored: list[int], wanted: list[int]) -> None:
    positions = {number: position for position, number in enumerate(stored)}
    located = IdIndex([ids(*stored)]).locate(ids(*wanted))
    assert located.tolist() == [positions.get(number, -1) for number in wanted]


def test_ids_with_equal_beginnings_and_trailing_zeros_differ() -> None:
    beginning = b"\xab" * 30
    stored = [beginning + bytes([number, 0]) for number in range(20)]
    index = IdIndex([stack_ids(stored)])
    assert index.locate(stack_ids(stored)).tolist() == list(range(20))
    assert stored[7] in index
    assert beginning + b"\x07\x01" not in index
    assert len(index) == 20


def test_an_empty_index_knows_nothing() -> None:
    index = IdIndex([])
    assert index.locate(ids(1, 2)).tolist() == [-1, -1]
    assert ids(1).tobytes() not in index
