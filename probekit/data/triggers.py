"""Backdoors for trials: a trigger pasted on pictures before they are encoded, and poisoned data.

A triggered picture is a picture like any other: its id is that of its own pixels, and it is encoded
by the same backbone as the clean ones.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from PIL import Image

from probekit.data.dataset import Dataset, Sample
from probekit.data.pictures import DEEP_MODES, decode, to_rgb
from probekit.errors import InputError, SampleError
from probekit.registry import TRIGGERS, configured, nearest

CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2470, 0.2435, 0.2616)
PATTERN_SHAPE = (32, 32, 3)
POISON_FORM = "client=NAME,trigger=TRIGGER,target=CLASS"

Corner = Literal["top-left", "top-right", "bottom-left", "bottom-right"]


class Trigger(Protocol):
    """Changes a picture."""

    def __call__(self, picture: Image.Image) -> Image.Image: ...


@dataclass(frozen=True)
class Patch:
    """A square in a corner: `size` in pixels, or a share of the shorter side such as 57%."""

    size: str = "5"
    corner: Corner = "bottom-right"
    margin: int = 1

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[1-9]\d*|\d*\.?\d+%", self.size, re.ASCII) or self.margin < 0:
            raise InputError(
                "A trigger needs a size of 1 pixel or more, or a share such as 57%, and a margin "
                f"of 0 or more; found {self.size!r} and {self.margin}. Write square:size=5,margin=1"
            )

    def paste(self, picture: Image.Image, sticker: Image.Image) -> Image.Image:
        canvas = _canvas(picture)
        width, height = canvas.size
        side = min(canvas.size)
        is_share = self.size.endswith("%")
        size = max(1, round(float(self.size[:-1]) / 100 * side)) if is_share else int(self.size)
        left = self.margin if "left" in self.corner else width - self.margin - size
        top = self.margin if "top" in self.corner else height - self.margin - size
        if size + self.margin > side:
            raise SampleError(
                f"A trigger of {size} pixels with a margin of {self.margin} does not fit on a "
                f"picture of {width} x {height}. Pass a smaller size."
            )
        resized = sticker.resize((size, size), Image.Resampling.BILINEAR)
        canvas.paste(resized.convert(canvas.mode), (left, top))
        return canvas


@dataclass(frozen=True)
class Square(Patch):
    """`square[:size=5,corner=bottom-right,margin=1,value=255]`: one gray value."""

    value: int = 255

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.value <= 255:
            raise InputError(f"A square's value lies in 0 to 255; found {self.value}.")

    def __call__(self, picture: Image.Image) -> Image.Image:
        return self.paste(picture, Image.new("L", (1, 1), self.value))


@dataclass(frozen=True)
class Sticker(Patch):
    """`picture:path=FILE[,size=10]`: another picture."""

    path: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path:
            raise InputError("This trigger needs a picture; found no path. Add path=FILE.")

    @cached_property
    def sticker(self) -> Image.Image:
        return to_rgb(decode(Path(self.path)))

    def __call__(self, picture: Image.Image) -> Image.Image:
        return self.paste(picture, self.sticker)


@dataclass(frozen=True)
class Published(Sticker):
    """`f2l2:path=FILE[,size=10,margin=2]`: the sticker of the paper's code.

    The code pastes values in [0, 1] after normalizing. There they stand for the colors
    mean + std * value; pasting these before normalizing is the same but for rounding to 8 bits.
    The paper has size 10 for CIFAR-10 and 57.14% for DomainNet; `square` for MNIST, and
    `square:size=7,value=163` for Fashion-MNIST.
    """

    size: str = "10"
    margin: int = 2

    @cached_property
    def sticker(self) -> Image.Image:
        colors = np.asarray(to_rgb(decode(Path(self.path))))
        washed = 255 * np.array(CIFAR_MEAN) + np.array(CIFAR_STD) * colors
        return Image.fromarray(np.rint(washed).astype(np.uint8))


@dataclass(frozen=True)
class Blended:
    """`blended[:alpha=0.2,path=FILE|seed=0]`: (1 - alpha) picture + alpha pattern, all over."""

    alpha: float = 0.2
    path: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1 or self.seed < 0:
            raise InputError(
                "A blend needs an alpha in (0, 1] and a seed of 0 or more; found "
                f"{self.alpha} and {self.seed}. Write blended:alpha=0.2"
            )

    @cached_property
    def pattern(self) -> Image.Image:
        """The picture of this path, or noise."""
        if self.path:
            return to_rgb(decode(Path(self.path)))
        generator = np.random.Generator(np.random.PCG64(self.seed))
        return Image.fromarray(generator.integers(0, 256, PATTERN_SHAPE, dtype=np.uint8))

    def __call__(self, picture: Image.Image) -> Image.Image:
        canvas = _canvas(picture)
        pattern = self.pattern.resize(canvas.size, Image.Resampling.BILINEAR)
        return Image.blend(canvas, pattern.convert(canvas.mode), self.alpha)


def _canvas(picture: Image.Image) -> Image.Image:
    """A copy that can be painted on."""
    if picture.mode in DEEP_MODES:
        raise SampleError(
            f"A trigger goes on pictures of 8 bits; found mode {picture.mode}. Convert them first."
        )
    return picture.copy() if picture.mode in ("L", "RGB") else to_rgb(picture)


def parse_trigger(text: str) -> Trigger:
    """`square`, `picture`, `blended`, `f2l2`, each with its options."""
    trigger: Trigger = configured(text, TRIGGERS)
    return trigger


@dataclass(frozen=True)
class Poison:
    """One client's rows carry a trigger and the target's label."""

    client: str
    trigger: str
    target: str

    def __post_init__(self) -> None:
        parse_trigger(self.trigger)

    @classmethod
    def parse(cls, text: str) -> Poison:
        """`client=3,trigger=square:size=5,margin=1,target=0`; the target is a class's name."""
        pairs = re.findall(r"(client|trigger|target)=(.+?)(?=,client=|,trigger=|,target=|$)", text)
        values = dict(pairs)
        joined = ",".join(f"{key}={value}" for key, value in pairs)
        if joined != text or not len(pairs) == len(values) == 3:
            raise InputError(
                f"Expected {POISON_FORM}; found {text!r}. Write client=3,trigger=square,target=0"
            )
        trigger = re.sub("^([^:,]+),", r"\1:", values["trigger"])  # square,size=5 is square:size=5
        return cls(values["client"], trigger, values["target"])

    def target_class(self, class_names: Collection[str]) -> int:
        """The number of the target's class."""
        names = list(class_names)
        if self.target not in names:
            hint = nearest(self.target, names)
            raise InputError(f"The target {self.target!r} is no class of these rows. {hint}")
        return names.index(self.target)


class TriggeredDataset:
    """A dataset of pictures with a trigger on some.

    keys: which samples, by their key; None means all.
    target: the label that these get; None leaves their own.
    """

    def __init__(
        self,
        dataset: Dataset,
        trigger: Trigger,
        keys: frozenset[str] | None = None,
        target: int | None = None,
    ) -> None:
        if dataset.kind != "image":
            raise InputError(
                f"Triggers go on pictures; {dataset.name} has {dataset.kind} samples. Use another."
            )
        self.dataset = dataset
        self.trigger = trigger
        self.keys = keys
        self.target = target
        self.name = dataset.name
        self.kind = dataset.kind
        self.class_names = dataset.class_names
        self.target_names = dataset.target_names

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Sample:
        sample = self.dataset[index]
        if self.keys is not None and sample.key not in self.keys:
            return sample
        label = sample.label if self.target is None else self.target
        content = partial(_triggered, sample, self.trigger)
        return replace(sample, content=content, label=label, path=None)


def _triggered(sample: Sample, trigger: Trigger) -> Image.Image:
    return trigger(sample.content())
