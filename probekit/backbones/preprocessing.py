"""What happens to a picture before the model sees it: callables for worker processes, and plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image

from probekit.datasets import pictures
from probekit.errors import InputError
from probekit.values import Json

NATIVE = "native"
COLOUR: dict[str, Json] = {"colour": "RGB", "alpha": "dropped"}


class Preprocess(Protocol):
    """Turns one sample into a tensor. `values` say all that determines the result; it can be pickled."""

    @property
    def values(self) -> Mapping[str, Json]: ...
    def __call__(self, sample: Any) -> Any: ...


@dataclass(frozen=True)
class StatedPreprocess:
    """Any callable with the plain values that describe it. Pictures reach it as RGB, their alpha dropped."""

    transform: Callable[[Any], Any]
    values: Mapping[str, Json]

    def __call__(self, sample: Any) -> Any:
        return self.transform(pictures.rgb(sample) if isinstance(sample, Image.Image) else sample)


def picture_preprocess(transform: Callable[[Any], Any], **values: Json) -> StatedPreprocess:
    """A picture transform and its values, with what is true of all of them added and None left out."""
    return StatedPreprocess(transform, COLOUR | {name: value for name, value in values.items() if value is not None})


def scaled_preprocess(
    transform: Callable[[Any], Any], stated: Mapping[str, Any], size: tuple[int, int], **values: Json
) -> StatedPreprocess:
    """A picture transform whose library states `interpolation`, `mean` and `std`, of values between 0 and 1."""
    scaling = {"mean": list(stated["mean"]), "std": list(stated["std"]), "interpolation": stated["interpolation"]}
    return picture_preprocess(transform, size=[*size], antialias=True, range=[0, 1], **scaling, **values)


@dataclass(frozen=True)
class Preset:
    """The preprocessing of the paper's own runs: squashed to 224 x 224, with statistics of other data."""

    name: str
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    resized: str
    size: int = 224

    @property
    def values(self) -> Mapping[str, Json]:
        """All that determines the result."""
        size, scaling = [self.size, self.size], {"range": [0, 1], "mean": self.mean, "std": self.std}
        resizing: dict[str, Json] = {"resize": "squash", "interpolation": "bilinear", "antialias": True}
        return {"preset": self.name, "size": size, "resized": self.resized, **resizing, **scaling, **COLOUR}

    def __call__(self, sample: Image.Image) -> torch.Tensor:
        picture = pictures.rgb(sample)
        if self.resized == "picture":
            picture = picture.resize((self.size, self.size), Image.Resampling.BILINEAR)
        scaled = torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous().float().div(255)
        if self.resized == "tensor":
            scaled = torch.nn.functional.interpolate(
                scaled[None], size=(self.size, self.size), mode="bilinear", align_corners=False, antialias=True
            )[0]
        if self.mean is None or self.std is None:
            return scaled
        mean, std = torch.tensor(self.mean).view(-1, 1, 1), torch.tensor(self.std).view(-1, 1, 1)
        return (scaled - mean) / std


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("f2l2-domainnet", (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261), "picture"),
        Preset("f2l2-imagenet", (0.4802, 0.4481, 0.3975), (0.2302, 0.2265, 0.2262), "picture"),
        Preset("f2l2-flowers", None, None, "tensor"),
    )
}


def preset(name: str) -> Preset:
    """The preset of this name."""
    if name not in PRESETS:
        raise InputError(f"There is no preprocessing preset {name!r}. Choose one of: {', '.join([NATIVE, *PRESETS])}.")
    return PRESETS[name]


def choose_preprocess(name: str, native: Preprocess, *, size: tuple[int, int] | None) -> Preprocess:
    """The model's own preprocessing or the preset asked for; `size` is the height and width it takes."""
    if name == NATIVE:
        return native
    wanted = preset(name)
    if size != (wanted.size, wanted.size):
        found = "pictures of varying size" if size is None else f"{size[0]} x {size[1]}"
        made = f"The preset {name} makes pictures of {wanted.size} x {wanted.size}, but this backbone takes {found}"
        raise InputError(f"{made}. Use its own preprocessing (native) or a backbone for that size.")
    return wanted
