"""No network at all: the grey values of a small picture. What a backbone has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from probekit.backbones.module import FrozenModule
from probekit.backbones.preprocessing import described
from probekit.errors import InputError
from probekit.protocols import Reference

SIDE = 28


@dataclass(frozen=True)
class GreySquare:
    """A picture as grey values between 0 and 1, squashed to 28 x 28; one of that size stays as it is."""

    def __call__(self, picture: Image.Image) -> torch.Tensor:
        grey = picture.convert("L")
        small = grey if grey.size == (SIDE, SIDE) else grey.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.asarray(small, dtype=np.float32).reshape(-1) / np.float32(255))


def load(reference: Reference) -> FrozenModule:
    """`pixels`: 784 grey values."""
    if reference.name or reference.view not in (None, "grey") or reference.preset != "native":
        raise InputError(f"pixels has one view, #grey, and its own preprocessing; found {reference}. Write pixels.")
    values: dict[str, Any] = {
        "size": [SIDE, SIDE],
        "resize": "squash",
        "interpolation": "bilinear",
        "grey": "ITU-R 601",
    }
    return FrozenModule(
        nn.Identity(),
        described(GreySquare(), **values, range=[0, 1]),
        name="pixels",
        view="grey",
        architecture="pixels 28 x 28 grey",
    )
