"""What a split holds, counted without decoding anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from probekit.data.dataset import Dataset
from probekit.embeddings import UNLABELED


@dataclass(frozen=True)
class SplitSummary:
    """classes: rows by class, also 0. columns: distinct values by column."""

    split: str
    kind: str
    rows: int
    unlabeled: int
    classes: Mapping[str, int]
    columns: Mapping[str, int]
    targets: tuple[str, ...]


def summarize(split: str, dataset: Dataset) -> SplitSummary:
    labels: Counter[int] = Counter()
    values: dict[str, set[str]] = {}
    for index in range(len(dataset)):
        sample = dataset[index]
        labels[sample.label] += 1
        for name, value in sample.columns.items():
            values.setdefault(name, set()).add(value)
    return SplitSummary(
        split=split,
        kind=dataset.kind,
        rows=len(dataset),
        unlabeled=0 if dataset.target_names else labels[UNLABELED],
        classes={name: labels[code] for code, name in enumerate(dataset.class_names)},
        columns={name: len(distinct) for name, distinct in sorted(values.items())},
        targets=dataset.target_names,
    )
