"""The values of a small picture, without any model: `pixels[:SIDE]` (gray) and `pixels[:SIDE]#rgb`.

What a backbone has to beat, and what small networks are trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from probekit.arrays import Json
from probekit.data.pictures import to_rgb
from probekit.errors import InputError, NotFoundError
from probekit.registry import Name

DEFAULT_SIDES = {"gray": 28, "rgb": 32}
"""The sides of MNIST and of CIFAR-10."""
MODES = {"gray": "L", "rgb": "RGB"}
MAX_SIDE = 512


@dataclass(frozen=True)
class Pixels:
    """A picture as values between 0 and 1, squashed to a square, one channel after another."""

    side: int
    view: str
    kind = "image"

    @property
    def name(self) -> str:
        """Without what is the default, so that one backbone has one name."""
        side = "" if self.side == DEFAULT_SIDES[self.view] else str(self.side)
        return str(Name("pixels", side, view="rgb" if self.view == "rgb" else None))

    @property
    def identity(self) -> Mapping[str, Json]:
        return {
            "backbone": "pixels",
            "size": [self.side, self.side],
            "resize": "squash",
            "interpolation": "bilinear",
            "range": [0, 1],
            "order": "channels first",
        }

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """What a row is, before it was flattened."""
        return (len(MODES[self.view]), self.side, self.side)

    @property
    def views(self) -> Mapping[str, int]:
        return {self.view: int(np.prod(self.sample_shape))}

    def prepare(self, content: Image.Image) -> NDArray[np.float32]:
        picture = to_rgb(content).convert(MODES[self.view])
        picture = picture.resize((self.side, self.side), Image.Resampling.BILINEAR)
        values = np.atleast_3d(np.asarray(picture, dtype=np.float32))
        return values.transpose(2, 0, 1).reshape(-1) / np.float32(255)

    def encode(self, batch: Sequence[Any]) -> NDArray[np.float32]:
        return np.asarray(batch, dtype=np.float32).reshape(len(batch), -1)


def load(name: Name, **options: str) -> Pixels:
    if options["preprocessing"] != "native":
        raise InputError(
            f"pixels has its own preprocessing; found {options['preprocessing']!r}. "
            "Leave out preprocessing (--preprocessing)."
        )
    view = name.view or "gray"
    if view not in DEFAULT_SIDES:
        raise NotFoundError(f"{name} has no view #{view}. It has: #gray, #rgb.")
    side = name.name or str(DEFAULT_SIDES[view])
    if not side.isdecimal() or not 1 <= int(side) <= MAX_SIDE:
        raise InputError(
            f"pixels takes a side from 1 to {MAX_SIDE}; found {side!r}. Write pixels:32."
        )
    return Pixels(int(side), view)
