"""What a cache holds, as `probekit cache ls` shows it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from probekit.arrays import Json
from probekit.cache.store import Cache
from probekit.errors import ProbekitError


@dataclass(frozen=True)
class EncodingUsage:
    """The rows of an encoding; those in pieces are unfinished."""

    digest: str
    backbone: str = ""
    rows: int = 0
    unfinished: int = 0
    bytes: int = 0


def list_sets(cache: Cache, warn: Callable[[str], None]) -> list[dict[str, Json]]:
    """The sets, and a warning for each that cannot be read."""
    sets: list[dict[str, Json]] = []
    for name in cache.names():
        try:
            description = cache.describe(name)
        except ProbekitError as error:
            warn(str(error))
            continue
        encoding = description.encoding
        fields = {key: getattr(description, key) for key in ("rows", "width", "labels", "source")}
        names = {"name": name, "backbone": encoding.backbone, "encoding": encoding.digest}
        sets.append({**names, **fields})
    return sets


def list_encodings(cache: Cache, warn: Callable[[str], None]) -> list[EncodingUsage]:
    """The encodings, and a warning for each that cannot be read."""
    usages = []
    for entry in cache.entries():
        usage = EncodingUsage(entry.digest, bytes=_folder_size(entry.folder))
        try:
            rows = sum(len(shard.ids) for shard in entry.shards())
            unfinished = sum(len(piece.ids) for piece in entry.pieces())
            backbone = entry.encoding.backbone
            usage = replace(usage, backbone=backbone, rows=rows, unfinished=unfinished)
        except (ProbekitError, OSError) as error:
            warn(str(error))
        usages.append(usage)
    return usages


def _folder_size(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # another process may remove files meanwhile
            size += path.stat().st_size
    return size
