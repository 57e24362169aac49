"""Controls: rows that hold no signal. A head that finds one in them has found a leak."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Array, Indices, id_keys
from probekit.embeddings import EmbeddingSet
from probekit.evaluation.metrics import independence_z
from probekit.linear.folds import draw_folds
from probekit.probing.rows import FOLD_INFLATION, ProbeRows

STREAM = 32
FALSE_ALARMS = 1e-3
"""The chance that any control of a whole table is flagged although nothing is wrong."""
MAX_ROWS = 20_000

Control = Callable[[ProbeRows, np.random.Generator], ProbeRows]


def shuffled_labels(rows: ProbeRows, generator: np.random.Generator) -> ProbeRows:
    """Labels in random order over samples: copies of a sample have one label.

    Where copies of training rows are among the test rows, a head can still know them: flagged.
    """
    train = rows.train
    samples, first, sample = np.unique(id_keys(train.ids), return_index=True, return_inverse=True)
    source = generator.permutation(first)[sample]
    shuffled = _relabeled(train, _outputs(train)[source])
    if rows.test is None:
        return replace(rows, train=shuffled)
    keys = id_keys(rows.test.ids)
    position = np.minimum(np.searchsorted(samples, keys), len(samples) - 1)
    is_copy = samples[position] == keys
    outputs = _outputs(rows.test).copy()
    outputs[~is_copy] = outputs[generator.permutation(np.flatnonzero(~is_copy))]
    outputs[is_copy] = _outputs(shuffled)[first[position[is_copy]]]
    return replace(rows, train=shuffled, test=_relabeled(rows.test, outputs))


def random_vectors(rows: ProbeRows, generator: np.random.Generator) -> ProbeRows:
    """Normal vectors that have the rows' norms, in random order."""
    test = None if rows.test is None else _randomized(rows.test, generator)
    return replace(rows, train=_randomized(rows.train, generator), test=test)


CONTROLS: dict[str, Control] = {
    "shuffled labels": shuffled_labels,
    "random vectors": random_vectors,
}


def control_rows(name: str, rows: ProbeRows, *, seed: int) -> ProbeRows:
    """The rows of a control; of many rows some are drawn."""
    generator = np.random.default_rng([seed, STREAM, list(CONTROLS).index(name)])
    train = _drawn(len(rows.train), generator)
    test = None if rows.test is None else rows.test.take(_drawn(len(rows.test), generator))
    units = np.asarray(np.unique(rows.units[train], return_inverse=True)[1], np.int64)
    smaller = replace(rows, train=rows.train.take(train), test=test, units=units)
    control = CONTROLS[name](smaller, generator)
    if test is None:
        control = replace(control, folds=draw_folds(units, control.train.labels, seed))
    return control


def is_suspicious(scores: Array, rows: ProbeRows, controls: int) -> bool:
    """Whether scores agree with labels that they cannot know, or disagree, beyond chance."""
    p_value = 2 * NormalDist().cdf(-abs(independence(scores, rows)))
    return p_value < FALSE_ALARMS / controls


def independence(scores: Array, rows: ProbeRows) -> float:
    """`independence_z` over distinct samples: copies would count twice."""
    targets = rows.evaluated.target_matrix
    if rows.task == "classes":
        predictions = np.eye(targets.shape[1])[scores.argmax(axis=1)]
    else:
        scale = np.where(targets.std(axis=0) > 0, targets.std(axis=0), 1.0)
        predictions = scores / scale
        targets = targets / scale
    _, first = np.unique(id_keys(rows.evaluated.ids), return_index=True)
    folds = np.zeros(len(targets), np.int64) if rows.folds is None else rows.folds
    z = independence_z(predictions[first], targets[first], folds[first])
    return z if rows.folds is None else z / math.sqrt(FOLD_INFLATION)


def _drawn(count: int, generator: np.random.Generator) -> Indices:
    if count <= MAX_ROWS:
        return np.arange(count)
    return np.sort(generator.choice(count, MAX_ROWS, replace=False))


def _outputs(rows: EmbeddingSet) -> NDArray[Any]:
    return rows.target_matrix if rows.labels is None else rows.labels


def _relabeled(rows: EmbeddingSet, outputs: NDArray[Any]) -> EmbeddingSet:
    if rows.labels is None:
        return replace(rows, targets=outputs)
    return replace(rows, labels=outputs)


def _randomized(rows: EmbeddingSet, generator: np.random.Generator) -> EmbeddingSet:
    norms = np.linalg.norm(np.asarray(rows.rows, np.float64), axis=1)
    vectors = generator.standard_normal(rows.rows.shape)
    scale = generator.permutation(norms) / np.linalg.norm(vectors, axis=1)
    return replace(rows, rows=vectors * scale[:, None])
