"""Pictures per second of an extraction from JPEGs on disk, against loops that keep nothing.

Both sides run in this process under the same settings, with the allocator as Python leaves it. The command also
tells glibc to keep freed memory; this measurement does without, as it would serve both sides.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _measure import finish, race, report
from PIL import Image, ImageFilter

import probekit
from probekit.cache import DiskStore

BATCH, SIZE = 32, 224
VIT, LITE = "open_clip:ViT-B-32/random", "packaged:efficientnet-lite0"
VIT_PICTURES, LITE_PICTURES = 192, 192


def draw(folder: Path, pictures: int) -> list[Path]:
    """Write JPEGs that cost what photographs cost: smooth shapes with some grain."""
    random, paths = np.random.default_rng(0), []
    for number in range(pictures):
        coarse = Image.fromarray(random.integers(0, 256, (9, 9, 3), dtype=np.uint8))
        smooth = coarse.resize((SIZE, SIZE), Image.Resampling.BICUBIC).filter(ImageFilter.GaussianBlur(2))
        grain = random.normal(0, 6, (SIZE, SIZE, 1))
        pixels = np.clip(np.asarray(smooth, dtype=np.float64) + grain, 0, 255).astype(np.uint8)
        path = folder / f"class{number % 2}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, quality=90)
        paths.append(path)
    return paths


def extraction(encoder: Any, pictures: Path, scratch: Path) -> Callable[[], None]:
    """The extraction that `probekit extract` runs, into a new cache each time."""
    number = count()

    def run() -> None:
        store = DiskStore(scratch / f"{encoder.view}-{next(number)}")
        made = probekit.extract(encoder, f"folder:{pictures}", store=store, batch_size=BATCH)
        assert len(made) == len(list(pictures.rglob("*.jpg")))

    return run


def bare(encoder: Any, paths: list[Path]) -> Callable[[], None]:
    """The model alone, on batches that were decoded and preprocessed before the clock started."""
    ready = torch.stack([encoder.preprocess(Image.open(path)) for path in paths])

    def run() -> None:
        with torch.inference_mode():
            for start in range(0, len(ready), BATCH):
                encoder.module(ready[start : start + BATCH])

    return run


def plain(encoder: Any, paths: list[Path]) -> Callable[[], None]:
    """The loop that people write: decode, preprocess and encode in one process."""

    def run() -> None:
        with torch.inference_mode():
            for start in range(0, len(paths), BATCH):
                some = [encoder.preprocess(Image.open(path)) for path in paths[start : start + BATCH]]
                encoder.module.extract_features(torch.stack(some)).mean((2, 3))

    return run


def measure(name: str, *, pictures: int, against: str, bar: float) -> None:
    """One backbone against one loop, after a few pictures that warm both up."""
    loop = {"the bare model": bare, "a plain loop": plain}[against]
    encoder: Any = probekit.backbone(name)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        few, paths = draw(root / "few", BATCH), draw(root / "pictures", pictures)
        extraction(encoder, root / "few", root / "warm")()
        loop(encoder, few)()
        ours, theirs = race(
            extraction(encoder, root / "pictures", root / "caches"),
            loop(encoder, paths),
            repeats=2,
            choose=min,
        )
    title = f"extract {name}, over {against}"
    report(title, pictures / ours, pictures / theirs, bar=bar, unit="pictures per second", batch=BATCH)


if __name__ == "__main__":
    measure(VIT, pictures=VIT_PICTURES, against="the bare model", bar=0.95)
    measure(LITE, pictures=LITE_PICTURES, against="a plain loop", bar=1.0)
    finish()
