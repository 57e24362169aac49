"""Local training that makes outputs blind to a part of the inputs (Gu et al., 2024), by gradients of the problem's own.

loss = E |f(x) - f(x + d)| / |d|, d noise on that part. J^T v of any loss here is its gradient for the targets
softened(f) - v: that is how the problem's own code gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from probekit.models.fitting import FitPlan, Noise, local_steps
from probekit.values import Array, Indices

NOISE_STREAM = 26


def fit_blind(holding: Any, name: str, plan: FitPlan, arrays: Mapping[str, Array]) -> Array:
    """A client's parameters after steps against the sensitivity along "region" (a weight for each input), or along
    "pairs": what was added to the client's inputs, one in a row, is taken away again."""
    noise, generator = plan.noise or Noise(), plan.generator(name, NOISE_STREAM)
    every, source = np.arange(holding.count), holding.embeddings.embeddings
    scale = np.asarray(source[holding.rows], np.float64).std(axis=0) if noise.relative else 1.0

    def gradient(params: Array, some: Indices) -> Array:
        chosen = holding.rows[every if plan.batch is None else some[some >= 0]]
        rows = np.tile(np.asarray(source[chosen], np.float64), (noise.draws, 1))
        if "pairs" in arrays:
            moved = -arrays["pairs"][generator.integers(len(arrays["pairs"]), size=len(rows))]
        else:
            spread = generator.uniform(noise.low, noise.high, (len(rows), 1))
            moved = spread * generator.normal(size=rows.shape) * (arrays["region"] * scale)
        return sensitivity_gradient(holding, params, rows, moved, chosen=np.tile(chosen, noise.draws), noise=noise)

    return local_steps(plan, arrays, plan.batches(holding.count, name), gradient)


def sensitivity_gradient(
    holding: Any, params: Array, rows: Array, moved: Array, *, chosen: Indices, noise: Noise
) -> Array:
    """The gradient of the sensitivity of these rows to these moves."""
    problem, both = holding.problem, np.vstack([rows, rows + moved])
    own = holding.embeddings
    labels, ids = (np.tile(np.asarray(one)[chosen], 2) for one in (own.labels, own.ids))
    seen = replace(own, embeddings=both, labels=labels, ids=ids.tolist(), **ALONE)
    scores = problem.scores(problem.head(params, ridge=0.0, recipe={}), both)
    soft = problem.softened(scores)
    if soft is not scores:  # a softmax does not see what all classes have in common
        scores = scores - scores.mean(axis=1, keepdims=True)
    apart = scores[: len(rows)] - scores[len(rows) :]
    lengths = np.linalg.norm(apart, axis=1) * np.linalg.norm(moved, axis=1)
    weight = 1 / (noise.draws if noise.reduce == "sum" else len(rows))
    v = weight * np.divide(apart, lengths[:, None], out=np.zeros_like(apart), where=lengths[:, None] > 0)
    wanted = soft - len(both) * np.vstack([v, np.zeros_like(v) if noise.detach else -v])
    made = problem.hold(seen, np.arange(len(both)))
    return np.asarray(made.batch_gradient(params, np.arange(len(both)), wanted))


ALONE: Mapping[str, Any] = {
    **dict.fromkeys(("clients", "names", "masked", "groups", "targets")),
    "columns": {},
    "skipped": (),
}
"""What noisy rows have nothing of."""
