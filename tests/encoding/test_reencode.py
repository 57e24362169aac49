"""Rows encoded again are what was kept; a changed row or sample is seen."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from probekit.cache import DiskStore
from probekit.datasets.triggers import Square
from probekit.encoding.extract import extract
from probekit.encoding.reencode import reencode, reopen
from probekit.encoding.thumbnails import thumbnails
from probekit.errors import MismatchError


def colours(samples: list[NDArray[np.float32]]) -> NDArray[np.float64]:
    """A function as a backbone: the mean colour of each half of a picture."""
    arrays = [np.asarray(sample, dtype=float) for sample in samples]
    return np.stack([np.concatenate([a[: len(a) // 2].mean((0, 1)), a[len(a) // 2 :].mean((0, 1))]) for a in arrays])


NAME = "py:tests.encoding.test_reencode:colours"


@pytest.fixture
def source(tmp_path: Path) -> str:
    """Twenty pictures, and eight for testing."""
    pixels = np.random.default_rng(0).integers(0, 256, (28, 6, 6, 3), dtype=np.uint8)
    labels = np.arange(28) % 2
    arrays = {"train_images": pixels[:20], "test_images": pixels[20:]}
    np.savez(tmp_path / "p.npz", **arrays, train_labels=labels[:20], test_labels=labels[20:])  # type: ignore[arg-type]
    return f"npz:{tmp_path / 'p.npz'}"


def test_a_sound_set_passes_and_a_changed_row_does_not(store: DiskStore, source: str) -> None:
    found = extract(NAME, reopen(f"{source}[test]"), store=store, trigger=Square(size=2))
    assert found.source == f"{source}[test]"
    outcome = reencode(found, count=5, dataset=None, seed=1)
    assert (outcome.rows, outcome.changed_samples, outcome.passed) == (5, 0, True)
    assert outcome.largest_error < 1e-6
    moved = np.array(found.to_numpy())
    moved[3] *= 1.01
    worse = reencode(replace(found, embeddings=moved), count=8, dataset=None, seed=1)
    assert not worse.passed
    assert worse.largest_error == pytest.approx(0.01, rel=0.02)


def test_a_changed_sample_is_seen(store: DiskStore, source: str) -> None:
    found = extract(NAME, reopen(f"{source}[train][:9]"), store=store)
    assert len(found) == 9
    outcome = reencode(found, count=9, dataset=f"{source}", seed=0)
    assert outcome.passed
    path = Path(source.removeprefix("npz:"))
    arrays = dict(np.load(path))
    arrays["train_images"][4] ^= 1
    np.savez(path, **arrays)
    assert reencode(found, count=9, dataset=None, seed=0).changed_samples == 1


def test_another_backbone_is_refused(store: DiskStore, source: str) -> None:
    found = extract(NAME, reopen(f"{source}[test]"), store=store)
    other = replace(found, spec=replace(found.spec, weights="0" * 64))
    with pytest.raises(MismatchError, match="weights: wanted"):
        reencode(other, count=1, dataset=None, seed=0)


def test_scans_are_seen_again_through_their_window(store: DiskStore, tmp_path: Path) -> None:
    scans = np.random.default_rng(0).integers(0, 4096, (6, 6, 6), dtype=np.uint16)
    np.savez(tmp_path / "scans.npz", images=scans, labels=np.arange(6) % 2)
    found = extract(NAME, f"npz:{tmp_path / 'scans.npz'}", store=store, window=(0, 4095))
    outcome = reencode(found, count=6, dataset=None, seed=0)
    assert (outcome.changed_samples, outcome.passed) == (0, True)
    shown = Image.open(BytesIO(thumbnails(found, [2])[found.ids[2]]))
    assert (
        np.asarray(shown)[..., 0].tolist() == np.floor(scans[2].astype(float) * 255 / 4095 + 0.5).astype(int).tolist()
    )
