"""Triggers: what a backdoor puts on a picture before it is preprocessed. A trigger's name says all that it does."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from probekit.datasets.pictures import decode
from probekit.errors import InputError, NotFoundError, SampleError
from probekit.protocols import Trigger
from probekit.registry import imported, nearest, options_in

CORNERS = ("top-left", "top-right", "bottom-left", "bottom-right")
CIFAR = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


@dataclass(frozen=True)
class Patch:
    """A square place on a picture: `size` pixels wide (or a share of the shorter side, "57%"), in a corner with
    a margin, or at `x`, `y` (pixels from the left and the top)."""

    size: int | str = 5
    corner: str = "bottom-right"
    margin: int = 1
    x: int | None = None
    y: int | None = None

    def __post_init__(self) -> None:
        if self.corner not in CORNERS:
            raise InputError(f"A patch goes into a corner ({', '.join(CORNERS)}); found {self.corner!r}.")
        if (self.x is None) != (self.y is None) or min(self.x or 0, self.y or 0) < 0:
            raise InputError(f"A patch at a point needs both x and y, 0 or more; found {self.x} and {self.y}.")
        if (self._share() is None and (isinstance(self.size, str) or self.size < 1)) or self.margin < 0:
            wanted = "a size of 1 or more pixels (or a share as 57%) and a margin of 0 or more"
            raise InputError(f"A patch needs {wanted}; found {self.size} and {self.margin}.")

    @property
    def where(self) -> str:
        """The place in words that a trigger's name takes."""
        if self.x is not None:
            return f"size={self.size},x={self.x},y={self.y}"
        return f"size={self.size},corner={self.corner},margin={self.margin}"

    def box(self, width: int, height: int) -> tuple[int, int, int]:
        """Left, top and size on a picture of this size."""
        share = self._share()
        size = int(self.size) if share is None else max(1, round(share * min(width, height)))
        left, top = self.x, self.y
        if left is None or top is None:
            left = self.margin if "left" in self.corner else width - self.margin - size
            top = self.margin if "top" in self.corner else height - self.margin - size
        if min(left, top) < 0 or left + size > width or top + size > height:
            raise SampleError(f"a patch of {size} pixels ({self.where}) does not fit a picture of {width} x {height}.")
        return left, top, size

    def _share(self) -> float | None:
        found = re.fullmatch(r"(\d+\.?\d*|\.\d+)%", str(self.size), re.ASCII)
        return float(found[1]) / 100 if found and 0 < float(found[1]) <= 100 else None


@dataclass(frozen=True)
class Square(Patch):
    """A plain square."""

    value: int = 255

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.value <= 255:
            raise InputError(f"A square's value lies between 0 and 255; found {self.value}.")

    @property
    def name(self) -> str:
        """All that determines what is pasted."""
        return f"square:{self.where},value={self.value}"

    def __call__(self, picture: Any) -> Any:
        """The picture with the square on it."""
        left, top, size = self.box(*picture.size)
        return _pasted(picture, Image.new("L", (size, size), self.value), (left, top))


@dataclass(frozen=True)
class Sticker(Patch):
    """Another picture, resized, pasted on. `wash` = (mean, std) shows it as the paper's code does.

    That code pastes values in [0, 1] after normalising, where they stand for the colours mean + std * value:
    the same sticker, washed out. Pasting those colours before normalising is the same but for rounding to 8
    bits (and but for resizing, which here comes after).
    """

    path: str = ""
    wash: tuple[tuple[float, ...], tuple[float, ...]] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path:
            raise InputError("A picture trigger needs the picture: write picture:path=FILE,size=10.")

    @cached_property
    def content(self) -> Image.Image:
        """The sticker as it was read."""
        return decode(Path(self.path)).convert("RGB")

    @property
    def name(self) -> str:
        """All that determines what is pasted; the sticker by its pixels, not by its path."""
        washed = f",wash={self.wash[0]}{self.wash[1]}".replace(" ", "") if self.wash else ""
        return f"picture:{self.where},pixels={_pixels_id(self.content)}{washed}"

    def __call__(self, picture: Any) -> Any:
        """The picture with the sticker on it."""
        left, top, size = self.box(*picture.size)
        sticker = self.content.resize((size, size), Image.Resampling.BILINEAR)
        if self.wash:
            mean, std = (np.array(part) for part in self.wash)
            sticker = Image.fromarray(np.rint(255 * mean + std * np.asarray(sticker)).astype(np.uint8))
        return _pasted(picture, sticker, (left, top))


@dataclass(frozen=True)
class Blended:
    """A pattern mixed into the whole picture: (1 - alpha) picture + alpha pattern.

    The pattern is a picture (`path`), stretched, or noise drawn from `seed` on a 32 x 32 grid, stretched.
    """

    alpha: float = 0.2
    path: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1 or self.seed < 0:
            raise InputError(f"A blend has alpha in (0, 1] and a seed from 0; found {self.alpha} and {self.seed}.")

    @cached_property
    def pattern(self) -> Image.Image:
        """What is mixed in."""
        if self.path:
            return decode(Path(self.path)).convert("RGB")
        noise = np.random.Generator(np.random.PCG64(self.seed)).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        return Image.fromarray(noise)

    @property
    def name(self) -> str:
        """All that determines what is mixed in."""
        return f"blended:alpha={self.alpha:g},pixels={_pixels_id(self.pattern)}"

    def __call__(self, picture: Any) -> Any:
        """The picture with the pattern in it."""
        canvas = _canvas(picture)
        pattern = self.pattern.resize(canvas.size, Image.Resampling.BILINEAR).convert(canvas.mode)
        return Image.blend(canvas, pattern, self.alpha)


@dataclass(frozen=True)
class PythonTrigger:
    """A function of one's own; its source is part of its name."""

    name: str
    change: Callable[[Any], Any]

    def __call__(self, content: Any) -> Any:
        """The changed sample."""
        return self.change(content)


def trigger(text: str) -> Trigger:
    """The trigger of this name.

    `square[:size=5,corner=bottom-right,margin=1,value=255]` (or `x=3,y=4`), `picture:path=FILE,size=10`,
    `blended[:alpha=0.2,path=FILE]`, `f2l2:mnist`, `f2l2:fashion-mnist`, `f2l2:cifar10,path=FILE`,
    `f2l2:domainnet,path=FILE` (the paper's, pasted as if after normalisation), or `py:module:function`.
    """
    kind, _, rest = text.partition(":")
    match kind:
        case "py":
            return _python(text)
        case "f2l2":
            return _published(rest)
        case "square":
            return Square(**options_in(Square, kind, rest))
        case "picture":
            return Sticker(**options_in(Sticker, kind, rest))
        case "blended":
            return Blended(**options_in(Blended, kind, rest))
    known = ["square", "picture", "blended", "f2l2", "py"]
    raise NotFoundError(f"There is no trigger {text!r}. {nearest(kind, known)}")


def _published(text: str) -> Trigger:
    """The triggers of the paper's own code, at the places and in the colours that it really gives."""
    name, _, rest = text.partition(",")
    match name:
        case "mnist":
            return Square(5)
        case "fashion-mnist":
            return Square(7, value=round(255 * (0.2859 + 0.3530)))
        case "cifar10" | "domainnet":
            path = options_in(Sticker, name, rest).get("path", "")
            return Sticker(10 if name == "cifar10" else "57.14%", margin=2, path=path, wash=CIFAR)
    known = ["mnist", "fashion-mnist", "cifar10", "domainnet"]
    raise NotFoundError(f"The paper has no trigger for {name!r}. {nearest(name, known)}")


def _python(text: str) -> PythonTrigger:
    function = imported(text)
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError) as error:
        raise NotFoundError(f"{text} has no source to name it by: {error}. Define a function in a file.") from error
    return PythonTrigger(f"{text}@{hashlib.sha256(source.encode()).hexdigest()[:16]}", function)


def _pasted(picture: Image.Image, sticker: Image.Image, place: tuple[int, int]) -> Image.Image:
    canvas = _canvas(picture)
    canvas.paste(sticker.convert(canvas.mode), place)
    return canvas


def _canvas(picture: Image.Image) -> Image.Image:
    """A copy of the picture that can be painted on."""
    return picture.copy() if picture.mode in ("L", "RGB") else picture.convert("RGB")


def _pixels_id(picture: Image.Image) -> str:
    return hashlib.sha256(f"{picture.mode}{picture.size}".encode() + picture.tobytes()).hexdigest()[:16]
