"""Cells of a probe: a head on one dataset and backbone, fitted and evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from probekit.arrays import Array, Indices, hex_id
from probekit.embeddings import SHOWN_ROWS, EmbeddingSet
from probekit.errors import ProbekitError
from probekit.heads import Head, KNNHead
from probekit.linear.calibration import best_temperature, left_out_temperature
from probekit.linear.leave_one_out import RidgeChoice, choose_ridge, left_out_scores
from probekit.linear.ridge import RidgePath, affine_scores, solve_ridge
from probekit.linear.stats import SufficientStats, normalized
from probekit.probing.controls import CONTROLS, control_rows, is_suspicious
from probekit.probing.evaluate import Evaluation, evaluate
from probekit.probing.few_shot import FewShot, few_shot
from probekit.probing.options import ProbeOptions
from probekit.probing.rows import ProbeRows, prepare_rows

if TYPE_CHECKING:
    from probekit.extraction.sources import RowSplits

MOST_WRONG = 20
NESTED_ROWS = 5_000
"""Up to so many rows, every fold is scored with a ridge that was chosen without it."""


@dataclass(frozen=True)
class WrongRow:
    """A training row that a head fitted without it gets wrong; margin: by how much."""

    key: str
    id: str
    label: str
    predicted: str
    margin: float


@dataclass(frozen=True, eq=False)
class Cell:
    """One head on one dataset and backbone: an evaluation, or the error that prevented it.

    control: "" or which control it is; suspicious: a control that found a signal.
    evaluated_on: "test rows", or the folds of training rows.
    ridge, ridge_choice: of the head and how it was chosen; neighbors: of k-NN.
    fitted: the head fitted on all training rows.
    """

    data: str
    backbone: str
    head: str
    control: str = ""
    error: str = ""
    view: str = ""
    width: int = 0
    normalize: str = "none"
    train_rows: int = 0
    test_rows: int = 0
    evaluated_on: str = ""
    copies: int = 0
    skipped: int = 0
    unknown_classes: Mapping[str, int] = field(default_factory=dict)
    missing_classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    evaluation: Evaluation | None = None
    few_shot: tuple[FewShot, ...] = ()
    ridge: float | None = None
    ridge_choice: str = ""
    neighbors: int | None = None
    suspicious: bool = False
    fitted: Head | KNNHead | None = None
    most_wrong: tuple[WrongRow, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(replace(self, fitted=None), dict_factory=_document)


def _document(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """The fields that are reported; arrays as lists."""
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in items
        if name not in ("fitted", "decimal", "independence")
    }


def probe_splits(
    splits: RowSplits, options: ProbeOptions, *, data: str, controls: int = 0
) -> list[Cell]:
    """A cell for every head, and the controls.

    controls: how many the whole table has, for their family-wise rate; 0: none are computed here.
    """
    rows = prepare_rows(splits, options)
    template = _template(rows, splits, data)
    cells = []
    for head in options.heads:
        try:
            cells.append(_fit_head(replace(template, head=head), rows, options))
        except ProbekitError as error:
            if len(options.heads) == 1:
                raise
            cells.append(replace(template, head=head, error=str(error)))
    if controls:
        template = replace(template, head=options.heads[0], notes=())
        cells += [_control_cell(name, template, rows, options, controls) for name in CONTROLS]
    return cells


def _template(rows: ProbeRows, splits: RowSplits, data: str) -> Cell:
    encoding = rows.train.encoding
    parts = (splits.train, splits.validation, splits.test)
    skipped = [sample for part in parts if part is not None for sample in part.skipped]
    notes = rows.notes
    if skipped:
        listed = "; ".join(f"{sample.key} ({sample.reason})" for sample in skipped[:SHOWN_ROWS])
        notes = (*notes, f"{len(skipped):,} samples were skipped: {listed}")
    return Cell(
        data,
        encoding.backbone.partition("#")[0],
        "",
        view=str(encoding.identity.get("view", "")),
        width=rows.train.width,
        skipped=len(skipped),
        copies=rows.copies,
        unknown_classes=rows.unknown_classes,
        missing_classes=rows.missing_classes,
        notes=notes,
    )


def _fit_head(template: Cell, rows: ProbeRows, options: ProbeOptions) -> Cell:
    cell = replace(
        template,
        train_rows=len(rows.train),
        test_rows=len(rows.evaluated),
        evaluated_on=rows.evaluated_on,
    )
    return (_fit_knn if cell.head == "knn" else _fit_ridge)(cell, rows, options)


def _fit_ridge(cell: Cell, rows: ProbeRows, options: ProbeOptions) -> Cell:
    train = normalized(rows.train, options.normalize)
    stats = SufficientStats.from_rows(train)
    path = RidgePath.of(stats)
    choice = _choose_ridge(path, train, rows.units, options)
    params = solve_ridge(stats, choice.value)
    left_out = None
    temperature = None
    if rows.folds is not None:
        left_out = _fold_scores(path, train, choice.value, rows, options)
        if rows.task != "numbers":
            temperature = left_out_temperature(left_out, train)
    head = Head.from_params(
        params,
        rows.train,
        normalize=options.normalize,
        temperature=temperature,
        ridge=choice.value,
        ridge_choice=choice.how,
    )
    scores = left_out
    if rows.test is not None:
        scores = affine_scores(normalized(rows.test, options.normalize), params)
    assert scores is not None
    confidences = None
    if temperature is not None and rows.task == "classes":
        confidences = _confidences(scores, rows, temperature)
    cell = _evaluated(cell, head, scores, rows, options, confidences)
    if choice.at_grid_edge:
        note = f"The ridge, {choice.value:.3g}, is at the edge of its grid (--ridge sets it)."
        cell = replace(cell, notes=(*cell.notes, note))
    return replace(
        cell,
        few_shot=few_shot(rows, options),
        ridge=choice.value,
        ridge_choice=choice.how,
        most_wrong=_most_wrong(left_out, rows.train),
    )


def _choose_ridge(
    path: RidgePath, train: EmbeddingSet, units: Indices, options: ProbeOptions
) -> RidgeChoice:
    groups = units if "group" in train.columns else None
    return choose_ridge(path, train, options.ridge, groups=groups)


def _fold_scores(
    path: RidgePath, train: EmbeddingSet, ridge: float, rows: ProbeRows, options: ProbeOptions
) -> Array:
    """Scores of training rows in heads without their fold.

    A ridge chosen with the fold flatters by about 1 % at 50 rows; with many rows by nothing.
    """
    if rows.test is not None or not options.chooses_ridge or len(train) > NESTED_ROWS:
        return left_out_scores(path, train, ridge, groups=rows.folds)
    scores = np.empty((len(train), train.outputs))
    for outside, inside in rows.fold_rows():
        part = train.take(outside)
        without = RidgePath.of(SufficientStats.from_rows(part))
        choice = _choose_ridge(without, part, rows.units[outside], options)
        scores[inside] = affine_scores(train.take(inside), without.params(choice.value))
    return scores


def _confidences(scores: Array, rows: ProbeRows, temperature: float) -> Array:
    """Probabilities of the predicted classes; in folds at the temperature of the other folds."""
    if rows.test is not None:
        return _largest_probability(scores, temperature)
    assert rows.train.labels is not None
    confidences = np.empty(len(scores))
    for outside, inside in rows.fold_rows():
        fitted = best_temperature(scores[outside], rows.train.labels[outside])
        confidences[inside] = _largest_probability(scores[inside], fitted)
    return confidences


def _largest_probability(scores: Array, temperature: float) -> Array:
    """Of softmax(scores / temperature)."""
    below = scores - scores.max(axis=1, keepdims=True)
    return np.asarray(1 / np.exp(below / temperature).sum(axis=1))


def _fit_knn(cell: Cell, rows: ProbeRows, options: ProbeOptions) -> Cell:
    head = KNNHead.from_rows(rows.train, k=options.neighbors)
    if rows.test is not None:
        votes = head.decision(rows.test)
    else:
        votes = np.empty((len(rows.train), len(head.names)))
        for outside, inside in rows.fold_rows():
            without = KNNHead.from_rows(rows.train.take(outside), k=options.neighbors)
            votes[inside] = without.decision(rows.train.take(inside))
    cell = _evaluated(cell, head, votes, rows, options, votes.max(axis=1))
    notes = (*cell.notes, head.note) if head.note else cell.notes
    return replace(cell, neighbors=head.k, notes=notes)


def _evaluated(
    cell: Cell,
    head: Head | KNNHead,
    scores: Array,
    rows: ProbeRows,
    options: ProbeOptions,
    confidences: Array | None,
) -> Cell:
    evaluation = evaluate(scores, rows, options, confidences=confidences)
    notes = cell.notes
    if options.metric is None and evaluation.metric == "balanced_accuracy":
        note = (
            "One class has more than half of the evaluated rows: the primary metric is balanced "
            "accuracy (choose one with --metric)."
        )
        notes = (*notes, note)
    values = {name: estimate.value for name, estimate in evaluation.metrics.items()}
    return replace(
        cell,
        normalize=head.normalize,
        evaluation=evaluation,
        fitted=replace(head, metrics=values),
        notes=notes,
    )


def _most_wrong(scores: Array | None, train: EmbeddingSet) -> tuple[WrongRow, ...]:
    """Training rows whose class trails another by most in scores of heads fitted without them."""
    if scores is None or train.labels is None:
        return ()
    numbers = np.arange(len(train))
    rivals = scores.copy()
    rivals[numbers, train.labels] = -np.inf
    margins = rivals.max(axis=1) - scores[numbers, train.labels]
    worst = np.argsort(-margins, kind="stable")[:MOST_WRONG]
    keys = train.columns.get("key", numbers)
    return tuple(
        WrongRow(
            key=str(keys[row]),
            id=hex_id(train.ids[row]),
            label=train.class_names[train.labels[row]],
            predicted=train.class_names[int(rivals[row].argmax())],
            margin=float(margins[row]),
        )
        for row in worst.tolist()
        if margins[row] > 0
    )


def _control_cell(
    name: str, template: Cell, rows: ProbeRows, options: ProbeOptions, controls: int
) -> Cell:
    bare = replace(template, control=name)
    try:
        control = control_rows(name, rows, folds=options.folds, seed=options.seed)
        cell = _fit_head(bare, control, replace(options, shots=()))
    except ProbekitError as error:
        return replace(bare, error=str(error))
    assert cell.evaluation is not None
    suspicious = is_suspicious(cell.evaluation.independence, controls)
    notes: tuple[str, ...] = ()
    if suspicious:
        notes = (
            f"Control {name!r} on {template.data}: {cell.evaluation.primary} where nothing can be "
            "known. Training and evaluated rows share samples, or labels leak.",
        )
    return replace(cell, suspicious=suspicious, notes=notes, fitted=None, most_wrong=())
