"""Log losses of scores, with slopes and curvatures: of classes, or of labels of 0 and 1.

Both keep for each row what its curvature needs, (n, k) in float32: probabilities p of the classes,
where the curvature is diag(p) - p p^T, or p (1 - p) of every label. What the methods are is said
at those of the softmax.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace, device

from probekit.linear.rotation import AnyArray


@dataclass(frozen=True)
class Softmax:
    """Classes: the loss is logsumexp(z) - z_y, targets are class numbers (n,)."""

    outputs: int

    def losses(self, scores: AnyArray, targets: AnyArray) -> tuple[AnyArray, AnyArray, AnyArray]:
        """Losses (m,), their slopes in the scores (m, k), and what the curvature needs (m, k).

        A row that is nearly sure has an accurate loss and slope: 1 - p is never computed.
        """
        xp = array_namespace(scores)
        scores -= xp.max(scores, axis=1, keepdims=True)
        each = xp.arange(scores.shape[0], device=device(scores))
        target_scores = scores[each, targets]
        slopes = xp.exp(scores)
        powers = slopes[each, targets]
        slopes[each, targets] = 0.0
        others = xp.sum(slopes, axis=1)
        sums = others + powers
        losses = xp.log1p(others + (powers - 1)) - target_scores
        slopes /= sums[:, None]
        probabilities = xp.astype(slopes, xp.float32)
        probabilities[each, targets] = xp.astype(powers / sums, xp.float32)
        slopes[each, targets] = -others / sums
        return losses, slopes, probabilities

    def mistakes(self, scores: AnyArray, targets: AnyArray) -> AnyArray:
        """Rows that are wrong, or how many labels of each row, (m,)."""
        return array_namespace(scores).argmax(scores, axis=1) != targets

    def curve(self, kept: AnyArray, scores: AnyArray) -> None:
        """Multiply scores by the curvature, in place."""
        xp = array_namespace(scores)
        scores -= xp.vecdot(kept, scores)[:, None]
        scores *= kept

    def trace(self, kept: AnyArray) -> AnyArray:
        """Of each row's curvature, (m,)."""
        return 1 - array_namespace(kept).vecdot(kept, kept)

    def moment(self, kept: AnyArray, weights: AnyArray) -> AnyArray:
        """Of some rows, in float64; it adds up."""
        xp = array_namespace(kept)
        scaled = kept * xp.sqrt(weights)[:, None]
        return xp.astype(scaled.T @ scaled, xp.float64)  # NumPy does half of the work (SYRK)

    def eigenbasis(self, moment: AnyArray) -> tuple[AnyArray, AnyArray]:
        """Eigenvalues (r,) and eigenvectors (k, r) of the summed curvature of these rows.

        Directions that change nothing are left out.
        """
        xp = array_namespace(moment)
        identity = xp.eye(self.outputs, dtype=xp.float64, device=device(moment))
        covariance = identity * xp.sum(moment, axis=1) - moment
        stacked = xp.concat([xp.ones_like(identity[:, :1]), identity[:, 1:]], axis=1)
        contrasts = xp.linalg.qr(stacked)[0][:, 1:]
        values, vectors = xp.linalg.eigh(contrasts.T @ covariance @ contrasts)
        return values, contrasts @ vectors

    def project(self, gradient: AnyArray) -> AnyArray:
        """Without the part along a direction that changes nothing."""
        return gradient - array_namespace(gradient).mean(gradient, axis=1, keepdims=True)

    def totals(self, targets: AnyArray, weights: AnyArray, rows: AnyArray) -> AnyArray:
        """rows^T diag(weights) targets, (p, k)."""
        xp = array_namespace(rows)
        indicator = xp.zeros((rows.shape[0], self.outputs), dtype=rows.dtype, device=device(rows))
        indicator[xp.arange(rows.shape[0], device=device(rows)), targets] = weights
        return rows.T @ indicator

    def intercept(self, shares: AnyArray) -> AnyArray:
        """The scores whose probabilities are these shares, (k,)."""
        logs = array_namespace(shares).log(shares)
        return self.project(logs[None, :])[0, :]

    def spread(self, params: AnyArray) -> AnyArray:
        """Params with a column for every class or label."""
        return params

    def gather(self, params: AnyArray) -> AnyArray:
        """The inverse of `spread`."""
        return params

    def repair(self, shares: AnyArray, excess: AnyArray) -> tuple[float, AnyArray, float]:
        """t, q and the entropy of q such that (1 - t) (shares + excess) + t q = shares.

        q are probabilities and t is as small as that allows.
        """
        xp = array_namespace(shares)
        sums = shares + excess
        t = max(0.0, float(xp.max(excess / sums)))
        q = xp.clip(sums - excess / max(t, 1e-300), 0.0, None) if t else sums
        q = q / xp.sum(q)
        return t, q, entropy(q)


@dataclass(frozen=True)
class Bernoulli:
    """Labels: the losses log(1 + exp(z)) - y z of all columns are added, targets are bool (n, k).

    of_classes: two classes are one label, with params w; they have columns -w/2 and w/2.
    """

    outputs: int
    of_classes: bool = False

    def losses(self, scores: AnyArray, targets: AnyArray) -> tuple[AnyArray, AnyArray, AnyArray]:
        """log(1 + exp(s)) with s the score of the wrong value; slopes are probabilities of it."""
        xp = array_namespace(scores)
        wrong = xp.where(targets, -scores, scores)
        powers = xp.exp(-xp.abs(scores))
        shares = 1 / (1 + powers)
        losses = xp.sum(xp.log1p(powers) + xp.clip(wrong, 0.0, None), axis=1)
        kept = xp.astype(powers * shares * shares, xp.float32)
        slopes = xp.where(wrong >= 0, shares, powers * shares)
        return losses, xp.where(targets, -slopes, slopes), kept

    def mistakes(self, scores: AnyArray, targets: AnyArray) -> AnyArray:
        return array_namespace(scores).sum((scores > 0) != targets, axis=1)

    def curve(self, kept: AnyArray, scores: AnyArray) -> None:
        scores *= kept

    def trace(self, kept: AnyArray) -> AnyArray:
        return array_namespace(kept).sum(kept, axis=1)

    def moment(self, kept: AnyArray, weights: AnyArray) -> AnyArray:
        xp = array_namespace(kept)
        return xp.sum(kept * weights[:, None], axis=0, dtype=xp.float64)

    def eigenbasis(self, moment: AnyArray) -> tuple[AnyArray, AnyArray]:
        xp = array_namespace(moment)
        return moment, xp.eye(self.outputs, dtype=xp.float64, device=device(moment))

    def project(self, gradient: AnyArray) -> AnyArray:
        return gradient

    def totals(self, targets: AnyArray, weights: AnyArray, rows: AnyArray) -> AnyArray:
        xp = array_namespace(rows)
        return rows.T @ (xp.astype(targets, rows.dtype) * weights[:, None])

    def intercept(self, shares: AnyArray) -> AnyArray:
        xp = array_namespace(shares)
        return xp.log(shares) - xp.log1p(-shares)

    def spread(self, params: AnyArray) -> AnyArray:
        if not self.of_classes:
            return params
        return array_namespace(params).concat([-0.5 * params, 0.5 * params], axis=1)

    def gather(self, params: AnyArray) -> AnyArray:
        return params[:, 1:] - params[:, :1] if self.of_classes else params

    def repair(self, shares: AnyArray, excess: AnyArray) -> tuple[float, AnyArray, float]:
        xp = array_namespace(shares)
        sums = shares + excess
        t = max(0.0, float(xp.max(excess / sums)), float(xp.max(-excess / (1 - sums))))
        q = xp.clip(sums - excess / max(t, 1e-300), 0.0, 1.0) if t else sums
        return t, q, entropy(q) + entropy(1 - q)


Likelihood = Softmax | Bernoulli


def entropy(shares: AnyArray) -> float:
    xp = array_namespace(shares)
    return -float(xp.sum(shares * xp.log(xp.where(shares > 0, shares, xp.ones_like(shares)))))


def likelihood_of(targets: AnyArray, outputs: int) -> tuple[Likelihood, Any]:
    """What the targets need, and the targets as it takes them: two classes become one label."""
    if targets.ndim == 2:
        return Bernoulli(outputs), targets > 0.5
    if outputs == 2:
        return Bernoulli(1, of_classes=True), targets[:, None] > 0
    return Softmax(outputs), targets
