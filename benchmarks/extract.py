"""Extraction of JPEGs on disk against the bare model, and given again against decoding alone.

Both sides run in this process under the same settings, interleaved.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import torch
from _measure import finish, race, report
from PIL import Image

from probekit.backbones import load_backbone
from probekit.backbones.backbone import Backbone
from probekit.cache import Cache
from probekit.extraction import ExtractOptions
from probekit.extraction.extract import extract

BATCH = 32
SIZE = 224
PICTURES = 192
FILES = 10_000


def draw(folder: Path, pictures: int, size: int) -> list[Path]:
    """JPEGs that cost what photographs cost: smooth shapes with some grain."""
    random = np.random.default_rng(0)
    paths = []
    for number in range(pictures):
        coarse = Image.fromarray(random.integers(0, 256, (9, 9, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((size, size), Image.Resampling.BICUBIC), np.int16)
        grain = random.integers(-10, 11, (size, size, 1), dtype=np.int16)
        path = folder / f"class{number % 2}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8)).save(path, quality=90)
        paths.append(path)
    return paths


def random_vit(folder: Path) -> str:
    """open_clip's ViT-B-32 with random weights, saved as a checkpoint."""
    import probekit.backbones.open_clip  # noqa: F401, I001  which lets open_clip be imported
    import open_clip

    torch.manual_seed(0)
    model = open_clip.create_model("ViT-B-32")
    folder.mkdir()
    torch.save(model.state_dict(), folder / "vit.pt")
    return f"open_clip:ViT-B-32/{folder / 'vit.pt'}"


def extraction(backbone: Backbone, pictures: Path, scratch: Path) -> Callable[[], None]:
    numbers = count()

    def run() -> None:
        cache = Cache(scratch / str(next(numbers)))
        extract(pictures, backbone, cache=cache, options=ExtractOptions(batch_size=BATCH))

    return run


def bare_model(backbone: Backbone, paths: list[Path]) -> Callable[[], None]:
    """The model alone, on pictures that were prepared before the clock started."""
    prepared = [backbone.prepare(Image.open(path).convert("RGB")) for path in paths]

    def run() -> None:
        for start in range(0, len(prepared), BATCH):
            backbone.encode(prepared[start : start + BATCH])

    return run


def measure_extraction(root: Path) -> None:
    backbone = load_backbone(random_vit(root / "vit"))
    paths = draw(root / "pictures", PICTURES, SIZE)
    draw(root / "few", BATCH, SIZE)
    extraction(backbone, root / "few", root / "warm")()
    ours, theirs = race(
        extraction(backbone, root / "pictures", root / "caches"),
        bare_model(backbone, paths),
        repeats=3,
        choose=min,
    )
    report("extract ViT-B-32, pictures per second over the bare model",
           PICTURES / ours, PICTURES / theirs, bar=0.9)  # fmt: skip


def measure_again(root: Path) -> None:
    """An extraction given again against decoding the same files by the same number of workers."""
    paths = draw(root / "many", FILES, SIZE)
    cache = Cache(root / "cache")
    backbone = load_backbone("pixels:8")
    time.sleep(2.5)  # files count as unchanged when they are two seconds old
    extract(root / "many", backbone, cache=cache)

    def again() -> None:
        extract(root / "many", backbone, cache=Cache(cache.root))

    def decode() -> None:
        with torch.multiprocessing.get_context("fork").Pool(len(os.sched_getaffinity(0))) as pool:
            pool.map(_decode, paths, chunksize=64)

    ours, theirs = race(again, decode, repeats=3)
    report("10,000 unchanged files, decoding over an extraction given again",
           theirs, ours, bar=5.0)  # fmt: skip


def _decode(path: Path) -> int:
    return int(np.asarray(Image.open(path).convert("RGB")).shape[0])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        measure_extraction(Path(folder))
        measure_again(Path(folder))
    finish()
