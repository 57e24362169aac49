"""One thing that is checked, and how a check that raises is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class KitCheck:
    """One thing that is required, whether it is so, and what was seen."""

    name: str
    passed: bool
    detail: str


def checked(name: str, check: Callable[[], tuple[bool, str]]) -> KitCheck:
    """The outcome of a check; one that raises has failed."""
    try:
        passed, detail = check()
    except Exception as error:
        return KitCheck(name, False, f"{type(error).__name__}: {error}")
    return KitCheck(name, bool(passed), detail)
