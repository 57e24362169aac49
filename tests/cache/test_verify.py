"""Verify finds every damaged byte, and repair makes the rest usable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from probekit.cache import Cache
from probekit.cache.verify import verify
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


def test_a_sound_cache_has_no_damage(cache: Cache) -> None:
    assert verify(cache).files == 0
    cache.save("set", embedding_set(1, 2, 3))
    save_in_pieces(cache, 9)
    steps = []
    verification = verify(cache, progress=steps.append)
    assert verification.ok
    assert verification.damages == ()
    assert verification.files == len(steps) == 4


@pytest.mark.parametrize("place", [3, 30, 200, -1])
@pytest.mark.parametrize("kind", ["shards", "pieces"])
def test_a_changed_byte_of_rows_is_found(cache: Cache, place: int, kind: str) -> None:
    cache.save("set", embedding_set(1, 2, 3))
    save_in_pieces(cache, 9)
    (path,) = (cache.entry(encoding()).folder / kind).iterdir()
    damage(path, place)
    before = result_files(cache.root)
    verification = verify(cache)
    assert not verification.ok
    assert any(path.stem in damage.path for damage in verification.damages)
    assert result_files(cache.root) == before


def columns_file(cache: Cache) -> Path:
    return next((cache.root / "columns").iterdir())


def description_file(cache: Cache) -> Path:
    return cache.root / "sets" / "set.json"


def encoding_file(cache: Cache) -> Path:
    return cache.entry(encoding()).folder / "encoding.json"


@pytest.mark.parametrize("file", [columns_file, description_file, encoding_file])
def test_other_damaged_files_are_set_aside_and_made_again(
    cache: Cache, file: Callable[[Cache], Path]
) -> None:
    original = embedding_set(1, 2, 3)
    cache.save("set", original)
    path = file(cache)
    damage(path)
    assert not verify(cache).ok
    repaired = verify(cache, repair=True)
    assert repaired.ok
    assert {damage.repaired for damage in repaired.damages} == {True}
    assert verify(cache).ok
    cache.save("set", original)
    assert cache.open("set").digest == original.digest
    np.testing.assert_array_equal(cache.open("set").to_numpy(), rows(1, 2, 3))
    assert verify(cache).damages == ()


def test_a_changed_number_in_a_description_is_found(cache: Cache) -> None:
    cache.save("set", embedding_set(1, 2, 3))
    path = description_file(cache)
    path.write_bytes(path.read_bytes().replace(b'"rows": 3', b'"rows": 2'))
    assert not verify(cache).ok


def test_repair_sets_shards_aside_and_their_rows_are_encoded_again(cache: Cache) -> None:
    cache.save("other", embedding_set(8, 9))
    original = embedding_set(1, 2, 3, 9)
    cache.save("set", original)
    largest = max(cache.entry(encoding()).shards(), key=lambda shard: len(shard.ids))
    damaged = largest.path
    damage(damaged)
    verification = verify(cache, repair=True)
    assert not verification.ok  # the set lacks rows until it is extracted again
    assert [damage.repaired for damage in verification.damages] == [True, False]
    assert "3 of 4" in verification.damages[1].problem
    assert (cache.root / "damaged" / damaged.relative_to(cache.root)).exists()
    known = cache.entry(encoding()).index()
    assert known.locate(ids(1, 2, 3, 8, 9)).tolist() == [-1, -1, -1, 0, 1]
    np.testing.assert_array_equal(cache.open("other").to_numpy(), rows(8, 9))
    cache.save("set", original)
    assert verify(cache).damages == ()
    np.testing.assert_array_equal(cache.open("set").to_numpy(), rows(1, 2, 3, 9))


def test_a_missing_shard_is_found(cache: Cache) -> None:
    cache.save("set", embedding_set(1, 2, 3))
    (shard,) = shard_paths(cache)
    shard.unlink()
    assert not verify(cache).ok


def test_rows_of_another_encoding_are_found(cache: Cache) -> None:
    cache.save("set", embedding_set(1))
    cache.save("other", embedding_set(1, of=encoding("other")))
    (mine,) = shard_paths(cache)
    (foreign,) = shard_paths(cache, encoding("other"))
    foreign.rename(mine.with_name(foreign.name))
    problems = [damage.problem for damage in verify(cache).damages]
    assert any("its encoding is" in problem for problem in problems)
