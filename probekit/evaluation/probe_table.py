"""Backbones x data sets: every cell a probe, with control rows that must not beat chance."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from probekit.cache.disk import DiskStore
from probekit.errors import InputError, ProbekitError
from probekit.evaluation.few_shot import FewShot, few_shot
from probekit.evaluation.metrics import Interval, Share, accuracy, wilson
from probekit.evaluation.probe import probed
from probekit.evaluation.probe_options import ProbeOptions
from probekit.evaluation.probe_rows import Progress, RowSource, is_set, labelled, with_groups
from probekit.evaluation.probe_values import Probe, shown, write_csv
from probekit.evaluation.target_probe import TargetProbe
from probekit.files import write_bytes
from probekit.linear.design import Design
from probekit.linear.neighbours import knn_predict
from probekit.values import EmbeddingSet

SHUFFLED, RANDOM = "control: shuffled labels", "control: random vectors"
DOUBT = 1e-3
"""The chance that any control of a whole table is called suspicious although nothing is wrong."""
CONTROL_STREAM = 32
HEADERS = (
    *("data_set", "backbone", "control", "judged_on", "rows", "test_rows", "dimension", "classes", "chance"),
    *("accuracy", "low", "high", "confidence", "top_5", "mean_per_class", "calibration_error", "ridge", "knn"),
    *("shots", "draws", "seeds_mean", "seeds_deviation", "test_low", "test_high", "suspicious", "error"),
    *("metric", "value", "mean_auc", "shared_groups"),
)
MEASURED = "accuracy"
OF_TARGETS = "mean average precision of labels, R2 of real targets"


@dataclass(frozen=True, eq=False)
class Cell:
    """One backbone on one data set: a probe, or why there is none. A control has no backbone of its own."""

    data_set: str
    backbone: str
    control: bool = False
    probe: Probe | None = None
    error: str = ""
    few_shot: tuple[FewShot, ...] = ()
    knn: Share | None = None
    suspicious: bool = False

    @property
    def text(self) -> str:
        """The number that probes are compared by, or why there is none."""
        return "failed" if self.probe is None else shown(self.probe.main)


@dataclass(frozen=True, eq=False)
class ProbeTable:
    """Every cell, in the order in which they were asked for; controls last."""

    cells: tuple[Cell, ...]
    confidence: float

    @property
    def backbones(self) -> tuple[str, ...]:
        """The rows of the table."""
        return tuple(dict.fromkeys(cell.backbone for cell in sorted(self.cells, key=lambda cell: cell.control)))

    @property
    def data_sets(self) -> tuple[str, ...]:
        """Its columns."""
        return tuple(dict.fromkeys(cell.data_set for cell in self.cells))

    @property
    def failed(self) -> tuple[Cell, ...]:
        """Cells without a probe."""
        return tuple(cell for cell in self.cells if cell.error)

    def cell(self, backbone: str, data_set: str) -> Cell | None:
        """The cell of a backbone and a data set."""
        found = (one for one in self.cells if (one.backbone, one.data_set) == (backbone, data_set))
        return next(found, None)

    @property
    def measured(self) -> str:
        """What the numbers of the table are."""
        kinds = {isinstance(cell.probe, TargetProbe) for cell in self.cells if cell.probe is not None}
        return {frozenset({True}): OF_TARGETS, frozenset({True, False}): f"{MEASURED}, {OF_TARGETS}"}.get(
            frozenset(kinds), MEASURED
        )

    @property
    def lines(self) -> list[dict[str, Any]]:
        """One line per cell and, below it, per number of shots."""
        return [line for cell in self.cells for line in _lines(cell)]

    def to_csv(self, path: str | Path) -> Path:
        """All of it in one file."""
        return write_csv(path, HEADERS, [[line.get(name) for name in HEADERS] for line in self.lines])

    def to_markdown(self, path: str | Path) -> Path:
        """The accuracies as a Markdown table, with what there is to know of them."""
        lines = [["backbone", *self.data_sets], ["---"] * (1 + len(self.data_sets))]
        for name in self.backbones:
            cells = (self.cell(name, one) for one in self.data_sets)
            lines.append([name, *("" if cell is None else cell.text for cell in cells)])
        table = [f"| {' | '.join(' '.join(cell.replace('|', '/').split()) for cell in line)} |" for line in lines]
        text = "\n".join([*table, "", *(f"- {remark}" for remark in self.remarks), ""])
        write_bytes(Path(path), text.encode())
        return Path(path)

    @property
    def remarks(self) -> list[str]:
        """What a reader has to know besides the numbers."""
        found = []
        for data_set in self.data_sets:
            cells = [cell for cell in self.cells if cell.data_set == data_set and cell.probe is not None]
            for one in cells[:1]:
                assert one.probe is not None
                judged = f"{one.probe.test_rows:,} {one.probe.judged_on}"
                found.append(f"{data_set}: judged on {judged}; chance {one.probe.chance_text}.")
            shared = max((cell.probe.shared_groups for cell in cells if cell.probe is not None), default=0)
            if shared:
                both = "groups are in both training and test rows, which flatters. Split by group"
                found.append(f"{data_set}: {shared} {both}.")
            found += [
                f"{data_set}: {cell.backbone} is better than chance. Look for copies between training and test rows."
                for cell in cells
                if cell.suspicious
            ]
        return found + [f"{cell.data_set}, {cell.backbone}: {cell.error}" for cell in self.failed]

    @property
    def plain(self) -> dict[str, Any]:
        """All of it in plain values."""
        return {"confidence": self.confidence, "cells": self.lines}


def probe_table(
    data_sets: Sequence[str],
    backbones: Sequence[str],
    *,
    test: str | None = None,
    group: str | None = None,
    window: tuple[float, float] | None = None,
    note: Callable[[str], None] = warnings.warn,
    store: DiskStore | None = None,
    shots: Sequence[int] = (),
    draws: int = 5,
    knn: int | None = None,
    controls: bool = True,
    progress: Callable[[str], Progress] | None = None,
    **options: Any,
) -> ProbeTable:
    """Probe every data set with every backbone. What fails is shown in its cell, and the others go on.

    data_sets: names of data sets, or of sets of the cache, which have their backbone.
    test: what to judge on instead of the data set's own test split; for one data set.
    group: a column that says what belongs together (patients, users), left out together.
    window, note: of grey values, and what to call with remarks, as `extract` takes them.
    store: where embeddings are kept; an interrupted table goes on where it was.
    shots, draws: also heads of so few training rows of every class, drawn this often.
    knn: also a vote of this many nearest training rows.
    controls: also the first backbone's rows with shuffled labels, and random vectors of the same norms. Where one
    is better than chance something is wrong with the data; it is called suspicious once in a thousand whole tables.
    progress: called with the name of what is encoded next, gives what is called meanwhile.
    options: the fields of `ProbeOptions`.
    """
    if not data_sets or not backbones:
        raise InputError("A table needs a data set and a backbone. Name one of each.")
    if test is not None and len(data_sets) > 1:
        raise InputError(f"`test` belongs to one data set; found {len(data_sets)}. Probe them one at a time.")
    how, kept = ProbeOptions(**options), store if store is not None else DiskStore()
    sure = 1 - DOUBT / (2 * len(data_sets))
    cells = []
    for data_set in data_sets:
        first: tuple[EmbeddingSet, EmbeddingSet | None] | None = None
        encoded = is_set(data_set, kept)
        for backbone in (None,) if encoded else backbones:
            cell = Cell(data_set, backbone or kept.open(data_set).spec.backbone)
            try:
                look = progress(f"{data_set}, {cell.backbone}") if progress else None
                source = RowSource(backbone, kept, look, group, {"window": window, "note": note})
                rows, judged = with_groups(*source.pair(data_set, test))
                rows, judged = labelled(rows, "training"), None if judged is None else labelled(judged, "test")
                cell = _probed(cell, rows, judged, how, shots, draws, knn)
                first = first or (rows, judged)
            except ProbekitError as error:
                cell = replace(cell, error=str(error))
            cells.append(cell)
        if controls and first is not None:
            cells += control_cells(data_set, *first, how, sure)
    return ProbeTable(tuple(cells), how.confidence)


def _probed(
    cell: Cell,
    rows: EmbeddingSet,
    test: EmbeddingSet | None,
    how: ProbeOptions,
    shots: Sequence[int],
    draws: int,
    knn: int | None,
) -> Cell:
    found = probed(rows, test, how)
    cell = replace(cell, probe=found)
    if (shots or knn) and test is None:
        return replace(cell, error="Few-shot curves and k-NN are judged on a test split, and this data set has none.")
    if (shots or knn) and rows.targets is not None:
        return replace(
            cell, error="Few-shot curves and k-NN are of classes; these rows have several labels or numbers."
        )
    interval = Interval(how.confidence, seed=how.seed)
    if shots and test is not None:
        design = Design(rows.dimension, len(found.head.classes), how.normalise, how.intercept)
        drawn = {"shots": shots, "draws": draws, "seed": how.seed, "interval": interval}
        cell = replace(cell, few_shot=few_shot(rows, test, design=design, ridge=how.ridge, **drawn))  # type: ignore[arg-type]
    if knn and test is not None:
        near = knn_predict(rows.to_numpy(), rows.labels, test.to_numpy(), neighbours=knn)
        cell = replace(cell, knn=accuracy(near, test.labels, groups=test.groups, interval=interval))
    return cell


def control_cells(
    data_set: str, rows: EmbeddingSet, test: EmbeddingSet | None, how: ProbeOptions, sure: float
) -> list[Cell]:
    """What shuffled labels and random vectors give; suspicious where that is surely better than chance."""
    generator = np.random.default_rng([how.seed, CONTROL_STREAM])
    turned = generator.permutation(len(rows))
    targets = None if rows.targets is None else rows.targets[turned]
    shuffled = replace(rows, labels=rows.labels[turned], targets=targets)
    random = [None if one is None else _random(one, generator) for one in (rows, test)]
    found = []
    for name, pair in ((SHUFFLED, (shuffled, test)), (RANDOM, random)):
        one = probed(pair[0], pair[1], how)  # type: ignore[arg-type]
        above = one.beats_chance(sure) if isinstance(one, TargetProbe) else beats(one.accuracy, one.chance, sure=sure)
        found.append(Cell(data_set, name, control=True, probe=one, suspicious=above))
    return found


def beats(found: Share, chance: float, *, sure: float) -> bool:
    """Whether a share lies above chance even at the low end of an interval that is this sure."""
    value, size = found.value, found.effective or found.count
    return value is not None and wilson(value, size, sure)[0] > chance


def _random(rows: EmbeddingSet, generator: np.random.Generator) -> EmbeddingSet:
    """Normal vectors with the norms of these."""
    given = rows.to_numpy()
    drawn = generator.standard_normal(given.shape)
    norms = np.linalg.norm(given.astype(np.float64), axis=1) / np.linalg.norm(drawn, axis=1)
    return replace(rows, embeddings=(drawn * norms[:, None]).astype(given.dtype))


def _lines(cell: Cell) -> list[dict[str, Any]]:
    about: dict[str, Any] = {"data_set": cell.data_set, "backbone": cell.backbone, "control": cell.control}
    found = cell.probe
    if found is None:
        return [about | {"error": cell.error}]
    about |= {"judged_on": found.judged_on, "rows": found.rows, "test_rows": found.test_rows, "chance": found.chance}
    about |= {"dimension": found.head.dimension, "classes": len(found.head.classes), "error": cell.error}
    about |= {"shared_groups": found.shared_groups}
    main = found.main
    told: dict[str, Any] = {"metric": "accuracy", "low": main.low, "high": main.high, "confidence": main.confidence}
    told |= {"value": main.value, "ridge": found.head.ridge, "suspicious": cell.suspicious}
    if isinstance(found, TargetProbe):
        auc = found.scores.mean_auc
        return [about | told | {"metric": main.name, "mean_auc": auc.value if auc else None}]
    told |= {
        "accuracy": main.value,
        "top_5": found.top_5.value if found.top_5 else None,
        "mean_per_class": found.mean_per_class.value,
    }
    told |= {"calibration_error": found.calibration.error if found.calibration else None}
    told |= {"knn": cell.knn.value if cell.knn else None}
    few = [
        {
            "shots": one.shots,
            "draws": len(one.accuracies),
            "seeds_mean": one.mean,
            "seeds_deviation": one.deviation,
            "test_low": one.test.low if one.test else None,
            "test_high": one.test.high if one.test else None,
        }
        for one in cell.few_shot
    ]
    return [about | told, *(about | one for one in few)]
