"""Each sample is encoded once, rows come in dataset order, and a bad sample harms only itself."""

from __future__ import annotations

import ast
import errno
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import probekit
from probekit.cache import DiskStore
from probekit.cache.memory import MemoryStore
from probekit.datasets.triggers import Square, trigger
from probekit.encoding.extract import ExtractProgress, extract, spec_of
from probekit.encoding.options import ExtractOptions
from probekit.errors import InputError, MismatchError, NotFoundError, SampleError, StorageError
from probekit.protocols import Sample
from tests.conftest import PixelBackbone, pairs, picture

CANARY = 6
"""Synthetic samples that a new entry costs: four, and two of them again."""


def expected(backbone: PixelBackbone, numbers: range | list[int]) -> NDArray[np.float32]:
    """The embeddings, one by one."""
    return np.stack([backbone.preprocess(picture(number)) * np.float32(backbone.scale) for number in numbers])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_rows_are_in_dataset_order(workers: int, batch_size: int) -> None:
    backbone = PixelBackbone()
    found = extract(backbone, pairs(50), num_workers=workers, batch_size=batch_size)
    np.testing.assert_array_equal(found.to_numpy(), expected(backbone, range(50)))
    assert found.labels.tolist() == [number % 3 for number in range(50)]
    assert backbone.encoded == 50 + CANARY


def test_the_public_name_is_this_function() -> None:
    assert probekit.extract is extract
    assert probekit.extract is extract  # the second look finds the same


def test_duplicates_are_encoded_once() -> None:
    backbone = PixelBackbone()
    found = extract(backbone, pairs(5) * 3)
    assert backbone.encoded == 5 + CANARY
    np.testing.assert_array_equal(found.to_numpy(), np.tile(expected(backbone, range(5)), (3, 1)))


def test_what_the_cache_holds_is_not_encoded_again(store: DiskStore) -> None:
    backbone = PixelBackbone()
    extract(backbone, pairs(20), store=store)
    seen: list[ExtractProgress] = []
    again = extract(backbone, pairs(20), store=store, progress=seen.append)
    assert (seen[-1].encoded, seen[-1].reused, seen[-1].rows) == (0, 20, 20)
    grown = extract(backbone, pairs(25), store=store, progress=seen.append)
    assert (seen[-1].encoded, seen[-1].reused) == (5, 20)
    np.testing.assert_array_equal(grown.to_numpy()[:20], again.to_numpy())


def test_ten_thousand_rows_under_new_names_and_a_thousand_new_ones(store: DiskStore, tmp_path: Path) -> None:
    """The numbers of the promise: identical content encodes nothing, new rows encode exactly themselves."""
    pixels = np.random.default_rng(0).integers(0, 256, (11_000, 4, 4), dtype=np.uint8)
    seen: list[ExtractProgress] = []
    backbone = PixelBackbone(cells=2)

    def run(images: NDArray[np.uint8]) -> ExtractProgress:
        np.savez(tmp_path / f"{len(seen)}.npz", images=images, labels=np.zeros(len(images), dtype=np.int64))
        extract(backbone, f"npz:{tmp_path / f'{len(seen)}.npz'}", store=store, progress=seen.append, num_workers=0)
        return seen[-1]

    assert run(pixels[:10_000]).encoded == len(np.unique(pixels[:10_000], axis=0)) == 10_000
    assert run(pixels[:10_000]).encoded == 0
    assert run(np.concatenate([pixels[:10_000], pixels[:10_000]])).encoded == 0
    last = run(pixels)
    assert (last.encoded, last.reused) == (1_000, 10_000)


def test_another_identity_is_another_entry(store: DiskStore) -> None:
    for backbone in (PixelBackbone(), PixelBackbone(scale=2), PixelBackbone(cells=2)):
        found = extract(backbone, pairs(5), store=store)
        assert backbone.encoded == 5 + CANARY
        np.testing.assert_array_equal(found.to_numpy(), expected(backbone, range(5)))
    half = extract(PixelBackbone(), pairs(5), store=store, dtype="float16")
    assert half.to_numpy().dtype == np.float16
    assert len(store.specs()) == 4


def test_a_trigger_is_part_of_the_identity_but_not_of_the_sample(store: DiskStore) -> None:
    backbone = PixelBackbone()
    clean = extract(backbone, pairs(5), store=store)
    poisoned = extract(backbone, pairs(5), store=store, trigger=Square(size=3))
    assert list(clean.ids) == list(poisoned.ids)
    assert clean.spec != poisoned.spec
    assert poisoned.spec.untriggered() == clean.spec
    want = np.stack([backbone.preprocess(Square(size=3)(picture(n))) for n in range(5)])
    np.testing.assert_array_equal(poisoned.to_numpy(), want)


def test_triggers_by_name() -> None:
    assert trigger("square:size=3,corner=top-left") == Square(size=3, corner="top-left")
    pasted = np.asarray(trigger("square:size=2,corner=top-left,margin=1,value=7")(Image.new("L", (5, 5))))
    assert [tuple(place) for place in np.argwhere(pasted == 7)] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    for text, error in (
        ("square:wide=3", InputError),
        ("square:size=x", InputError),
        ("star", NotFoundError),
    ):
        with pytest.raises(error):
            trigger(text)
    with pytest.raises(NotFoundError, match="py:"):
        trigger("py:nowhere:f")


class Broken:
    """A dataset of pictures one of which cannot be read."""

    name, kind, class_names = "test:broken", "image", ("a", "b", "c")

    def __init__(self, *, bad: int = 3, count: int = 8) -> None:
        self.bad, self.count = bad, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> Sample:
        def content() -> Any:
            if row == self.bad:
                raise SampleError("the file is truncated.")
            return picture(row)

        return Sample(f"row-{row}", row % 3, None, content)

    def __iter__(self) -> Iterator[Sample]:
        return (self[row] for row in range(self.count))


def test_a_bad_sample_is_raised_by_name_and_the_others_are_kept(store: DiskStore) -> None:
    with pytest.raises(SampleError, match=r'row-6.*truncated.*on_error="skip"'):
        extract(PixelBackbone(), Broken(bad=6), store=store, batch_size=2)
    seen: list[ExtractProgress] = []
    extract(PixelBackbone(), Broken(bad=6), store=store, batch_size=2, on_error="skip", progress=seen.append)
    assert (seen[-1].encoded, seen[-1].reused) == (1, 6)


def test_skip_leaves_the_row_out() -> None:
    found = extract(PixelBackbone(), Broken(), on_error="skip")
    assert list(found.names or ()) == [f"row-{row}" for row in range(8) if row != 3]
    assert [(skipped.row, skipped.name) for skipped in found.skipped] == [(3, "row-3")]


def test_mask_keeps_its_place(store: DiskStore) -> None:
    found = extract(PixelBackbone(), Broken(), on_error="mask", store=store)
    assert len(found) == 8
    assert found.masked is not None
    assert np.flatnonzero(found.masked).tolist() == [3]
    assert np.isnan(found.to_numpy()[3]).all()
    assert np.isfinite(found.to_numpy()[[0, 1, 2, 4, 5, 6, 7]]).all()
    assert store.open(found.digest).skipped == found.skipped


class Exploding(PixelBackbone):
    """Gives NaN for one picture."""

    def encode(self, batch: Any) -> NDArray[np.float32]:
        """One vector per picture, one of them bad."""
        vectors = super().encode(batch)
        bad = self.preprocess(picture(3))
        vectors[[np.array_equal(np.asarray(item), bad) for item in batch]] = np.nan
        return vectors


def test_a_vector_that_is_not_finite_names_its_sample() -> None:
    with pytest.raises(SampleError, match=r"row-3.*not finite"):
        extract(Exploding(), Broken(bad=-1))
    found = extract(Exploding(), Broken(bad=5), on_error="skip")
    assert [skipped.row for skipped in found.skipped] == [3, 5]
    assert len(found) == 6
    masked = extract(Exploding(), Broken(bad=5), on_error="mask").masked
    assert masked is not None
    assert np.flatnonzero(masked).tolist() == [3, 5]


class Small(PixelBackbone):
    """A device with room for eight pictures."""

    class OutOfMemoryError(RuntimeError):
        """What torch raises."""

    def encode(self, batch: Any) -> NDArray[np.float32]:
        """One vector per picture, if they fit."""
        if len(batch) > 8:
            raise self.OutOfMemoryError("no room.")
        return super().encode(batch)


def test_a_batch_of_our_choosing_shrinks_until_it_fits() -> None:
    found = extract(Small(), pairs(40))
    np.testing.assert_array_equal(found.to_numpy(), expected(PixelBackbone(), range(40)))
    with pytest.raises(InputError, match="smaller `batch_size`"):
        extract(Small(), pairs(40), batch_size=16)


def test_drift_is_refused(store: DiskStore) -> None:
    extract(PixelBackbone(), pairs(3), store=store)
    other = PixelBackbone(scale=1.01)
    other.fingerprint = PixelBackbone().fingerprint
    with pytest.raises(MismatchError, match=r"no longer gives the numbers.*0\.01"):
        extract(other, pairs(3), store=store)
    near = PixelBackbone(scale=1.00001)
    near.fingerprint = PixelBackbone().fingerprint
    extract(near, pairs(3), store=store)


def test_streams_have_no_length() -> None:
    class Stream(Broken):
        def __len__(self) -> int:
            raise TypeError("unknown")

        def __getitem__(self, row: int) -> Sample:
            raise AssertionError("a stream is only iterated")

        def __iter__(self) -> Iterator[Sample]:
            return (Broken(bad=-1)[row] for row in range(self.count))

    found = extract(PixelBackbone(), Stream(), batch_size=3)
    np.testing.assert_array_equal(found.to_numpy(), expected(PixelBackbone(), range(8)))


def test_bad_arguments() -> None:
    with pytest.raises(InputError, match="raise, skip, mask"):
        extract(PixelBackbone(), pairs(2), on_error="ignore")
    with pytest.raises(InputError, match="batch_size"):
        extract(PixelBackbone(), pairs(2), batch_size=0)
    with pytest.raises(InputError, match="float32"):
        extract(PixelBackbone(), pairs(2), dtype="int8")
    with pytest.raises(InputError, match="text"):
        extract(PixelBackbone(), ["some", "text"])


def test_a_store_in_memory_remembers(tmp_path: Path) -> None:
    memory, backbone = MemoryStore(), PixelBackbone()
    extract(backbone, pairs(4), store=memory)
    extract(backbone, pairs(4), store=memory)
    assert backbone.encoded == 4 + CANARY + 4
    assert [found.digest for found in memory.specs()] == [spec_of(backbone).digest]


def test_a_set_becomes_what_people_use() -> None:
    found = extract(PixelBackbone(), pairs(4))
    np.testing.assert_array_equal(found.to_torch().numpy(), found.to_numpy())
    table = found.to_dataset()
    assert table["id"][:] == list(found.ids)
    np.testing.assert_array_equal(np.stack(table.with_format("numpy")["embedding"][:]), found.to_numpy())


class Rows:
    """A backbone of arrays whose numbers depend on a secret that its fingerprint does not cover."""

    kind, view, name, preprocessing = "array", "output", "test:rows", {"given": "as it is"}
    fingerprint = "1" * 64

    def __init__(self, scale: float = 1.0, *, low: float = 0.0) -> None:
        self.scale, self.low = scale, low

    def preprocess(self, sample: Any) -> Any:
        """The row itself."""
        return sample

    def encode(self, batch: Any) -> NDArray[np.float32]:
        """The first three numbers, if they are not too small."""
        rows = np.stack(list(batch))[:, :3].astype(np.float32)
        if rows.min() < self.low:
            raise RuntimeError(f"{rows.min():.2f} is out of range")
        return rows * np.float32(self.scale)


def test_a_changed_backbone_of_arrays_is_refused(store: DiskStore) -> None:
    rows = list(np.random.default_rng(0).random((6, 5)))
    extract(Rows(), rows[:3], store=store)
    with pytest.raises(MismatchError, match="no longer gives the numbers"):
        extract(Rows(2.0), rows, store=store)
    assert len(extract(Rows(), rows, store=store)) == 6
    wider = list(np.random.default_rng(1).random((4, 7)).astype(np.float32))
    assert len(extract(Rows(2.0), wider, store=store)) == 4  # rows of another shape have a canary of their own
    assert len(extract(Rows(low=10.0), list(np.full((2, 5), 20, np.int64)), store=store)) == 2  # none can be made


def test_a_sample_on_which_encode_fails_is_named_and_can_be_left_out(store: DiskStore) -> None:
    rows = list(np.random.default_rng(0).random((9, 5)) + 0.5)
    rows[4] = -rows[4]
    with pytest.raises(SampleError, match=r"Sample '4' \(row 4\).*test:rows fails on it \(RuntimeError.*out of range"):
        extract(Rows(), rows, store=store, batch_size=3)
    seen: list[ExtractProgress] = []
    found = extract(Rows(), rows, store=store, batch_size=3, on_error="skip", progress=seen.append)
    assert [one.row for one in found.skipped] == [4]
    assert (seen[-1].encoded, seen[-1].reused) == (3, 5)  # what was encoded beside it is kept
    np.testing.assert_array_equal(found.to_numpy(), np.delete(np.stack(rows), 4, axis=0)[:, :3].astype(np.float32))
    masked = extract(Rows(), rows, on_error="mask").masked
    assert masked is not None
    assert np.flatnonzero(masked).tolist() == [4]
    with pytest.raises(InputError, match="No sample"):
        extract(Rows(), [rows[4]], on_error="skip")


class Random(PixelBackbone):
    """Draws noise, as dropout does."""

    noise = np.random.default_rng(0)

    def encode(self, batch: Any) -> NDArray[np.float32]:
        """Other numbers every time."""
        return super().encode(batch) * self.noise.random((len(batch), 1)).astype(np.float32)


def test_a_random_backbone_is_told(store: DiskStore) -> None:
    said: list[str] = []
    extract(Random(), pairs(3), store=store, note=said.append)
    assert [("is random" in text, "evaluation mode" in text) for text in said] == [(True, True)]
    with pytest.raises(MismatchError, match=r"is random.*or remove the entry"):
        extract(Random(), pairs(3), store=store, note=said.append)
    with pytest.warns(UserWarning, match="is random"):
        extract(Random(), pairs(3))
    extract(PixelBackbone(), pairs(3), note=said.append)
    assert len(said) == 1


def test_a_backbone_in_training_mode_is_told() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))

    def embed(rows: Any) -> Any:
        return net(torch.from_numpy(rows).float())

    said: list[str] = []
    rows = list(np.random.default_rng(0).random((4, 3)))
    extract(embed, rows, fingerprint="one", note=said.append)
    assert "in training mode (net)" in said[0]
    assert "depends on the rest of its batch" in said[1]
    net.eval()
    assert len(extract(embed, rows, fingerprint="two", note=said.append)) == 4
    assert len(said) == 2


def test_a_split_can_be_chosen_and_one_that_was_not_is_told(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / split / "a").mkdir(parents=True)
        picture(len(split)).save(tmp_path / split / "a" / "1.png")
    said: list[str] = []
    found = [extract(PixelBackbone(), f"folder:{tmp_path}", split=one, note=said.append) for one in ("train", "test")]
    assert said == []
    assert found[0].ids != found[1].ids
    assert extract(PixelBackbone(), f"folder:{tmp_path}", note=said.append).ids == found[0].ids
    assert "train is read" in said[0]


def test_a_window_is_part_of_the_spec_and_not_of_the_sample(store: DiskStore) -> None:
    scans = np.random.default_rng(0).integers(0, 4096, (3, 8, 8), dtype=np.uint16)
    said: list[str] = []
    plain = extract(PixelBackbone(), list(scans), store=store, note=said.append)
    assert "keep 17 grey levels. Give `window=(0, 40" in said[0]
    seen = extract(PixelBackbone(), list(scans), store=store, window=(0, 4095), note=said.append)
    assert len(said) == 1
    assert list(seen.ids) == list(plain.ids)
    assert seen.spec.preprocessing == {**plain.spec.preprocessing, "window": [0, 4095]}
    assert seen.to_numpy().max() > 0.5 > plain.to_numpy().max()
    assert extract(PixelBackbone(), list(scans), store=store, window=(0.0, 4095.0)).digest == seen.digest


def test_a_complete_set_on_a_read_only_cache_can_be_used(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests may run as root, who can write everywhere: so the system's answer is made up."""
    found = extract(PixelBackbone(), pairs(6), store=store)
    store.sets.give_name("mine", found.digest)
    store.save(found.spec, ["ab" * 32], np.ones((1, found.dimension), np.float32))  # left by an interrupted extraction

    def refuses(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    for place in ("probekit.files.settle", "filelock.FileLock.acquire", "pathlib.Path.mkdir"):
        monkeypatch.setattr(place, refuses)
    again = extract(PixelBackbone(), pairs(6), store=store)
    store.sets.give_name("mine", again.digest)
    np.testing.assert_array_equal(again.to_numpy(), expected(PixelBackbone(), range(6)))
    with pytest.raises(StorageError, match="read-only"):
        extract(PixelBackbone(), pairs(7), store=store)


def test_arguments_that_messages_of_an_extraction_name_are_its_own() -> None:
    """Whoever reads "give a smaller `batch_size`" can give it."""
    root = Path(probekit.__file__).parent
    files = [root / "encoding" / f"{name}.py" for name in ("extract", "extraction", "canary")]
    files += [root / "datasets" / name for name in ("folder.py", "pictures.py", "table.py")]
    files += [root / "backbones" / name for name in ("__init__.py", "python.py")]
    asked = re.compile(
        r"(?:[Gg]ive|[Cc]hoose another with|or another|with)(?: an?)?(?: smaller)? `([a-z_]+)(?:=[^`]*)?`"
    )
    texts = (
        one.value for path in files for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.Constant)
    )
    named = {name for text in texts if isinstance(text, str) for name in asked.findall(text)}
    known = {*inspect.signature(extract).parameters, *(one.name for one in fields(ExtractOptions))}
    assert {"split", "window", "batch_size", "device", "preprocess", "fingerprint"} <= named
    assert named <= known
    with pytest.raises(InputError, match="this machine has"):
        extract("pixels:4", pairs(2), device="cuda:9")
