"""Array types, canonical JSON and content digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Ids = NDArray[np.uint8]
"""Sample ids, (n, 32): the sha256 of each sample's decoded content."""
Texts = NDArray[Any]
"""Texts of NumPy's StringDType, (n,)."""
Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]

TEXT = np.dtypes.StringDType()


def canonical_json(value: Json) -> str:
    """The only JSON text of a value: sorted keys, no spaces, no NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
    )


def digest(value: Json) -> str:
    """The sha256 of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def content_id(kind: str, *parts: bytes) -> bytes:
    """The id of a sample: the sha256 of its kind and content, each part preceded by its length."""
    hasher = hashlib.sha256(kind.encode() + b"\0")
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


def stack_ids(ids: Iterable[bytes]) -> Ids:
    return np.frombuffer(b"".join(ids), np.uint8).reshape(-1, 32)


def hex_id(row: NDArray[np.uint8]) -> str:
    return row.tobytes().hex()


def id_keys(ids: Ids) -> NDArray[Any]:
    """Ids as values that sort and compare, (n,)."""
    return np.ascontiguousarray(ids).view("S32").ravel()


def group_numbers(groups: NDArray[Any]) -> Indices:
    """Groups of any kind as numbers from 0 on, in the order of their first rows."""
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def texts(values: Iterable[object]) -> Texts:
    return np.array([str(value) for value in values], dtype=TEXT)


def unit_rows(rows: NDArray[Any]) -> Array:
    """Rows in float64, each divided by its norm; rows of zeros stay zeros."""
    matrix = np.array(rows, np.float64, ndmin=2)
    with np.errstate(over="ignore", under="ignore"):
        norms = np.sqrt(np.einsum("nd,nd->n", matrix, matrix))
    extreme = (norms < 1e-150) | (norms > 1e150)  # where squares underflow or overflow
    if extreme.any():
        sizes = np.abs(matrix[extreme]).max(axis=1, initial=0.0)
        matrix[extreme] /= np.where((sizes > 0) & np.isfinite(sizes), sizes, 1.0)[:, None]
        norms[extreme] = np.linalg.norm(matrix[extreme], axis=1)
    matrix /= np.where(norms > 0, norms, 1.0)[:, None]
    return matrix
