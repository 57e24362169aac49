"""Verify finds every damaged byte, says what to do, and repair makes the rest usable."""

from __future__ import annotations

from pathlib import Path

import pytest

from probekit.cache import DiskStore
from probekit.cache.audit import explain, usage, verify
from tests.cache.test_disk import ids, made
from tests.conftest import spec


def _shard(store: DiskStore) -> Path:
    return next((store.entry(spec()).folder / "shards").iterdir())


def test_a_sound_cache_has_no_problems(store: DiskStore) -> None:
    store.seal(made(store, [1, 2, 3], clients=["a", "b", "a"]))
    problems, files = verify(store)
    assert problems == []
    assert files == 3


@pytest.mark.parametrize("place", [3, 200, -1])
def test_one_changed_byte_is_found(store: DiskStore, place: int) -> None:
    store.seal(made(store, [1, 2, 3]))
    path = _shard(store)
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    problems, _ = verify(store)
    assert any(path.stem in problem.where and "--repair" in problem.remedy for problem in problems)


@pytest.mark.parametrize("name", ["set.json", "columns"])
def test_a_changed_set_is_found(store: DiskStore, name: str) -> None:
    digest = store.seal(made(store, [1, 2, 3], source="here")).digest
    folder = store.root / "sets" / digest
    path = next(path for path in folder.iterdir() if (path.suffix == ".json") == (name == "set.json"))
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"rows": 3', b'"rows": 2') if name == "set.json" else data[:-1] + b"\1")
    problems, _ = verify(store)
    assert [problem.where for problem in problems] == [f"sets/{digest}"]


def test_repair_sets_the_shard_aside_and_the_rows_can_be_made_again(store: DiskStore) -> None:
    digest = store.seal(made(store, [1, 2, 3])).digest
    path = _shard(store)
    path.write_bytes(path.read_bytes()[:-1])
    assert verify(store, repair=True)[0]
    assert ids(1)[0] not in store.known(spec())
    assert (store.root / "damaged" / spec().digest / path.name).exists()
    store.seal(made(store, [1, 2, 3]))
    assert verify(store)[0] == []
    assert store.open(digest).digest == digest


def test_explain_names_the_field_that_differs() -> None:
    assert "holds no entry" in explain(spec(), [])[0]
    assert "exactly this" in explain(spec(), [spec(view="x"), spec()])[0]
    lines = explain(spec(preprocessing={"size": 9}), [spec(view="x", dtype="float16"), spec()])
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["preprocessing"]
    assert '{"size":9}' in lines[1]


def test_usage_counts_rows(store: DiskStore) -> None:
    store.seal(made(store, [1, 2, 3]))
    made(store, [1, 7])
    (found,) = usage(store)
    assert (found.rows, found.unsealed) == (3, 1)
    assert found.size > 0
