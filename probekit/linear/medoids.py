"""A representative choice of rows: of each k-means cluster the row nearest its centre."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.linear.neighbours import check_finite, faiss_with, single

SEEDING_STREAM, SEEDING_PASSES = 30, 1000

Indices = NDArray[np.int64]


def representatives(rows: NDArray[Any], count: int, *, seed: int = 0, threads: int = 1) -> Indices:
    """The numbers of `count` different rows, sorted: of each k-means cluster the row nearest its centre.

    Where fewer clusters than asked for hold rows (duplicates), the rows farthest from their centres fill up.
    """
    if not 1 <= count <= len(rows):
        raise InputError(f"Between 1 and {len(rows)} representatives of {len(rows)} rows can be had; found {count}.")
    check_finite(rows, "row")
    if count == len(rows):
        return np.arange(len(rows))
    points = single(rows)
    with faiss_with(threads) as faiss:
        bounds = {"min_points_per_centroid": 1, "max_points_per_centroid": len(rows)}
        clusters = faiss.Kmeans(points.shape[1], count, seed=seed % 2**31, niter=10, **bounds)
        clusters.train(points, init_centroids=points[_spread(points, count, seed=seed)])
        found, nearest = clusters.index.search(points, 1)
    distances, cluster = found[:, 0], nearest[:, 0]
    order = np.lexsort((np.arange(len(rows)), distances, cluster))
    medoids = order[np.unique(cluster[order], return_index=True)[1]]
    others = np.setdiff1d(np.argsort(-distances, kind="stable"), medoids, assume_unique=True)
    return np.sort(np.concatenate([medoids, others[: count - len(medoids)]]))


def _spread(points: NDArray[np.float32], count: int, *, seed: int) -> Indices:
    """Rows to start k-means from, drawn with a chance proportional to the squared distance to those before.

    faiss starts from uniformly drawn rows and misses small clusters. At most `SEEDING_PASSES` passes are made
    over the rows; for more centres several are drawn in a pass.
    """
    generator = np.random.Generator(np.random.PCG64([seed, SEEDING_STREAM]))
    squares = np.einsum("ij,ij->i", points, points, dtype=np.float64)
    drawn = generator.integers(len(points), size=1)
    distance = np.full(len(points), np.inf)
    together = -(-count // SEEDING_PASSES)
    while len(drawn) < count:
        fresh = drawn[-together:]
        products = (points @ points[fresh].T).astype(np.float64)
        distance = np.minimum(distance, (squares[:, None] + squares[fresh] - 2 * products).min(axis=1))
        distance[drawn] = 0
        chances = np.maximum(distance, 0)
        possible = min(together, count - len(drawn), int(np.count_nonzero(chances)))
        if not possible:
            rest = np.setdiff1d(np.arange(len(points)), drawn)
            return np.concatenate([drawn, rest[: count - len(drawn)]])
        chosen = generator.choice(len(points), possible, replace=False, p=chances / chances.sum())
        drawn = np.concatenate([drawn, chosen])
    return drawn
