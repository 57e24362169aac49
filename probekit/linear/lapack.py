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

    LinAlgError = np.linalg.LinAlgError

    def cholesky(self, a: Any, *, lower: bool = False, check_finite: bool = True) -> Any:
        """The triangular factor."""
        return self._factor(a, "cholesky", lower=lower, check_finite=check_finite)

    def cho_factor(self, a: Any, *, lower: bool = False, check_finite: bool = True) -> tuple[Any, bool]:
        """The factor as `cho_solve` takes it; what stands in the other triangle is no part of it."""
        found = self._factor(a, "cho_factor", lower=lower, check_finite=check_finite)
        return found if isinstance(found, tuple) else (found, lower)

    def cho_solve(self, factor: tuple[Any, bool], b: Any, *, check_finite: bool = True) -> Any:
        """The solution for a right side."""
        (matrix, lower), lapack = factor, _routines("_flapack", *factor[:1], b)
        if lapack is None:
            return import_module(self._name).cho_solve(factor, b, check_finite=check_finite)
        return lapack.dpotrs(matrix, np.asarray_chkfinite(b) if check_finite else b, lower=lower)[0]

    def solve_triangular(self, a: Any, b: Any, *, lower: bool = False) -> Any:
        """The solution for a right side and a triangular matrix."""
        lapack = _routines("_flapack", a, b)
        if lapack is None:
            return import_module(self._name).solve_triangular(a, b, lower=lower)
        found, info = lapack.dtrtrs(np.asarray_chkfinite(a), np.asarray_chkfinite(b), lower=lower)
        if info:
            raise np.linalg.LinAlgError(f"singular matrix: resolution failed at diagonal {info - 1}")
        return found

    def gemm(self, scale: float, a: Any, b: Any, **transposed: bool) -> Any:
        """BLAS's product of matrices."""
        blas = _routines("_fblas", a, b)
        return (blas or import_module(f"{self._name}.blas")).dgemm(scale, a, b, **transposed)

    def _factor(self, a: Any, name: str, *, lower: bool, check_finite: bool) -> Any:
        lapack = _routines("_flapack", a)
        if lapack is None:
            return getattr(import_module(self._name), name)(a, lower=lower, check_finite=check_finite)
        clean, a = name == "cholesky", np.asarray_chkfinite(a) if check_finite else a
        found, info = lapack.dpotrf(a, lower=lower, clean=clean)
        if info:
            raise np.linalg.LinAlgError(f"{info}-th leading minor of the array is not positive definite")
        return found


def _routines(name: str, *arrays: Any) -> Any:
    """SciPy's LAPACK or BLAS; None where it is elsewhere, or arrays need SciPy's care."""
    plain = all(one.dtype == np.float64 and one.ndim == 2 and one.size for one in arrays)
    return _module(name) if plain else None


@cache
def _module(name: str) -> Any:
    """A module of routines, loaded by itself; SciPy finds it under its name if it is imported after all."""
    full, package = f"scipy.linalg.{name}", import_module("scipy").__file__
    path = Path(package or "").parent / "linalg" / f"{name}{EXTENSION_SUFFIXES[0]}"
    if full not in sys.modules and path.is_file():
        spec: Any = importlib.util.spec_from_file_location(full, path)
        sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[full])
    return sys.modules.get(full)


linalg, optimize, special = _Linalg("scipy.linalg"), _Part("scipy.optimize"), _Part("scipy.special")
sparse, sparse_linalg = _Part("scipy.sparse"), _Part("scipy.sparse.linalg")
