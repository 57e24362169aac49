"""What a cache holds, as `probekit cache ls` shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from probekit.cache.store import Cache
from probekit.errors import ProbekitError


def list_sets(cache: Cache, warn: Callable[[str], None]) -> list[dict[str, Any]]:
    """The sets, and a warning for each that cannot be read."""
    sets: list[dict[str, Any]] = []
    for name in cache.names():
        try:
            description = cache.describe(name)
        except ProbekitError as error:
            warn(str(error))
            continue
        usage = {
            "name": name,
            "backbone": description.encoding.backbone,
            "encoding": description.encoding.digest,
            "rows": description.rows,
            "width": description.width,
            "labels": description.labels,
            "source": description.source,
        }
        sets.append(usage)
    return sets


def list_encodings(cache: Cache, warn: Callable[[str], None]) -> list[dict[str, Any]]:
    """The encodings, and a warning for each that cannot be read; rows in pieces are unfinished."""
    encodings = []
    for entry in cache.entries():
        usage = {"digest": entry.digest, "backbone": "", "rows": 0, "unfinished": 0, "bytes": 0}
        try:
            usage["bytes"] = sum(path.stat().st_size for path in entry.folder.rglob("*"))
            usage["backbone"] = entry.encoding.backbone
            usage["unfinished"] = sum(len(piece.ids) for piece in entry.pieces())
            usage["rows"] = sum(len(shard.ids) for shard in entry.shards())
        except (ProbekitError, OSError) as error:
            warn(str(error))
        encodings.append(usage)
    return encodings
