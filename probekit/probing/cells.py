"""Cells of a probe: a head on one dataset and backbone, fitted and evaluated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from probekit import __version__
from probekit.arrays import Json, content_id, digest
from probekit.data.splits import list_names
from probekit.embeddings import SHOWN_ROWS
from probekit.errors import InputError, ProbekitError
from probekit.evaluation.intervals import Sampling
from probekit.evaluation.metrics import Predictions
from probekit.heads import Head
from probekit.probing.controls import CONTROLS, control_rows, is_suspicious
from probekit.probing.evaluate import Evaluation, WrongRow, evaluate, most_wrong, predictions_of
from probekit.probing.few_shot import FewShot, few_shot
from probekit.probing.heads import ZERO_SHOT, Fitted, fit_head, is_standardized
from probekit.probing.options import ProbeOptions
from probekit.probing.reliability import ConfidenceBin, confidence_bins
from probekit.probing.rows import ProbeRows, prepare_rows
from probekit.progress import Progress, silent

if TYPE_CHECKING:
    from probekit.extraction.sources import RowSplits
    from probekit.probing.record import Record

DEFAULT_HEADS = {"classes": ("ridge", "logistic"), "labels": ("ridge",), "numbers": ("ridge",)}


IN_MEMORY: tuple[str, ...] = ("fitted", "hits", "predictions", "basis")
"""Fields of a cell that are neither reported nor recorded as they are."""


@dataclass(frozen=True, eq=False)
class Basis:
    """The rows that a cell is evaluated on (the digest of their ids), and how they were drawn."""

    rows: str
    sampling: Sampling

    @classmethod
    def of(cls, rows: ProbeRows, options: ProbeOptions) -> Self:
        ids = np.ascontiguousarray(rows.evaluated.ids).tobytes()
        return cls(content_id("rows", ids).hex(), rows.sampling(options))


@dataclass(frozen=True, eq=False)
class Cell:
    """One head on one dataset and backbone: an evaluation, or the error that prevented it.

    control: "" or which control it is; suspicious: a control that found a signal.
    evaluated_on: "test rows", or the folds of training rows.
    fit: what the head was fitted with: ridge and ridge_choice, or k.
    fitted: the head fitted on all training rows; k-NN has no weights and no Head.
    hits: of the evaluated rows (classes only), whether they are predicted right.
    predictions: kept where the primary metric needs more than hits.
    basis: the evaluated rows, for a comparison with another cell.
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
    fit: Mapping[str, Json] = field(default_factory=dict)
    suspicious: bool = False
    fitted: Head | None = None
    most_wrong: tuple[WrongRow, ...] = ()
    reliability: tuple[ConfidenceBin, ...] = ()
    hits: NDArray[np.bool_] | None = None
    predictions: Predictions | None = None
    basis: Basis | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self.without_rows(), dict_factory=_reported)

    def without_rows(self) -> Self:
        """Without what is kept in memory only."""
        return replace(self, fitted=None, hits=None, predictions=None, basis=None)


def _reported(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """The fields that are reported; arrays as lists."""
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in items
        if name not in (*IN_MEMORY, "decimal")
    }


@dataclass(frozen=True)
class PlannedCell:
    """A cell that is to be computed on rows, as one of so many controls or as itself.

    rows: or the error that prevented them.
    """

    cell: Cell
    rows: ProbeRows | ProbekitError
    controls: int = 0

    def compute(self, options: ProbeOptions, progress: Progress) -> Cell:
        if isinstance(self.rows, ProbekitError):
            raise self.rows
        if self.controls:
            return _probe_control(self.cell, self.rows, options, self.controls, progress)
        return _probe_head(self.cell, self.rows, options, progress)

    def with_basis(self, cell: Cell, options: ProbeOptions) -> Cell:
        assert isinstance(self.rows, ProbeRows)
        return replace(cell, basis=Basis.of(self.rows, options))

    def key(self, options: ProbeOptions) -> str:
        """The digest of all that determines the cell."""
        if isinstance(self.rows, ProbekitError):
            return ""
        settings = asdict(options)
        del settings["heads"]
        test = self.rows.test
        return digest(
            {
                **settings,
                "probekit": __version__,
                "head": self.cell.head,
                "control": self.cell.control,
                "controls": self.controls,
                "train": self.rows.train.digest,
                "test": None if test is None else test.digest,
            }
        )


def plan_cells(
    splits: RowSplits, options: ProbeOptions, *, data: str, controls: int = 0
) -> Iterator[PlannedCell]:
    """Every head, and the controls.

    controls: how many the whole table has, for their family-wise rate; 0: none are computed here.
    """
    rows = prepare_rows(splits, options)
    if options.rules is not None and rows.task != "classes":
        raise InputError(
            f"protocol {options.protocol} (--protocol) needs class labels; {rows.train.source} "
            f"has the targets {list_names(rows.train.target_names)}. Leave it out."
        )
    template = _describe(rows, splits, data)
    view = "" if options.rules is None else options.rules.view
    if view and template.view not in ("", view):
        note = (
            f"Protocol {options.protocol} takes #{view}; {template.backbone} has #{template.view}."
        )
        template = replace(template, notes=(*template.notes, note))
    heads = options.heads or DEFAULT_HEADS[rows.task]
    for head in heads:
        yield PlannedCell(replace(template, head=head), rows)
    fitted = [head for head in heads if head != ZERO_SHOT] or heads
    for name in CONTROLS if controls else ():
        cell = replace(template, head=fitted[0], control=name, notes=())
        yield PlannedCell(cell, rows, controls)


def compute_cells(
    planned: Iterable[PlannedCell],
    options: ProbeOptions,
    record: Record | None = None,
    *,
    reuse: bool = True,
    compared: bool = False,
    progress: Progress = silent,
) -> Iterator[tuple[Cell, ProbekitError | None]]:
    """Every cell as soon as it is computed, or read from the record; one that fails says why.

    compared: cells that can be compared are needed; of recorded ones, those that have hits.
    """
    for plan in planned:
        key = "" if record is None else plan.key(options)
        recorded = record.cell(key) if record is not None and reuse else None
        if recorded is not None and not (compared and needs_predictions(recorded)):
            yield plan.with_basis(replace(recorded, data=plan.cell.data), options), None
            continue
        try:
            cell = plan.with_basis(plan.compute(options, progress), options)
        except ProbekitError as error:
            yield replace(plan.cell, error=str(error)), error
            continue
        if record is not None:
            record.add(key, cell)
        yield cell, None


def needs_predictions(cell: Cell) -> bool:
    """Whether hits are not enough to compare it with another cell."""
    return cell.evaluation is not None and cell.evaluation.metric != "accuracy"


def _describe(rows: ProbeRows, splits: RowSplits, data: str) -> Cell:
    """What all cells of these rows share."""
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


def _probe_head(cell: Cell, rows: ProbeRows, options: ProbeOptions, progress: Progress) -> Cell:
    """The cell with its head fitted, evaluated, and fitted to few rows."""
    if options.rules is not None and not options.rules.full:
        shots = few_shot(cell.head, rows, options)
        return replace(_with_rows(cell, rows), few_shot=shots)
    fitted = fit_head(cell.head, rows, options, progress)
    cell = _with_evaluation(cell, fitted, rows, options)
    assert cell.evaluation is not None
    notes = [*cell.notes, *fitted.notes]
    if options.metric is None and cell.evaluation.metric == "balanced_accuracy":
        notes.append(
            "One class has more than half of the evaluated rows: the primary metric is balanced "
            "accuracy (choose one with --metric)."
        )
    shots = () if cell.head == ZERO_SHOT else few_shot(cell.head, rows, options)
    notes += [f"{cell.data}, {shot.shots} shots: {shot.error}." for shot in shots if shot.error]
    head = None
    if isinstance(fitted.head, Head):
        metrics = {name: estimate.value for name, estimate in cell.evaluation.metrics.items()}
        head = replace(fitted.head, metrics=metrics)
    return replace(
        cell,
        few_shot=shots,
        fitted=head,
        most_wrong=most_wrong(fitted.scores, rows.evaluated),
        notes=tuple(notes),
    )


def _probe_control(
    cell: Cell, rows: ProbeRows, options: ProbeOptions, controls: int, progress: Progress
) -> Cell:
    """The cell of one of so many controls, evaluated, and suspicious where it beats chance."""
    rows = control_rows(cell.control, rows, seed=options.seed)
    fitted = fit_head(cell.head, rows, options, progress)
    cell = _with_evaluation(cell, fitted, rows, options)
    if cell.evaluation is None or not is_suspicious(fitted.scores, rows, controls):
        return cell
    note = (
        f"Control {cell.control!r} on {cell.data}: {cell.evaluation.primary} where nothing can be "
        "known. Training and evaluated rows share samples, or labels leak."
    )
    return replace(cell, suspicious=True, notes=(note,))


def _with_evaluation(cell: Cell, fitted: Fitted, rows: ProbeRows, options: ProbeOptions) -> Cell:
    hits = None
    bins: tuple[ConfidenceBin, ...] = ()
    if rows.evaluated.labels is not None:
        hits = fitted.scores.argmax(axis=1) == rows.evaluated.labels
        if fitted.probabilities is not None:
            bins = confidence_bins(fitted.probabilities.max(axis=1), hits)
    normalize = fitted.head.normalize
    if is_standardized(cell.head, options):
        normalize = options.normalize
    cell = replace(
        _with_rows(cell, rows),
        normalize=normalize,
        fit=fitted.head.fit,
        evaluation=evaluate(fitted.scores, rows, options, probabilities=fitted.probabilities),
        reliability=bins,
        hits=hits,
    )
    if not needs_predictions(cell):
        return cell
    predictions = predictions_of(fitted.scores, rows, fitted.probabilities)
    return replace(cell, predictions=predictions)


def _with_rows(cell: Cell, rows: ProbeRows) -> Cell:
    return replace(
        cell,
        train_rows=len(rows.train),
        test_rows=len(rows.evaluated),
        evaluated_on=rows.evaluated_on,
    )
