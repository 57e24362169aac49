"""What rows belong together (patients, users, videos), as numbers under a key.

The same value gets the same number wherever the key is: in all sets of one cache, or of one process. Who has not the
key cannot even try values. Which rows belong together is told, as it must be.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError

GROUP, ALONE = b"probekit.group.v1", b"probekit.alone.v1"
PROCESS_KEY = secrets.token_bytes(32)
"""The key of groups that no cache numbered."""


def column_text(value: Any) -> str:
    """A value as it is compared; nothing where there is none."""
    if value is None or (isinstance(value, float) and value != value):
        return ""
    return str(int(value)) if isinstance(value, float) and value == int(value) else str(value)


def group_numbers(values: Sequence[Any], ids: Sequence[str], *, key: bytes = PROCESS_KEY) -> NDArray[np.int64]:
    """For each row the number of its group under a key; a row without a value is, by its id, a group of its own."""
    if len(values) != len(ids):
        raise InputError(f"Each of the {len(ids)} rows needs one group; found {len(values)}.")
    known: dict[bytes, int] = {}
    found = np.empty(len(values), np.int64)
    for row, value in enumerate(map(column_text, values)):
        told = GROUP + value.encode() if value else ALONE + bytes.fromhex(ids[row])
        if told not in known:
            known[told] = int.from_bytes(hmac.digest(key, told, "sha256")[:8], "little") >> 1
        found[row] = known[told]
    return found
