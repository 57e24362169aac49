"""Safetensors files that are written block by block, named by their sha256, and mapped."""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Json, canonical_json
from probekit.errors import CorruptError, InputError
from probekit.files import ASIDE, MAX_JSON_BYTES, new_file, parse_json, storage_errors, sync_folder

ALIGNMENT = 64
DIGEST = re.compile(r"[0-9a-f]{64}")
REPAIR = (
    "Run `probekit cache verify --repair`: it sets damaged files aside, and the next extract "
    "encodes their rows again."
)

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "U8": "|u1"}
_TAGS = {np.dtype(name): tag for tag, name in _DTYPES.items()}


@dataclass(frozen=True)
class Blocks:
    """A tensor to write: its shape and dtype, and its content in blocks of rows."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    blocks: Iterable[NDArray[Any]]

    @classmethod
    def of(cls, array: NDArray[Any]) -> Blocks:
        return cls(array.shape, array.dtype, [array])


def write_tensors(folder: Path, tensors: Mapping[str, Blocks], metadata: Json) -> str:
    """Write a file named by the sha256 of its bytes; returns the sha256.

    Tensors with wide items should come first: the header is padded, so that all are aligned then.
    """
    hasher = hashlib.sha256()
    aside = folder / f"{ASIDE}{secrets.token_hex(8)}"
    with new_file(aside) as file:
        header = _header(tensors, metadata)
        hasher.update(header)
        file.write(header)
        for tensor in tensors.values():
            for block in tensor.blocks:
                data = _cast(block, tensor.dtype).data
                hasher.update(data)
                file.write(data)
    name = hasher.hexdigest()
    with storage_errors(folder):
        aside.rename(folder / f"{name}.safetensors")
        sync_folder(folder)
    return name


def _header(tensors: Mapping[str, Blocks], metadata: Json) -> bytes:
    entries: dict[str, Json] = {"__metadata__": {"probekit": canonical_json(metadata)}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + math.prod(tensor.shape) * tensor.dtype.itemsize
        entries[name] = {
            "dtype": _TAGS[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _cast(block: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        with np.errstate(over="raise"):
            return np.ascontiguousarray(block, dtype=dtype).reshape(-1)
    except FloatingPointError as error:
        raise InputError(
            f"Embeddings must be at most {np.finfo(dtype).max} to be stored as {dtype}; found "
            f"{np.abs(block).max()}. Use dtype='float32' (--dtype float32)."
        ) from error


def map_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], Any]:
    """The tensors of a file as read-only views of its bytes, and its metadata."""
    try:
        if not path.is_file():
            raise FileNotFoundError("missing")
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        size = int.from_bytes(mapped[:8], "little")
        if size > MAX_JSON_BYTES:
            raise ValueError(f"its header has {size} bytes")
        entries = parse_json(mapped[8 : 8 + size])
        metadata = parse_json(entries.pop("__metadata__")["probekit"].encode())
        tensors = {name: _map_one(mapped, 8 + size, entry) for name, entry in entries.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"{path} cannot be read ({error}). {REPAIR}") from error
    return tensors, metadata


def _map_one(mapped: mmap.mmap, data_start: int, entry: Mapping[str, Any]) -> NDArray[Any]:
    start, stop = entry["data_offsets"]
    shape = tuple(entry["shape"])
    dtype = np.dtype(_DTYPES[entry["dtype"]])
    count = math.prod(shape)
    if min(shape, default=0) < 0 or stop - start != count * dtype.itemsize:
        raise ValueError(f"a tensor of shape {shape} does not fill bytes {start} to {stop}")
    if not count:
        return np.zeros(shape, dtype)
    return np.frombuffer(mapped, dtype, count, data_start + start).reshape(shape)


def checked_digest(value: object, path: Path) -> str:
    """A digest that was read from a file, before it becomes a part of a path."""
    if not isinstance(value, str) or not DIGEST.fullmatch(value):
        raise CorruptError(f"{path} must hold sha256 digests; found {value!r}. {REPAIR}")
    return value


def remove_files(paths: Iterable[Path]) -> None:
    """Remove files for good."""
    folders = set()
    for path in list(paths):
        path.unlink()
        folders.add(path.parent)
    for folder in folders:
        sync_folder(folder)
