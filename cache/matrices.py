"""Matrices in safetensors files, which are mapped instead of read."""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import CorruptError
from probekit.files import MOST_BYTES, aside_file, parsed, settle, storing
from probekit.values import Json, canonical

_NAMES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "|u1"}
_TAGS = {np.dtype(name): tag for tag, name in _NAMES.items()}
_ALIGN = 64


def _header(tensors: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]], note: Json) -> bytes:
    """The head of a safetensors file, padded so that the data begins aligned."""
    entries: dict[str, Json] = {"__metadata__": {"probekit": canonical(note)}}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        size = int(np.prod(shape)) * dtype.itemsize
        entries[name] = {"dtype": _TAGS[dtype], "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGN)
    return len(text).to_bytes(8, "little") + text


def write_tensors(
    folder: Path,
    tensors: Mapping[str, tuple[tuple[int, ...], np.dtype[Any], Iterable[NDArray[Any]]]],
    note: Json,
    *,
    mode: int = 0o666,
) -> str:
    """Write a safetensors file named by the sha256 of its bytes; gives that sha256.

    Each tensor is its shape, its dtype and its rows in blocks, so that nothing larger than a block is held in memory.
    """
    hasher = hashlib.sha256()
    with storing(folder), aside_file(folder, mode) as (handle, path):

        def put(data: bytes | memoryview) -> None:
            hasher.update(data)
            handle.write(data)

        put(_header({name: (np.dtype(dtype), shape) for name, (shape, dtype, _) in tensors.items()}, note))
        for _, dtype, blocks in tensors.values():
            for block in blocks:
                put(np.ascontiguousarray(block, dtype=dtype).tobytes())
        name = hasher.hexdigest()
        settle(handle, path, folder / f"{name}.safetensors")
    return name


def map_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], Any]:
    """The tensors of a safetensors file as read-only views of the file, and the note kept with them."""
    try:
        with path.open("rb") as handle:
            mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        length = int.from_bytes(mapped[:8], "little")
        if length > MOST_BYTES:
            raise ValueError(f"its header has {length} bytes, more than the {MOST_BYTES} that are read")
        entries = parsed(mapped[8 : 8 + length])
        note = parsed(entries.pop("__metadata__")["probekit"].encode())
        arrays = {}
        for name, entry in entries.items():
            start, stop = entry["data_offsets"]
            dtype, count = np.dtype(_NAMES[entry["dtype"]]), int(np.prod(entry["shape"]))
            if stop - start != count * dtype.itemsize:
                raise ValueError(f"tensor {name} does not fill its place")
            flat = np.frombuffer(mapped, dtype=dtype, count=count, offset=8 + length + start)
            arrays[name] = flat.reshape(entry["shape"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = "missing" if isinstance(error, FileNotFoundError) else f"damaged ({error})"
        repair = "`probekit cache verify --repair` sets it aside, and the next extract encodes its rows again."
        raise CorruptError(f"{path} is {what}. {repair}") from error
    return arrays, note


def tensor_places(path: Path) -> dict[str, tuple[int, int]]:
    """Where each tensor of a safetensors file begins and ends in it."""
    with path.open("rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        entries = parsed(handle.read(length))
    places = {name: one["data_offsets"] for name, one in entries.items() if name != "__metadata__"}
    return {name: (8 + length + begin, 8 + length + end) for name, (begin, end) in places.items()}
