"""A result as table, CSV, JSON, HTML and heads."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.embeddings import EmbeddingSet
from probekit.heads import load_head
from probekit.probing import ProbeResult, probe

Make = Callable[..., tuple[NDArray[Any], NDArray[Any]]]


@pytest.fixture
def result(make_clusters: Make) -> ProbeResult:
    vectors, labels = make_clusters(90)
    rows = EmbeddingSet.from_numpy(
        vectors, labels, columns={"key": [f"{row}.png" for row in range(90)]}, source="<b>x</b>"
    )
    return probe(rows, shots=(1, 500), knn=3)


def test_a_record_for_every_cell_and_shot(result: ProbeResult) -> None:
    frame = result.to_pandas()
    assert len(frame) == 4 + 2
    assert frame["value"][0] == result.accuracy
    assert frame["shots"].dropna().tolist() == [1, 500]
    assert frame["head"].tolist()[:4] == ["ridge", "ridge", "ridge", "knn"]
    assert "fewer than 500" in frame["error"][2]
    assert frame["calibration_error"][0] < 0.3


def test_csv_and_json_hold_the_same_numbers(result: ProbeResult, tmp_path: Path) -> None:
    with result.to_csv(tmp_path / "table.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    document = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    primary = document["cells"][0]["evaluation"]["metrics"]["accuracy"]
    assert float(lines[0]["value"]) == primary["value"] == result.accuracy
    assert float(lines[0]["low"]) == primary["low"]
    confusion = np.array(document["cells"][0]["evaluation"]["confusion"])
    assert confusion.trace() / confusion.sum() == result.accuracy
    assert document["cells"][0]["width"] == 12


def test_the_table_names_what_was_done(result: ProbeResult) -> None:
    headers, rows = result.table()
    assert {"head", "result", "chance", "width", "normalize", "train rows"} <= set(headers)
    assert "1-shot" in headers
    assert "view" not in headers
    assert len({len(row) for row in [headers, *rows]}) == 1
    text = str(result)
    assert "5 stratified folds" in text
    assert "control: shuffled labels" in text
    assert "k = 3" in text
    markdown = result.to_markdown().splitlines()
    assert len(markdown) == 2 + len(rows)
    assert all(line.startswith("| ") for line in markdown)


def test_html_is_escaped(result: ProbeResult) -> None:
    html = result._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<b>" not in html


def test_most_wrong_rows_are_wrong_without_them(result: ProbeResult) -> None:
    assert result.most_wrong
    margins = [row.margin for row in result.most_wrong]
    assert margins == sorted(margins, reverse=True)
    for row in result.most_wrong:
        assert row.label != row.predicted
        assert row.margin > 0
        assert row.key.endswith(".png")
        assert len(row.id) == 64


def test_a_mislabeled_row_is_the_most_wrong(make_clusters: Make) -> None:
    vectors, labels = make_clusters(90, signal=6.0)
    labels = labels.copy()
    labels[17] = (labels[17] + 1) % 3
    worst = probe((vectors, labels), controls=False).most_wrong
    assert [row.key for row in worst] == ["17"]


def test_heads_are_saved_with_their_numbers(result: ProbeResult, tmp_path: Path) -> None:
    head = result.heads["ridge"]
    loaded = load_head(head.save(tmp_path / "head"))
    assert loaded.digest == head.digest
    assert loaded.metrics["accuracy"] == result.accuracy
    assert loaded.dataset == "<b>x</b>"
