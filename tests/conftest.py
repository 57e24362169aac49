"""Backbones, pictures and settings for every test."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# before the libraries that read these are imported
os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    OMP_NUM_THREADS="1",
    OPENBLAS_NUM_THREADS="1",
    MKL_NUM_THREADS="1",
    TOKENIZERS_PARALLELISM="false",
    RAY_AUTH_MODE="token",
    RAY_AUTH_TOKEN=64 * "0",  # Ray reads it once a process
    RAY_USAGE_STATS_ENABLED="0",
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",
    NO_COLOR="1",
    COLUMNS="120",
)

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray
from PIL import Image

from probekit.arrays import Json

# a busy machine must not fail a test, nor a lucky draw a submission; fixtures that change an
# environment variable are no harm
settings.register_profile(
    "probekit",
    deadline=None,
    max_examples=25,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("probekit")


class CountingBackbone:
    """The mean colors of a picture's cells times `scale`; counts the pictures that it encoded."""

    kind = "image"

    def __init__(self, *, scale: float = 1.0, cells: int = 4, name: str = "test:cells") -> None:
        self.name = name
        self.scale = scale
        self.cells = cells
        self.encoded = 0
        weights = hashlib.sha256(repr(scale).encode()).hexdigest()
        self.identity: Mapping[str, Json] = {"weights": weights, "size": cells}
        self.views: Mapping[str, int] = {"cells": 3 * cells * cells}

    def prepare(self, content: Any) -> NDArray[np.float32]:
        small = content.convert("RGB").resize((self.cells, self.cells), Image.Resampling.BOX)
        return np.asarray(small, dtype=np.float32).reshape(-1) / np.float32(255)

    def encode(self, batch: Sequence[Any]) -> NDArray[np.float32]:
        self.encoded += len(batch)
        return np.stack([np.asarray(item) for item in batch]) * np.float32(self.scale)


@pytest.fixture
def pixel_backbone() -> CountingBackbone:
    return CountingBackbone()


@pytest.fixture
def make_backbone() -> Callable[..., CountingBackbone]:
    """CountingBackbone(scale=1.0, cells=4, name="test:cells")."""
    return CountingBackbone


def make_picture(seed: int, size: int = 12) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture
def picture() -> Callable[..., Image.Image]:
    """picture(seed, size=12): a random picture, another one for each seed."""
    return make_picture


@pytest.fixture
def picture_folder(tmp_path: Path) -> Callable[..., Path]:
    """picture_folder(name, count=12, classes=3, first=0): class folders of PNG files."""

    def make(name: str = "photos", count: int = 12, classes: int = 3, first: int = 0) -> Path:
        for seed in range(first, first + count):
            folder = tmp_path / name / f"class{seed % classes}"
            folder.mkdir(parents=True, exist_ok=True)
            make_picture(seed).save(folder / f"{seed:04}.png")
        return tmp_path / name

    return make


@pytest.fixture
def file_digests() -> Callable[[Path], dict[str, str]]:
    """file_digests(root): the sha256 of every file below a folder that is not a lock."""

    def digests(root: Path) -> dict[str, str]:
        return {
            str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(root.rglob("*"))
            if path.is_file() and not path.name.startswith((".lock", ".work"))
        }

    return digests


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a default cache of its own."""
    folder = tmp_path_factory.mktemp("default-cache")
    monkeypatch.setenv("PROBEKIT_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def single_thread() -> None:
    """One thread for torch, where a test imported it: two cores are shared by workers."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
