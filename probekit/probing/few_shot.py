"""Few-shot probes: heads of one, two, four ... training rows of every class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probekit.arrays import Indices
from probekit.evaluation.intervals import Estimate, share
from probekit.probing.heads import HEADS, Fit
from probekit.probing.options import ProbeOptions
from probekit.probing.rows import ProbeRows

STREAM = 12


@dataclass(frozen=True)
class FewShot:
    """The accuracy of heads of `shots` rows of every class.

    accuracies: of every draw; deviation: their standard deviation (n - 1).
    accuracy: the mean over evaluated rows of the share of draws that get them right.
    error: why there is none.
    """

    shots: int
    train_rows: int = 0
    accuracies: tuple[float, ...] = ()
    accuracy: Estimate | None = None
    deviation: float | None = None
    error: str = ""


def few_shot(head: str, rows: ProbeRows, options: ProbeOptions) -> tuple[FewShot, ...]:
    """A curve over `options.shots`. A draw shuffles every class once; more shots add rows to it.

    Rows of one class in one draw are of different groups: two rows of a patient are not two
    examples. Without test rows, heads are evaluated on training rows of groups that were not drawn.
    """
    if rows.task != "classes":
        reason = "few-shot heads are of classes; these rows have targets"
        return tuple(FewShot(shots, error=reason) for shots in options.shots)
    orders = [class_orders(rows, options.seed, draw) for draw in range(options.draws)]
    return tuple(_probe_shots(HEADS[head], rows, orders, shots, options) for shots in options.shots)


def class_orders(rows: ProbeRows, seed: int, draw: int) -> list[Indices]:
    """For every class its rows in random order, the first of each group only."""
    generator = np.random.default_rng([seed, STREAM, draw])
    labels = rows.train.labels
    assert labels is not None
    orders = []
    for number in range(len(rows.train.class_names)):
        shuffled = generator.permutation(np.flatnonzero(labels == number))
        first = np.unique(rows.units[shuffled], return_index=True)[1]
        orders.append(shuffled[np.sort(first)])
    return orders


def _probe_shots(
    fit: Fit, rows: ProbeRows, orders: list[list[Indices]], shots: int, options: ProbeOptions
) -> FewShot:
    available = [len(order) for order in orders[0]]
    if min(available) < shots:
        name = rows.train.class_names[int(np.argmin(available))]
        kind = "groups" if "group" in rows.train.columns else "rows"
        reason = f"class {name!r} has {min(available)} {kind}, fewer than {shots} shots"
        return FewShot(shots, error=reason)
    evaluated = rows.evaluated
    assert evaluated.labels is not None
    hits = np.full((len(orders), len(evaluated)), np.nan)
    for draw, order in enumerate(orders):
        drawn = np.sort(np.concatenate([members[:shots] for members in order]))
        held_out = np.arange(len(evaluated))
        if rows.test is None:
            held_out = np.flatnonzero(~np.isin(rows.units, rows.units[drawn]))
        if not len(held_out):
            reason = f"no row is left to evaluate {shots} shots on; pass test rows (--test)"
            return FewShot(shots, error=reason)
        head, _ = fit(rows.train.take(drawn), options)
        scores = head.decision(evaluated if rows.test is not None else evaluated.take(held_out))
        hits[draw, held_out] = scores.argmax(axis=1) == evaluated.labels[held_out]
    accuracies = np.nanmean(hits, axis=1)
    deviation = float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else None
    is_evaluated = np.asarray(np.isfinite(hits).any(axis=0))
    row_means = np.nanmean(hits[:, is_evaluated], axis=0)
    accuracy = share(row_means, rows.sampling(options).of(is_evaluated))
    return FewShot(shots, len(drawn), tuple(accuracies.tolist()), accuracy, deviation)
