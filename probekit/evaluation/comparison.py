"""Differences of two heads on the same rows, with intervals and tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from probekit.arrays import Array
from probekit.errors import InputError
from probekit.evaluation.bootstrap import Sums
from probekit.evaluation.intervals import ROWS, Interval, Sampling, student_quantile, wilson
from probekit.evaluation.measures import Measure
from probekit.evaluation.metrics import Predictions, metric_of


@dataclass(frozen=True)
class PairedDifference:
    """The first head's metric less the second's, on `count` rows that both were evaluated on.

    p_value: of no difference; `adjusted` for several comparisons by `holm`. test: how it was made.
    """

    metric: str
    value: float
    low: float
    high: float
    confidence: float
    count: int
    p_value: float
    method: str
    test: str

    @property
    def differs(self) -> bool:
        """Whether a difference was shown."""
        return self.p_value < 1 - self.confidence

    def __str__(self) -> str:
        text = f"{self.value:+.3f} [{self.low:+.3f}, {self.high:+.3f}], p = {self.p_value:.2g}"
        return text if self.differs else f"{text} (no difference shown)"

    def to_dict(self) -> dict[str, float | int | str | bool]:
        return {**asdict(self), "differs": self.differs}


def compare(
    first: Predictions,
    second: Predictions,
    metric: str = "accuracy",
    *,
    sampling: Sampling = ROWS,
) -> PairedDifference:
    """The difference of a metric between two heads' predictions of the same rows, in one order."""
    if first.task != second.task or not np.array_equal(first.truth, second.truth):
        raise InputError(
            f"Heads are compared on the same rows; found {len(first.truth)} and "
            f"{len(second.truth)} rows with different labels. Evaluate both on one test set."
        )
    measure = metric_of(metric, first.task).measure
    if metric == "accuracy":
        hits = [head.predicted == head.truth for head in (first, second)]
        return compare_rows(hits[0], hits[1], sampling=sampling)
    return _difference(metric, measure(first), measure(second), sampling)


def compare_rows(
    first: ArrayLike, second: ArrayLike, *, metric: str = "accuracy", sampling: Sampling = ROWS
) -> PairedDifference:
    """The difference of two means over the same rows, of hits (booleans) or of any number.

    Hits of independent rows are tested by McNemar's test without correction.
    """
    pair = [np.asarray(values) for values in (first, second)]
    if pair[0].shape != pair[1].shape or pair[0].ndim != 1 or not len(pair[0]):
        raise InputError(
            f"Two values for each of the same rows were expected; found shapes {pair[0].shape} and "
            f"{pair[1].shape}. Evaluate both heads on one test set."
        )
    means = [Sums.of_means(values.astype(np.float64)) for values in pair]
    difference = _difference(metric, means[0], means[1], sampling)
    if pair[0].dtype != bool or pair[1].dtype != bool:
        return difference
    if difference.low == difference.high:
        low, high = _without_variation(difference.value, sampling, len(pair[0]))
        difference = replace(difference, low=low, high=high, method="Wilson of no other row")
    if sampling.groups is not None:
        return difference
    p_value = mcnemar(pair[0], pair[1], inflation=sampling.inflation)
    return replace(difference, p_value=p_value, test="McNemar")


def mcnemar(first: ArrayLike, second: ArrayLike, *, inflation: float = 1.0) -> float:
    """The p-value of McNemar's chi-squared test, without correction, of two heads' hits."""
    from scipy.special import chdtrc

    hits = [np.asarray(values, bool) for values in (first, second)]
    gained = int(np.count_nonzero(hits[0] & ~hits[1]))
    lost = int(np.count_nonzero(hits[1] & ~hits[0]))
    if not gained + lost:
        return 1.0
    return float(chdtrc(1, (gained - lost) ** 2 / (gained + lost) / inflation))


def holm(p_values: ArrayLike) -> Array:
    """p-values adjusted for being a family (Holm 1979): at most one in 20 families errs at 5 %."""
    values = np.asarray(p_values, np.float64)
    order = np.argsort(values, kind="stable")
    factors = np.arange(len(values), 0, -1)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(np.maximum.accumulate(values[order] * factors), 1.0)
    return adjusted


def adjusted(differences: Sequence[PairedDifference]) -> tuple[PairedDifference, ...]:
    """The differences as a family: their p-values by `holm`, their intervals as they were."""
    p_values = holm([difference.p_value for difference in differences])
    return tuple(
        replace(difference, p_value=float(p_value), test=f"{difference.test}, Holm")
        for difference, p_value in zip(differences, p_values, strict=True)
    )


def _difference(
    metric: str, first: Measure, second: Measure, sampling: Sampling
) -> PairedDifference:
    """Student's interval and test, with the standard error of the linearized difference.

    By simulation (benchmarks/coverage.py) it covers better than percentiles of a paired bootstrap
    and than the bootstrap-t, which suffer from few rows in which heads differ.
    """
    value, error, freedom, count = _paired(first, second, sampling)
    unit = "rows" if sampling.groups is None else "groups"
    if freedom < 1:
        raise InputError(f"A comparison needs two {unit} or more; found 1. Pass more test rows.")
    half = 0.0
    p_value = 1.0 if value == 0 else 0.0
    if error > 0:
        half = error * student_quantile(sampling.confidence, freedom)
        p_value = _student_p(value / error, freedom)
    method = f"Student over {freedom + 1} {unit}"
    if sampling.inflation != 1:
        method = f"{method}, variance x {sampling.inflation:g}"
    return PairedDifference(
        metric=metric,
        value=value,
        low=value - half,
        high=value + half,
        confidence=sampling.confidence,
        count=count,
        p_value=p_value,
        method=method,
        test="Student",
    )


def _paired(first: Measure, second: Measure, sampling: Sampling) -> tuple[float, float, int, int]:
    """The difference, its standard error, the error's degrees of freedom, and the rows."""
    if isinstance(first, Sums) and isinstance(second, Sums):
        sums = first.minus(second)
        units = sums.units(sampling.groups)
        error = units.error * float(np.sqrt(sampling.inflation))
        return units.value, error, units.count - 1, len(sums)
    assert not isinstance(first, Sums)
    assert not isinstance(second, Sums)
    ranking = first.minus(second)
    error, freedom = ranking.error(sampling)
    return ranking.value, error, freedom, len(ranking.influence)


def _student_p(t: float, freedom: int) -> float:
    from scipy.special import stdtr

    return float(2 * stdtr(freedom, -abs(t)))


def _without_variation(value: float, sampling: Sampling, count: int) -> Interval:
    """The heads agree, or disagree, on all rows: as far as the next row could change that."""
    units = count if sampling.groups is None else len(np.unique(sampling.groups))
    reach = wilson(0.0, units / sampling.inflation, sampling.confidence)[1]
    return max(-1.0, value - reach), min(1.0, value + reach)
