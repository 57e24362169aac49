"""Which runs use the rows of a cache: runs put themselves on this list when they are trained or copied.

runs/<beginning of a sha256 of the path>.json   where a run stands
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from probekit.cache.journal import changing
from probekit.errors import CorruptError, StorageError
from probekit.files import PRIVATE, read_json, write_json

_RUNS, _NOTE = "runs", "run.json"


def register(root: Path, run: Path) -> None:
    """Put a run on the list. In a cache that cannot be written to nothing can be erased either."""
    path = str(run.absolute())
    entry = root / _RUNS / f"{hashlib.sha256(path.encode()).hexdigest()[:32]}.json"
    if not entry.exists():
        with suppress(StorageError), changing(root):
            write_json(entry, {"run": path}, mode=PRIVATE)


def registered(root: Path) -> list[Path]:
    """Every run on the list, whether it is still there or not."""
    return sorted(Path(read_json(path)["run"]) for path in (root / _RUNS).glob("*.json"))


def users(root: Path, sets: Collection[str]) -> list[Path]:
    """The runs on the list that stand on one of these sets now."""
    return [run for run in registered(root) if _set_of(run) in sets]


def missing(root: Path) -> list[Path]:
    """The runs on the list that are not where they were: removed, or moved."""
    return [run for run in registered(root) if not (run / _NOTE).is_file()]


def _set_of(run: Path) -> str | None:
    try:
        return str(read_json(run / _NOTE)["inputs"]["set"])
    except (OSError, KeyError, TypeError, CorruptError):
        return None
