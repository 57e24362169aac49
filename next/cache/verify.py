"""Verification: everything in a cache is hashed again, and what is damaged can be set aside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from probekit.arrays import Json
from probekit.cache.entry import SHARDS, Entry
from probekit.cache.rows import IdIndex, RowFile, concatenate_ids
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

    def to_dict(self) -> dict[str, Json]:
        return {"ok": self.ok, **asdict(self)}


def verify(cache: Cache, *, repair: bool = False, progress: Progress = silent) -> Verification:
    """Hash every file again and check what belongs together.

    repair: move damaged files to `damaged/`, so that the next extraction encodes their rows again.
    """
    files = 0
    damages = []
    for path, problem in _check_files(cache):
        files += 1
        progress(Step("verifying", files, note=path.name[:12]))
        if problem:
            if repair:
                _set_aside(cache, path)
            name = str(path.relative_to(cache.root))
            remedy = EXTRACT_AGAIN if repair else SET_ASIDE
            damages.append(Damage(name, problem, remedy, repaired=repair))
    for name in cache.names():
        with suppress(ProbekitError):  # reported above
            missing, rows = _missing_rows(cache, name)
            if missing:
                problem = f"{missing} of {rows} rows are missing"
                damages.append(Damage(f"sets/{name}.json", problem, EXTRACT_AGAIN))
    return Verification(files, tuple(damages))


def _check_files(cache: Cache) -> Iterator[tuple[Path, str]]:
    """Every file, and what is wrong with it; a damaged one may be set aside before the next."""
    for entry in cache.entries():
        path = entry.folder / "encoding.json"
        if path.exists():
            yield path, _problem(_check_encoding, entry)
        index_problem = _problem(Entry.shard_names, entry)
        if index_problem:
            yield entry.folder / "index.json", index_problem
        for path in _row_paths(entry):
            problem = _problem(_check_rows, path, entry)
            if path.exists() or path in _row_paths(entry):  # else it was replaced meanwhile
                yield path, problem
    for name in cache.names():
        yield cache.set_path(name), _problem(_check_set, cache, name)


def _problem(check: Callable[..., object], *arguments: object) -> str:
    """Why a check fails, "" where it does not."""
    try:
        check(*arguments)
    except (ProbekitError, ValueError) as error:
        return str(error)
    return ""


def _row_paths(entry: Entry) -> list[Path]:
    """The files with rows; pieces alone where the index is damaged."""
    with suppress(ProbekitError):
        return [*entry.shard_paths(), *entry.piece_paths()]
    return entry.piece_paths()


def _check_digest(kind: str, digest: str, expected: str) -> None:
    if digest != expected:
        raise ValueError(f"its {kind} is {digest[:12]}, not {expected[:12]}")


def _check_encoding(entry: Entry) -> None:
    _check_digest("digest", entry.encoding.digest, entry.digest)


def _check_rows(path: Path, entry: Entry) -> None:
    file = RowFile.open(path, keep_mapped=True)
    _check_digest("sha256", sha256_file(path), path.stem)
    _check_digest("encoding", file.encoding, entry.digest)


def _check_set(cache: Cache, name: str) -> None:
    """A set's description and the file of its columns."""
    description = cache.describe(name)
    columns = cache.columns_path(description)
    rows = np.broadcast_to(np.uint8(0), (description.rows, description.width))
    digest = assemble(description, columns, rows).digest
    _check_digest("columns' sha256", sha256_file(columns), description.columns)
    _check_digest("digest", digest, description.digest)


def _missing_rows(cache: Cache, name: str) -> tuple[int, int]:
    """How many of a set's rows are in no readable file, and how many it has."""
    embeddings = cache.open(name)
    ids = []
    for path in _row_paths(cache.entry(embeddings.encoding)):
        with suppress(ProbekitError):
            ids.append(RowFile.open(path, keep_mapped=False).ids)
    missing = IdIndex(concatenate_ids(ids)).locate(embeddings.ids) < 0
    return int(missing.sum()), len(embeddings)


def _set_aside(cache: Cache, path: Path) -> None:
    """Move a file to `damaged/`; an index is written anew, of the shards that are sound."""
    target = cache.root / "damaged" / path.relative_to(cache.root)
    with cache.lock.changing():
        if path.exists():
            make_folder(target.parent)
            path.rename(target)
            sync_folder(path.parent)
        if path.name == "index.json":
            entry = Entry(path.parent, cache.lock)
            shards = sorted((entry.folder / SHARDS).glob("*.safetensors"))
            sound = [shard for shard in shards if not _problem(_check_rows, shard, entry)]
            entry.write_index([shard.stem for shard in sound])
        elif path.parent.name == SHARDS:
            entry = Entry(path.parent.parent, cache.lock)
            entry.write_index([name for name in entry.shard_names() if name != path.stem])
