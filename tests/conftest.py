"""Small datasets, backbones and stores that every test can use."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
from hypothesis import settings
from numpy.typing import NDArray
from PIL import Image

from probekit.cache import DiskStore
from probekit.encoding.cluster import Cluster
from probekit.values import EncodingSpec, Json

# the hub's client reads these when it is imported: no test may look for a network
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
# before these are imported: the shapes that they state are checked wherever a test goes
jaxtyping.install_import_hook(["probekit.linear.design"], "beartype.beartype")
# a busy neighbour must not fail a test
settings.register_profile("probekit", deadline=None)
settings.load_profile("probekit")


class PixelBackbone:
    """Counts what it encodes: the mean colour of a picture's cells, times a number that stands for weights."""

    kind, view, name = "image", "cells", "test:pixels"

    def __init__(self, *, scale: float = 1.0, cells: int = 4) -> None:
        self.scale, self.cells, self.encoded = scale, cells, 0
        self.fingerprint = hashlib.sha256(f"{scale}".encode()).hexdigest()
        self.preprocessing: dict[str, Json] = {"size": cells, "colour": "RGB"}

    def preprocess(self, sample: Any) -> NDArray[np.float32]:
        """The picture as a small array."""
        small = sample.convert("RGB").resize((self.cells, self.cells), Image.Resampling.BOX)
        return np.asarray(small, dtype=np.float32).reshape(-1) / np.float32(255)

    def encode(self, batch: Any) -> NDArray[np.float32]:
        """One vector per picture."""
        self.encoded += len(batch)
        return np.stack([np.asarray(item) for item in batch]) * np.float32(self.scale)


def picture(number: int, *, size: int = 12) -> Image.Image:
    """A picture that no other number gives."""
    pixels = np.random.default_rng(number).integers(0, 256, (size, size, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def pairs(count: int, *, first: int = 0, classes: int = 3) -> list[tuple[Image.Image, int]]:
    """Pictures and labels, in order."""
    return [(picture(first + number), (first + number) % classes) for number in range(count)]


def spec(**changes: Any) -> EncodingSpec:
    """A spec of nothing in particular."""
    fields: dict[str, Any] = {
        "backbone": "test:pixels",
        "weights": "0" * 64,
        "preprocessing": {"size": 4},
        "view": "cells",
    }
    return EncodingSpec(**{**fields, **changes})


def tree(root: Path) -> dict[str, str]:
    """Every file below a folder that is not a lock, with the sha256 of its bytes."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.name.startswith((".lock", ".work"))
    }


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    """An empty cache."""
    return DiskStore(tmp_path / "cache")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the user's cache or the network."""
    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path_factory.mktemp("default-cache")))


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Cluster]:
    """A Ray of this machine, started once for all tests that want one."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    with Cluster() as found:
        yield found
