"""Backbones, datasets and methods by name: from entry points, loaded when first asked for, or registered in code."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib import metadata
from typing import Any, TypeVar

from probekit.errors import InputError, NotFoundError
from probekit.protocols import Reference

F = TypeVar("F", bound=Callable[..., Any])


def nearest(name: str, known: list[str]) -> str:
    """A clause for an error message that names the closest known names, or all of a few."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or sorted(known)[:12]
    return f"Known and close: {', '.join(close)}." if close else "None is installed."


class Registry:
    """Names of one kind. Built-ins and strangers' plugins come through the same entry-point group."""

    def __init__(self, group: str, noun: str) -> None:
        self.group, self.noun = group, noun
        self._registered: dict[str, Callable[..., Any]] = {}

    def register(self, name: str) -> Callable[[F], F]:
        """A decorator that makes a factory known in this process under a name."""

        def remember(factory: F) -> F:
            self._registered[name] = factory
            return factory

        return remember

    def names(self) -> list[str]:
        """Every name that can be asked for."""
        return sorted({*self._registered, *(point.name for point in metadata.entry_points(group=self.group))})

    def get(self, name: str) -> Callable[..., Any]:
        """The factory of this name."""
        if name in self._registered:
            return self._registered[name]
        points = list(metadata.entry_points(group=self.group, name=name))
        if not points:
            raise NotFoundError(f"There is no {self.noun} {name!r}. {nearest(name, self.names())}")
        point = points[0]
        try:
            loaded: Callable[..., Any] = point.load()
        except ImportError as error:
            origin = point.dist.name if point.dist else "an unknown distribution"
            raise NotFoundError(
                f"The {self.noun} {name!r} of {origin} cannot be imported: {error}. Install what it needs."
            ) from error
        return loaded


backbones = Registry("probekit.backbones", "backbone")
datasets = Registry("probekit.datasets", "dataset")
methods = Registry("probekit.methods", "unlearning method")


def parse(text: str, *, preset: str = "native") -> Reference:
    """Take `scheme:name[@revision][#view]` apart. A bare name is a plugin's own."""
    if not text.strip():
        raise InputError("An empty name names nothing. Write for example packaged:efficientnet-lite0.")
    rest, _, view = text.partition("#")
    scheme, colon, name = rest.partition(":")
    if not colon:
        scheme, name = rest, ""
    revision = None
    if scheme == "hf" and "@" in name:
        name, _, revision = name.rpartition("@")
    return Reference(scheme=scheme, name=name, revision=revision or None, view=view or None, preset=preset)
