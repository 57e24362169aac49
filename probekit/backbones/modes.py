"""Whether torch modules behind a backbone are in training mode, where dropout and batch statistics are at work."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any


def training_parts(backbone: Any) -> str:
    """The modules in training mode that a backbone is, has, or that its function calls; empty where there is none."""
    if "torch" not in sys.modules:  # then nobody has a module
        return ""
    return ", ".join(dict.fromkeys(name for name, module in _modules(backbone) if _trains(module)))


def _trains(module: Any) -> bool:
    """Whether the mode matters: a module without such layers gives the same in both. Other libraries have their own."""
    names = ((type(part).__name__.lower(), part.training) for part in module.modules())
    return any(training and ("drop" in name or "batchnorm" in name) for name, training in names)


def _modules(thing: Any) -> Iterator[tuple[str, Any]]:
    from torch import nn

    reached = {type(thing).__name__: thing, **getattr(thing, "__dict__", {})}
    function = getattr(thing, "function", None)
    if function is not None:
        try:
            seen = inspect.getclosurevars(function)
            reached |= {**seen.nonlocals, **seen.globals}
        except TypeError:  # no function of Python's own
            reached |= getattr(function, "__dict__", {})
    yield from ((name, one) for name, one in reached.items() if isinstance(one, nn.Module))
