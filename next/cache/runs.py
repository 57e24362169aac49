"""Which runs were trained from the rows of a cache: what an erasure must ask about."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from probekit.cache.store import Cache
from probekit.errors import CorruptError
from probekit.files import MAX_JSON_BYTES, read_limited, write_json

FILE = "runs.json"


@dataclass(frozen=True)
class NotedRun:
    """A run's folder relative to the cache, so that both can move together.

    done: whether it was written completely.
    """

    path: str
    done: bool

    def folder(self, cache: Cache) -> Path:
        return Path(os.path.normpath(cache.root.resolve() / self.path))


def noted_runs(cache: Cache) -> dict[str, NotedRun]:
    """The runs by their ids."""
    path = cache.root / FILE
    if not os.path.lexists(path):
        return {}
    try:
        return msgspec.json.decode(read_limited(path, MAX_JSON_BYTES), type=dict[str, NotedRun])
    except ValueError as error:
        raise CorruptError(f"{path} is damaged: {error}. Restore it from a copy.") from error


def note_run(cache: Cache, run_id: str, folder: Path, *, done: bool) -> None:
    """Note a run before anything of it is written, and again when it is complete."""
    with cache.changing():
        path = os.path.relpath(folder.resolve(), cache.root.resolve())
        write_runs(cache, {**noted_runs(cache), run_id: NotedRun(path, done)})


def write_runs(cache: Cache, runs: dict[str, NotedRun]) -> None:
    """Replace the list of runs; the caller holds the cache's lock."""
    write_json(cache.root / FILE, msgspec.to_builtins(runs))
