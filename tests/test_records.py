"""Records come back equal; whatever else the bytes are, the only error is WireError."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load as safetensors_load

from probekit.errors import InputError, WireError
from probekit.records import (
    MAX_DEPTH,
    MAX_HEADER,
    array_bytes,
    dump,
    parse,
    record,
    record_name,
    record_names,
)

LIMIT = 1 << 24


class Shape(Protocol):
    @property
    def area(self) -> float: ...


@record("test-square")
@dataclass(frozen=True)
class Square:
    side: float = 1.0

    def __post_init__(self) -> None:
        if self.side < 0:
            raise RuntimeError("a plugin may raise anything")

    @property
    def area(self) -> float:
        return self.side**2


@record("test-circle")
@dataclass(frozen=True)
class Circle:
    radius: float

    @property
    def area(self) -> float:
        return 3 * self.radius**2


@record("test-empty")
@dataclass(frozen=True)
class Empty:
    pass


@record("test-part")
@dataclass(frozen=True, eq=False)
class Part:
    name: str
    rows: NDArray[np.float64]
    count: int = 0
    note: str | None = None


@record("test-whole")
@dataclass(frozen=True, eq=False)
class Whole:
    parts: tuple[Part, ...] = ()
    by_name: Mapping[str, Part] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    numbers: tuple[float, ...] = ()
    gaps: tuple[int | None, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    tables: tuple[Mapping[str, int], ...] = ()
    shapes: tuple[Shape, ...] = ()
    empties: tuple[Empty, ...] = ()
    ids: NDArray[np.uint8] | None = None
    labels: NDArray[np.int64] | None = None
    flag: bool = False
    inner: Whole | None = None


def plain(value: Any) -> Any:
    """A value with its types, in a form that == compares."""
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    if hasattr(value, "__dataclass_fields__"):
        return (type(value), {name: plain(getattr(value, name)) for name in vars(value)})
    return (type(value), value)


floats = st.floats(allow_nan=False, allow_infinity=False)
integers = st.integers(-(2**63) + 1, 2**63 - 1)
characters = st.text(max_size=6)


@st.composite
def parts(draw: st.DrawFn) -> Part:
    shape = draw(st.sampled_from([(0, 2), (3, 2), (1, 2), (2, 5), (4,), ()]))
    rows = np.random.default_rng(draw(st.integers(0, 99))).normal(size=shape)
    return Part(draw(characters), np.asarray(rows), draw(integers), draw(characters | st.none()))


@st.composite
def wholes(draw: st.DrawFn, depth: int = 1) -> Whole:
    return Whole(
        parts=tuple(draw(st.lists(parts(), max_size=3))),
        by_name=draw(st.dictionaries(characters, parts(), max_size=3)),
        names=draw(st.frozensets(characters, max_size=3)),
        numbers=tuple(draw(st.lists(floats, max_size=4))),
        gaps=tuple(draw(st.lists(integers | st.none(), max_size=4))),
        weights=draw(st.dictionaries(characters, floats, max_size=3)),
        tables=tuple(draw(st.lists(st.dictionaries(characters, integers, max_size=2), max_size=3))),
        shapes=tuple(
            draw(st.lists(st.builds(Square) | st.builds(Circle, radius=floats), max_size=3))
        ),
        empties=tuple(draw(st.lists(st.just(Empty()), max_size=3))),
        ids=draw(st.none() | st.just(np.arange(64, dtype=np.uint8).reshape(2, 32))),
        labels=draw(st.none() | st.just(np.array([-1, 2**62]))),
        flag=draw(st.booleans()),
        inner=draw(wholes(depth=depth - 1)) if depth else None,
    )


@given(wholes())
def test_records_come_back(value: Whole) -> None:
    assert plain(parse(dump(value), Whole, max_bytes=LIMIT)) == plain(value)


@given(wholes())
def test_equal_records_are_equal_bytes(value: Whole) -> None:
    data = dump(value)
    assert dump(parse(data, Whole, max_bytes=LIMIT)) == data


EXAMPLE = Whole(
    parts=(Part("a", np.eye(2)), Part("b", np.ones((3, 2)), 4, "note")),
    by_name={"x": Part("c", np.zeros(2))},
    names=frozenset({"p", "q"}),
    numbers=(1.5, 2.5),
    gaps=(1, None, 3),
    weights={"a": 0.5},
    tables=({"a": 1}, {}),
    shapes=(Square(2.0), Circle(1.0)),
    empties=(Empty(), Empty()),
    ids=np.zeros((1, 32), np.uint8),
    labels=np.arange(3),
    flag=True,
    inner=Whole(),
)
JUNK: list[Any] = [
    *(None, True, 0, -1, 1.5, 2**63, 10**400, float("nan"), "", "0", "1", "test-square", "\ud800"),
    *([], {}, [1, None], {"array": "0"}, {"array": "99"}, {"record": "test-empty", "fields": {}}),
    *({"texts": "0"}, {"numbers": "1"}, {"present": "0", "values": []}, {"tuple": []}),
    *({"record": "test-square", "fields": {"side": -1.0}}, {"records": [], "fields": {}}),
    *({"records": "test-empty", "fields": {}}, {"stack": "0", "lengths": "1"}),
    {"lengths": "1", "keys": [], "values": []},
]


def split(data: bytes) -> tuple[dict[str, Any], Any, bytes]:
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    tree = json.loads(header["__metadata__"]["record"])
    return header, tree, data[8 + size :]


def join(header: dict[str, Any], tree: Any, body: bytes) -> bytes:
    header["__metadata__"] = {"record": json.dumps(tree)}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside a JSON value."""
    pairs = []
    if isinstance(tree, dict | list):
        for key in tree if isinstance(tree, dict) else range(len(tree)):
            pairs.append((tree, key))
            pairs += places(tree[key])
    return pairs


def read_or_wire_error(data: bytes) -> bool:
    """Whether bytes are refused; every other error than WireError fails the test."""
    try:
        parse(data, Whole, max_bytes=LIMIT)
    except WireError:
        return True
    return False


@settings(max_examples=300)
@given(st.data())
def test_mutated_trees_raise_wire_errors_only(data: st.DataObject) -> None:
    header, tree, body = split(dump(EXAMPLE))
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(places(tree)))
        if isinstance(container, dict) and data.draw(st.booleans()):
            container[data.draw(st.sampled_from(["fields", "values", "x"]))] = container.pop(key)
        else:
            container[key] = copy.deepcopy(data.draw(st.sampled_from(JUNK)))
    read_or_wire_error(join(header, tree, body))


@settings(max_examples=200)
@given(st.data())
def test_mutated_bytes_raise_wire_errors_only(data: st.DataObject) -> None:
    content = bytearray(dump(EXAMPLE))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] = data.draw(st.integers(0, 255))
    read_or_wire_error(bytes(content[: data.draw(st.integers(0, len(content)) | st.none())]))


def test_every_prefix_is_refused() -> None:
    data = dump(EXAMPLE)
    assert all(read_or_wire_error(data[:size]) for size in range(len(data)))
    assert read_or_wire_error(data + b"x")


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "F32"},
        {"dtype": ["F64"]},
        {"shape": [10**18, 10**18]},
        {"shape": [0, 2**70]},
        {"shape": [-1]},
        {"shape": [True]},
        {"shape": 3},
        {"data_offsets": [0, 10**18]},
        {"data_offsets": None},
    ],
    ids=str,
)
def test_every_tensor_is_checked(change: dict[str, object]) -> None:
    """Types, shapes and places of tensors, each changed alone."""
    original = split(dump(EXAMPLE))[0]
    for name in [key for key in original if key != "__metadata__"]:
        header, tree, body = split(dump(EXAMPLE))
        header[name] |= change
        assert read_or_wire_error(join(header, tree, body)), name


@pytest.mark.parametrize("metadata", [None, [], "record", {"record": None}], ids=str)
def test_metadata_of_another_type_is_refused(metadata: object) -> None:
    data = dump(EXAMPLE)
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size]) | {"__metadata__": metadata}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    assert read_or_wire_error(len(text).to_bytes(8, "little") + text + data[8 + size :])


def test_tensors_lie_one_after_the_other() -> None:
    """Neither gaps nor shared bytes: what is read is no larger than what was sent."""
    for shift in (-8, 8):
        header, tree, body = split(dump(EXAMPLE))
        last = list(header)[-1]
        header[last]["data_offsets"] = [place + shift for place in header[last]["data_offsets"]]
        assert read_or_wire_error(join(header, tree, body + bytes(max(shift, 0))))


def test_what_the_receiver_does_not_expect_is_refused() -> None:
    with pytest.raises(WireError):
        parse(dump(Square()), Circle, max_bytes=LIMIT)
    assert parse(dump(Square()), Shape, max_bytes=LIMIT) == Square()  # type: ignore[type-abstract]
    with pytest.raises(WireError):
        parse(dump(Empty()), Shape, max_bytes=LIMIT)  # type: ignore[type-abstract]


def test_limits() -> None:
    data = dump(EXAMPLE)
    parse(data, Whole, max_bytes=len(data))
    with pytest.raises(WireError):
        parse(data, Whole, max_bytes=len(data) - 1)
    with pytest.raises(WireError):
        parse(struct.pack("<Q", MAX_HEADER + 1) + b" " * (MAX_HEADER + 1), Whole, max_bytes=LIMIT)
    nested = Whole()
    for _ in range(MAX_DEPTH + 1):
        nested = Whole(inner=nested)
    with pytest.raises(WireError):
        parse(dump(nested), Whole, max_bytes=LIMIT)


def test_the_header_does_not_grow_with_the_clients() -> None:
    def header_size(count: int) -> int:
        clients = {
            f"client {number}": Part(str(number), np.ones((1 + number % 3, 4)), number)
            for number in range(count)
        }
        data = dump(Whole(by_name=clients))
        assert len(parse(data, Whole, max_bytes=LIMIT).by_name) == count
        return int.from_bytes(data[:8], "little")

    assert header_size(2000) < header_size(20) + 100


def test_the_bytes_are_safetensors() -> None:
    tensors = safetensors_load(dump(EXAMPLE)).values()
    assert any(np.array_equal(tensor, np.arange(3)) for tensor in tensors)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**63])
def test_numbers_that_json_or_int64_lacks_do_not_travel(value: float) -> None:
    with pytest.raises(InputError):
        dump(Square(value))
    with pytest.raises(InputError):
        dump(Whole(numbers=(1.0, value)))


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", "object", "U3"])
def test_arrays_of_other_types_do_not_travel(dtype: str) -> None:
    with pytest.raises(InputError) as caught:
        dump(Part("a", np.zeros(2).astype(dtype)))
    assert "float64" in str(caught.value)


def test_names_of_records() -> None:
    assert record_name(Square()) == "test-square"
    assert record_names(EXAMPLE) >= {"test-whole", "test-part", "test-square", "test-circle"}
    assert array_bytes(Part("a", np.ones((3, 2)))) == 48
    with pytest.raises(InputError):
        record("test-square")(Empty)
    with pytest.raises(InputError):
        dump(object())
