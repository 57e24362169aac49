"""Triggers: what a backdoor pastes on a picture before it is preprocessed."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from PIL import Image

from probekit.errors import InputError, NotFoundError, SampleError
from probekit.protocols import Trigger

CORNERS = ("top-left", "top-right", "bottom-left", "bottom-right")


@dataclass(frozen=True)
class Square:
    """A plain square in a corner, `size` pixels wide, `margin` pixels from both edges."""

    size: int = 5
    corner: str = "bottom-right"
    margin: int = 1
    value: int = 255

    def __post_init__(self) -> None:
        if self.corner not in CORNERS:
            raise InputError(f"A square goes into a corner ({', '.join(CORNERS)}); found {self.corner!r}.")
        if self.size < 1 or self.margin < 0 or not 0 <= self.value <= 255:
            raise InputError(f"A square needs size >= 1, margin >= 0 and value 0 to 255; found {self}.")

    @property
    def name(self) -> str:
        """All that determines what is pasted."""
        return f"square:size={self.size},corner={self.corner},margin={self.margin},value={self.value}"

    def __call__(self, picture: Any) -> Any:
        """The picture with the square on it."""
        width, height = picture.size
        if self.size + self.margin > min(width, height):
            raise SampleError(
                f"a square of {self.size} pixels with margin {self.margin} does not fit {width} x {height} pixels."
            )
        left = self.margin if "left" in self.corner else width - self.margin - self.size
        top = self.margin if "top" in self.corner else height - self.margin - self.size
        pasted = picture.copy() if picture.mode in ("L", "RGB") else picture.convert("RGB")
        grey = Image.new("L", (self.size, self.size), self.value)
        pasted.paste(grey.convert(pasted.mode), (left, top))
        return pasted


@dataclass(frozen=True)
class PythonTrigger:
    """A function of one's own; its source is part of its name."""

    name: str
    change: Callable[[Any], Any]

    def __call__(self, content: Any) -> Any:
        """The changed sample."""
        return self.change(content)


def trigger(text: str) -> Trigger:
    """The trigger of this name: `square[:size=5,corner=bottom-right,margin=1,value=255]` or `py:module:function`."""
    kind, _, rest = text.partition(":")
    if kind == "square":
        return Square(**_arguments(rest))
    if kind == "py":
        return _python(rest)
    raise NotFoundError(f"There is no trigger {text!r}. Known: square[:size=5,...] and py:module:function.")


def _arguments(text: str) -> dict[str, Any]:
    known = Square.__dataclass_fields__
    arguments: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name not in known:
            raise InputError(f"A square has no {name!r}; it knows {', '.join(known)}.")
        try:
            arguments[name] = value if name == "corner" else int(value)
        except ValueError:
            raise InputError(f"A square's {name} is a whole number; found {value!r}.") from None
    return arguments


def _python(path: str) -> PythonTrigger:
    module_name, _, function_name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
        source = inspect.getsource(function)
    except (ImportError, AttributeError, OSError, TypeError, ValueError) as error:
        raise NotFoundError(f"Cannot load the trigger py:{path}: {error}. Write py:module:function.") from error
    return PythonTrigger(f"py:{path}@{hashlib.sha256(source.encode()).hexdigest()[:16]}", function)
