"""The store on disk keeps rows, sets and names, and refuses what it cannot read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit.cache import DiskStore
from probekit.errors import CacheError, CorruptError, InputError, NotFoundError
from probekit.values import SCHEMA, EmbeddingSet, content_id
from tests.conftest import spec, tree


def ids(*numbers: int) -> list[str]:
    """Sample ids."""
    return [content_id("test", str(number).encode()) for number in numbers]


def rows(*numbers: int, dtype: str = "float32") -> Any:
    """One recognisable row per number."""
    return np.array([[number, number / 7, -number, 1] for number in numbers], dtype=dtype)


def made(store: DiskStore, numbers: list[int], **changes: Any) -> EmbeddingSet:
    """A set of these samples, its rows saved but not sealed."""
    of = changes.pop("spec", spec())
    known = store.known(of)
    fresh = [number for number in dict.fromkeys(numbers) if ids(number)[0] not in known]
    if fresh:
        store.save(of, ids(*fresh), rows(*fresh, dtype=of.dtype))
    return EmbeddingSet(of, store.load(of, ids(*numbers)), np.array(numbers) % 3, ids(*numbers), **changes)


def test_what_is_saved_is_known_and_loaded_in_any_order(store: DiskStore) -> None:
    store.save(spec(), ids(1, 2), rows(1, 2))
    store.save(spec(), ids(5), rows(5))
    assert ids(2)[0] in store.known(spec())
    assert ids(3)[0] not in store.known(spec())
    np.testing.assert_array_equal(np.asarray(store.load(spec(), ids(5, 1, 5))), rows(5, 1, 5))
    assert [found.digest for found in store.specs()] == [spec().digest]


def test_specs_do_not_mix(store: DiskStore) -> None:
    store.save(spec(), ids(1), rows(1))
    assert ids(1)[0] not in store.known(spec(view="other"))


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_a_sealed_set_is_opened_as_it_was(store: DiskStore, dtype: str) -> None:
    numbers = [4, 2, 2, 9]
    given = made(
        store,
        numbers,
        spec=spec(dtype=dtype),
        class_names=("a", "b", "c"),
        clients=["x", "y", "x", "z"],
        names=["n/é", "", "c", "d"],
        source="test:numbers",
    )
    sealed = store.seal(given)
    opened = store.open(given.digest[:10])
    for found in (sealed, opened):
        assert found.digest == given.digest
        assert list(found.clients or ()) == ["x", "y", "x", "z"]
        assert list(found.names or ()) == ["n/é", "", "c", "d"]
        assert (found.class_names, found.source) == (("a", "b", "c"), "test:numbers")
        np.testing.assert_array_equal(found.to_numpy(), rows(*numbers, dtype=dtype))
        np.testing.assert_array_equal(found.labels, np.array(numbers) % 3)


def test_sealing_turns_pieces_into_one_shard_read_without_copying(store: DiskStore) -> None:
    for number in range(6):
        store.save(spec(), ids(number), rows(number))
    store.seal(made(store, [3, 1, 0, 2, 4, 5]))
    entry = store.entry(spec())
    assert entry.pieces() == []
    assert len(entry.shards()) == 1
    embeddings = store.open(store.sets.digests()[0]).embeddings
    assert embeddings[1:4].base is not None
    np.testing.assert_array_equal(embeddings[1:4], rows(1, 0, 2))


def test_the_sealed_bytes_do_not_depend_on_how_rows_came_in(tmp_path: Path) -> None:
    one, two = DiskStore(tmp_path / "one"), DiskStore(tmp_path / "two")
    one.save(spec(), ids(*range(8)), rows(*range(8)))
    for number in (7, 3, 0, 1, 2, 6, 5, 4):
        two.save(spec(), ids(number), rows(number))
    for store in (one, two):
        store.seal(made(store, list(range(8))))
    assert tree(one.root) == tree(two.root)


def test_rows_of_an_unsealed_piece_survive_another_seal(store: DiskStore) -> None:
    store.save(spec(), ids(1), rows(1))
    store.save(spec(), ids(2), rows(2))
    store.seal(made(store, [1]))
    assert len(store.entry(spec()).pieces()) == 1
    np.testing.assert_array_equal(np.asarray(store.load(spec(), ids(2, 1))), rows(2, 1))


def test_masked_rows_read_as_nan(store: DiskStore) -> None:
    store.save(spec(), ids(1, 2), rows(1, 2))
    masked = np.array([False, True, False])
    found = store.load(spec(), [*ids(1), "0" * 64, *ids(2)], masked=masked)
    assert np.isnan(found[1]).all()
    np.testing.assert_array_equal(found[np.array([0, 2])], rows(1, 2))


def test_names(store: DiskStore) -> None:
    digest = store.seal(made(store, [1, 2])).digest
    store.sets.give_name("digits", digest)
    assert store.open("digits").digest == digest
    with pytest.raises(NotFoundError, match="digits"):
        store.open("digit")
    with pytest.raises(InputError, match="cannot name"):
        store.sets.give_name("../x", digest)


def test_a_newer_schema_is_refused(store: DiskStore) -> None:
    store.seal(made(store, [1]))
    (store.root / "probekit.json").write_text(json.dumps({"schema": SCHEMA + 1}))
    with pytest.raises(CacheError, match="newer probekit"):
        DiskStore(store.root)


def test_an_index_cannot_lead_out_of_the_cache(store: DiskStore) -> None:
    store.seal(made(store, [1]))
    (store.entry(spec()).folder / "index.json").write_text(json.dumps({"schema": SCHEMA, "shards": ["../../x"]}))
    with pytest.raises(CorruptError, match="not one of our files"):
        store.known(spec())


def test_a_damaged_shard_is_named_and_other_specs_stay_usable(store: DiskStore) -> None:
    other = spec(view="other")
    digest = store.seal(made(store, [1, 2], spec=other)).digest
    store.seal(made(store, [1, 2]))
    shard = next((store.entry(spec()).folder / "shards").iterdir())
    shard.write_bytes(shard.read_bytes()[:-9])
    with pytest.raises(CorruptError, match=shard.stem):
        store.known(spec())
    np.testing.assert_array_equal(store.open(digest).to_numpy(), rows(1, 2))


def test_canary_is_kept_exactly(store: DiskStore) -> None:
    vectors = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)
    assert store.canary(spec()) is None
    store.keep_canary(spec(), vectors)
    found = store.canary(spec())
    assert found is not None
    np.testing.assert_array_equal(found, vectors)


def test_leftovers_of_a_killed_process_are_swept(store: DiskStore) -> None:
    store.save(spec(), ids(1), rows(1))
    stale = store.entry(spec()).folder / "pieces" / ".aside-1-dead"
    stale.write_bytes(b"half")
    store.save(spec(), ids(2), rows(2))
    assert not stale.exists()
