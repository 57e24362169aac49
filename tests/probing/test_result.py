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
from probekit.errors import InputError
from probekit.heads import load_head
from probekit.probing import ProbeResult, probe

Make = Callable[..., tuple[NDArray[Any], NDArray[Any]]]


@pytest.fixture
def result(make_clusters: Make) -> ProbeResult:
    vectors, labels = make_clusters(90)
    rows = EmbeddingSet.from_numpy(
        vectors, labels, columns={"key": [f"{row}.png" for row in range(90)]}, source="<b>x</b>"
    )
    return probe(rows, shots=(1, 500), knn=3, heads="ridge")


def test_a_row_for_every_cell_and_shot(result: ProbeResult) -> None:
    frame = result.to_pandas()
    assert frame["head"].tolist() == ["ridge"] * 3 + ["knn"] * 3 + ["ridge"] * 2
    assert frame["shots"].dropna().tolist() == [1, 500, 1, 500]
    assert frame["value"][0] == frame["accuracy"][0] == result.accuracy
    assert frame["value"][1] == result.cells[0].few_shot[0].accuracy.value
    assert frame["train_rows"].tolist()[:2] == [90, 3]
    assert "500" in frame["error"][2]
    assert frame["fit"][1].startswith("5 draws, deviation 0.")
    assert frame["calibration_error"][0] < 0.3


def test_csv_and_json_hold_the_same_numbers(result: ProbeResult, tmp_path: Path) -> None:
    with result.to_csv(tmp_path / "table.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    document = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    primary = document["cells"][0]["evaluation"]["metrics"]["accuracy"]
    assert float(lines[0]["value"]) == primary["value"] == result.accuracy
    assert float(lines[0]["low"]) == primary["low"]
    assert [line["shots"] for line in lines[:2]] == ["", "1"]
    confusion = np.array(document["cells"][0]["evaluation"]["confusion"])
    assert confusion.trace() / confusion.sum() == result.accuracy
    assert document["cells"][0]["width"] == 12


def test_the_table_names_what_was_done(result: ProbeResult) -> None:
    header, rule, *rows = result.to_markdown().splitlines()
    columns = [name.strip() for name in header.strip("| ").split("|")]
    assert {"head", "shots", "result", "chance", "width", "normalize", "fit"} <= set(columns)
    assert "view" not in columns
    assert set(rule) == set("|- ")
    assert len(rows) == 8
    assert {line.count(" | ") for line in rows} == {len(columns) - 1}
    text = str(result)
    for shown in ("5 stratified folds", "shuffled labels", "k 3", "leave-one-out", "500"):
        assert shown in text


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
    worst = probe((vectors, labels), controls=False, heads="ridge").most_wrong
    assert [row.key for row in worst] == ["17"]


def test_rows_of_unknown_classes_are_not_the_most_wrong() -> None:
    train = EmbeddingSet.from_numpy(np.repeat(np.eye(2), 5, axis=0), list("aaaaabbbbb"))
    test = EmbeddingSet.from_numpy([[1.0, 0.1], [0.9, 0.0], [0.0, 0.9]], ["odd", "b", "b"])
    result = probe(train, test=test, controls=False, heads="ridge")
    assert [(row.key, row.label, row.predicted) for row in result.most_wrong] == [("1", "b", "a")]
    json.dumps(result.to_dict(), allow_nan=False)


def test_heads_are_saved_with_their_numbers(
    result: ProbeResult, make_clusters: Make, tmp_path: Path
) -> None:
    head = result.heads["ridge"]
    loaded = load_head(head.save(tmp_path / "head"))
    assert loaded.digest == head.digest
    assert loaded.metrics["accuracy"] == result.accuracy
    assert loaded.dataset == "<b>x</b>"
    assert loaded.fit == result.cells[0].fit
    assert result.save(tmp_path / "only") == [tmp_path / "only"]
    several = probe(make_clusters(60), heads=("ridge", "lda"), controls=False)
    folders = [tmp_path / "several" / name for name in ("ridge", "lda")]
    assert several.save(tmp_path / "several") == folders
    assert [load_head(folder).digest for folder in folders] == [
        head.digest for head in several.heads.values()
    ]
    neighbors = probe(make_clusters(60), heads="knn", controls=False)
    with pytest.raises(InputError, match="k-NN"):
        neighbors.save(tmp_path / "none")


def test_a_head_is_pushed_with_its_metrics(result: ProbeResult) -> None:
    from huggingface_hub import ModelCard

    cards: list[str] = []

    class Hub:
        def create_repo(self, **options: Any) -> None:
            assert options["repo_id"] == "me/head"

        def upload_folder(self, *, folder_path: str, **options: Any) -> str:
            cards.append((Path(folder_path) / "README.md").read_text())
            return "https://hub/me/head"

    assert result.push_to_hub("me/head", head="ridge", api=Hub()) == "https://hub/me/head"
    found = {item.metric_type: item.metric_value for item in ModelCard(cards[0]).data.eval_results}
    assert found["accuracy"] == result.accuracy
    with pytest.raises(InputError, match="ridge"):
        result.push_to_hub("me/head", head="rigde", api=Hub())
