"""Secret keys of a cache: in files closed to others from their creation, and never exported."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from probekit.errors import CorruptError
from probekit.files import storing, sync_folder

KEY_BYTES = 32


def read_key(path: Path, without: str) -> bytes:
    """The key in a file; `without` says what cannot be done if it is damaged."""
    key = path.read_bytes() if path.exists() else b""
    if len(key) != KEY_BYTES:
        raise CorruptError(f"{path} is missing or damaged: {without}. Restore it.")
    return key


def make_key(path: Path) -> bytes:
    """A new key in a file; one that a killed process left unused is replaced."""
    with storing(path.parent):
        path.unlink(missing_ok=True)
        key, handle = secrets.token_bytes(KEY_BYTES), os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)
    return key
