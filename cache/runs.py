"""Which runs were trained from the rows of a cache: what an erasure must ask about."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path

from probekit.cache.store import Cache
from probekit.files import read_typed, write_json

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
    return read_typed(path, dict[str, NotedRun]) if os.path.lexists(path) else {}


def note_run(cache: Cache, run_id: str, folder: Path, *, done: bool) -> None:
    """Note a run before anything of it is written, and again when it is complete."""
    with cache.changing():
        path = os.path.relpath(folder.resolve(), cache.root.resolve())
        write_runs(cache, {**noted_runs(cache), run_id: NotedRun(path, done)})


def write_runs(cache: Cache, runs: dict[str, NotedRun]) -> None:
    """Replace the list of runs; the caller holds the cache's lock."""
    write_json(cache.root / FILE, {name: asdict(run) for name, run in runs.items()})
