"""A probe as a value: made for notebooks, so it shows, saves and tabulates itself."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.encoding.thumbnails import thumbnails
from probekit.evaluation.left_out import WrongRow
from probekit.evaluation.metrics import Calibration, Confusion, Estimate, Share
from probekit.files import storing, write_bytes, write_text
from probekit.linear.path import Validation
from probekit.linear.temperature import log_probabilities
from probekit.models.heads import LinearHead
from probekit.models.serving import predict, save_head, scores
from probekit.pages.render import render
from probekit.values import Array, EmbeddingSet, Rows

NOTE = "probe.json"


@dataclass(frozen=True, eq=False)
class Probe:
    """A head, and how good it is on rows that it does not know.

    head: what predicts. source, backbone: what it was fitted to.
    judged_on: test rows, or training rows that were left out in turn; rows, test_rows: how many of each.
    accuracy, top_5, mean_per_class, by_class, confusion, calibration: on those rows, with intervals.
    chance: the share of the largest class among them.
    most_wrong: training rows that the head of the others gets most wrong.
    temperature: what scores are divided by before the softmax, chosen on left-out rows.
    validation: the errors that the ridge was chosen by. shared_groups: groups in both training and test.
    seconds: what each step took. train, test: the rows.
    """

    head: LinearHead
    source: str
    backbone: str
    judged_on: str
    rows: int
    test_rows: int
    accuracy: Share
    top_5: Share | None
    mean_per_class: Estimate
    by_class: tuple[Share, ...]
    confusion: Confusion
    calibration: Calibration | None
    chance: float
    most_wrong: tuple[WrongRow, ...]
    temperature: float
    validation: Validation | None
    shared_groups: int
    seconds: Mapping[str, float]
    train: EmbeddingSet
    test: EmbeddingSet | None

    def __repr__(self) -> str:
        return f"Probe({', '.join(f'{name}={text}' for name, text in self.facts)})"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What is worth a line, as texts."""
        found = [
            ("data set", self.source or "arrays"),
            ("backbone", self.backbone),
            ("accuracy", shown(self.accuracy)),
            *([("top-5", shown(self.top_5))] if self.top_5 else []),
            ("mean per class", shown(self.mean_per_class)),
            ("chance", f"{self.chance:.1%}"),
            *([("calibration error", f"{self.calibration.error:.1%}")] if self.calibration else []),
            ("judged on", f"{self.test_rows:,} {self.judged_on}"),
            ("trained on", f"{self.rows:,} rows x {self.head.dimension}, {len(self.head.classes)} classes"),
            ("ridge", f"{self.head.ridge:.3g}"),
        ]
        if self.shared_groups:
            found.append(("warning", f"{self.shared_groups} groups are in both training and test rows"))
        return found

    def to_dict(self) -> dict[str, Any]:
        """Every number in plain values, for JSON; the rows and parameters aside."""
        left_out = {"head", "train", "test", "validation"}
        found = {one.name: plain_value(getattr(self, one.name)) for one in fields(self) if one.name not in left_out}
        return {**found, **self.described}

    @property
    def described(self) -> dict[str, Any]:
        """The head and how its ridge was chosen, in plain values."""
        head: dict[str, Any] = {
            "digest": self.head.digest,
            "ridge": self.head.ridge,
            "classes": list(self.head.classes),
        }
        chosen = None
        if self.validation is not None:
            named = {"ridges": self.validation.ridges, "squared_error": self.validation.squared}
            chosen = {"by": self.validation.scheme, **{name: one.tolist() for name, one in named.items()}}
        return {"head": {**head, "dimension": self.head.dimension}, "ridge_choice": chosen}

    def to_csv(self, path: str | Path) -> Path:
        """One row for all test rows, and one for each class."""
        lines = [
            (self.source, self.backbone, one.name, one.count, one.hits, one.value, one.low, one.high, one.confidence)
            for one in (self.accuracy, *([self.top_5] if self.top_5 else []), *self.by_class)
        ]
        headers = ("data_set", "backbone", "what", "rows", "hits", "value", "low", "high", "confidence")
        return write_csv(path, headers, lines)

    def save(self, folder: str | Path) -> Path:
        """The head in a folder as `load_head` reads it, with the numbers beside it."""
        place = save_head(self.head, folder)
        text = json.dumps(self.to_dict(), indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        write_bytes(place / NOTE, text.encode())
        return place

    @property
    def main(self) -> Share | Estimate:
        """The number to compare probes by."""
        return self.accuracy

    @property
    def chance_text(self) -> str:
        """What guessing gives, in words."""
        return f"{self.chance:.1%} (the largest class)"

    def predict(self, rows: EmbeddingSet | Rows) -> NDArray[Any]:
        """The number of the class with the highest score, for each embedding."""
        return predict(self.head, rows)

    def predict_proba(self, rows: EmbeddingSet | Rows) -> Array:
        """The chance of each class: the softmax of the scores at the temperature of left-out rows."""
        return np.asarray(np.exp(log_probabilities(scores(self.head, rows), self.temperature)))

    def report(self, path: str | Path) -> Path:
        """Write one self-contained HTML page: the numbers, pictures of them, and the rows that are most wrong."""
        from probekit.pages.probe_page import probe_page  # which draws

        small = thumbnails(self.train, [one.row for one in self.most_wrong])
        place = Path(path).absolute()
        with storing(place.parent):
            place.parent.mkdir(parents=True, exist_ok=True)
            write_text(place, probe_page(self.facts, self.to_dict(), small))
        return Path(path)

    def _repr_html_(self) -> str:
        return render("facts.html.j2", facts=self.facts)


def shown(found: Share | Estimate) -> str:
    """A share in per cent with its interval."""
    if found.value is None:
        return ""
    between = "" if found.low is None or found.high is None else f" [{found.low:.1%}, {found.high:.1%}]"
    return f"{found.value:.1%}{between}"


def write_csv(path: str | Path, headers: Sequence[str], lines: Sequence[Sequence[Any]]) -> Path:
    """Write a table; nothing where there is no value."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(headers)
    writer.writerows(["" if cell is None else cell for cell in line] for line in lines)
    write_bytes(Path(path), text.getvalue().encode())
    return Path(path)


def plain_value(value: Any) -> Any:
    """A value as JSON has it."""
    if is_dataclass(value):
        return {one.name: plain_value(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {name: plain_value(one) for name, one in value.items()}
    return [plain_value(one) for one in value] if isinstance(value, list | tuple) else value
