"""A file of finished cells: what is in it is not computed again, and reads as it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.errors import CorruptError, InputError
from probekit.probing import ProbeResult, cells, probe

Make = Callable[..., tuple[NDArray[Any], NDArray[Any]]]


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The heads that are fitted, in order."""
    fitted: list[str] = []
    fit_head = cells.fit_head

    def counted(name: str, *arguments: Any) -> Any:
        fitted.append(name)
        return fit_head(name, *arguments)

    monkeypatch.setattr(cells, "fit_head", counted)
    return fitted


def test_finished_cells_are_not_computed_again(
    make_clusters: Make, fits: list[str], tmp_path: Path
) -> None:
    data = make_clusters(90)
    path = tmp_path / "results.jsonl"
    first = probe(data, heads="ridge", record=path, shots=2, knn=3)
    assert fits == ["ridge", "knn", "ridge", "ridge"]  # and two controls
    fits.clear()
    again = probe(data, heads=("ridge", "lda"), record=path, shots=2, knn=3)
    assert fits == ["lda"]
    kept = [cell for cell in again.cells if cell.head != "lda"]
    assert [cell.to_dict() for cell in kept] == [cell.to_dict() for cell in first.cells]
    assert np.array_equal(kept[0].hits, first.cells[0].hits)
    assert str(kept[0].evaluation.primary) == str(first.cells[0].evaluation.primary)
    assert first.heads["ridge"] is not None
    assert "ridge" not in again.heads


@pytest.mark.parametrize(
    "options", [{"ridge": 0.5}, {"seed": 1}, {"confidence": 0.9}, {"normalize": "l2"}]
)
def test_what_determines_a_cell_is_its_key(
    options: Mapping[str, Any], make_clusters: Make, fits: list[str], tmp_path: Path
) -> None:
    vectors, labels = make_clusters(60)
    path = tmp_path / "results.jsonl"
    probe((vectors, labels), heads="ridge", record=path, controls=False)
    probe((vectors, labels), heads="ridge", record=path, controls=False, **options)
    probe((vectors, 2 - labels), heads="ridge", record=path, controls=False)
    probe((vectors * 2, labels), heads="ridge", record=path, controls=False)
    assert fits == ["ridge"] * 4
    probe((vectors, labels), heads="ridge", record=path, controls=False, reuse=False)
    assert fits == ["ridge"] * 5


def test_a_line_that_was_cut_off_is_computed_again(
    make_clusters: Make, fits: list[str], tmp_path: Path
) -> None:
    data = make_clusters(60)
    path = tmp_path / "results.jsonl"
    probe(data, heads=("ridge", "lda"), record=path, controls=False)
    content = path.read_bytes()
    for length in (len(content) - 1, content.index(b"\n") + 1, 5, 0):
        path.write_bytes(content[:length])
        probe(data, heads=("ridge", "lda"), record=path, controls=False)
        assert path.read_bytes() == content
    assert len(fits) == 2 + 1 + 1 + 2 + 2


@pytest.mark.parametrize("text", ["some notes\n", "no line ends", "{}\n"])
def test_what_is_no_record_is_refused(text: str, make_clusters: Make, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(CorruptError, match="--record"):
        probe(make_clusters(60), heads="ridge", record=path)
    assert path.read_text() == text


def test_a_folder_is_no_record(make_clusters: Make, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="folder"):
        probe(make_clusters(60), record=tmp_path)


def test_a_failed_cell_is_not_finished(make_clusters: Make, tmp_path: Path) -> None:
    vectors, _ = make_clusters(60)
    targets = vectors @ np.ones(12)
    path = tmp_path / "results.jsonl"
    result: ProbeResult = probe(
        (vectors, targets), heads=("lda", "ridge"), record=path, controls=False
    )
    assert [bool(cell.error) for cell in result.cells] == [True, False]
    (line,) = path.read_text().splitlines()
    assert json.loads(line)["cell"]["head"] == "ridge"


def test_rows_are_logged_as_they_are_computed(make_clusters: Make) -> None:
    logged: list[Mapping[str, Any]] = []
    result = probe(make_clusters(90), heads=("ridge", "lda"), shots=(1, 2), log=logged.append)
    assert [row["head"] for row in logged] == ["ridge"] * 3 + ["lda"] * 3 + ["ridge"] * 2
    assert logged[0]["value"] == logged[0]["accuracy"] == result.accuracy
    assert [row.get("shots") for row in logged[:3]] == [None, 1, 2]
