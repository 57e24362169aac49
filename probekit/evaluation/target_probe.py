"""Probing several labels or real targets: every one on the rows that know it, with the metrics that match."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError, MismatchError
from probekit.evaluation.left_out import WrongRow
from probekit.evaluation.metrics import Calibration, Confusion, Estimate, Interval, Share
from probekit.evaluation.probe_options import CHOICE_ROWS, ProbeOptions, of_rows, timed
from probekit.evaluation.probe_values import Probe, plain_value, shown, write_csv
from probekit.evaluation.target_metrics import TargetScores, target_scores
from probekit.linear.lapack import special
from probekit.linear.path import Validation
from probekit.linear.ridge import fit
from probekit.linear.target_path import TargetPaths
from probekit.linear.targets import TargetDesign, target_statistics
from probekit.linear.temperature import label_chances, label_temperatures
from probekit.models.heads import LinearHead, head_of
from probekit.models.serving import HALF, predict, scores
from probekit.values import LABELS, REAL, Array, EmbeddingSet, Rows, target_kind

OF_CLASSES = ("accuracy", "top_5", "mean_per_class", "by_class", "confusion", "calibration", "temperature")
MOST_WRONG = 12


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TargetProbe(Probe):
    """A probe of several labels or real targets: `scores` in place of accuracy and all else that belongs to classes.

    scores: mean average precision and AUC of labels, R2 of real targets, per target and in the mean, with intervals.
    temperatures: what a label's scores are divided by, chosen on left-out rows.
    chance: the share of ones among the labels, which random scores have as average precision; 0 is that of R2.
    """

    scores: TargetScores
    temperatures: tuple[float, ...] = ()
    accuracy: Share = field(init=False)
    top_5: Share | None = field(init=False)
    mean_per_class: Estimate = field(init=False)
    by_class: tuple[Share, ...] = field(init=False)
    confusion: Confusion = field(init=False)
    calibration: Calibration | None = field(init=False)
    temperature: float = field(init=False)

    def __getattr__(self, name: str) -> Any:
        remedy = " Its numbers are in `scores`." if name in OF_CLASSES else ""
        raise AttributeError(f"A probe of several labels or real targets has no {name!r}.{remedy}")

    @property
    def main(self) -> Estimate:
        """Mean average precision, or R2."""
        found = self.scores.mean_average_precision or self.scores.mean_r2
        return found or Estimate(REAL, float("nan"), None, None, 0.0, "no target can be judged on these rows")

    @property
    def chance_text(self) -> str:
        """What guessing gives, in words."""
        return f"{self.chance:.1%} (the labels' share of ones)" if self.scores.kind == LABELS else "0 (the mean)"

    def beats_chance(self, sure: float) -> bool:
        """Whether AUC or R2 lies above chance even at the low end of an interval that is this sure."""
        found, chance = (self.scores.mean_auc, HALF) if self.scores.kind == LABELS else (self.scores.mean_r2, 0.0)
        if found is None or found.low is None:
            return False
        reach, wanted = (float(special.ndtri((1 + one) / 2)) for one in (found.confidence, sure))
        return found.value - (found.value - found.low) * wanted / reach > chance

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What is worth a line, as texts."""
        found, kind = self.scores, "labels" if self.scores.kind == LABELS else "real targets"
        means = {"mean average precision": found.mean_average_precision, "mean AUC": found.mean_auc}
        means["R2" if len(found.by_target) == 1 else "mean R2"] = found.mean_r2
        lines = [
            ("data set", self.source or "arrays"),
            ("backbone", self.backbone),
            *((name, shown(one)) for name, one in means.items() if one is not None),
            *([("chance", f"{self.chance:.1%}")] if found.kind == LABELS else []),
            ("judged on", f"{self.test_rows:,} {self.judged_on}"),
            ("trained on", f"{self.rows:,} rows x {self.head.dimension}, {len(self.head.classes)} {kind}"),
            ("ridge", f"{self.head.ridge:.3g}"),
        ]
        if self.shared_groups:
            lines.append(("warning", f"{self.shared_groups} groups are in both training and test rows"))
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Every number in plain values, for JSON; the rows and parameters aside."""
        left_out = {"head", "train", "test", "validation", *OF_CLASSES}
        found = {one.name: plain_value(getattr(self, one.name)) for one in fields(self) if one.name not in left_out}
        return {**found, **self.described}

    def to_csv(self, path: str | Path) -> Path:
        """One row for every metric of every target, and of their mean."""
        named = [("mean", None, self._means), *((one.name, one.count, _metrics(one)) for one in self.scores.by_target)]
        lines = [
            (self.source, self.backbone, name, one.name, rows, one.value, one.low, one.high, one.confidence)
            for name, rows, metrics in named
            for one in metrics
            if one is not None
        ]
        headers = ("data_set", "backbone", "target", "metric", "rows", "value", "low", "high", "confidence")
        return write_csv(path, headers, lines)

    @property
    def _means(self) -> tuple[Estimate | None, ...]:
        return self.scores.mean_average_precision, self.scores.mean_auc, self.scores.mean_r2

    def predict(self, rows: EmbeddingSet | Rows) -> NDArray[Any]:
        """0 or 1 for each label, or each target's number: (n, k)."""
        return predict(self.head, rows)

    def predict_proba(self, rows: EmbeddingSet | Rows) -> Array:
        """The chance that each label is 1, at the temperature of its left-out rows."""
        if self.scores.kind != LABELS:
            raise InputError("Real targets have no chances. Use predict.")
        return label_chances(scores(self.head, rows), self.temperatures)


def probed_targets(
    rows: EmbeddingSet, test: EmbeddingSet | None, how: ProbeOptions, *, seconds: dict[str, float]
) -> TargetProbe:
    """The probe of embeddings with several labels or real targets."""
    if rows.targets is None or (test is not None and (test.targets is None or test.class_names != rows.class_names)):
        raise MismatchError("Training and test rows must have the same targets by the same names. Give both.")
    kind = target_kind(rows.targets)
    design = TargetDesign(rows.dimension, len(rows.class_names), how.normalise, how.intercept, targets=kind)
    with timed(seconds, "statistics"):
        sums = target_statistics(rows.embeddings, rows.targets, design)
    with timed(seconds, "ridge"):
        paths = TargetPaths.of(sums, standardise=how.standardise)
        ridge, validation = _chosen(paths, rows, how)
    with timed(seconds, "fit"):
        found = fit(sums, ridge, standardise=how.standardise, class_weight=how.class_weight)
        head: LinearHead = head_of(found, classes=rows.class_names, spec_digest=rows.spec.untriggered().digest)
        head = replace(head, recipe={**head.recipe, "backbone": rows.spec.backbone, "source": rows.source})
    with timed(seconds, "evaluate"):
        left_out = paths.left_out_scores(rows.embeddings, rows.targets, ridge=ridge, groups=rows.groups)
        judged, given = (rows, left_out) if test is None else (test, scores(head, test))
        assert judged.targets is not None
        interval = Interval(how.confidence, seed=how.seed)
        told = target_scores(
            given, judged.targets, names=head.classes, kind=kind, groups=judged.groups, interval=interval
        )
        warm = label_temperatures(left_out, rows.targets) if kind == LABELS else ()
    return TargetProbe(
        head=head,
        scores=told,
        validation=validation,
        temperatures=warm,
        most_wrong=most_wrong_targets(left_out, rows, kind),
        chance=_prevalence(judged.targets) if kind == LABELS else 0.0,
        **of_rows(rows, test, seconds),
    )


def most_wrong_targets(left_out: Array, rows: EmbeddingSet, kind: str) -> tuple[WrongRow, ...]:
    """The entries that the head of the others gets most wrong: labels on the wrong side, numbers by deviations."""
    assert rows.targets is not None
    errors = left_out - rows.targets
    if kind == LABELS:
        margin = np.abs(errors) - HALF
    else:
        margin = np.abs(errors) / np.maximum(np.nanstd(rows.targets, axis=0), np.finfo(np.float64).tiny)
    order = np.argsort(-np.where(np.isnan(margin), -np.inf, margin), axis=None, kind="stable")[:MOST_WRONG]
    found = []
    for row, target in zip(*np.unravel_index(order, margin.shape), strict=True):
        if margin[row, target] > 0:
            i, name = int(row), rows.class_names[int(target)]
            label, given = (f"{name} = {matrix[i, target]:.4g}" for matrix in (rows.targets, left_out))
            where = str(i) if rows.names is None else rows.names[i]
            found.append(WrongRow(i, where, rows.ids[i], label, given, float(margin[i, target])))
    return tuple(found)


def _metrics(one: Any) -> tuple[Estimate | None, ...]:
    return one.average_precision, one.auc, one.r2


def _chosen(paths: TargetPaths, rows: EmbeddingSet, how: ProbeOptions) -> tuple[float, Validation | None]:
    if not isinstance(how.ridge, str):
        return how.ridge, None
    assert rows.targets is not None
    return paths.choose(rows.embeddings, rows.targets, groups=rows.groups, most=CHOICE_ROWS, seed=how.seed)


def _prevalence(targets: Array) -> float:
    known = ~np.isnan(targets)
    shares = (targets == 1).sum(axis=0)[known.any(axis=0)] / known.sum(axis=0)[known.any(axis=0)]
    return float(shares.mean())
