"""The cache keeps rows, sets and names, and refuses what it cannot read."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit.arrays import texts
from probekit.cache import Cache
from probekit.cache.rows import StoredRows
from probekit.cache.store import default_root
from probekit.embeddings import EmbeddingSet, Encoding, Skipped
from probekit.errors import (
    CacheError,
    CorruptError,
    InputError,
    MismatchError,
    NotFoundError,
)
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


def test_saved_rows_are_known_and_read_in_any_order(cache: Cache) -> None:
    entry = cache.entry(encoding())
    entry.save(ids(1, 2), rows(1, 2))
    entry.save(ids(5), rows(5))
    known = Cache(cache.root).entry(encoding()).index()
    assert ids(2).tobytes() in known
    assert ids(3).tobytes() not in known
    np.testing.assert_array_equal(np.asarray(entry.rows(ids(5, 1, 5), 4)), rows(5, 1, 5))
    assert [found.encoding for found in cache.entries()] == [encoding()]


def test_encodings_do_not_mix(cache: Cache) -> None:
    save_in_pieces(cache, 1)
    assert ids(1).tobytes() not in cache.entry(encoding("other")).index()
    with pytest.raises(CorruptError):
        cache.entry(encoding("other")).rows(ids(1), 4)[:]


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_a_set_is_opened_as_it_was_saved(cache: Cache, dtype: str) -> None:
    original = embedding_set(
        4,
        2,
        2,
        9,
        of=encoding(dtype=dtype),
        columns={"client": texts("xyxz"), "key": texts(["n/é", "", "c", "日本"])},
        weights=np.array([1.0, 2.0, 0.5, 1.0]),
        skipped=(Skipped("broken.png", "no picture"),),
        source="./photos",
    )
    saved = cache.save("photos", original)
    for opened in (saved, Cache(cache.root).open("photos")):
        assert opened.digest == original.digest
        assert dict(opened.columns).keys() == {"client", "key"}
        assert opened.columns["key"].tolist() == ["n/é", "", "c", "日本"]
        assert opened.columns["client"].tolist() == ["x", "y", "x", "z"]
        assert opened.skipped == original.skipped
        assert opened.class_names == ("a", "b", "c")
        assert opened.source == "./photos"
        assert opened.encoding == original.encoding
        assert opened.rows.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(opened.to_numpy(), original.rows)
        np.testing.assert_array_equal(np.asarray(opened.labels), np.asarray(original.labels))
        np.testing.assert_array_equal(np.asarray(opened.row_weights), original.row_weights)


def test_targets_and_sets_without_labels(cache: Cache) -> None:
    targets = np.array([[0.5, 1.0], [2.0, -1.0]])
    original = embedding_set(1, 2, targets=targets, target_names=("x", "y"))
    opened = cache.save("targets", original)
    np.testing.assert_array_equal(np.asarray(opened.targets), targets)
    assert opened.target_names == ("x", "y")
    assert opened.labels is None
    bare = EmbeddingSet(rows(7), ids(7), encoding())
    assert cache.save("bare", bare).digest == bare.digest
    empty = EmbeddingSet(rows(), ids(), encoding())
    assert cache.save("empty", empty).to_numpy().shape == (0, 4)


def test_labels_of_another_integer_type_are_the_same_set(cache: Cache) -> None:
    original = embedding_set(1, 2)
    narrow = EmbeddingSet(
        original.rows,
        original.ids,
        original.encoding,
        labels=np.asarray(original.labels).astype(np.int32),  # type: ignore[arg-type]
        class_names=original.class_names,
        columns=original.columns,
    )
    assert cache.save("narrow", narrow).digest == original.digest


def test_sealing_turns_pieces_into_one_shard_that_is_not_copied(cache: Cache) -> None:
    save_in_pieces(cache, *range(6))
    entry = cache.entry(encoding())
    order = (3, 1, 0, 2, 4, 5)
    stored = cache.save("set", embedding_set(*order)).rows
    assert entry.pieces() == []
    assert len(entry.shards()) == 1
    assert stored[1:4].base is not None
    np.testing.assert_array_equal(stored[1:4], rows(1, 0, 2))
    assert stored[0:6].flags.aligned


def test_sealed_bytes_do_not_depend_on_how_rows_arrived(tmp_path: Path) -> None:
    caches = [Cache(tmp_path / name) for name in ("pieces", "single", "arrays")]
    for number in (7, 3, 0, 1, 2, 6, 5, 4):
        save_in_pieces(caches[0], number)
    caches[1].entry(encoding()).save(ids(*range(8)), rows(*range(8)))
    for cache in caches:
        embeddings = embedding_set(*range(8))
        if cache is not caches[2]:
            embeddings = EmbeddingSet(
                cache.entry(encoding()).rows(embeddings.ids, 4),
                embeddings.ids,
                embeddings.encoding,
                labels=embeddings.labels,
                class_names=embeddings.class_names,
                columns=embeddings.columns,
                source=embeddings.source,
            )
        cache.save("set", embeddings)
    trees = [result_files(cache.root) for cache in caches]
    assert trees[0] == trees[1] == trees[2]


def test_large_sets_are_cut_into_shards(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probekit.cache.entry.SHARD_BYTES", 3 * 4 * 4)
    opened = cache.save("set", embedding_set(*range(10)))
    assert len(shard_paths(cache)) == 4
    np.testing.assert_array_equal(opened.to_numpy(), rows(*range(10)))
    np.testing.assert_array_equal(opened.rows[2:5], rows(2, 3, 4))


def test_rows_are_stored_once(cache: Cache) -> None:
    cache.save("first", embedding_set(1, 2, 2, 3))
    cache.save("second", embedding_set(3, 4, 1))
    assert sorted(len(shard.ids) for shard in cache.entry(encoding()).shards()) == [1, 3]
    np.testing.assert_array_equal(cache.open("second").to_numpy(), rows(3, 4, 1))
    np.testing.assert_array_equal(cache.open("first").to_numpy(), rows(1, 2, 2, 3))


def test_pieces_of_another_extraction_survive_a_seal(cache: Cache) -> None:
    save_in_pieces(cache, 1, 2)
    cache.save("set", embedding_set(1))
    entry = cache.entry(encoding())
    assert [piece.ids.tolist() for piece in entry.pieces()] == [ids(2).tolist()]
    np.testing.assert_array_equal(np.asarray(entry.rows(ids(2, 1), 4)), rows(2, 1))


def test_source_and_backbone_are_those_asked_for_under_each_name(cache: Cache) -> None:
    cache.save("first", embedding_set(1, 2, source="./one"))
    other = encoding(backbone="./copy/of/net")
    cache.save("second", embedding_set(1, 2, source="./two", of=other))
    assert cache.open("first").source == "./one"
    assert cache.open("second").source == "./two"
    assert cache.open("first").encoding.backbone == "test:net"
    assert cache.open("second").encoding.backbone == "./copy/of/net"
    assert len(list((cache.root / "columns").iterdir())) == 1


def test_a_name_means_the_set_that_was_saved_last(cache: Cache) -> None:
    cache.save("set", embedding_set(1, 2))
    cache.save("set", embedding_set(3))
    np.testing.assert_array_equal(cache.open("set").to_numpy(), rows(3))
    assert cache.names() == ["set"]


def test_unknown_and_impossible_names(cache: Cache) -> None:
    cache.save("food-train", embedding_set(1))
    with pytest.raises(NotFoundError, match="food-train"):
        cache.open("food-trian")
    with pytest.raises(NotFoundError):
        cache.open("../cache")
    for name in ("../x", "", ".hidden", "a/b", "a" * 200):
        assert name not in cache
        with pytest.raises(InputError, match="--name"):
            cache.save(name, embedding_set(1))


def test_nothing_is_made_by_looking(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "none")
    assert cache.names() == []
    assert cache.entries() == []
    assert len(cache.entry(encoding()).index()) == 0
    assert not cache.root.exists()


def test_opening_reads_no_rows(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.save("set", embedding_set(1, 2))

    def fail(*arguments: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(StoredRows, "_gather", fail)
    monkeypatch.setattr("probekit.cache.entry.Entry.shards", fail)
    opened = cache.open("set")
    assert opened.rows.shape == (2, 4)
    assert list(opened.columns) == ["key"]
    assert opened.columns.get("client") is None


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PROBEKIT_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_root() == tmp_path / ".cache" / "probekit"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_root() == tmp_path / "xdg" / "probekit"
    monkeypatch.setenv("PROBEKIT_CACHE", "~/mine")
    assert Cache().root == tmp_path / "mine"


def test_backup_programs_recognize_the_folder(cache: Cache) -> None:
    cache.save("set", embedding_set(1))
    content = (cache.root / "CACHEDIR.TAG").read_bytes()
    assert content.startswith(b"Signature: 8a477f597d28d172789f06886806bc55")


@pytest.mark.parametrize("layout", [2, 99, None, "1"])
def test_a_newer_layout_is_refused(cache: Cache, layout: object) -> None:
    cache.save("set", embedding_set(1))
    (cache.root / "cache.json").write_text(json.dumps({"layout": layout}))
    with pytest.raises(CacheError, match="PROBEKIT_CACHE"):
        Cache(cache.root)


def test_a_cache_of_the_old_tree_is_refused(tmp_path: Path) -> None:
    (tmp_path / "probekit.json").write_text('{"schema": 1}')
    (tmp_path / "rows").mkdir()
    with pytest.raises(CacheError, match=r"before 0\.2"):
        Cache(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"columns": "../../x"},
        {"rows": "many"},
        {"encoding": None},
        {"source": None},
        {"class_names": ["a"]},
        {"skipped": 3},
    ],
)
def test_a_description_that_was_changed_is_refused(cache: Cache, change: dict[str, Any]) -> None:
    cache.save("set", embedding_set(1, 2))
    path = cache.root / "sets" / "set.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(CorruptError):
        cache.open("set")


def test_a_damaged_shard_is_named_and_other_encodings_stay_usable(cache: Cache) -> None:
    cache.save("sound", embedding_set(1, 2, of=encoding("other")))
    cache.save("set", embedding_set(1, 2))
    (shard,) = shard_paths(cache)
    shard.write_bytes(shard.read_bytes()[:-9])
    with pytest.raises(CorruptError, match=shard.stem):
        cache.open("set").to_numpy()
    np.testing.assert_array_equal(cache.open("sound").to_numpy(), rows(1, 2))


def test_another_width_for_one_encoding_is_refused(cache: Cache) -> None:
    save_in_pieces(cache, 1)
    wide = np.ones((1, 5), np.float32)
    with pytest.raises(MismatchError, match="width 4; found 5"):
        cache.entry(encoding()).save(ids(2), wide)
    with pytest.raises(MismatchError):
        cache.save("wide", EmbeddingSet(wide, ids(2), encoding()))
    assert "wide" not in cache


def test_canaries_are_kept_exactly_by_name(cache: Cache) -> None:
    entry = cache.entry(encoding())
    vectors = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)
    assert entry.canary() is None
    entry.keep_canary(vectors)
    entry.keep_canary(vectors[:2] * 3, "3x32x32")
    again = Cache(cache.root).entry(encoding())
    stored = again.canary()
    assert stored is not None
    assert stored.dtype == np.float32
    np.testing.assert_array_equal(stored, vectors)
    np.testing.assert_array_equal(again.canary("3x32x32"), vectors[:2] * 3)
    assert again.canary("1x8x8") is None
    damage(entry.folder / "canary.json", 3)
    with pytest.raises(CorruptError):
        entry.canary()


def test_leftovers_of_killed_processes_are_swept(cache: Cache) -> None:
    save_in_pieces(cache, 1)
    for folder in (cache.entry(encoding()).folder / "pieces", cache.root):
        (folder / ".aside-1-dead").write_bytes(b"half")
    save_in_pieces(Cache(cache.root), 2)
    assert not [path for path in cache.root.rglob("*") if path.name.startswith(".aside")]


def test_many_pieces_do_not_use_up_file_descriptors(cache: Cache) -> None:
    import resource

    save_in_pieces(cache, *range(40))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 20, limits[1]))
    try:
        matrix = cache.entry(encoding()).rows(ids(*range(40)), 4)
        np.testing.assert_array_equal(np.asarray(matrix), rows(*range(40)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_set_travels_to_another_process_without_its_rows(cache: Cache) -> None:
    opened = cache.save("set", embedding_set(*range(2000)))
    opened.rows[0]
    content = pickle.dumps(opened)
    assert rows(1500).tobytes() not in content
    again = pickle.loads(content)
    assert again.digest == opened.digest
    np.testing.assert_array_equal(again.to_numpy(), opened.to_numpy())


def test_saving_the_same_set_again_writes_nothing(cache: Cache) -> None:
    of = Encoding("net", {"size": (3, 4)})  # type: ignore[dict-item]
    cache.save("set", embedding_set(1, 2, of=of))
    times = {path: path.stat().st_mtime_ns for path in cache.root.rglob("*")}
    cache.save("set", embedding_set(1, 2, of=of))
    assert {path: path.stat().st_mtime_ns for path in cache.root.rglob("*")} == times


def test_importing_the_cache_is_light() -> None:
    code = "import sys, probekit.cache; print(*(set(sys.modules) & {'torch', 'pandas', 'scipy'}))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == ""
