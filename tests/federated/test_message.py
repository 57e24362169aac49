"""Messages: what was encoded comes back to the bit, and nothing else is taken for a message."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from probekit.errors import CorruptError, InputError
from probekit.federated.message import OWN, Answer, Ask, Selection, decode, encode, encoded_size

ANY_ARRAY = st.sampled_from(["<f8", "<f4", "<i8", "|u1", "|b1"]).flatmap(
    lambda kind: arrays_of.arrays(np.dtype(kind), arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0))
)
NOTE = st.dictionaries(
    st.text(max_size=5), st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)


@given(note=NOTE, arrays=st.dictionaries(st.text(max_size=5), ANY_ARRAY, max_size=3))
def test_what_was_encoded_comes_back(note: Any, arrays: Any) -> None:
    content = encode(note, arrays)
    assert len(content) == encoded_size(note, arrays)
    found, parts, packed = decode(content)
    assert found == note
    assert packed == ()
    assert parts.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (parts[name].dtype, parts[name].shape) == (array.dtype, array.shape)
        assert parts[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("shape", [(4, 4), (3, 4, 4), (1, 1), (2, 0, 0)])
def test_symmetric_matrices_travel_as_triangles(shape: tuple[int, ...]) -> None:
    half = np.random.default_rng(0).normal(size=shape)
    gram = half + half.swapaxes(-1, -2)
    content = encode({}, {"gram": gram}, ("gram",))
    assert len(content) == encoded_size({}, {"gram": gram}, ("gram",))
    _, found, packed = decode(content)
    assert packed == ("gram",)
    np.testing.assert_array_equal(found["gram"], gram)
    if shape == (4, 4):
        assert len(encode({}, {"gram": gram})) - len(content) >= (16 - 10) * 8


def test_every_cut_and_every_changed_byte_is_refused() -> None:
    content = encode({"a": 1}, {"x": np.arange(3.0)})
    for place in range(len(content)):
        for bad in (content[:place], content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]):
            with pytest.raises(CorruptError, match="not a message"):
                decode(bad)
    with pytest.raises(CorruptError):
        decode(content + b"0")


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(CorruptError):
        decode(content)
    with pytest.raises(CorruptError):
        decode(content + hashlib.sha256(content).digest())


@pytest.mark.parametrize(
    "listed",
    [
        '["x","<f8",[3,2],true]',
        '["x","<f8",[4],true]',
        '["x","<O8",[1],false]',
        '["x","<f8",[-1],false]',
        '["x","<f8",[true],false]',
        '["x","<f8",[99999999999],false]',
        '["x"]',
        "3",
    ],
)
def test_arrays_that_cannot_be_are_refused(listed: str) -> None:
    head = f'{{"arrays":[{listed}],"note":{{}}}}'.encode()
    content = len(head).to_bytes(8, "little") + head + np.arange(3.0).tobytes()
    with pytest.raises(CorruptError, match="not a message"):
        decode(content + hashlib.sha256(content).digest())


@pytest.mark.parametrize("kind", ["<f2", "<i4", "<c16", "<U3"])
def test_types_that_are_not_sent_are_refused_at_once(kind: str) -> None:
    with pytest.raises(InputError, match="not sent"):
        encode({}, {"x": np.zeros(2, kind)})


def test_a_question_comes_back_and_every_field_is_in_its_digest() -> None:
    base: dict[str, Any] = {
        "kind": "fit",
        "arrays": {"params": np.eye(2)},
        "plan": {"steps": 3},
        "job": "train",
        "number": 4,
        "problem": "ab",
        "rows": Selection("only", frozenset({"b", "a"})),
        "trigger": "square",
        "precision": "float32",
    }
    ask = Ask(**base)
    again = Ask.decode(ask.encoded)
    assert (again.digest, again.note) == (ask.digest, ask.note)
    assert len(ask.encoded) == ask.size + len("train")  # it counts alike whatever the job is called
    np.testing.assert_array_equal(again.arrays["params"], np.eye(2))
    others: dict[str, Any] = {
        "kind": "gradient",
        "arrays": {"params": np.ones((2, 2))},
        "plan": {"steps": 4},
        "job": "other",
        "number": 5,
        "problem": "cd",
        "rows": OWN,
        "trigger": None,
        "precision": "float64",
    }
    assert len({Ask(**{**base, name: value}).digest for name, value in others.items()} | {ask.digest}) == 10


def test_an_answer_comes_back_with_the_digest_of_its_question() -> None:
    answer = Answer("Zoë", 3, {"gram": np.eye(2)}, {"loss": 0.1}, ("gram",))
    content = answer.encode("0" * 64)
    found, asked = Answer.decode(content)
    assert (found.note, asked, found.symmetric, len(content)) == (answer.note, "0" * 64, ("gram",), answer.size)


@pytest.mark.parametrize(
    "note",
    [
        {},
        {"client": "a", "count": 3, "values": {}},
        {"client": 1, "count": 3, "values": {}, "ask": ""},
        {"client": "a", "count": "3", "values": {}, "ask": ""},
        {"client": "a", "count": True, "values": {}, "ask": ""},
        {"client": "a", "count": 3, "values": [], "ask": ""},
        {"client": "a", "count": 3, "values": {"loss": "low"}, "ask": ""},
        {"client": "a", "count": 3, "values": {}, "ask": "", "more": 1},
    ],
)
def test_what_is_no_answer_is_refused(note: Any) -> None:
    with pytest.raises(CorruptError, match="not an answer"):
        Answer.decode(encode(note, {}))


@pytest.mark.parametrize("change", [{"kind": 1}, {"plan": []}, {"rows": ["some", []]}, {"rows": [1]}, {"number": "1"}])
def test_what_is_no_question_is_refused(change: Any) -> None:
    with pytest.raises(CorruptError, match="not a question"):
        Ask.decode(encode({**Ask("fit").note, **change}, {}))


def test_arrays_are_as_a_decoded_message_has_them() -> None:
    given_array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    for message in (Ask("fit", {"params": given_array}), Answer("a", 1, {"params": given_array})):
        found = message.arrays["params"]
        assert found.flags.c_contiguous
        assert not found.flags.writeable
    assert given_array.flags.writeable


def test_an_unknown_selection_is_refused() -> None:
    with pytest.raises(InputError, match="all-but"):
        Selection("some")
