"""SciPy's routines without the rest of it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import scipy.linalg

from probekit.linear import lapack
from probekit.linear.lapack import linalg

SQUARE = np.cov(np.random.default_rng(0).standard_normal((6, 40)))
RIGHT = np.random.default_rng(1).standard_normal((6, 3))


def test_they_are_scipys_to_the_bit() -> None:
    lower, factor = linalg.cholesky(SQUARE, lower=True), linalg.cho_factor(SQUARE, lower=True)
    assert np.array_equal(lower, scipy.linalg.cholesky(SQUARE, lower=True))
    wanted = scipy.linalg.cho_solve(scipy.linalg.cho_factor(SQUARE, lower=True), RIGHT)
    assert np.array_equal(linalg.cho_solve(factor, RIGHT), wanted)
    wanted = scipy.linalg.solve_triangular(lower, RIGHT, lower=True)
    assert np.array_equal(linalg.solve_triangular(lower, RIGHT, lower=True), wanted)
    assert np.array_equal(linalg.gemm(1.0, SQUARE, RIGHT), scipy.linalg.blas.dgemm(1.0, SQUARE, RIGHT))


def test_where_scipy_keeps_its_routines_elsewhere_its_public_ones_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lapack, "EXTENSION_SUFFIXES", [".nowhere"])
    monkeypatch.delitem(sys.modules, "scipy.linalg._flapack")
    assert lapack._module.__wrapped__("_flapack", "lapack") is scipy.linalg.lapack


def test_what_cannot_be_factored_is_refused() -> None:
    with pytest.raises(np.linalg.LinAlgError):
        linalg.cho_factor(-SQUARE)
    with pytest.raises(ValueError, match="infs or NaNs"):
        linalg.cholesky(SQUARE * np.nan)
    with pytest.raises(np.linalg.LinAlgError):
        linalg.solve_triangular(np.zeros((2, 2)), np.ones((2, 1)))


def test_scipy_is_left_out_and_can_come_later() -> None:
    code = """
import sys
import numpy as np
from probekit.linear import lapack
from probekit.linear.lapack import linalg
linalg.cho_solve(linalg.cho_factor(np.eye(3)), np.ones((3, 1)))
assert "scipy.linalg" not in sys.modules
import scipy.linalg
assert scipy.linalg.lapack.dpotrf(np.eye(2))[1] == 0
assert np.allclose(scipy.linalg.expm(np.zeros((2, 2))), np.eye(2))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
