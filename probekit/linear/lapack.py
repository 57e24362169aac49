"""SciPy's parts, imported when first used: a head predicts where there is none."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import numpy as np


class _Part:
    """A module of SciPy."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


class _Linalg(_Part):
    """SciPy's linalg. What a small command needs of it, for float64, is taken from the routines that it calls itself:
    to import all of it takes as long as such a command takes otherwise."""

    def cholesky(self, a: Any, *, lower: bool = False, check_finite: bool = True) -> Any:
        """The triangular factor."""
        a = np.asarray_chkfinite(a) if check_finite else a
        return _solved(*_module("_flapack", "lapack").dpotrf(a, lower=lower))

    def cho_factor(self, a: Any, *, lower: bool = False, check_finite: bool = True) -> tuple[Any, bool]:
        """The factor as `cho_solve` takes it; what stands in the other triangle is no part of it."""
        a = np.asarray_chkfinite(a) if check_finite else a
        return _solved(*_module("_flapack", "lapack").dpotrf(a, lower=lower, clean=False)), lower

    def cho_solve(self, factor: tuple[Any, bool], b: Any, *, check_finite: bool = True) -> Any:
        """The solution for a right side."""
        b = np.asarray_chkfinite(b) if check_finite else b
        return _solved(*_module("_flapack", "lapack").dpotrs(factor[0], b, lower=factor[1]))

    def solve_triangular(self, a: Any, b: Any, *, lower: bool = False) -> Any:
        """The solution for a right side and a triangular matrix."""
        a, b = np.asarray_chkfinite(a), np.asarray_chkfinite(b)
        return _solved(*_module("_flapack", "lapack").dtrtrs(a, b, lower=lower))

    def gemm(self, scale: float, a: Any, b: Any, **transposed: bool) -> Any:
        """BLAS's product of matrices."""
        return _module("_fblas", "blas").dgemm(scale, a, b, **transposed)


def _solved(found: Any, info: int) -> Any:
    if info:
        raise np.linalg.LinAlgError(f"LAPACK stopped at {info}: the matrix is singular, or not positive definite")
    return found


@cache
def _module(name: str, public: str) -> Any:
    """SciPy's routines, loaded by themselves; SciPy finds them under their name if it is imported after all."""
    full, package = f"scipy.linalg.{name}", import_module("scipy").__file__
    path = Path(package or "").parent / "linalg" / f"{name}{EXTENSION_SUFFIXES[0]}"
    if full not in sys.modules and path.is_file():
        spec: Any = importlib.util.spec_from_file_location(full, path)
        sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[full])
    return sys.modules.get(full) or import_module(f"scipy.linalg.{public}")


linalg, optimize, special = _Linalg("scipy.linalg"), _Part("scipy.optimize"), _Part("scipy.special")
sparse, sparse_linalg = _Part("scipy.sparse"), _Part("scipy.sparse.linalg")
