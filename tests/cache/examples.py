"""Encodings, ids and recognizable rows for the tests of the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Ids, content_id, stack_ids, texts
from probekit.cache import Cache
from probekit.embeddings import EmbeddingSet, Encoding


def encoding(view: str = "cls", dtype: str = "float32", backbone: str = "test:net") -> Encoding:
    return Encoding(backbone, {"weights": "w", "view": view}, dtype)


def ids(*numbers: int) -> Ids:
    return stack_ids(content_id("test", str(number).encode()) for number in numbers)


def rows(*numbers: int, dtype: str = "float32") -> NDArray[Any]:
    matrix = [[number, number / 7, -number, 1] for number in numbers]
    return np.array(matrix, dtype=dtype).reshape(len(numbers), 4)


def embedding_set(
    *numbers: int, of: Encoding | None = None, source: str = "test", **fields: Any
) -> EmbeddingSet:
    of = of or encoding()
    columns = {"key": texts(f"bild/{number}-é" for number in numbers)}
    labels = {"labels": np.array(numbers, np.int64) % 3, "class_names": ("a", "b", "c")}
    given = {"columns": columns, **(labels if "targets" not in fields else {}), **fields}
    return EmbeddingSet(rows(*numbers, dtype=of.dtype), ids(*numbers), of, source=source, **given)


def save_in_pieces(cache: Cache, *numbers: int, of: Encoding | None = None) -> None:
    """One piece for each row, as an extraction in small steps leaves them."""
    of = of or encoding()
    for number in numbers:
        cache.entry(of).save(ids(number), rows(number, dtype=of.dtype))


def result_files(root: Path) -> dict[str, bytes]:
    """Every file but locks."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != ".lock" and not path.name.startswith(".work-")
    }


def damage(path: Path, place: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def shard_paths(cache: Cache, of: Encoding | None = None) -> list[Path]:
    return sorted((cache.entry(of or encoding()).folder / "shards").iterdir())
