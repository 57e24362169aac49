"""Each sample is encoded once, rows come in dataset order, a bad sample harms only itself."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.cache import Cache, Memo
from probekit.cache.erasure import Tombstones, remove_samples
from probekit.errors import InputError, MismatchError, SampleError, StorageError
from probekit.extraction import ExtractOptions
from probekit.extraction.extract import Extracted, extract, extract_dataset
from tests.extraction import samples

CANARIES = 4 + 2
"""A new entry encodes four synthetic samples, and two of them again."""


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def run(cache: Cache, backbone: Any, numbers: Sequence[int], **settings: Any) -> Extracted:
    broken = settings.pop("broken", ())
    return extract_dataset(
        samples.Pictures(numbers, broken),
        backbone,
        name="set",
        source="test",
        cache=cache,
        options=ExtractOptions(**settings),
    )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_rows_are_in_dataset_order(cache: Cache, workers: int, batch_size: int) -> None:
    backbone = samples.GridBackbone()
    rows = run(cache, backbone, range(50), workers=workers, batch_size=batch_size).sets["output"]
    np.testing.assert_array_equal(rows.to_numpy(), samples.expected(range(50)))
    assert rows.labels is not None
    assert rows.labels.tolist() == [number % 3 for number in range(50)]
    assert rows.columns["key"].tolist()[:2] == ["row-0", "row-1"]
    assert rows.columns["client"].tolist()[:2] == ["c0", "c1"]
    assert backbone.encoded == 50 + CANARIES


def test_duplicates_are_encoded_once(cache: Cache) -> None:
    backbone = samples.GridBackbone()
    rows = run(cache, backbone, [*range(5), *range(5)]).sets["output"]
    assert backbone.encoded == 5 + CANARIES
    np.testing.assert_array_equal(rows.to_numpy(), np.tile(samples.expected(range(5)), (2, 1)))


def test_what_is_cached_is_not_encoded_again(cache: Cache) -> None:
    first = run(cache, samples.GridBackbone(), range(20))
    assert (first.encoded, first.reused) == (20, 0)
    again = run(cache, samples.GridBackbone(), range(20))
    assert (again.encoded, again.reused) == (0, 20)
    grown = run(cache, samples.GridBackbone(), range(25))
    assert (grown.encoded, grown.reused) == (5, 20)
    np.testing.assert_array_equal(
        grown.sets["output"].to_numpy()[:20], first.sets["output"].to_numpy()
    )


def test_another_identity_or_dtype_is_another_entry(cache: Cache) -> None:
    for scale in (1.0, 2.0):
        rows = run(cache, samples.GridBackbone(scale), range(5)).sets["output"]
        np.testing.assert_array_equal(rows.to_numpy(), samples.expected(range(5), scale))
    half = run(cache, samples.GridBackbone(), range(5), dtype="float16").sets["output"]
    assert half.to_numpy().dtype == np.float16
    assert len(cache.entries()) == 3


def test_broken_pictures_are_skipped_and_named(cache: Cache) -> None:
    rows = run(cache, samples.GridBackbone(), range(8), broken=[3]).sets["output"]
    assert rows.columns["key"].tolist() == [f"row-{number}" for number in range(8) if number != 3]
    assert [skipped.key for skipped in rows.skipped] == ["row-3"]
    assert cache.open("set").skipped == rows.skipped


def test_on_error_raise_names_the_sample_and_keeps_the_others(cache: Cache) -> None:
    settings: dict[str, Any] = {"broken": [6], "batch_size": 2}
    with pytest.raises(SampleError, match=r"row-6.*--on-error"):
        run(cache, samples.GridBackbone(), range(8), on_error="raise", **settings)
    again = run(cache, samples.GridBackbone(), range(8), **settings)
    assert (again.encoded, again.reused) == (1, 6)


def test_nothing_usable_is_an_error(cache: Cache) -> None:
    with pytest.raises(InputError, match="row-3"):
        run(cache, samples.GridBackbone(), [3], broken=[3])


class Failing(samples.GridBackbone):
    """Raises, or gives NaN, for one picture."""

    def __init__(self, *, nan: bool) -> None:
        super().__init__()
        self.nan = nan

    def encode(self, batch: Sequence[Any]) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = super().encode(batch)
        bad = (np.stack(batch) == self.prepare(samples.picture(3))).all(axis=1)
        if bad.any() and not self.nan:
            raise RuntimeError("out of range")
        vectors[bad] = np.nan
        return vectors


@pytest.mark.parametrize("nan", [True, False])
def test_a_sample_on_which_encode_fails_harms_only_itself(cache: Cache, nan: bool) -> None:
    rows = run(cache, Failing(nan=nan), range(9), batch_size=4).sets["output"]
    assert [skipped.key for skipped in rows.skipped] == ["row-3"]
    retained = [number for number in range(9) if number != 3]
    np.testing.assert_array_equal(rows.to_numpy(), samples.expected(retained))
    with pytest.raises(SampleError, match="row-3"):
        run(Cache(cache.root / "b"), Failing(nan=nan), range(9), batch_size=4, on_error="raise")


class SmallDevice(samples.GridBackbone):
    """A device with room for eight pictures."""

    class OutOfMemoryError(RuntimeError):
        """As torch calls it."""

    def encode(self, batch: Sequence[Any]) -> NDArray[np.float32]:
        if len(batch) > 8:
            raise self.OutOfMemoryError("no room")
        vectors: NDArray[np.float32] = super().encode(batch)
        return vectors


def test_a_default_batch_shrinks_until_it_fits(cache: Cache) -> None:
    rows = run(cache, SmallDevice(), range(40)).sets["output"]
    np.testing.assert_array_equal(rows.to_numpy(), samples.expected(range(40)))
    with pytest.raises(InputError, match="--batch-size"):
        run(Cache(cache.root / "b"), SmallDevice(), range(40), batch_size=16)


def test_drift_is_refused(cache: Cache) -> None:
    run(cache, samples.GridBackbone(), range(3))
    run(cache, samples.GridBackbone(hidden_scale=1.00001), range(3))
    with pytest.raises(MismatchError, match=r"cache rm"):
        run(cache, samples.GridBackbone(hidden_scale=1.01), range(3))


class Noisy(samples.GridBackbone):
    """Draws noise, as dropout does."""

    generator = np.random.default_rng(0)

    def encode(self, batch: Sequence[Any]) -> NDArray[np.float32]:
        noise = self.generator.random((len(batch), 1)).astype(np.float32)
        vectors: NDArray[np.float32] = super().encode(batch) * noise
        return vectors


class Mixing(samples.GridBackbone):
    """Subtracts the batch's mean, as batch normalization in training mode does."""

    def encode(self, batch: Sequence[Any]) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = super().encode(batch)
        return vectors - vectors.mean(axis=0)


@pytest.mark.parametrize("backbone", [Noisy, Mixing])
def test_random_and_mixing_backbones_are_refused(cache: Cache, backbone: type) -> None:
    with pytest.raises(InputError, match="eval"):
        run(cache, backbone(), range(3))


class WrongShape(samples.GridBackbone):
    """Declares another width than it gives."""

    @property
    def views(self) -> dict[str, int]:
        return {"output": 7}


class NotResizing(samples.GridBackbone):
    """Gives pictures of different sizes."""

    def prepare(self, content: Any) -> NDArray[np.float32]:
        return np.asarray(content, np.float32).ravel()


@pytest.mark.parametrize(("backbone", "clue"), [(WrongShape, "48"), (NotResizing, "resize")])
def test_a_backbone_of_wrong_shapes_is_explained(cache: Cache, backbone: type, clue: str) -> None:
    with pytest.raises(InputError, match=clue):
        run(cache, backbone(), range(3))


class TwoViews(samples.GridBackbone):
    """Two tensors of one pass."""

    @property
    def views(self) -> dict[str, int]:
        return {"layer:0": 48, "layer:1": 48}

    def encode(self, batch: Sequence[Any]) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = super().encode(batch)
        return np.hstack([vectors, 2 * vectors])


def test_all_views_of_one_pass_are_kept(cache: Cache) -> None:
    backbone = TwoViews()
    extracted = run(cache, backbone, range(6))
    assert backbone.encoded == 6 + CANARIES
    second = cache.open(extracted.names["layer:1"])
    np.testing.assert_array_equal(second.to_numpy(), samples.expected(range(6), 2))
    assert not second.encoding.same_space(extracted.sets["layer:0"].encoding)


def test_shards_give_the_bytes_of_a_single_extraction(cache: Cache, tmp_path: Path) -> None:
    run(cache, samples.GridBackbone(), range(50), batch_size=8)
    shared = Cache(tmp_path / "shared")
    for number in range(3):
        run(shared, samples.GridBackbone(), range(50), batch_size=8, shard=(number, 3))
    assert shared.names() == []
    assembled = run(shared, samples.GridBackbone(), range(50), batch_size=8)
    assert (assembled.encoded, assembled.reused) == (0, 50)
    np.testing.assert_array_equal(shared.open("set").to_numpy(), cache.open("set").to_numpy())


def test_too_little_disk_is_seen_before_the_work(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(cache.root.parent)
    monkeypatch.setattr(
        "probekit.extraction.extract.shutil.disk_usage", lambda folder: usage._replace(free=100)
    )
    backbone = samples.GridBackbone()
    with pytest.raises(StorageError, match="float16"):
        run(cache, backbone, range(20))
    assert backbone.encoded <= CANARIES
    monkeypatch.undo()
    run(cache, backbone, range(20))
    monkeypatch.setattr(
        "probekit.extraction.extract.shutil.disk_usage", lambda folder: usage._replace(free=100)
    )
    assert run(cache, backbone, range(20)).reused == 20  # which needs no room


@pytest.mark.parametrize(
    "settings",
    [{"on_error": "ignore"}, {"batch_size": 0}, {"dtype": "int8"}, {"shard": (4, 4)}],
)
def test_bad_options(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        ExtractOptions(**settings)


def test_unchanged_files_are_not_decoded_again(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "photos"
    old = time.time() - 60
    for number in range(6):
        path = folder / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        samples.picture(number).save(path)
        os.utime(path, (old, old))
    # a file's change time cannot be set: wait until it counts as settled
    monkeypatch.setattr("probekit.cache.memo.SETTLED_NANOSECONDS", 0)
    options = ExtractOptions(workers=0)
    first = extract(folder, samples.GridBackbone(), cache=cache, options=options)
    assert len(first) == 6
    opened = []
    original = samples.Image.open
    monkeypatch.setattr(
        samples.Image, "open", lambda *a, **k: opened.append(a) or original(*a, **k)
    )
    again = extract(folder, samples.GridBackbone(), cache=Cache(cache.root), options=options)
    assert opened == []
    np.testing.assert_array_equal(np.asarray(first.ids), np.asarray(again.ids))
    readings = []
    read_memo = Memo._read
    monkeypatch.setattr(Memo, "_read", lambda memo: readings.append(os.getpid()) or read_memo(memo))
    workers = ExtractOptions(workers=2, batch_size=1)
    extract(folder, samples.GridBackbone(), cache=Cache(cache.root), options=workers)
    assert readings == [os.getpid()]  # workers inherit it
    samples.picture(99).save(folder / "a" / "0.png")
    changed = extract(folder, samples.GridBackbone(), cache=Cache(cache.root), options=options)
    assert len(opened) == 1
    assert (np.asarray(changed.ids) != np.asarray(again.ids)).any()


def test_erased_samples_stay_out(cache: Cache) -> None:
    """Neither encoded nor named again, and said."""
    first = run(cache, samples.GridBackbone(), range(10)).sets["output"]
    remove_samples(cache, first.ids[[2, 5]])
    again = run(cache, samples.GridBackbone(), range(12))
    left = [number for number in range(12) if number not in (2, 5)]
    np.testing.assert_array_equal(again.sets["output"].to_numpy(), samples.expected(left))
    assert again.encoded == 2
    assert again.sets["output"].skipped == ()
    assert len(again.notes) == 1
    assert not Tombstones.read(cache).holds(again.sets["output"].ids).any()
