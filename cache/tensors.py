"""Safetensors files that are named by their sha256 and mapped when they are read."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from probekit.arrays import Json, canonical_json
from probekit.errors import CorruptError
from probekit.files import parse_json, write_bytes

DIGEST = re.compile(r"[0-9a-f]{64}")
SUFFIX = ".safetensors"
REPAIR = (
    "Run `probekit cache verify --repair`: it sets damaged files aside, and the next extract "
    "encodes their rows again."
)

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "U8": "|u1"}


def write_tensors(folder: Path, tensors: Mapping[str, NDArray[Any]], metadata: Json) -> str:
    """Write a file named by the sha256 of its bytes; returns the sha256."""
    arrays = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    content = save(arrays, {"probekit": canonical_json(metadata)})
    digest = hashlib.sha256(content).hexdigest()
    write_bytes(folder / f"{digest}{SUFFIX}", content)
    return digest


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
