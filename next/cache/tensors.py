"""Safetensors files that are named by their sha256 and mapped when they are read."""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Json, canonical_json
from probekit.errors import CorruptError
from probekit.files import MAX_JSON_BYTES, new_file, parse_json

ALIGNMENT = 64
DIGEST = re.compile(r"[0-9a-f]{64}")
SUFFIX = ".safetensors"
REPAIR = (
    "Run `probekit cache verify --repair`: it sets damaged files aside, and the next extract "
    "encodes their rows again."
)

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "U8": "|u1"}
_TAGS = {np.dtype(name): tag for tag, name in _DTYPES.items()}


def write_tensors(folder: Path, tensors: Mapping[str, NDArray[Any]], metadata: Json) -> str:
    """Write a file named by the sha256 of its bytes; returns the sha256.

    Tensors with wide items should come first: the header is padded, so that all are aligned then.
    """
    entries: dict[str, Json] = {"__metadata__": {"probekit": canonical_json(metadata)}}
    start = 0
    for name, tensor in tensors.items():
        offsets = [start, start + tensor.nbytes]
        dtype = _TAGS[tensor.dtype]
        entries[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": offsets}
        start += tensor.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    blocks: list[bytes | memoryview] = [len(text).to_bytes(8, "little"), text]
    blocks += [np.ascontiguousarray(tensor).reshape(-1).data for tensor in tensors.values()]
    hasher = hashlib.sha256()
    for block in blocks:
        hasher.update(block)
    digest = hasher.hexdigest()
    with new_file(folder / f"{digest}{SUFFIX}") as file:
        file.writelines(blocks)
    return digest


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
