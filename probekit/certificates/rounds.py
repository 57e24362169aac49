"""A certificate from the rounds: measured products of the curvature hold its inverse between two forms.

H = ridge + G. What was measured of G along directions bounds it from below (Nystrom), and so H^-1 from above, by B; on
the directions' span H itself gives A below. With D = B - A, for a row's a and the gradient r at the head,
a H^-1 r = a (A + B) r / 2 +- sqrt(a D a  r D r) / 2: by so much a margin moves on the way to the retrained minimum.

Products are off by at most e along an orthonormal basis Q. Then some symmetric F of norm nu = e + asymmetry has
(G + F) Q as measured (Davis, Kahan and Weinberger), and G + F + nu >= 0 has the bound in G's place: of the ridge,
ridge - 2 nu is left below. Every shift added for rounding makes B larger and A smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from probekit.certificates.bounds import FAST_UNIT, gamma, summing_error
from probekit.errors import InputError
from probekit.linear.lapack import linalg
from probekit.linear.statistics import BLOCK_BYTES
from probekit.models.problem import ScoredRows
from probekit.unlearning.products import Products

SHARE = 0.05
"""Of the ridge, what the error of products may take: directions that would take more are left out."""
ROOM, ROOM_SHARE, CARE = 16, 0.01, 4
"""How many times the error, and up to what share of the ridge, is left to who checks it by asking less; and how many
times what rounding can do to forms and to the gradient."""

Array = NDArray[np.float64]


def product_errors(
    products: Products, problem: Any, counts: list[int], scales: Mapping[str, float]
) -> tuple[Array, float]:
    """How far each product can be off, before anything is measured, and what no curvature exceeds.

    A gradient rounds as in `asked_residual`, at both ends of the step; the step itself is rounded, too.
    """
    columns, rows = problem.shape[0], sum(counts)
    block = max(64, BLOCK_BYTES // (8 * columns))
    operations = columns + min(max(counts), block) + max(counts) / block + len(counts) + 32
    fine = summing_error(problem.arithmetic, columns, rows, len(counts)) + gamma(operations)
    factors = np.full(len(products.reach), fine)
    if products.coarse.any():  # the Jacobian is another there, too
        unit = FAST_UNIT if products.precision == "float32" else np.inf
        factors[products.coarse] = 4 * operations * unit if operations * unit < 0.1 else np.inf
    most = scales["energy"] / rows + products.ridge
    targets = np.sqrt(scales["energy"] / rows * scales["target_energy"] / rows)
    return factors * (most * products.reach + 2 * targets * products.lever), most


def sure_ones(products: Products, errors: Array) -> NDArray[np.bool_]:
    """The products that are sure enough to be used."""
    with np.errstate(all="ignore"):
        relative = errors / np.linalg.norm(products.directions, axis=0)
    return np.asarray(relative * np.sqrt(len(errors)) <= SHARE * products.ridge)


@dataclass(frozen=True, eq=False)
class TwoSided:
    """A <= H^-1 <= B: A = Q inner^-1 Q', B = (1 - Z outer^-1 Z') / floor, by their Cholesky factors.

    `slack`: how far a form can be off by rounding, against |a| |b| / floor. `error`: nu.
    """

    basis: Array
    lifted: Array
    inner: Array
    outer: Array
    floor: float
    slack: float
    error: float

    @classmethod
    def of(cls, products: Products, errors: Array, most: float) -> Self:
        """From products that are off by at most `errors`, of a curvature of at most `most`; refused where none
        is sure enough, or where they contradict each other."""
        ridge, sure = products.ridge, sure_ones(products, errors)
        sizes = np.linalg.norm(products.directions, axis=0)
        if not sure.any():
            raise InputError("No product is as sure as the ridge is large: nothing follows from the rounds.")
        directions, images = (one[:, sure] / sizes[sure] for one in (products.directions, products.images))
        if not (np.isfinite(directions).all() and np.isfinite(images).all()):
            raise InputError("Products must be finite numbers.")
        many, size = int(sure.sum()), len(directions)
        triangle = linalg.qr(directions, mode="r")[0][:many]
        _, values, right = linalg.svd(triangle)
        rounding = gamma(8 * many + 16) * many * most + gamma(many + 8) * np.sqrt(many) * np.linalg.norm(images)
        total = float(np.linalg.norm(errors[sure] / sizes[sure])) + rounding
        kept = int((total <= SHARE * ridge * values).sum())
        if not kept:
            raise InputError("No product is as sure as the ridge is large: nothing follows from the rounds.")
        turn = right[:kept].T / values[:kept]
        basis = directions @ turn
        found = images @ turn - ridge * basis
        gram = basis.T @ basis
        off = float(np.linalg.norm(gram - np.eye(kept))) + gamma(size + 4) * kept
        if off > 0.1:
            raise InputError("The directions of the products are no basis: nothing follows from the rounds.")
        error = total / float(values[kept - 1]) / (1 - off)
        error = max(error, min(ROOM * error, ROOM_SHARE * ridge))
        inside = basis.T @ found
        skew = (inside - inside.T) / 2
        shift = 4 * gamma(size + 4) * np.sqrt(kept) * float(np.linalg.norm(found)) + rounding
        asymmetry = float(np.linalg.norm(skew, 2)) if kept else 0.0
        core = inside - skew
        extremes = np.linalg.eigvalsh(core)
        allowed = (error + shift) * (1 + off)
        if asymmetry > allowed or extremes[0] < -allowed or extremes[-1] > most + allowed:
            raise InputError(
                f"The products contradict each other: an asymmetry of {asymmetry:.3g} and curvatures from "
                f"{extremes[0]:.3g} to {extremes[-1]:.3g}, where honest ones are off by {allowed:.3g} at most."
            )
        nu = error + asymmetry + shift
        floor = ridge * (1 - gamma(16)) - 2 * nu
        eye = np.eye(kept)
        lower = linalg.cholesky(core + nu * gram + shift * eye, lower=True)
        raised = found - basis @ skew + nu * basis
        lifted = linalg.solve_triangular(lower, raised.T, lower=True).T
        spread = float(np.linalg.norm(lifted))
        more = 4 * gamma(size + kept + 8) * spread**2
        outer = linalg.cholesky(lifted.T @ lifted + (floor + more) * eye, lower=True)
        inner = linalg.cholesky(core + (ridge + nu) * gram + shift * eye, lower=True)
        wide = (spread + float(np.linalg.norm(inner)) + float(np.linalg.norm(outer))) / np.sqrt(floor)
        return cls(basis, lifted, inner, outer, floor, CARE * 8 * gamma(size + 2 * kept + 8) * (2 + wide), float(nu))

    def seen(self, below: Array, above: Array) -> tuple[Array, Array]:
        """Vectors' products with the basis and with Z, (..., r), as the forms take them."""
        return _solved(self.inner, below), _solved(self.outer, above)


def _solved(lower: Array, values: Array) -> Array:
    flat = values.reshape(-1, values.shape[-1])
    return np.asarray(linalg.solve_triangular(lower, flat.T, lower=True).T).reshape(values.shape)


@dataclass(frozen=True, eq=False)
class RoundsBound:
    """What kept products and a gradient (d, k), off by `hidden` for each class, say of margins at a head."""

    forms: TwoSided
    gradient: Array
    hidden: Array

    @cached_property
    def _seen(self) -> tuple[Array, Array, Array]:
        """The gradients as the forms take them, and <g_i, D g_j> of all pairs."""
        forms, columns = self.forms, self.gradient.T
        low, high = forms.seen(columns @ forms.basis, columns @ forms.lifted)
        above = (columns @ columns.T - high @ high.T) / forms.floor
        return low, high, above - low @ low.T

    def needed(self, block: ScoredRows) -> Array:
        """The lead over each class, of each row, that makes its best class certain."""
        top = np.argmax(block.scores, axis=1)
        return self._shared(block, top) if block.rows is not None else self._apart(block, top)

    def _shared(self, block: ScoredRows, top: NDArray[np.int64]) -> Array:
        """Where all classes share a row's columns: a is the row, r a difference of two classes' gradients."""
        rows, forms = block.rows, self.forms
        assert rows is not None
        low, high = forms.seen(rows @ forms.basis, rows @ forms.lifted)
        squares = np.einsum("nd,nd->n", rows, rows)
        norms, sizes = np.sqrt(squares), np.linalg.norm(self.gradient, axis=0)
        own_low, own_high, gaps = self._seen
        below, above = low @ own_low.T, (rows @ self.gradient - high @ own_high.T) / forms.floor
        middle = (below + above) / 2
        gap = np.diag(gaps)
        apart = gap[top][:, None] + gap - 2 * gaps[top]
        both = sizes[top][:, None] + sizes
        moved = np.take_along_axis(middle, top[:, None], axis=1) - middle
        hidden = self.hidden[top][:, None] + self.hidden
        return self._needed(moved, squares, low, high, norms[:, None], np.maximum(apart, 0), both, hidden)

    def _apart(self, block: ScoredRows, top: NDArray[np.int64]) -> Array:
        """Where every class has its own: a is a difference of two classes', r the gradient."""
        forms, images, (own_low, own_high, gaps) = self.forms, block.images, self._seen
        assert images is not None
        assert block.apart is not None
        place = np.arange(len(top))

        def less(matrix: Array) -> Array:
            found = images(matrix)
            return np.asarray(found[place, top][:, None, :] - found)

        low, high = forms.seen(less(forms.basis), less(forms.lifted))
        below, above = low @ own_low[0], (less(self.gradient)[..., 0] - high @ own_high[0]) / forms.floor
        squares = np.square(block.apart)
        size = float(np.linalg.norm(self.gradient))
        gap = np.maximum(gaps[0, 0], 0)
        return self._needed((below + above) / 2, squares, low, high, block.apart, gap, size, self.hidden[0])

    def _needed(
        self, moved: Array, squares: Array, low: Array, high: Array, norms: Array, gap: Any, size: Any, hidden: Any
    ) -> Array:
        forms = self.forms
        above = (squares - np.einsum("...r,...r->...", high, high)) / forms.floor
        room = forms.slack * squares / forms.floor
        rows = np.maximum(above - np.einsum("...r,...r->...", low, low), 0) + room
        if rows.ndim == 1:
            rows, above = rows[:, None], above[:, None]
        other = gap + forms.slack * size**2 / forms.floor
        strayed = forms.slack * norms * size / forms.floor
        strayed = (
            strayed + np.sqrt((np.maximum(above, 0) + np.reshape(room, above.shape)) / forms.floor) * CARE * hidden
        )
        return np.asarray(moved + np.sqrt(rows * other) / 2 + strayed)
