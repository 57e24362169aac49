"""Safetensors files that are named by their sha256 and mapped when they are read."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Json, canonical_json
from probekit.errors import CorruptError
from probekit.files import ASIDE, new_file, parse_json, sync_folder
from probekit.rows import Rows

DIGEST = re.compile(r"[0-9a-f]{64}")
SUFFIX = ".safetensors"
REPAIR = (
    "Run `probekit cache verify --repair`: it sets damaged files aside, and the next extract "
    "encodes their rows again."
)

BLOCK_BYTES = 1 << 24
_DTYPES = {"U8": "|u1", "F16": "<f2", "F32": "<f4", "F64": "<f8", "I64": "<i8"}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_ORDER = tuple(reversed(_NAMES))
"""In files the tensors of the largest numbers come first, so that all are aligned."""


def write_tensors(folder: Path, tensors: Mapping[str, Rows | NDArray[Any]], metadata: Json) -> str:
    """Write a file named by the sha256 of its bytes, in blocks of rows; returns the sha256."""
    dtypes = {name: tensor.dtype.newbyteorder("<").str for name, tensor in tensors.items()}
    names = sorted(tensors, key=lambda name: (_ORDER.index(dtypes[name]), name))
    header: dict[str, Any] = {"__metadata__": {"probekit": canonical_json(metadata)}}
    stop = 0
    for name in names:
        start = stop
        stop += math.prod(tensors[name].shape) * np.dtype(dtypes[name]).itemsize
        shape = list(tensors[name].shape)
        offsets = [start, stop]
        header[name] = {"dtype": _NAMES[dtypes[name]], "shape": shape, "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    aside = folder / f"{ASIDE}{os.getpid()}-{secrets.token_hex(4)}-named"
    hasher = hashlib.sha256()
    with new_file(aside) as file:
        for block in (len(text).to_bytes(8, "little"), text):
            hasher.update(block)
            file.write(block)
        for name in names:
            for rows in _blocks(tensors[name], dtypes[name]):
                hasher.update(rows)
                file.write(rows)
    digest = hasher.hexdigest()
    aside.rename(folder / f"{digest}{SUFFIX}")
    sync_folder(folder)
    return digest


def _blocks(tensor: Rows | NDArray[Any], dtype: str) -> Iterator[memoryview]:
    row_bytes = math.prod(tensor.shape[1:]) * np.dtype(dtype).itemsize
    length = max(1, BLOCK_BYTES // max(1, row_bytes))
    for start in range(0, len(tensor), length):
        block = np.ascontiguousarray(tensor[start : start + length], dtype)
        yield block.reshape(-1).view(np.uint8).data


def map_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], Any]:
    """The tensors of a file as read-only views of its bytes, and its metadata."""
    try:
        if not path.is_file():
            raise FileNotFoundError("missing")
        content = np.asarray(np.memmap(path, np.uint8, "r"))
        data_start = 8 + int.from_bytes(content[:8].tobytes(), "little")
        header = parse_json(content[8:data_start].tobytes())
        metadata = parse_json(header.pop("__metadata__")["probekit"].encode())
        tensors = {name: _view(content[data_start:], **entry) for name, entry in header.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"{path} cannot be read ({error}). {REPAIR}") from error
    return tensors, metadata


def _view(
    data: NDArray[np.uint8], *, dtype: str, shape: list[int], data_offsets: list[int]
) -> NDArray[Any]:
    start, stop = data_offsets
    return data[start:stop].view(_DTYPES[dtype]).reshape(shape)
