"""Notebooks run as they are, and show what is stored in them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.notebooks import run_notebook

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


def shown(cell: dict[str, Any]) -> Counter[str]:
    """The kinds of outputs of a cell, pictures among them."""
    return Counter(kind for output in cell["outputs"] for kind in output.get("data", {"text": ""}))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_its_pictures_are_stored(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stored = json.loads(path.read_text(encoding="utf-8"))
    again = run_notebook(path)
    pictures = 0
    for before, after in zip(stored["cells"], again["cells"], strict=True):
        if before["cell_type"] == "code":
            assert shown(before) == shown(after)
            assert before["execution_count"] == after["execution_count"]
            pictures += shown(before)["image/png"]
    assert pictures >= 3
    assert str(Path.home()) not in path.read_text(encoding="utf-8")
