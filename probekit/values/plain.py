"""Frozen values with typed fields that say themselves in plain values, as JSON has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any


class Result:
    """A frozen dataclass that says itself in plain values."""

    @property
    def plain(self) -> dict[str, Any]:
        """Every field as JSON has it; names are keys."""
        return {one.name: to_plain(getattr(self, one.name)) for one in fields(self)}  # type: ignore[arg-type]


def to_plain(value: Any) -> Any:
    """A value as JSON has it."""
    if hasattr(value, "plain"):
        return value.plain
    if is_dataclass(value):
        return {one.name: to_plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): to_plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value
