"""How good a run's head of several labels or real targets is on some rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from probekit.errors import InputError
from probekit.evaluation.metrics import Calibration, Confusion, Interval, Share
from probekit.evaluation.target_metrics import TargetScores, target_scores
from probekit.models.heads import Head
from probekit.models.serving import scores
from probekit.runs.result import to_plain
from probekit.runs.set_evaluation import SetEvaluation
from probekit.values import Array, EmbeddingSet, target_kind


@dataclass(frozen=True, kw_only=True)
class TargetEvaluation(SetEvaluation):
    """A head of several labels or real targets on one set: `scores` in place of what belongs to classes."""

    scores: TargetScores
    accuracy: Share = field(init=False)
    by_class: tuple[Share, ...] = field(init=False)
    by_client: tuple[Share, ...] = field(init=False)
    calibration: Calibration | None = field(init=False)
    confusion: Confusion = field(init=False)

    @property
    def plain(self) -> dict[str, Any]:
        """What there is, as JSON has it."""
        names = ("set", "kind", "meaning", "rows", "left_out", "also_trained_on", "scores")
        return {name: to_plain(getattr(self, name)) for name in names}


def targets_of(head: Head, rows: EmbeddingSet) -> Array | None:
    """The targets that a head is judged by; None: both are of classes. What does not belong together is refused."""
    kind = getattr(head, "targets", "")
    if bool(kind) != (rows.targets is not None):
        found = ("several labels or real targets", "classes")
        raise InputError(f"The head is of {found[not kind]}, the rows have {found[bool(kind)]}. Name another set.")
    return rows.targets


def judged_targets(head: Head, rows: EmbeddingSet, targets: Array, how: Interval) -> TargetScores:
    """The metrics of a head on these rows."""
    kind = str(getattr(head, "targets", "")) or target_kind(targets)
    return target_scores(scores(head, rows), targets, names=head.classes, kind=kind, groups=rows.groups, interval=how)
