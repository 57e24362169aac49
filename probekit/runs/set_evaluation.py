"""A head on one set, as values."""

from __future__ import annotations

from dataclasses import dataclass

from probekit.evaluation.few_shot import FewShot
from probekit.evaluation.metrics import Calibration, Confusion, Share


@dataclass(frozen=True)
class KnnAccuracy:
    """How good a vote of the nearest training rows is."""

    neighbours: int
    metric: str
    temperature: float | None
    accuracy: Share


@dataclass(frozen=True)
class SetEvaluation:
    """A head on one set. `also_trained_on`: how many of its rows were trained on; None: not known."""

    set: str
    kind: str
    meaning: str
    rows: int
    left_out: int
    also_trained_on: int | None
    accuracy: Share
    by_class: tuple[Share, ...]
    by_client: tuple[Share, ...]
    calibration: Calibration | None
    confusion: Confusion
    pretrained: Share | None = None
    knn: KnnAccuracy | None = None
    few_shot: tuple[FewShot, ...] = ()
