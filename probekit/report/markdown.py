"""Markdown from plain values: sections, tables, and text that means nothing but itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any


def section(title: str, *parts: str) -> str:
    """A heading and what stands under it; empty parts vanish."""
    return "\n\n".join([f"## {title}", *(part for part in parts if part)])


def table(headers: Sequence[str], rows: Sequence[Sequence[object]], *, raw: bool = False) -> str:
    """A Markdown table; `raw` cells are Markdown already."""
    if not rows:
        return ""
    lines = [headers, ["---"] * len(headers), *([str(cell) if raw else text(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def text(value: object) -> str:
    """Anything as text that Markdown takes for nothing else."""
    flat = " ".join(str(value).split())
    return re.sub(r"([\\`*_\[\]<>|#$~])", r"\\\1", flat)


def code(value: str) -> str:
    """A digest or a command, as it is."""
    return f"`{' '.join(value.replace('`', '').split())}`".replace("|", "\\|")


def number(value: float | None) -> str:
    """A number to four digits."""
    return "" if value is None else f"{value:.4g}"


def percent(share: Mapping[str, Any] | None) -> str:
    """A share in per cent."""
    return "not known" if share is None or share["value"] is None else f"{share['value']:.2%}"


def interval(share: Mapping[str, Any] | None) -> str:
    """A share with its interval."""
    if share is None or share["value"] is None:
        return ""
    return f"{share['value']:.2%} ({share['low']:.2%} to {share['high']:.2%})"
