"""Few-shot probes: heads of one, two, four ... training rows of every class."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from probekit.arrays import Indices, texts
from probekit.embeddings import EmbeddingSet
from probekit.evaluation.intervals import Estimate, share
from probekit.probing.draws import Drawn
from probekit.probing.heads import fit
from probekit.probing.options import ProbeOptions
from probekit.probing.rows import ProbeRows
from probekit.probing.selection import validation_rows

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
    A protocol may draw in its own way, from the training rows that are no validation rows.
    """
    if rows.task != "classes":
        reason = "few-shot heads are of classes; these rows have targets"
        return tuple(FewShot(shots, error=reason) for shots in options.shots)
    return tuple(_probe_shots(head, rows, shots, options) for shots in options.shots)


def _draw(rows: ProbeRows, shots: int, options: ProbeOptions) -> Drawn | str:
    """The rows of every draw, or why there are too few."""
    if options.rules is not None and options.rules.draw is not None:
        labels = rows.train.labels
        assert labels is not None
        pool, _ = validation_rows(rows.train)
        drawn = options.rules.draw(labels[pool], shots, options.draws)
        return [(pool[fitting], pool[choosing]) for fitting, choosing in drawn]
    drawn = []
    for draw in range(options.draws):
        orders = class_orders(rows, options.seed, draw)
        available = [len(order) for order in orders]
        if min(available) < shots:
            name = rows.train.class_names[int(np.argmin(available))]
            kind = "groups" if "group" in rows.train.columns else "rows"
            return f"class {name!r} has {min(available)} {kind}, fewer than {shots} shots"
        picked = np.sort(np.concatenate([order[:shots] for order in orders]))
        drawn.append((picked, np.zeros(0, np.int64)))
    return drawn


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


def _probe_shots(head: str, rows: ProbeRows, shots: int, options: ProbeOptions) -> FewShot:
    drawn = _draw(rows, shots, options)
    if isinstance(drawn, str):
        return FewShot(shots, error=drawn)
    evaluated = rows.evaluated
    assert evaluated.labels is not None
    hits = np.full((len(drawn), len(evaluated)), np.nan)
    for draw, (fitting, choosing) in enumerate(drawn):
        held_out = np.arange(len(evaluated))
        if rows.test is None:
            used = np.concatenate([fitting, choosing])
            held_out = np.flatnonzero(~np.isin(rows.units, rows.units[used]))
        if not len(held_out):
            reason = f"no row is left to evaluate {shots} shots on; pass test rows (--test)"
            return FewShot(shots, error=reason)
        fitted, _ = fit(head, _training_rows(rows.train, fitting, choosing), options)
        scores = fitted.decision(evaluated if rows.test is not None else evaluated.take(held_out))
        hits[draw, held_out] = scores.argmax(axis=1) == evaluated.labels[held_out]
    accuracies = np.nanmean(hits, axis=1)
    deviation = float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else None
    is_evaluated = np.asarray(np.isfinite(hits).any(axis=0))
    row_means = np.nanmean(hits[:, is_evaluated], axis=0)
    accuracy = share(row_means, rows.sampling(options).of(is_evaluated))
    return FewShot(shots, len(fitting), tuple(accuracies.tolist()), accuracy, deviation)


def _training_rows(train: EmbeddingSet, fitting: Indices, choosing: Indices) -> EmbeddingSet:
    """Drawn rows; those that choose C are marked as validation rows."""
    rows = train.take(np.concatenate([fitting, choosing]))
    columns = {name: column for name, column in rows.columns.items() if name != "split"}
    if len(choosing):
        roles = np.repeat(["train", "validation"], [len(fitting), len(choosing)])
        columns["split"] = texts(roles.tolist())
    return replace(rows, columns=columns)
