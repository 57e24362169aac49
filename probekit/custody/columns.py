"""A column of a data set that says whose each row is, kept so that it can be asked and not read.

For every row a salt of its own and a digest of salt and value: rows of one person cannot be told to be so, and a value
can only be tried. Whoever has the column can try values that are easily guessed, so it is erased with its rows.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

KIND = b"probekit.column.v1"
SALT = 32
WIDTH = 64
"""Bytes for each row: salt and digest; zeros where a row has no value."""


def salted(values: Sequence[str]) -> NDArray[np.uint8]:
    """The column of these values, one row each."""
    parts = []
    for value in values:
        salt = secrets.token_bytes(SALT)
        parts.append(salt + _digest(salt, value) if value else bytes(WIDTH))
    return np.frombuffer(b"".join(parts), np.uint8).reshape(len(values), WIDTH)


def matching(column: NDArray[np.uint8], value: str) -> NDArray[np.int64]:
    """The numbers of the rows that have this value."""
    if not value:
        return np.zeros(0, np.int64)
    data = np.ascontiguousarray(column).tobytes()
    places = range(0, len(data), WIDTH)
    same = (_digest(data[at : at + SALT], value) == data[at + SALT : at + WIDTH] for at in places)
    return np.flatnonzero(np.fromiter(same, bool, len(places)))


def _digest(salt: bytes, value: str) -> bytes:
    return hashlib.sha256(KIND + salt + value.encode()).digest()
