"""Pictures made on the spot; the hub's library without a network and with a cache of its own."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

Encode = Callable[..., bytes]
Fill = Callable[..., None]


@pytest.fixture
def png() -> Encode:
    """The bytes of a small PNG of one gray value."""

    def encode(value: int, size: tuple[int, int] = (4, 3)) -> bytes:
        file = BytesIO()
        Image.new("L", size, value).save(file, "PNG")
        return file.getvalue()

    return encode


@pytest.fixture
def fill(png: Encode) -> Fill:
    """Write pictures of gray values 0, 1, ... to these names below a folder."""

    def write(root: Path, *names: str) -> None:
        for value, name in enumerate(names):
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(value))

    return write


@pytest.fixture(autouse=True)
def _no_hub(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    from huggingface_hub import constants

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("hf"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
