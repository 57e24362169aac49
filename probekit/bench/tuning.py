"""The same budget for every method: which settings are tried, its defaults first, and which of them is taken."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from probekit.registry import options_in, spec_of
from probekit.unlearning.method import method


def trials(spec: str, budget: int) -> tuple[str, ...]:
    """The settings of a method that are tried: as asked for, then others of its `tunable` options in a fixed order.

    Options that the spec names stay as they are. The order follows from the method's name alone.
    """
    asked = method(spec)
    name, _, argument = spec.partition(":")
    fixed = options_in(type(asked), name, argument) if argument and name != "py" else {}
    open_options = {
        key: tuple(values) for key, values in getattr(type(asked), "tunable", {}).items() if key not in fixed
    }
    found = [spec_of(asked)]
    every = list(itertools.product(*open_options.values()))
    drawn = np.random.Generator(np.random.PCG64(_number(name))).permutation(len(every))
    for place in drawn.tolist():
        if len(found) >= budget:
            break
        changed = _changed(asked, dict(zip(open_options, every[place], strict=True)))
        if changed is not None and changed not in found:
            found.append(changed)
    return tuple(found)


def best(tried: Mapping[str, float | None]) -> str:
    """The setting of the lowest aim; the first of equals, and the first at all where none could be carried out."""
    return min(tried, key=lambda spec: math.inf if tried[spec] is None else float(tried[spec] or 0.0))


def _changed(asked: Any, options: dict[str, Any]) -> str | None:
    try:
        return spec_of(replace(asked, **options))
    except ValueError:  # values that do not go together
        return None


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
