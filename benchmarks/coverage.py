"""How often nominal 95 % intervals hold the true value, by simulation.

Prints one JSON object a line: which interval, of how many rows or groups, its coverage and the
Monte Carlo standard error of that. Promised are 95 +- 1.5 % for accuracies of 50 to 95 % of 200
rows and more and of 20 to 100 groups, and for differences of accuracy on the same rows; the others
are measured. Exits with 1 where a promise is missed.

Wilson's coverage is added up, not simulated. So many rows have only so many accuracies, so that the
coverage of any interval jumps with the true value: what is promised is its mean over true values
within a point of the setting's, and the lowest and the highest of them are printed beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from probekit.evaluation.comparison import compare, compare_rows
from probekit.evaluation.intervals import Sampling, share, wilson
from probekit.evaluation.metrics import METRICS, Predictions

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Covered = dict[str, bool]
Simulate = Callable[[np.random.Generator, int], Covered]

NOMINAL = 0.95
MARGIN = 0.015
NEARBY = 0.01
GROUP_ROWS = 15
POPULATION = 60_000


@dataclass(frozen=True)
class Setting:
    """One kind of data: `simulate` draws it once and says which intervals held."""

    units: str
    count: int
    setting: str
    promised: bool
    simulate: Simulate


def coverage(setting: Setting, simulations: int, seed: int = 0) -> dict[str, float]:
    """The share of simulations whose interval held, by the interval's name."""
    generator = np.random.default_rng(seed)
    covered: Counter[str] = Counter()
    for number in range(simulations):
        covered.update(setting.simulate(generator, number))
    return {name: count / simulations for name, count in covered.items()}


def exact_wilson(rows: int, value: float) -> float:
    """Wilson's coverage by adding up the binomial distribution."""
    hits = np.arange(rows + 1)
    limits = np.array([wilson(count / rows, rows, NOMINAL) for count in hits])
    held = (limits[:, 0] <= value) & (value <= limits[:, 1])
    return float(binom.pmf(hits, rows, value)[held].sum())


def wilson_nearby(rows: int, value: float) -> list[float]:
    """Its coverage of the true values within a point of this one."""
    nearby = np.arange(value - NEARBY, value + NEARBY, NEARBY / 40) + NEARBY / 80
    return [exact_wilson(rows, near) for near in nearby.tolist()]


def grouped_accuracy(groups: int, value: float, correlation: float) -> Setting:
    """Each group's share of hits is Beta-distributed; groups have 1 + Poisson(15) rows."""
    shape = (1 - correlation) / correlation

    def simulate(generator: np.random.Generator, seed: int) -> Covered:
        shares = generator.beta(value * shape, (1 - value) * shape, groups)
        numbers = draw_groups(groups, generator)
        hits = generator.random(len(numbers)) < shares[numbers]
        estimate = share(hits, Sampling(groups=numbers, seed=seed))
        return {"accuracy": estimate.low <= value <= estimate.high}

    setting = f"accuracy {value}, correlation {correlation} in groups"
    return Setting("groups", groups, setting, value <= 0.95, simulate)


def paired_accuracy(rows: int, gained: float, lost: float) -> Setting:
    """The heads differ on shares of the rows: one is right where the other is not."""

    def simulate(generator: np.random.Generator, seed: int) -> Covered:
        draws = generator.random(rows)
        difference = compare_rows(draws >= lost, (draws < lost) | (draws >= lost + gained))
        return {"accuracy, difference": difference.low <= gained - lost <= difference.high}

    setting = f"heads differ on {gained + lost:.0%} of rows, by {gained - lost:.0%}"
    return Setting("rows", rows, setting, True, simulate)


def grouped_pairs(groups: int, gained: float, lost: float, correlation: float) -> Setting:
    """As `paired_accuracy`, each group's shares Dirichlet-distributed."""
    shape = (1 - correlation) / correlation * np.array([1 - gained - lost, gained, lost])

    def simulate(generator: np.random.Generator, seed: int) -> Covered:
        numbers = draw_groups(groups, generator)
        limits = generator.dirichlet(shape, groups).cumsum(axis=1)[numbers]
        kind = (generator.random(len(numbers))[:, None] > limits).sum(axis=1)
        sampling = Sampling(groups=numbers, seed=seed)
        difference = compare_rows(kind != 2, kind != 1, sampling=sampling)
        return {"accuracy, difference": difference.low <= gained - lost <= difference.high}

    setting = f"heads differ on {gained + lost:.0%} of rows, correlation {correlation} in groups"
    return Setting("groups", groups, setting, True, simulate)


def draw_groups(groups: int, generator: np.random.Generator) -> Indices:
    return np.repeat(np.arange(groups), generator.poisson(GROUP_ROWS, groups) + 1)


@dataclass(frozen=True, eq=False)
class Population:
    """Two heads' predictions of many rows; samples are drawn of it, so that its value is true.

    groups: of each row, in order; rows without groups are groups of one row.
    """

    heads: tuple[Predictions, Predictions]
    groups: Indices

    def take(self, rows: Indices) -> tuple[Predictions, Predictions]:
        first, second = (
            Predictions(
                head.scores[rows],
                head.truth[rows],
                head.task,
                None if head.probabilities is None else head.probabilities[rows],
            )
            for head in self.heads
        )
        return first, second

    def setting(self, count: int, text: str) -> Setting:
        """Of every metric of the first head, and of the difference to the second."""
        task = self.heads[0].task
        metrics = {
            name: metric
            for name, metric in METRICS.items()
            if task in metric.tasks and not (name == "top5" and self.heads[0].scores.shape[1] < 6)
        }
        truths = {name: compared_values(self.heads, name) for name in metrics}
        members = np.split(np.arange(len(self.groups)), np.flatnonzero(np.diff(self.groups)) + 1)
        is_grouped = len(members) < len(self.groups)

        def simulate(generator: np.random.Generator, seed: int) -> Covered:
            drawn = [members[number] for number in generator.integers(0, len(members), count)]
            numbers = np.repeat(np.arange(count), [len(rows) for rows in drawn])
            first, second = self.take(np.concatenate(drawn))
            sampling = Sampling(groups=numbers if is_grouped else None, seed=seed)
            covered = {}
            for name, metric in metrics.items():
                value, other = truths[name]
                estimate = metric.of(first, sampling)
                covered[name] = estimate.low <= value <= estimate.high
                difference = compare(first, second, name, sampling=sampling)
                covered[f"{name}, difference"] = difference.low <= value - other <= difference.high
            return covered

        return Setting("groups" if is_grouped else "rows", count, text, False, simulate)


def compared_values(heads: tuple[Predictions, Predictions], name: str) -> list[float]:
    return [METRICS[name].measure(head).value for head in heads]


def class_population(
    shares: list[float], signal: float, *, correlation: float = 0.0, seed: int = 0
) -> Population:
    """Scores are noise and a signal at the class; half of a group's rows are of one class."""
    generator = np.random.default_rng(seed)
    classes = len(shares)
    if correlation:
        groups = draw_groups(POPULATION // (GROUP_ROWS + 1), generator)
    else:
        groups = np.arange(POPULATION)
    count = len(groups)
    labels = generator.choice(classes, count, p=shares)
    if correlation:
        common = generator.choice(classes, groups[-1] + 1, p=shares)
        labels = np.where(generator.random(count) < 0.5, common[groups], labels)
    shared = generator.normal(size=(groups[-1] + 1, classes))[groups]
    own = generator.normal(size=(count, classes))
    noise = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own
    heads = []
    for gain in (0.0, 0.15):
        scores = 0.9 * noise + 0.44 * generator.normal(size=noise.shape)
        scores[np.arange(count), labels] += signal + gain
        powers = np.exp(signal * scores)
        probabilities = powers / powers.sum(axis=1, keepdims=True)
        heads.append(Predictions(scores, labels, "classes", probabilities))
    return Population((heads[0], heads[1]), groups)


def label_population(shares: list[float], seed: int = 0) -> Population:
    generator = np.random.default_rng(seed)
    truth = (generator.random((POPULATION, len(shares))) < shares).astype(np.float64)
    noise = generator.normal(size=truth.shape)
    heads = [
        Predictions(
            0.9 * noise + 0.44 * generator.normal(size=truth.shape) + g * truth, truth, "labels"
        )
        for g in (1.2, 1.35)
    ]
    return Population((heads[0], heads[1]), np.arange(POPULATION))


def number_population(*, is_grouped: bool, seed: int = 0) -> Population:
    """Targets with heavy tails, and errors that groups share."""
    generator = np.random.default_rng(seed)
    groups = np.arange(POPULATION)
    if is_grouped:
        groups = draw_groups(POPULATION // (GROUP_ROWS + 1), generator)
    targets = generator.standard_t(5, size=(len(groups), 1))
    shared = 0.5 * is_grouped * generator.normal(size=(groups[-1] + 1, 1))[groups]
    heads = [
        Predictions(
            targets + shared + scale * generator.normal(size=targets.shape), targets, "numbers"
        )
        for scale in (0.8, 0.7)
    ]
    return Population((heads[0], heads[1]), groups)


def promised_settings() -> Iterator[Setting]:
    for groups in (20, 30, 50, 100):
        for value in (0.7, 0.9, 0.95):
            for correlation in (0.1, 0.3):
                yield grouped_accuracy(groups, value, correlation)
    for rows in (200, 1000):
        for gained, lost in ((0.05, 0.03), (0.15, 0.10)):
            yield paired_accuracy(rows, gained, lost)
    for groups in (20, 30, 50, 100):
        for correlation in (0.1, 0.3):
            yield grouped_pairs(groups, 0.10, 0.06, correlation)


def other_settings() -> Iterator[Setting]:
    for groups in (20, 50):
        yield grouped_accuracy(groups, 0.98, 0.3)
    skewed, even = [0.6, 0.3, 0.1], [0.1] * 10
    yield class_population([0.7, 0.3], 1.0).setting(200, "2 classes, 70 and 30 %")
    yield class_population(skewed, 2.0).setting(200, "3 classes, 60, 30 and 10 %")
    yield class_population(even, 3.0).setting(1000, "10 even classes")
    yield class_population(skewed, 2.0, correlation=0.3).setting(20, "3 classes, 60, 30 and 10 %")
    yield class_population(even, 3.0, correlation=0.3).setting(50, "10 even classes")
    yield label_population([0.5, 0.2, 0.1, 0.05]).setting(500, "4 labels, 50 to 5 % positive")
    yield number_population(is_grouped=False).setting(200, "targets with heavy tails")
    yield number_population(is_grouped=True).setting(30, "targets with heavy tails")


def report_wilson(rows: int, value: float) -> bool:
    nearby = wilson_nearby(rows, value)
    setting = Setting("rows", rows, f"accuracy {value}", True, lambda *_: {})
    extremes = {"lowest": round(min(nearby), 4), "highest": round(max(nearby), 4)}
    return report(setting, "accuracy", float(np.mean(nearby)), {**extremes, "simulations": "exact"})


def report_simulated(setting: Setting, interval: str, value: float, simulations: int) -> bool:
    error = (value * (1 - value) / simulations) ** 0.5
    measured = {"monte_carlo_error": round(error, 4), "simulations": simulations}
    return report(setting, interval, value, measured)


def report(setting: Setting, interval: str, value: float, further: dict[str, object]) -> bool:
    """Print one coverage; whether it keeps what is promised."""
    holds = not setting.promised or abs(value - NOMINAL) <= MARGIN
    line = {
        "interval": interval,
        "count": setting.count,
        "units": setting.units,
        "setting": setting.setting,
        "coverage": round(value, 4),
        **further,
    }
    if setting.promised:
        line["holds"] = holds
    print(json.dumps(line), flush=True)
    return holds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulations", type=int, default=4000, help="of what is promised")
    parser.add_argument("--others", type=int, default=500, help="of what is only measured")
    arguments = parser.parse_args()
    accuracies = product((200, 500, 2000), (0.5, 0.7, 0.9, 0.95))
    held = [report_wilson(rows, value) for rows, value in accuracies]
    for settings, simulations in (
        (promised_settings(), arguments.simulations),
        (other_settings(), arguments.others),
    ):
        for setting in settings if simulations else ():
            for interval, value in coverage(setting, simulations).items():
                held.append(report_simulated(setting, interval, value, simulations))
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
