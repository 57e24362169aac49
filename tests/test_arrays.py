"""Canonical JSON, digests and ids."""

from __future__ import annotations

import json
import math
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probekit import arrays

scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()


@given(st.dictionaries(st.text(), scalars | st.lists(scalars)))
def test_canonical_json_does_not_depend_on_the_order_of_keys(value: dict[str, Any]) -> None:
    reversed_keys = dict(reversed(value.items()))
    assert arrays.canonical_json(value) == arrays.canonical_json(reversed_keys)
    assert arrays.digest(value) == arrays.digest(reversed_keys)
    assert json.loads(arrays.canonical_json(value)) == value


def test_values_without_one_json_text_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        arrays.canonical_json({"a": math.nan})


def test_digests_are_those_of_their_specification() -> None:
    """They are keys of caches on people's disks."""
    text = '{"a":"é","b":[1,2.5,null]}'
    assert arrays.digest({"b": [1, 2.5, None], "a": "é"}) == sha256(text.encode()).hexdigest()
    content = b"text\0" + b"\3\0\0\0\0\0\0\0" + b"abc"
    assert arrays.content_id("text", b"abc") == sha256(content).digest()


@given(st.lists(st.binary(max_size=9), max_size=4), st.lists(st.binary(max_size=9), max_size=4))
def test_contents_differ_by_their_parts(first: list[bytes], second: list[bytes]) -> None:
    same = arrays.content_id("image", *first) == arrays.content_id("image", *second)
    assert same == (first == second)
    assert arrays.content_id("image", *first) != arrays.content_id("text", *first)


@given(st.lists(st.binary(min_size=32, max_size=32), max_size=8))
def test_ids_sort_and_compare_like_their_bytes(ids: list[bytes]) -> None:
    stacked = arrays.stack_ids(ids)
    assert stacked.shape == (len(ids), 32)
    assert [arrays.hex_id(row) for row in stacked] == [sample.hex() for sample in ids]
    order = np.argsort(arrays.id_keys(stacked), kind="stable")
    assert [ids[i] for i in order] == sorted(ids)


def test_texts_of_any_length() -> None:
    column = arrays.texts(["a", 7, "é" * 1000])
    assert column.tolist() == ["a", "7", "é" * 1000]


def test_groups_are_numbered_by_their_first_rows() -> None:
    assert arrays.group_numbers(np.array(["b", "a", "b", "c"])).tolist() == [0, 1, 0, 2]
