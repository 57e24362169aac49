"""SciPy's parts, imported when first used: a head predicts where there is none."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class _Part:
    """A module of SciPy."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


linalg, optimize, special = _Part("scipy.linalg"), _Part("scipy.optimize"), _Part("scipy.special")
sparse, sparse_linalg = _Part("scipy.sparse"), _Part("scipy.sparse.linalg")
