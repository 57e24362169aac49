"""Verification: everything in a cache is hashed again, and what is damaged can be set aside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from probekit.cache.entry import PIECES, SHARDS, Entry
from probekit.cache.rows import IdIndex, RowFile
from probekit.cache.sets import assemble
from probekit.cache.store import Cache
from probekit.errors import ProbekitError
from probekit.files import make_folder, sha256_file, sync_folder
from probekit.progress import Progress, Step, silent

SET_ASIDE = "Run `probekit cache verify --repair` to set it aside, then the extract command again."
EXTRACT_AGAIN = "Run its extract or import command again: it adds what is missing."


@dataclass(frozen=True)
class Damage:
    """A file that is not as it was written, or a set that lacks rows; set aside if repaired."""

    path: str
    problem: str
    remedy: str
    repaired: bool = False


@dataclass(frozen=True)
class Verification:
    files: int
    damages: tuple[Damage, ...]

    @property
    def ok(self) -> bool:
        """Whether no damage stays."""
        return all(damage.repaired for damage in self.damages)


def verify(cache: Cache, *, repair: bool = False, progress: Progress = silent) -> Verification:
    """Hash every file again and check what belongs together.

    repair: move damaged files to `damaged/`, so that the next extraction encodes their rows again.
    """
    damages = []
    files = 0
    for path, check in _checks(cache):
        files += 1
        progress(Step("verifying", files, note=path.name[:12]))
        try:
            check()
        except (ProbekitError, ValueError, OSError) as error:
            if not path.exists():  # it was replaced meanwhile
                continue
            if repair:
                _set_aside(cache, path)
            remedy = EXTRACT_AGAIN if repair else SET_ASIDE
            damages.append(Damage(str(path.relative_to(cache.root)), str(error), remedy, repair))
    for name in cache.names():
        with suppress(ProbekitError):  # reported above
            missing, rows = _missing_rows(cache, name)
            if missing:
                problem = f"{missing} of {rows} rows are missing"
                damages.append(Damage(f"sets/{name}.json", problem, EXTRACT_AGAIN))
    return Verification(files, tuple(damages))


def _checks(cache: Cache) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Every file, and what raises where it is damaged."""
    for entry in cache.entries():
        path = entry.folder / "encoding.json"
        if path.exists():
            yield path, partial(_check_encoding, entry)
        for path in entry.paths(SHARDS, PIECES):
            yield path, partial(_check_rows, path, entry)
    for name in cache.names():
        yield cache.set_path(name), partial(_check_set, cache, name)


def _check_digest(kind: str, digest: str, expected: str) -> None:
    if digest != expected:
        raise ValueError(f"its {kind} is {digest[:12]}, not {expected[:12]}")


def _check_encoding(entry: Entry) -> None:
    _check_digest("digest", entry.encoding.digest, entry.digest)


def _check_rows(path: Path, entry: Entry) -> None:
    _check_digest("sha256", sha256_file(path), path.stem)
    _check_digest("encoding", RowFile.open(path).encoding, entry.digest)


def _check_set(cache: Cache, name: str) -> None:
    """A set's description and the file of its columns."""
    description = cache.describe(name)
    columns = cache.columns_path(description)
    embeddings = assemble(description, columns)
    _check_digest("columns' sha256", sha256_file(columns), description.columns)
    _check_digest("digest", embeddings.digest, description.digest)


def _missing_rows(cache: Cache, name: str) -> tuple[int, int]:
    """How many of a set's rows are in no readable file, and how many it has."""
    embeddings = cache.open(name)
    ids = []
    for path in cache.entry(embeddings.encoding).paths(SHARDS, PIECES):
        with suppress(ProbekitError):
            ids.append(RowFile.open(path).ids)
    return int((~IdIndex(ids).holds(embeddings.ids)).sum()), len(embeddings)


def _set_aside(cache: Cache, path: Path) -> None:
    target = cache.root / "damaged" / path.relative_to(cache.root)
    with cache.changing(), suppress(FileNotFoundError):
        make_folder(target.parent)
        path.rename(target)
        sync_folder(path.parent)
