"""How values are written on a page: numbers, shares, and text that Markdown takes for nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any


class Markdown(str):
    """Text that is Markdown already."""

    __slots__ = ()


def escaped(value: object) -> str:
    """Anything as text that Markdown takes for nothing else."""
    if isinstance(value, Markdown):
        return value
    return re.sub(r"([\\`*_\[\]<>|#$~])", r"\\\1", one_line(value))


def code(value: object) -> Markdown:
    """A digest or a command in Markdown, as it is."""
    return Markdown(f"`{one_line(value).replace('`', '')}`".replace("|", "\\|"))


def one_line(value: object) -> str:
    """Text without line breaks; a mapping as names and values."""
    if isinstance(value, Mapping):
        value = ", ".join(f"{name} {one}" for name, one in value.items())
    return " ".join(str(value).split())


def number(value: float | None) -> str:
    """A number to four digits."""
    return "" if value is None else f"{value:.4g}"


def upper(value: float | None, digits: int = 3) -> str:
    """An upper bound, rounded up: what is said of it holds, too."""
    if value is None:
        return ""
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(value))
    return f"{float(rounded):.{digits}g}"


def count(value: int) -> str:
    """A whole number, thousands apart."""
    return f"{value:,}"


def percent(share: Mapping[str, Any] | None) -> str:
    """A share in per cent."""
    return "not known" if share is None or share["value"] is None else f"{share['value']:.2%}"


def interval(share: Mapping[str, Any] | None) -> str:
    """A share with its interval."""
    if share is None or share["value"] is None:
        return ""
    if share["low"] is None or share["high"] is None:
        return percent(share)
    return f"{share['value']:.2%} ({share['low']:.2%} to {share['high']:.2%})"


def points(apart: float | None) -> str:
    """A difference of shares."""
    return "" if apart is None else f"{100 * apart:.2f} points"


def words(name: object) -> str:
    """The name of a field as people write it."""
    return str(name).replace("_", " ")
