"""Pictures made on the spot, and a watch on decoding."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import datasets
import pytest
from PIL import Image

from probekit.datasets import pictures

Encoded = Callable[..., bytes]


@pytest.fixture
def png() -> Encoded:
    """A function that gives the bytes of a small PNG of one grey value."""

    def encoded(value: int, size: tuple[int, int] = (4, 3)) -> bytes:
        file = BytesIO()
        Image.new("L", size, value).save(file, "PNG")
        return file.getvalue()

    return encoded


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Everything that is handed to the decoder from now on."""
    seen: list[Any] = []
    original = pictures.decode

    def watched(source: bytes | Path) -> Image.Image:
        seen.append(source)
        return original(source)

    monkeypatch.setattr(pictures, "decode", watched)
    return seen


@pytest.fixture(autouse=True)
def _own_library_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Hugging Face's library keep its copies in a folder of the test, and never ask the network."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("hf"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
