"""Ids are found where they stand, also when their first bytes are equal."""

from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from probekit.cache.ids import IdLookup, hex_ids, meant, pack


def _id(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


@given(held=st.lists(st.integers(0, 50), unique=True), wanted=st.lists(st.integers(0, 60)))
def test_locate_agrees_with_a_dictionary(held: list[int], wanted: list[int]) -> None:
    places = {number: place for place, number in enumerate(held)}
    found = IdLookup(pack([_id(n) for n in held])).locate(pack([_id(n) for n in wanted]))
    assert found.tolist() == [places.get(number, -1) for number in wanted]


def test_equal_beginnings_are_told_apart() -> None:
    same = "ab" * 8
    held = [same + f"{number:048x}" for number in range(20)]
    lookup = IdLookup(pack(held))
    assert lookup.locate(pack(held)).tolist() == list(range(20))
    assert same + "f" * 48 not in lookup
    assert held[7] in lookup


def test_hex_ids_read_as_strings() -> None:
    ids = hex_ids(pack([_id(n) for n in range(5)]))
    assert ids[2] == _id(2)
    assert list(ids[1:3]) == [_id(1), _id(2)]
    assert ids == [_id(n) for n in range(5)]
    assert pack(ids) is ids.entries
    assert np.shares_memory(pack(ids[1:3]), ids.entries)


def test_a_text_means_an_id_its_beginning_or_a_row_of_that_name() -> None:
    one, other = "ab" * 32, "ab" * 31 + "cd"
    known, named = {one, other}, {"cat.png": other, one: other}
    assert meant(one, known, named) == {one}
    assert meant("cat.png", known, named) == {other}
    assert meant("AB" * 4, known, named) == {one, other}
    assert meant(other[:63].upper(), known, named) == {other}
    assert meant("ab" * 3, known, named) == meant("dog.png", known, named) == set()
