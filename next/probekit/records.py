"""Records: frozen dataclasses of numbers, texts and arrays, as safetensors on wires and disks.

Arrays are tensors; everything else is JSON in the header's metadata, where {"array": "3"} stands
for tensor 3. A record is written as its registered name and its fields, and read by the types of
those fields, so that bytes can only become what the receiver knows and expects.

Tuples, sets and mappings are columns: texts are one tensor of bytes, arrays are stacked in one
tensor beside their lengths, records are a column for each field. The state of 20,000 clients with
their statistics is therefore 20 tensors, and the header does not grow with the clients.
"""

from __future__ import annotations

import dataclasses
import json
import math
import reprlib
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, Literal, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError, WireError

MAX_HEADER = 1 << 18
MAX_DEPTH = 32
DTYPES = {"F64": np.float64, "I64": np.int64, "U8": np.uint8}
TAGS = {np.dtype(kind): tag for tag, kind in DTYPES.items()}
ALIGNMENT = 8
INT_LIMIT = 1 << 63

T = TypeVar("T")
Tree = Any
Tensor = NDArray[Any]

_classes: dict[str, type] = {}
_names: dict[type, str] = {}


def record(name: str) -> Callable[[type[T]], type[T]]:
    """Give a dataclass the name by which it travels."""

    def register(cls: type[T]) -> type[T]:
        if name in _classes:
            raise InputError(
                f"A record's name must be new; {name!r} is {_classes[name].__qualname__}. "
                "Choose another."
            )
        _classes[name] = cls
        _names[cls] = name
        return cls

    return register


def record_name(value: object) -> str:
    """The name by which a record travels."""
    name = _names.get(type(value))
    if name is None:
        raise InputError(
            f"Only records travel; found a {type(value).__name__}. Register its class with @record."
        )
    return name


def dump(value: object) -> bytes:
    """A record as bytes, each array copied once."""
    encoder = _Encoder()
    metadata = {"record": json.dumps(encoder.tree(value), allow_nan=False)}
    entries: dict[str, Tree] = {"__metadata__": metadata}
    blocks: list[Any] = []
    start = 0
    for name, parts in sorted(encoder.tensors.items(), key=_item_size, reverse=True):
        stop = start + sum(part.nbytes for part in parts)
        shape = parts[0].shape
        if len(parts) > 1:
            shape = (sum(map(len, parts)), *shape[1:])
        dtype = TAGS[parts[0].dtype]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}
        blocks += parts
        start = stop
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % ALIGNMENT)
    if len(header) > MAX_HEADER:
        raise InputError(
            f"A record's header must be at most {MAX_HEADER} bytes; that of {record_name(value)} "
            f"has {len(header)}. Make its tuples and mappings of one type each."
        )
    return b"".join([len(header).to_bytes(8, "little"), header, *blocks])


def parse(data: bytes, kind: type[T], *, max_bytes: int) -> T:
    """The record of this kind in at most `max_bytes` bytes; anything else raises WireError."""
    if len(data) > max_bytes:
        raise WireError(f"at most {max_bytes} bytes", len(data))
    tree, tensors = _read(data)
    value: T = _Decoder(tensors).value(tree, kind, 0)
    return value


def record_names(value: object) -> set[str]:
    """The names of a record and of all records inside it."""
    return {record_name(item) for item in _walk(value) if dataclasses.is_dataclass(item)}


def array_bytes(value: object) -> int:
    """The size of a record's arrays, which is nearly what it takes on the wire."""
    return sum(item.nbytes for item in _walk(value) if isinstance(item, np.ndarray))


def _walk(value: object) -> Iterator[object]:
    yield value
    items: Collection[object] = ()
    if dataclasses.is_dataclass(value):
        items = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif isinstance(value, Mapping):
        items = value.values()
    elif isinstance(value, tuple):
        items = value
    for item in items:
        yield from _walk(item)


class _Encoder:
    """Writes values as trees, and gathers their tensors."""

    def __init__(self) -> None:
        self.tensors: dict[str, list[Tensor]] = {}

    def tree(self, value: object) -> Tree:
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int | float):
            if not _is_number(value):
                raise InputError(f"Finite numbers below 2^63 travel; found {value}. Leave it out.")
            return value
        if isinstance(value, np.ndarray):
            return {"array": self.tensor(value)}
        if isinstance(value, tuple):
            return {"tuple": self.column(value)}
        if isinstance(value, frozenset):
            return {"set": self.column(sorted(value))}
        if isinstance(value, Mapping):
            return {"keys": self.column(list(value)), "values": self.column(list(value.values()))}
        name = record_name(value)
        fields = dataclasses.fields(value)  # type: ignore[arg-type]
        return {
            "record": name,
            "fields": {field.name: self.tree(getattr(value, field.name)) for field in fields},
        }

    def column(self, values: Sequence[object]) -> Tree:
        """Values of one type as few tensors; a list of trees where they are of several types."""
        kinds = {type(value) for value in values}
        if type(None) in kinds:
            present = [value for value in values if value is not None]
            mask = np.array([value is not None for value in values], np.uint8)
            return {"present": self.tensor(mask), "values": self.column(present)}
        kind: type = kinds.pop() if len(kinds) == 1 else object
        if kind is str and not any("\0" in str(value) for value in values):
            text = "".join(f"{value}\0" for value in values).encode()
            return {"texts": self.tensor(np.frombuffer(text, np.uint8))}
        if kind in (int, float) and all(map(_is_number, values)):
            dtype = np.int64 if kind is int else np.float64
            return {"numbers": self.tensor(np.array(values, dtype))}
        if kind is np.ndarray and _stackable(values):
            return self._stack(values)
        if kind is dict:
            return self._mappings(values)
        if kind in _names and _field_types(kind):
            fields = list(_field_types(kind))
            columns = {
                name: self.column([getattr(value, name) for value in values]) for name in fields
            }
            return {"records": _names[kind], "fields": columns}
        return [self.tree(value) for value in values]

    def tensor(self, *parts: Tensor) -> str:
        """The name of a tensor that is these arrays, one below the other."""
        if parts[0].dtype not in TAGS:
            raise InputError(
                f"Arrays travel as float64, int64 or uint8; found {parts[0].dtype}. Convert it."
            )
        name = str(len(self.tensors))
        self.tensors[name] = [np.asarray(part, order="C") for part in parts]
        return name

    def _stack(self, arrays: Sequence[Any]) -> Tree:
        lengths = np.array([len(array) for array in arrays], np.int64)
        return {"stack": self.tensor(*arrays), "lengths": self.tensor(lengths)}

    def _mappings(self, mappings: Sequence[Any]) -> Tree:
        lengths = np.array([len(mapping) for mapping in mappings], np.int64)
        keys = [key for mapping in mappings for key in mapping]
        values = [value for mapping in mappings for value in mapping.values()]
        return {
            "lengths": self.tensor(lengths),
            "keys": self.column(keys),
            "values": self.column(values),
        }


def _item_size(item: tuple[str, list[Tensor]]) -> int:
    """Wide items come first, so that all are aligned."""
    return item[1][0].dtype.itemsize


def _stackable(arrays: Sequence[Any]) -> bool:
    """Whether arrays differ in their first length only."""
    return arrays[0].ndim > 0 and len({(a.dtype, a.ndim, a.shape[1:]) for a in arrays}) == 1


class _Decoder:
    """Reads trees by the types that are expected; every failure is a WireError."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors

    def value(self, tree: Tree, hint: Any, depth: int) -> Any:
        """A value of type `hint`."""
        _check_depth(depth)
        origin = get_origin(hint)
        if origin in (Union, types.UnionType):
            return None if tree is None else self.value(tree, _optional(hint), depth)
        if origin is np.ndarray:
            return self._array(tree, hint)
        if origin is Literal:
            return _choice(tree, get_args(hint))
        if origin in (tuple, frozenset):
            key = "tuple" if origin is tuple else "set"
            column = _entries(tree, key)[0]
            return origin(self.column(column, get_args(hint)[0], depth + 1))
        if origin is not None and issubclass(origin, Mapping):
            return self._mapping(tree, hint, depth)
        if hint in (bool, int, float, str):
            return _scalar(tree, hint)
        name, fields = _entries(tree, "record", "fields")
        cls = _record_class(name, hint)
        hints = _field_types(cls)
        trees = _entries(fields, *hints)
        values = [
            self.value(item, kind, depth + 1)
            for item, kind in zip(trees, hints.values(), strict=True)
        ]
        return _construct(cls, dict(zip(hints, values, strict=True)))

    def column(self, tree: Tree, hint: Any, depth: int) -> list[Any]:
        """Values of type `hint`."""
        _check_depth(depth)
        if isinstance(tree, list):
            return [self.value(item, hint, depth + 1) for item in tree]
        keys = set(tree) if isinstance(tree, dict) else set()
        if keys == {"present", "values"}:
            return self._optionals(tree, hint, depth)
        hint = _optional(hint)
        if keys == {"texts"} and hint is str:
            return self._texts(tree["texts"])
        if keys == {"numbers"} and hint in (int, float):
            dtypes = (np.int64,) if hint is int else (np.float64, np.int64)
            numbers = self._tensor(tree["numbers"], *dtypes, ndim=1)
            if not np.isfinite(numbers).all() or (numbers == -INT_LIMIT).any():
                raise WireError("finite numbers below 2^63", reprlib.repr(numbers))
            return list(numbers.astype(hint).tolist())
        if keys == {"stack", "lengths"}:
            return self._arrays(tree, hint)
        if keys == {"lengths", "keys", "values"}:
            return self._mappings(tree, hint, depth)
        if keys == {"records", "fields"}:
            return self._records(tree, hint, depth)
        raise WireError(f"a column of {_type_name(hint)}", reprlib.repr(tree))

    def _array(self, tree: Tree, hint: Any) -> Tensor:
        return self._tensor(_entries(tree, "array")[0], _dtype(hint))

    def _tensor(self, name: Tree, *dtypes: Any, ndim: int | None = None) -> Tensor:
        tensor = self.tensors.get(name) if isinstance(name, str) else None
        if tensor is None:
            raise WireError("the name of a tensor", reprlib.repr(name))
        if tensor.dtype not in dtypes or (ndim is not None and tensor.ndim != ndim):
            raise WireError(f"a tensor of {np.dtype(dtypes[0])}", f"{tensor.dtype}{tensor.shape}")
        return tensor

    def _texts(self, name: Tree) -> list[str]:
        data = self._tensor(name, np.uint8, ndim=1).tobytes()
        try:
            texts = data.decode().split("\0")
        except UnicodeDecodeError as error:
            raise WireError("texts in UTF-8", error) from error
        if texts.pop():
            raise WireError("texts that end with NUL", "a last one without")
        return texts

    def _arrays(self, tree: dict[str, Tree], hint: Any) -> list[Tensor]:
        if get_origin(hint) is not np.ndarray:
            raise WireError(f"a column of {_type_name(hint)}", "arrays")
        stack = self._tensor(tree["stack"], _dtype(hint))
        if stack.ndim == 0:
            raise WireError("a stack of arrays", "a number")
        return [stack[start:stop] for start, stop in self._spans(tree["lengths"], len(stack))]

    def _spans(self, name: Tree, size: int) -> list[tuple[int, int]]:
        """Where each of the parts begins and ends whose lengths add up to `size`."""
        lengths = self._tensor(name, np.int64, ndim=1).tolist()
        if min(lengths, default=0) < 0 or sum(lengths) != size:
            raise WireError(f"lengths of {size} in all", sum(lengths))
        stops = np.cumsum([0, *lengths]).tolist()
        return list(pairwise(stops))

    def _optionals(self, tree: dict[str, Tree], hint: Any, depth: int) -> list[Any]:
        if get_origin(hint) not in (Union, types.UnionType):
            raise WireError(f"a column of {_type_name(hint)}", "gaps")
        mask = self._tensor(tree["present"], np.uint8, ndim=1) != 0
        values = self.column(tree["values"], _optional(hint), depth + 1)
        if np.count_nonzero(mask) != len(values):
            raise WireError(f"{np.count_nonzero(mask)} values", len(values))
        remaining = iter(values)
        return [next(remaining) if present else None for present in mask]

    def _mapping(self, tree: Tree, hint: Any, depth: int) -> dict[str, Any]:
        keys, values = _entries(tree, "keys", "values")
        value_hint = get_args(hint)[1]
        return _zipped(
            self.column(keys, str, depth + 1), self.column(values, value_hint, depth + 1)
        )

    def _mappings(self, tree: dict[str, Tree], hint: Any, depth: int) -> list[dict[str, Any]]:
        origin = get_origin(hint)
        if not isinstance(origin, type) or not issubclass(origin, Mapping):
            raise WireError(f"a column of {_type_name(hint)}", "mappings")
        keys = self.column(tree["keys"], str, depth + 1)
        values = self.column(tree["values"], get_args(hint)[1], depth + 1)
        if len(keys) != len(values):
            raise WireError(f"{len(keys)} values", len(values))
        spans = self._spans(tree["lengths"], len(keys))
        return [_zipped(keys[start:stop], values[start:stop]) for start, stop in spans]

    def _records(self, tree: dict[str, Tree], hint: Any, depth: int) -> list[Any]:
        cls = _record_class(tree["records"], hint)
        hints = _field_types(cls)
        if not hints:
            raise WireError(f"a list of {cls.__name__}", "a column without fields")
        trees = _entries(tree["fields"], *hints)
        columns = [
            self.column(item, kind, depth + 1)
            for item, kind in zip(trees, hints.values(), strict=True)
        ]
        if len({len(column) for column in columns}) != 1:
            raise WireError(f"columns of one length for {cls.__name__}", "several")
        return [
            _construct(cls, dict(zip(hints, row, strict=True)))
            for row in zip(*columns, strict=True)
        ]


def _read(data: bytes) -> tuple[Tree, dict[str, Tensor]]:
    """The tree in the header, and the tensors as views of the bytes, which they must fill."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(MAX_HEADER, len(data) - 8):
        raise WireError(f"a header of at most {MAX_HEADER} bytes", size)
    entries = _load_json(data[8 : 8 + size])
    (metadata,) = _entries(entries, "__metadata__", exact=False)
    (text,) = _entries(metadata, "record")
    tensors: dict[str, Tensor] = {}
    filled = 0
    for name, entry in entries.items():
        if name != "__metadata__":
            tensors[name] = _view(data, 8 + size + filled, entry, filled)
            filled += tensors[name].nbytes
    if 8 + size + filled != len(data):
        raise WireError(f"tensors of {len(data) - 8 - size} bytes", filled)
    return _load_json(_scalar(text, str)), tensors


def _view(data: bytes, place: int, entry: Tree, start: int) -> Tensor:
    tag, shape, offsets = _entries(entry, "dtype", "shape", "data_offsets")
    dtype = np.dtype(DTYPES[_choice(tag, tuple(DTYPES))])
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise WireError("the shape of a tensor", reprlib.repr(shape))
    count = math.prod(shape)
    stop = start + count * dtype.itemsize
    if offsets != [start, stop] or stop - start > len(data) - place:
        raise WireError(f"a tensor at {[start, stop]}", reprlib.repr(offsets))
    try:
        return np.frombuffer(data, dtype, count, place).reshape(shape)
    except (ValueError, OverflowError) as error:
        raise WireError("the shape of a tensor", reprlib.repr(shape)) from error


def _load_json(text: bytes | str) -> Tree:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError("JSON in the header", repr(error)) from error


def _entries(tree: Tree, *keys: str, exact: bool = True) -> tuple[Tree, ...]:
    """The values of an object that has these keys and no others."""
    if (
        not isinstance(tree, dict)
        or not tree.keys() >= set(keys)
        or (exact and len(tree) > len(keys))
    ):
        raise WireError(f"an object with the keys {keys}", reprlib.repr(tree))
    return tuple(tree[key] for key in keys)


def _scalar(tree: Tree, hint: type) -> Any:
    """A number, a bool or a text; whole numbers pass for float."""
    value = float(tree) if hint is float and type(tree) is int and _is_number(tree) else tree
    fits = type(value) is hint
    if fits and hint in (int, float):
        fits = _is_number(value)
    elif fits and hint is str:
        fits = _is_unicode(str(value))
    if not fits:
        raise WireError(f"a value of type {hint.__name__}", reprlib.repr(tree))
    return value


def _choice(tree: Tree, options: tuple[str, ...]) -> str:
    if not isinstance(tree, str) or tree not in options:
        raise WireError(f"one of {', '.join(options)}", reprlib.repr(tree))
    return tree


def _is_number(value: Any) -> bool:
    return math.isfinite(value) if isinstance(value, float) else abs(value) < INT_LIMIT


def _is_unicode(text: str) -> bool:
    """JSON can spell halves of characters that no encoding has."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _record_class(name: Tree, hint: Any) -> type:
    """The registered class that a name stands for, if it is one of the expected kind."""
    cls = _classes.get(name) if isinstance(name, str) else None
    if cls is None:
        raise WireError("a record that is registered here", reprlib.repr(name))
    if not isinstance(hint, type) or not _fits(cls, hint):
        raise WireError(f"a {_type_name(hint)}", reprlib.repr(name))
    return cls


@cache
def _fits(cls: type, kind: type) -> bool:
    """Whether a record is of a class, or has the members of a protocol."""
    if Protocol not in kind.__mro__:
        return issubclass(cls, kind)
    members = {name for name in vars(kind) if not name.startswith("_")}
    return members <= {*dir(cls), *_field_types(cls)}


@cache
def _field_types(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _construct(cls: type, fields: Mapping[str, Any]) -> Any:
    try:
        return cls(**fields)
    except Exception as error:  # the checks of a record that a plugin brings may raise anything
        raise WireError(f"a valid {cls.__name__}", repr(error)) from error


def _zipped(keys: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    if len(keys) != len(values) or len(set(keys)) != len(keys):
        raise WireError(f"different keys for {len(values)} values", len(set(keys)))
    return dict(zip(keys, values, strict=True))


def _optional(hint: Any) -> Any:
    """X of X | None."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    (kind,) = (option for option in get_args(hint) if option is not type(None))
    return kind


def _dtype(hint: Any) -> Any:
    """The dtype of NDArray[...]."""
    return get_args(get_args(hint)[1])[0]


def _type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise WireError(f"at most {MAX_DEPTH} levels", "more")
