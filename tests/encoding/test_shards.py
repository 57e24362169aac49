"""Shards of a data set, encoded apart and brought together: the set of one process, to the byte."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit.cache import DiskStore
from probekit.cache.audit import verify
from probekit.cache.erasure import purge
from probekit.cache.removal import prune
from probekit.cache.shards import merge, shard_name
from probekit.encoding.extract import extract
from probekit.errors import CorruptError, InputError, MismatchError, NotFoundError, SampleError
from probekit.values import EmbeddingSet
from tests.conftest import PixelBackbone, pairs, tree

ROWS: list[Any] = [*pairs(40), *pairs(10), (b"no picture", 0), *pairs(59, first=41)]
"""Some of them twice, and one that cannot be read."""


def encode(store: DiskStore, *, rows: Any = ROWS, backbone: Any = None, **options: Any) -> EmbeddingSet:
    given = {"batch_size": 8, "on_error": "skip", "num_workers": 0, **options}
    return extract(backbone or PixelBackbone(), rows, store=store, note=lambda text: None, **given)


def shards(store: DiskStore, count: int, *numbers: int, **options: Any) -> None:
    for number in numbers or range(count):
        made = encode(store, shard=(number, count), **options)
        store.sets.give_name(shard_name("data", number, count), made.digest)


@pytest.fixture
def alone(tmp_path: Path) -> DiskStore:
    """A cache with the set of one process."""
    store = DiskStore(tmp_path / "alone")
    store.sets.give_name("data", encode(store).digest)
    return store


@pytest.mark.parametrize("on_error", ["skip", "mask"])
@pytest.mark.parametrize(("count", "numbers"), [(1, (0,)), (3, (2, 0, 1)), (30, ())])
def test_shards_of_one_cache_become_the_set_of_one_process(
    store: DiskStore, tmp_path: Path, count: int, numbers: tuple[int, ...], on_error: str
) -> None:
    other = DiskStore(tmp_path / "other")
    wanted = encode(other, on_error=on_error)
    other.sets.give_name("data", wanted.digest)
    shards(store, count, *numbers, on_error=on_error)
    made = merge(store, "data")
    found = store.open("data")
    assert (made.digest, made.shards, made.rows) == (wanted.digest, count, len(wanted))
    assert found.skipped == wanted.skipped
    assert tree(store.root) == tree(other.root)
    assert merge(store, "data").shards == 0


def test_shards_of_several_caches(store: DiskStore, alone: DiskStore, tmp_path: Path) -> None:
    homes = [DiskStore(tmp_path / str(number)) for number in range(2)]
    shards(homes[0], 3, 0, 2)
    shards(homes[1], 3, 1)
    before = [tree(home.root) for home in homes]
    merge(store, "data", [home.root for home in homes])
    assert [tree(home.root) for home in homes] == before
    assert tree(store.root) == tree(alone.root)


def test_a_missing_shard_is_named(store: DiskStore) -> None:
    shards(store, 4, 0, 3)
    with pytest.raises(NotFoundError, match=r"Shard 1/4 of data is missing, and 1 more.*--shard 1/4"):
        merge(store, "data")
    with pytest.raises(NotFoundError, match="There is no shard of 'date'"):
        merge(store, "date")
    with pytest.raises(NotFoundError, match="is no cache"):
        merge(store, "data", [store.root / "nothing"])


def test_a_merge_that_was_killed_goes_on(store: DiskStore, alone: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    shards(store, 3)
    with monkeypatch.context() as patched:
        drop = store.sets.drop_name

        def once(name: str) -> None:
            drop(name)
            raise KeyboardInterrupt

        patched.setattr(store.sets, "drop_name", once)
        with pytest.raises(KeyboardInterrupt):
            merge(store, "data")
    assert merge(store, "data").digest == alone.sets.resolve("data")
    assert tree(store.root) == tree(alone.root)


def test_a_shard_that_was_interrupted_goes_on(store: DiskStore, alone: DiskStore) -> None:
    class Dying(PixelBackbone):
        def encode(self, batch: Any) -> Any:
            if self.encoded > 20:
                raise KeyboardInterrupt
            return super().encode(batch)

    shards(store, 2, 1)
    with pytest.raises(KeyboardInterrupt):
        encode(store, shard=(0, 2), backbone=Dying(), save_rows=8)
    rest = PixelBackbone()
    shards(store, 2, 0, backbone=rest)
    assert rest.encoded < 40
    merge(store, "data")
    assert tree(store.root) == tree(alone.root)


def test_another_extraction_meanwhile_does_no_harm(store: DiskStore, alone: DiskStore) -> None:
    shards(store, 2, 0)
    encode(store, rows=pairs(30, first=20))
    prune(store)
    shards(store, 2, 1)
    merge(store, "data")
    assert store.open("data").digest == alone.open("data").digest
    assert np.array_equal(store.open("data").to_numpy(), alone.open("data").to_numpy())
    assert verify(store)[0] == []


def test_what_is_purged_is_in_no_shard(store: DiskStore) -> None:
    shards(store, 2)
    gone = store.open("data.0-of-2").ids[3]
    purge(store, samples=(gone,), yes=True)
    merge(store, "data")
    assert gone not in store.open("data").ids
    assert len(store.open("data")) == len(ROWS) - 3


def test_shards_that_do_not_belong_together_are_refused(store: DiskStore, tmp_path: Path) -> None:
    shards(store, 2, 0)
    shards(store, 2, 1, backbone=PixelBackbone(scale=2.0))
    with pytest.raises(MismatchError, match="Shard 1/2 of data is of another data set"):
        merge(store, "data")
    other = DiskStore(tmp_path / "other")
    shards(other, 2)
    shards(other, 3)
    with pytest.raises(InputError, match="shards of 2 and of 3"):
        merge(other, "data")


def test_a_damaged_shard_of_another_cache_is_refused(store: DiskStore, tmp_path: Path) -> None:
    other = DiskStore(tmp_path / "other")
    shards(other, 2)
    victim = max((other.root / "rows").rglob("*.safetensors"), key=lambda path: path.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[-40] ^= 1
    victim.write_bytes(data)
    with pytest.raises(CorruptError, match="is not what was written"):
        merge(store, "data", [other.root])


def test_a_bad_sample_is_named_by_its_row_in_the_whole(store: DiskStore) -> None:
    with pytest.raises(SampleError, match=r"\(row 50\)"):
        encode(store, shard=(1, 3), on_error="raise")


@pytest.mark.parametrize("shard", [(3, 3), (-1, 3)])
def test_a_shard_that_is_none_is_refused(store: DiskStore, shard: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="numbered from 0 to 2"):
        encode(store, shard=shard)


def test_a_shard_wants_a_cache() -> None:
    with pytest.raises(InputError, match="cache on disk"):
        extract(PixelBackbone(), pairs(20), shard=(0, 2))


def test_groups_of_different_caches_are_not_mixed(store: DiskStore, tmp_path: Path) -> None:
    rows = {"image": [one for one, _ in pairs(40)], "label": [0, 1] * 20, "patient": ["x", "y"] * 20}
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict(rows)
    options = {"rows": data, "group": "patient"}
    other, same = DiskStore(tmp_path / "other"), DiskStore(tmp_path / "same")
    shards(store, 2, 0, **options)
    shards(other, 2, 1, **options)
    with pytest.raises(InputError, match="numbered by its own key"):
        merge(store, "data", [other.root])
    same.root.mkdir()
    shutil.copy(store.root / "groups.key", same.root)
    shards(same, 2, 1, **options)
    merge(store, "data", [same.root])
    groups = store.open("data").groups
    assert groups is not None
    assert len(set(groups.tolist())) == 2
