"""What is removed is gone from every file; what others need stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from probekit.cache import Cache
from probekit.cache.removal import collect_garbage, remove
from probekit.cache.verify import verify
from probekit.errors import CacheError, CorruptError, InputError, NotFoundError
from tests.cache.examples import (
    damage,
    embedding_set,
    encoding,
    ids,
    result_files,
    rows,
    save_in_pieces,
    shard_paths,
)


def holds(root: Path, content: bytes) -> bool:
    return any(content in path.read_bytes() for path in root.rglob("*") if path.is_file())


def test_removing_a_set_removes_the_rows_that_only_it_used(cache: Cache) -> None:
    cache.save("one", embedding_set(1, 2))
    cache.save("two", embedding_set(2, 3))
    before = result_files(cache.root)
    planned = remove(cache, "one", dry_run=True)
    assert result_files(cache.root) == before
    removed = remove(cache, "one")
    assert planned == removed
    assert removed.sets == ("one",)
    assert removed.rows == 1
    assert cache.names() == ["two"]
    np.testing.assert_array_equal(cache.open("two").to_numpy(), rows(2, 3))
    for content in (rows(1).tobytes(), ids(1).tobytes()):
        assert not holds(cache.root, content)
    assert verify(cache).damages == ()
    mapped = Path("/proc/self/maps").read_text().splitlines()
    assert not [line for line in mapped if str(cache.root) in line and "(deleted)" in line]


def test_removing_a_set_leaves_what_an_interrupted_extraction_saved(cache: Cache) -> None:
    cache.save("one", embedding_set(1, 2))
    save_in_pieces(cache, 7)
    assert remove(cache, "one").rows == 2
    known = cache.entry(encoding()).index()
    assert known.holds(ids(1, 2, 7)).tolist() == [False, False, True]


def test_columns_that_another_name_shares_stay(cache: Cache) -> None:
    cache.save("one", embedding_set(1, 2, source="a"))
    cache.save("two", embedding_set(1, 2, source="b"))
    assert remove(cache, "one").rows == 0
    np.testing.assert_array_equal(cache.open("two").to_numpy(), rows(1, 2))
    assert remove(cache, "two").rows == 2
    assert list((cache.root / "columns").iterdir()) == []


def test_removing_an_encoding_removes_its_sets(cache: Cache) -> None:
    cache.save("one", embedding_set(1, 2))
    cache.save("other", embedding_set(1, 2, of=encoding("other")))  # with the same columns
    digest = encoding().digest
    planned = remove(cache, digest[:8], dry_run=True)
    assert cache.names() == ["one", "other"]
    removed = remove(cache, digest[:8])
    assert planned == removed
    assert removed.encodings == (digest,)
    assert removed.sets == ("one",)
    assert removed.rows == 2
    assert cache.names() == ["other"]
    assert verify(cache).damages == ()
    assert [entry.digest for entry in cache.entries()] == [encoding("other").digest]


def test_unknown_names_remove_nothing(cache: Cache) -> None:
    cache.save("one", embedding_set(1))
    before = result_files(cache.root)
    digest = encoding().digest
    for name in ("on", digest[:3], "0" * 12, "../one"):
        with pytest.raises(NotFoundError):
            remove(cache, name)
    (cache.root / "encodings" / (digest[:63] + ("0" if digest[63] != "0" else "1"))).mkdir()
    with pytest.raises(InputError, match="more digits"):
        remove(cache, digest[:10])
    assert result_files(cache.root) == before


def test_garbage_is_what_no_set_uses(cache: Cache) -> None:
    cache.save("set", embedding_set(1, 2))
    save_in_pieces(cache, 7, 8)
    save_in_pieces(cache, 9, of=encoding("unfinished"))
    cache.save("set", embedding_set(1))
    (cache.root / "damaged").mkdir()
    (cache.root / "damaged" / "x").write_bytes(b"x")
    stray = cache.entry(encoding()).folder / "shards" / ".aside-1-dead"
    stray.write_bytes(b"left by a killed process")
    before = result_files(cache.root)
    planned = collect_garbage(cache, dry_run=True)
    assert result_files(cache.root) == before
    removed = collect_garbage(cache)
    assert planned == removed
    assert removed.rows == 4
    assert removed.encodings == (encoding("unfinished").digest,)
    assert removed.bytes > 0
    assert sorted(path.name for path in cache.root.iterdir()) == [
        ".lock",
        "CACHEDIR.TAG",
        "cache.json",
        "columns",
        "encodings",
        "sets",
    ]
    assert not stray.exists()
    assert len(list((cache.root / "columns").iterdir())) == 1
    np.testing.assert_array_equal(cache.open("set").to_numpy(), rows(1))
    assert collect_garbage(cache).rows == 0
    assert verify(cache).damages == ()


def test_rows_that_are_being_made_stay(cache: Cache) -> None:
    cache.save("set", embedding_set(1))
    with cache.working(encoding(), "extraction"):
        save_in_pieces(cache, 5)
        assert collect_garbage(cache).busy == (encoding().digest,)
        assert ids(5).tobytes() in cache.entry(encoding()).index()
        with pytest.raises(CacheError, match="working"):
            remove(cache, encoding().digest)
        removed = remove(cache, "set")
        assert removed.busy == (encoding().digest,)
        assert ids(1).tobytes() in cache.entry(encoding()).index()
    assert collect_garbage(cache).rows == 2


def test_garbage_is_not_collected_where_a_set_cannot_be_read(cache: Cache) -> None:
    cache.save("set", embedding_set(1, 2))
    damage(cache.root / "sets" / "set.json", 0)
    with pytest.raises(CorruptError):
        collect_garbage(cache)
    assert len(shard_paths(cache)) == 1


def test_an_absent_cache_has_no_garbage(tmp_path: Path) -> None:
    assert collect_garbage(Cache(tmp_path / "none")).rows == 0
    assert not (tmp_path / "none").exists()
