"""Samples leave a cache for good, and are known by a keyed digest only."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from probekit.arrays import Ids
from probekit.cache import Cache
from probekit.cache.erasure import (
    TOMBSTONES,
    Intent,
    Tombstones,
    finish,
    read_intent,
    remove_samples,
    without_erased,
    write_intent,
)
from probekit.cache.verify import verify
from probekit.errors import CacheError, CorruptError
from tests.cache.examples import (
    embedding_set,
    encoding,
    ids,
    result_files,
    rows,
    save_in_pieces,
)

INTENT = Intent("t", ("client=a",), "r", ("a",), (ids(1)[0].tobytes().hex(),), {"r": "../r"})


def holds_any(cache: Cache, gone: Ids) -> bool:
    """Whether any byte tells of these ids."""
    content = b"\n".join(result_files(cache.root).values())
    parts = [row.tobytes() for row in gone]
    parts += [hashlib.sha256(part).digest() for part in parts]
    return any(part in content or part.hex().encode() in content for part in parts)


def test_samples_leave_rows_sets_pieces_and_memo(cache: Cache) -> None:
    cache.save("some", embedding_set(1, 2, 3, 4, 5))
    cache.save("more", embedding_set(2, 3, of=encoding("foreign")))
    cache.save("only", embedding_set(3))
    cache.save("none", embedding_set(7, 8))
    save_in_pieces(cache, 3, 9)
    cache.memo.remember(b"a" * 32, ids(3)[0].tobytes())
    cache.memo.remember(b"b" * 32, ids(4)[0].tobytes())
    cache.memo.flush()
    assert holds_any(cache, ids(3))
    remove_samples(cache, ids(3, 5))
    assert not holds_any(cache, ids(3, 5))
    assert cache.names() == ["more", "none", "some"]
    np.testing.assert_array_equal(cache.open("some").to_numpy(), rows(1, 2, 4))
    np.testing.assert_array_equal(cache.open("more").to_numpy(), rows(2))
    np.testing.assert_array_equal(cache.open("none").to_numpy(), rows(7, 8))
    assert Cache(cache.root).memo.lookup(b"a" * 32) is None
    assert Cache(cache.root).memo.lookup(b"b" * 32) == ids(4)[0].tobytes()
    assert verify(cache).ok


def test_the_same_removal_again_changes_nothing(cache: Cache) -> None:
    cache.save("some", embedding_set(1, 2, 3))
    remove_samples(cache, ids(3))
    before = result_files(cache.root)
    remove_samples(cache, ids(3))
    assert result_files(cache.root) == before


def test_a_class_goes_with_its_last_sample(cache: Cache) -> None:
    """The examples' classes are their numbers modulo 3; a class that never had rows stays."""
    named = replace(embedding_set(0, 1, 2, 3, 5), class_names=("a", "b", "c", "unused"))
    cache.save("some", named)
    remove_samples(cache, ids(1))
    left = cache.open("some")
    assert left.class_names == ("a", "c", "unused")
    assert left.labels is not None
    assert left.labels.tolist() == [0, 1, 0, 1]
    assert left.columns["key"].tolist() == [f"bild/{number}-é" for number in (0, 2, 3, 5)]
    assert left.digest == cache.describe("some").digest


def test_erased_samples_are_known_by_a_key(cache: Cache) -> None:
    assert not Tombstones.read(cache).holds(ids(1, 2)).any()
    remove_samples(cache, ids(2))
    remove_samples(cache, ids(3))
    tombstones = Tombstones.read(cache)
    assert tombstones.holds(ids(1, 2, 3)).tolist() == [False, True, True]
    assert ids(2)[0].tobytes() in tombstones
    assert ids(1)[0].tobytes() not in tombstones
    kept, erased = without_erased(cache, embedding_set(1, 2, 3, 4))
    np.testing.assert_array_equal(kept.to_numpy(), rows(1, 4))
    assert erased == 2


def test_damaged_tombstones_are_refused(cache: Cache) -> None:
    remove_samples(cache, ids(2))
    path = cache.root / TOMBSTONES
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptError):
        Tombstones.read(cache)


def test_an_intent_keeps_all_others_out(cache: Cache) -> None:
    cache.save("some", embedding_set(1, 2))
    with cache.changing():
        write_intent(cache, INTENT)
    with pytest.raises(CacheError):
        cache.save("others", embedding_set(3))
    with pytest.raises(CacheError):
        Cache(cache.root)
    eraser = Cache(cache.root, during_erasure=True)
    assert read_intent(eraser) == INTENT
    finish(eraser)
    assert read_intent(eraser) is None
    assert Cache(cache.root).names() == ["some"]
