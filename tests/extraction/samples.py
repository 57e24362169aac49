"""A backbone that counts what it encodes, and datasets of small pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from probekit.data.dataset import Sample
from probekit.errors import SampleError


def picture(number: int) -> Image.Image:
    pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@dataclass
class GridBackbone:
    """The picture shrunk to 4 x 4, times a scale."""

    scale: float = 1.0
    hidden_scale: float = 1.0
    encoded: int = 0
    name: str = "test:grid"
    kind: str = "image"

    @property
    def identity(self) -> dict[str, Any]:
        return {"test": "grid", "scale": self.scale}

    @property
    def views(self) -> dict[str, int]:
        return {"output": 48}

    def prepare(self, content: Any) -> NDArray[np.float32]:
        return np.asarray(content.resize((4, 4), Image.Resampling.BOX), np.float32).ravel() / 255

    def encode(self, batch: Sequence[Any]) -> NDArray[np.float32]:
        self.encoded += len(batch)
        return np.stack(batch) * np.float32(self.scale * self.hidden_scale)


@dataclass
class Pictures:
    """Pictures by number, some of which cannot be read."""

    numbers: Sequence[int]
    broken: Sequence[int] = ()
    name: str = "test:pictures"
    kind: str = "image"
    class_names: tuple[str, ...] = ("a", "b", "c")
    target_names: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Sample:
        number = self.numbers[index]

        def content() -> Image.Image:
            if number in self.broken:
                raise SampleError("the file is truncated.")
            return picture(number)

        return Sample(f"row-{number}", content, number % 3, columns={"client": f"c{number % 2}"})


def expected(numbers: Sequence[int], scale: float = 1.0) -> NDArray[np.float32]:
    backbone = GridBackbone()
    return np.stack([backbone.prepare(picture(number)) for number in numbers]) * np.float32(scale)
