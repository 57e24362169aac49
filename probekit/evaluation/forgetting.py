"""How well something was forgotten: plain functions of scores, labels and parameters, always beside retraining.

A head that forgot equals the head that never knew: every figure here is to be read against the retrained head's own,
and lower than retraining is a deviation too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError, MismatchError
from probekit.evaluation.metrics import USUAL, Interval, Share, accuracy, share
from probekit.linear.norms import norm
from probekit.linear.temperature import log_probabilities
from probekit.values.plain import Result

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class ForgettingAccuracy(Result):
    """The accuracy on what was forgotten, on what was retained, and on rows that nobody trained on."""

    forgotten: Share
    retained: Share
    test: Share

    @property
    def values(self) -> tuple[float, float, float]:
        """The three shares."""
        found = [one.value for one in (self.forgotten, self.retained, self.test)]
        if any(value is None for value in found):
            raise InputError("An accuracy over no rows is none. Give forgotten, retained and test rows.")
        one, two, three = (float(value) for value in found if value is not None)
        return one, two, three


@dataclass(frozen=True)
class BackdoorRates(Result):
    """How often the trigger gives the target class.

    `others`: on triggered test rows not of that class; `all`: on every triggered test row; `trained`: on the
    forgotten client's own poisoned training rows, those of the target class among them, as published tables count it.
    """

    others: Share
    all: Share
    trained: Share | None = None


@dataclass(frozen=True)
class RetrainingDistance(Result):
    """How far parameters lie from retrained ones: as it is, and divided by the norm of the retrained ones."""

    absolute: float
    relative: float


@dataclass(frozen=True)
class Divergence(Result):
    """The Jensen-Shannon divergence between a head's and the retrained head's chances, in nats (at most ln 2).

    The mean over rows, the largest, and the temperature of the softmax that made chances of scores.
    """

    mean: float
    largest: float
    temperature: float


@dataclass(frozen=True)
class ClientDrop(Result):
    """The retained client that lost most: its accuracy before and after; a negative drop is a gain."""

    client: str
    before: float
    after: float
    drop: float


@dataclass(frozen=True)
class Relearning(Result):
    """How many rounds brought a figure back to `wanted`; None: not within those tried. `values` begins before any."""

    rounds: int | None
    wanted: float
    values: tuple[float, ...]


def forgetting_accuracy(
    forgotten: tuple[Array, Indices],
    retained: tuple[Array, Indices],
    test: tuple[Array, Indices],
    *,
    interval: Interval = USUAL,
) -> ForgettingAccuracy:
    """The three accuracies, each from scores (n, k) and labels (n)."""
    shares = [accuracy(_choice(scores), labels, interval=interval) for scores, labels in (forgotten, retained, test)]
    return ForgettingAccuracy(*shares)


def backdoor_rates(
    scores: Array, labels: Indices, *, target: int, trained: Array | None = None, interval: Interval = USUAL
) -> BackdoorRates:
    """Backdoor success counted in three ways.

    scores, labels: of triggered test rows, with their true labels.
    trained: scores of the forgotten client's poisoned training rows.
    """
    if not 0 <= target < scores.shape[1]:
        raise InputError(f"The target class lies between 0 and {scores.shape[1] - 1}; found {target}.")
    hits, other = _choice(scores) == target, labels != target
    paper = None if trained is None else share(_choice(trained) == target, name="trained", interval=interval)
    others = share(hits[other], name="others", interval=interval)
    return BackdoorRates(others, share(hits, name="all", interval=interval), paper)


def retraining_distance(
    params: Array, retrained: Array, *, origin: Array | float = 0.0, measure: Callable[[Array], float] = norm
) -> RetrainingDistance:
    """The distance to retrained parameters in a problem's norm.

    origin: where parameters count from: 0, or the weights w_p that a network is linearized around.
    measure: the norm; the Euclidean one where none is given.
    """
    if params.shape != retrained.shape:
        raise MismatchError(
            f"A distance needs parameters of one shape; found {params.shape} and {retrained.shape}. Compare runs of "
            "the same problem."
        )
    away, size = measure(params - retrained), measure(np.asarray(retrained - origin))
    return RetrainingDistance(away, away / size if size else (0.0 if not away else math.inf))


def tug_of_war(found: ForgettingAccuracy, retrained: ForgettingAccuracy) -> float:
    """ToW: the product over forgotten, retained and test rows of 1 - |accuracy - the retrained head's|; 1 is best."""
    return math.prod(1 - abs(one - two) for one, two in zip(found.values, retrained.values, strict=True))


def js_divergence(scores: Array, retrained: Array, *, temperature: float = 1.0) -> Divergence:
    """The mean Jensen-Shannon divergence per row to the retrained head, of softmaxes at one temperature."""
    if scores.shape != retrained.shape or not len(scores):
        raise MismatchError(
            f"A divergence needs both heads' scores for the same rows; found {scores.shape} and {retrained.shape}."
        )
    one, two = (log_probabilities(given, temperature) for given in (scores, retrained))
    middle = np.logaddexp(one, two) - math.log(2)
    parts = sum((np.exp(logs) * (logs - middle)).sum(axis=1) / 2 for logs in (one, two))
    each = np.clip(parts, 0.0, math.log(2))
    return Divergence(float(each.mean()), float(each.max()), temperature)


def worst_client_drop(before: Array, after: Array, labels: Indices, *, clients: Mapping[str, Indices]) -> ClientDrop:
    """The largest loss of accuracy among retained clients, from both heads' scores for the same rows.

    clients: each one's row numbers.
    """
    held = {name: rows for name, rows in clients.items() if len(rows)}
    if not held:
        raise InputError("The worst drop is over retained clients with rows; found none.")
    was, now = (_choice(scores) == labels for scores in (before, after))
    drops = {name: float(was[rows].mean() - now[rows].mean()) for name, rows in held.items()}
    worst = max(drops, key=drops.__getitem__)
    return ClientDrop(worst, float(was[held[worst]].mean()), float(now[held[worst]].mean()), drops[worst])


def relearn_rounds(
    start: Any,
    step: Callable[[Any], Any],
    measure: Callable[[Any], float],
    *,
    wanted: float,
    most: int = 50,
    falling: bool = False,
) -> Relearning:
    """How many rounds of training with the forgotten again bring a figure back to what it was before.

    start: the parameters after forgetting.
    step: one round with everybody: parameters to parameters.
    measure: the figure at parameters: the forgotten rows' accuracy, the backdoor, the loss.
    wanted: what it was before forgetting.
    most: give up after so many rounds.
    falling: a loss, which comes back from above; others rise.
    """
    params, values = start, [float(measure(start))]

    def back() -> bool:
        return values[-1] <= wanted if falling else values[-1] >= wanted

    while not back() and len(values) <= most:
        params = step(params)
        values.append(float(measure(params)))
    return Relearning(len(values) - 1 if back() else None, wanted, tuple(values))


def _choice(scores: Array) -> Indices:
    return np.asarray(scores.argmax(axis=1), np.int64)
