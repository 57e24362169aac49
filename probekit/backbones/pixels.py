"""No network at all: the values of a small picture. What a backbone has to beat, and a network's raw food."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from probekit.backbones.module import FrozenModule
from probekit.backbones.preprocessing import picture_preprocess
from probekit.errors import InputError
from probekit.protocols import Reference

VIEWS = {"grey": ("L", 28), "rgb": ("RGB", 32)}
"""Pillow's mode and the side that need not be written: those of MNIST and of CIFAR-10."""
LARGEST = 512


@dataclass(frozen=True)
class PixelValues:
    """A picture as values between 0 and 1, one channel after another, squashed unless it has that size already."""

    side: int
    mode: str

    def __call__(self, picture: Image.Image) -> torch.Tensor:
        size, coloured = (self.side, self.side), picture.convert(self.mode)
        small = coloured if coloured.size == size else coloured.resize(size, Image.Resampling.BILINEAR)
        values = np.asarray(small, dtype=np.float32)
        planes = values if values.ndim == 2 else values.transpose(2, 0, 1)
        return torch.from_numpy(planes.reshape(-1) / np.float32(255))


def load(reference: Reference) -> FrozenModule:
    """`pixels[:SIDE]`: grey values, 28 x 28 unless told; `pixels[:SIDE]#rgb`: three channels, 32 x 32 unless told."""
    if reference.preset != "native":
        raise InputError(f"pixels has its own preprocessing and no presets. Leave out {reference.preset!r}.")
    view = reference.view or "grey"
    if view not in VIEWS:
        raise InputError(f"pixels has the views #grey and #rgb; found #{view}. Write pixels or pixels#rgb.")
    mode, usual = VIEWS[view]
    side = _side(reference.name) if reference.name else usual
    values: dict[str, Any] = {"size": [side, side], "resize": "squash", "interpolation": "bilinear", "range": [0, 1]}
    values |= {"grey": "ITU-R 601"} if view == "grey" else {"channels": 3, "order": "channels first"}
    preprocess = picture_preprocess(PixelValues(side, mode), **values)
    name = "pixels" + ("" if side == usual else f":{side}") + ("" if view == "grey" else f"#{view}")
    architecture = f"pixels {side} x {side} {view}"
    return FrozenModule(nn.Identity(), preprocess, name=name, view=view, architecture=architecture)


def _side(text: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,2}", text) or int(text) > LARGEST:
        wanted = f"a whole number from 1 to {LARGEST} for the side of its square"
        raise InputError(f"pixels takes {wanted}; found {text!r}. Write for example pixels:32.")
    return int(text)
