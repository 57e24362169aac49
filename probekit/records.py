"""Records: frozen dataclasses of numbers, texts and arrays, as safetensors on wires and disks.

Arrays are tensors; everything else is JSON in the header's metadata, where {"array": "3"} stands
for tensor 3. A record is written as its registered name and its fields, and read by the types of
those fields, so that bytes can only become what the receiver knows and expects.

Tuples, sets and mappings are columns: texts are JSON in a tensor of bytes, arrays are stacked in a
tensor beside their lengths, records are a column for each field. The state of 20,000 clients with
their statistics is therefore 20 tensors, and the header does not grow with the clients.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import reprlib
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, Literal, Protocol, TypeVar, Union, get_args, get_origin

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from probekit.errors import InputError, WireError
from probekit.registry import TRAINERS, field_types

MAX_HEADER = 1 << 18
MAX_DEPTH = 32
DTYPES = (np.dtype(np.float64), np.dtype(np.int64), np.dtype(np.uint8))
INT_LIMIT = 1 << 63

T = TypeVar("T")
Tree = Any
Tensor = NDArray[Any]

_classes: dict[str, type] = {}
_modules = {
    **dict.fromkeys(("model/network", "model/linearized-network"), "probekit.networks.network"),
    **{f"trainer/{name}": path.partition(":")[0] for name, path in TRAINERS.built_in.items()},
}
"""What is imported where one of these is read, and not before."""
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


def type_name(value: object) -> str:
    """The name by which a record travels; of what is none, its class's."""
    return _names.get(type(value), type(value).__name__)


def dump(value: object) -> bytes:
    """A record as bytes."""
    encoder = _Encoder()
    tree = json.dumps(encoder.tree(value), allow_nan=False)
    data = save_tensors(encoder.tensors, {"record": tree})
    size = int.from_bytes(data[:8], "little")
    if size > MAX_HEADER:
        raise InputError(
            f"A record's header must be at most {MAX_HEADER} bytes; that of {record_name(value)} "
            f"has {size}. Make its tuples and mappings of one type each."
        )
    return data


def parse(data: bytes, kind: type[T], *, max_bytes: int) -> T:
    """The record of this kind in at most `max_bytes` bytes; anything else raises WireError."""
    if len(data) > max_bytes:
        raise WireError(f"at most {max_bytes} bytes", len(data))
    size = int.from_bytes(data[:8], "little")
    if size > MAX_HEADER:
        raise WireError(f"a header of at most {MAX_HEADER} bytes", size)
    try:
        tensors = load_tensors(data)
        header = msgspec.json.decode(data[8 : 8 + size])
        tree = msgspec.json.decode(header["__metadata__"]["record"])
    except (
        SafetensorError,
        ValueError,
        LookupError,
        TypeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise WireError("a record in the format of safetensors", repr(error)) from error
    value: T = _Decoder(tensors).value(tree, kind, 0)
    return value


def record_names(value: object) -> set[str]:
    """The names of a record and of all records inside it."""
    return {record_name(item) for item in walk(value) if dataclasses.is_dataclass(item)}


def array_bytes(value: object) -> int:
    """The size of a record's arrays, which is nearly what it takes on the wire."""
    return sum(item.nbytes for item in walk(value) if isinstance(item, np.ndarray))


def walk(value: object) -> Iterator[object]:
    """A value and everything inside it."""
    yield value
    items: Collection[object] = ()
    if dataclasses.is_dataclass(value):
        items = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif isinstance(value, Mapping):
        items = value.values()
    elif isinstance(value, tuple):
        items = value
    for item in items:
        yield from walk(item)


class _Encoder:
    """Writes values as trees, and gathers their tensors."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

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
            return {"frozenset": self.column(sorted(value))}
        if isinstance(value, Mapping):
            return self.column([dict(value)])
        name = record_name(value)
        fields = dataclasses.fields(value)  # type: ignore[arg-type]
        trees = {field.name: self.tree(getattr(value, field.name)) for field in fields}
        return {"record": name, "fields": trees}

    def column(self, values: Sequence[Any]) -> Tree:
        """Values of one type as few tensors; a list of trees where they are of several types."""
        kinds = {type(value) for value in values}
        if type(None) in kinds:
            present = [value for value in values if value is not None]
            mask = np.array([value is not None for value in values], np.uint8)
            return {"present": self.tensor(mask), "values": self.column(present)}
        kind: type = kinds.pop() if len(kinds) == 1 else object
        if kind is str:
            return {"texts": self.tensor(np.frombuffer(msgspec.json.encode(values), np.uint8))}
        if kind in (int, float) and all(map(_is_number, values)):
            return {"numbers": self.tensor(np.array(values, kind))}
        if kind is np.ndarray and values[0].ndim and len({_row_type(a) for a in values}) == 1:
            return {"stack": self.tensor(np.concatenate(values)), "lengths": self._lengths(values)}
        if kind is dict:
            items = [item for mapping in values for item in mapping.items()]
            return {
                "lengths": self._lengths(values),
                "keys": self.column([key for key, _ in items]),
                "values": self.column([value for _, value in items]),
            }
        if kind in _names and field_types(kind):
            columns = {
                name: self.column([getattr(value, name) for value in values])
                for name in field_types(kind)
            }
            return {"records": _names[kind], "fields": columns}
        return [self.tree(value) for value in values]

    def tensor(self, array: Tensor) -> str:
        """The name of a tensor that is this array."""
        if array.dtype not in DTYPES:
            raise InputError(
                f"Arrays travel as float64, int64 or uint8; found {array.dtype}. Convert it."
            )
        name = str(len(self.tensors))
        self.tensors[name] = np.asarray(array, order="C")
        return name

    def _lengths(self, values: Sequence[Any]) -> str:
        return self.tensor(np.array([len(value) for value in values], np.int64))


def _row_type(array: Tensor) -> tuple[Any, ...]:
    """What arrays must have in common to be stacked."""
    return array.dtype, array.shape[1:], array.ndim


class _Decoder:
    """Reads trees by the types that are expected; every failure is a WireError."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors

    def value(self, tree: Tree, hint: Any, depth: int) -> Any:
        """A value of type `hint`."""
        _check_depth(depth)
        required = _required(hint)
        if tree is None and required is not hint:
            return None
        origin = get_origin(required)
        if origin is np.ndarray:
            (name,) = _entries(tree, "array")
            return self._tensor(name, _dtype(required))
        if origin is Literal:
            if tree not in get_args(required):
                raise WireError(f"one of {', '.join(get_args(required))}", reprlib.repr(tree))
            return tree
        if origin in (tuple, frozenset):
            (column,) = _entries(tree, origin.__name__)
            return origin(self.column(column, get_args(required)[0], depth + 1))
        if _is_mapping(origin):
            mappings = self.column(tree, required, depth + 1)
            if len(mappings) != 1:
                raise WireError("one mapping", len(mappings))
            return mappings[0]
        if required in (bool, int, float, str):
            return _scalar(tree, required)
        name, fields = _entries(tree, "record", "fields")
        cls = _record_class(name, required)
        trees = _entries(fields, *field_types(cls))
        kinds = field_types(cls).values()
        values = [self.value(*pair, depth + 1) for pair in zip(trees, kinds, strict=True)]
        return _construct(cls, values)

    def column(self, tree: Tree, hint: Any, depth: int) -> list[Any]:
        """Values of type `hint`."""
        _check_depth(depth)
        if isinstance(tree, list):
            return [self.value(item, hint, depth + 1) for item in tree]
        required = _required(hint)
        if required is not hint and isinstance(tree, dict) and "present" in tree:
            return self._optionals(tree, required, depth)
        if required is str:
            (name,) = _entries(tree, "texts")
            return self._texts(name)
        if required in (int, float):
            (name,) = _entries(tree, "numbers")
            return self._numbers(name, required)
        if get_origin(required) is np.ndarray:
            name, lengths = _entries(tree, "stack", "lengths")
            stack = self._tensor(name, _dtype(required))
            spans = self._spans(lengths, stack.shape[0] if stack.ndim else -1)
            return [stack[start:stop] for start, stop in spans]
        if _is_mapping(get_origin(required)):
            return self._mappings(tree, required, depth)
        return self._records(tree, required, depth)

    def _tensor(self, name: Tree, *dtypes: Any, ndim: int | None = None) -> Tensor:
        tensor = self.tensors.get(name) if isinstance(name, str) else None
        if tensor is None:
            raise WireError("the name of a tensor", reprlib.repr(name))
        if tensor.dtype not in dtypes or (ndim is not None and tensor.ndim != ndim):
            raise WireError(f"a tensor of {np.dtype(dtypes[0])}", f"{tensor.dtype}{tensor.shape}")
        return tensor

    def _texts(self, name: Tree) -> list[str]:
        content = self._tensor(name, np.uint8, ndim=1).tobytes()
        try:
            return msgspec.json.decode(content, type=list[str])
        except ValueError as error:
            raise WireError("a JSON list of texts", error) from error

    def _numbers(self, name: Tree, kind: type) -> list[Any]:
        dtypes = (np.int64,) if kind is int else (np.float64, np.int64)
        numbers = self._tensor(name, *dtypes, ndim=1)
        if not np.isfinite(numbers).all() or (numbers == -INT_LIMIT).any():
            raise WireError("finite numbers below 2^63", reprlib.repr(numbers))
        return list(numbers.astype(kind).tolist())

    def _spans(self, name: Tree, size: int) -> list[tuple[int, int]]:
        """Where each of the parts begins and ends whose lengths add up to `size`."""
        lengths = self._tensor(name, np.int64, ndim=1).tolist()
        if min(lengths, default=0) < 0 or sum(lengths) != size:
            raise WireError(f"lengths of {size} in all", sum(lengths))
        return list(pairwise(np.cumsum([0, *lengths]).tolist()))

    def _optionals(self, tree: Tree, hint: Any, depth: int) -> list[Any]:
        name, column = _entries(tree, "present", "values")
        mask = self._tensor(name, np.uint8, ndim=1) != 0
        values = self.column(column, hint, depth + 1)
        if np.count_nonzero(mask) != len(values):
            raise WireError(f"{np.count_nonzero(mask)} values", len(values))
        remaining = iter(values)
        return [next(remaining) if present else None for present in mask]

    def _mappings(self, tree: Tree, hint: Any, depth: int) -> list[dict[str, Any]]:
        lengths, key_column, value_column = _entries(tree, "lengths", "keys", "values")
        keys = self.column(key_column, str, depth + 1)
        values = self.column(value_column, get_args(hint)[1], depth + 1)
        spans = self._spans(lengths, len(keys))
        mappings = [
            dict(zip(keys[start:stop], values[start:stop], strict=False)) for start, stop in spans
        ]
        if len(keys) != len(values) or sum(map(len, mappings)) != len(keys):
            raise WireError(f"{len(values)} different keys", reprlib.repr(keys))
        return mappings

    def _records(self, tree: Tree, hint: Any, depth: int) -> list[Any]:
        name, fields = _entries(tree, "records", "fields")
        cls = _record_class(name, hint)
        trees = _entries(fields, *field_types(cls))
        kinds = field_types(cls).values()
        columns = [self.column(*pair, depth + 1) for pair in zip(trees, kinds, strict=True)]
        if len({len(column) for column in columns}) != 1:
            raise WireError(f"columns of one length for {cls.__name__}", "others")
        return [_construct(cls, values) for values in zip(*columns, strict=True)]


def _entries(tree: Tree, *keys: str) -> tuple[Tree, ...]:
    """The values of an object that has these keys and no others."""
    if not isinstance(tree, dict) or tree.keys() != set(keys):
        raise WireError(f"an object with the keys {keys}", reprlib.repr(tree))
    return tuple(tree[key] for key in keys)


def _scalar(tree: Tree, kind: type) -> Any:
    """A number, a bool or a text; whole numbers pass for float."""
    kinds = (float, int) if kind is float else (kind,)
    if type(tree) not in kinds or (kind is not str and not _is_number(tree)):
        raise WireError(f"a value of type {kind.__name__}", reprlib.repr(tree))
    return kind(tree)


def _is_number(value: Any) -> bool:
    return math.isfinite(value) if isinstance(value, float) else abs(value) < INT_LIMIT


def _record_class(name: Tree, hint: Any) -> type:
    """The registered class that a name stands for, if it is one of the expected kind."""
    if not isinstance(name, str):
        raise WireError("the name of a record", reprlib.repr(name))
    if name in _modules and name not in _classes:
        importlib.import_module(_modules[name])
    cls = _classes.get(name)
    if cls is None or not isinstance(hint, type) or not _fits(cls, hint):
        raise WireError(f"the name of a record of type {hint}", reprlib.repr(name))
    return cls


@cache
def _fits(cls: type, kind: type) -> bool:
    """Whether a record is of a class, or has the members of a protocol."""
    if Protocol not in kind.__mro__:
        return issubclass(cls, kind)
    members = {name for name in vars(kind) if not name.startswith("_")}
    return members <= {*dir(cls), *field_types(cls)}


def _construct(cls: type, values: Sequence[Any]) -> Any:
    try:
        return cls(**dict(zip(field_types(cls), values, strict=True)))
    except Exception as error:  # the checks of a record that a plugin brings may raise anything
        raise WireError(f"a valid {cls.__name__}", repr(error)) from error


def _required(hint: Any) -> Any:
    """X of X | None, else the type itself."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    (kind,) = (option for option in get_args(hint) if option is not type(None))
    return kind


def _is_mapping(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _dtype(hint: Any) -> Any:
    """The dtype of NDArray[...]."""
    return get_args(get_args(hint)[1])[0]


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise WireError(f"at most {MAX_DEPTH} levels", "more")
