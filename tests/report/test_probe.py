"""The page of a probe: every backbone, every number, names as text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from probekit.embeddings import EmbeddingSet, Encoding
from probekit.errors import InputError
from probekit.probing import ProbeResult, probe
from probekit.report.figures import draw_figure
from probekit.report.probe import (
    curves_figure,
    few_shot_curves,
    layer_curves,
    reliability_figure,
    render_probe,
    results_figure,
)
from tests.report.test_page import Elements, svg_of


def layer_rows(layer: int, rows: int = 120) -> EmbeddingSet:
    """The same samples at a layer: the deeper, the better."""
    generator = np.random.default_rng(layer)
    labels = np.arange(rows) % 3
    vectors = generator.normal(size=(rows, 8))
    vectors[np.arange(rows), labels] += layer
    names = np.array(["cat", "<b>dog</b>", "$owl$"])[labels]
    made = EmbeddingSet.from_numpy(vectors, names, source="photos")
    return replace(made, encoding=Encoding("hf:vit", {"view": f"layer:{layer}.cls"}))


@pytest.fixture(scope="module")
def result() -> ProbeResult:
    data = [layer_rows(layer) for layer in (3, 1, 2)]
    return probe(data, heads=("ridge", "lda"), shots=(1, 4), draws=2)


def test_every_cell_is_on_the_page(result: ProbeResult) -> None:
    text = " ".join(Elements(render_probe(result)).text)
    for cell in result.cells:
        assert cell.evaluation is not None
        assert f"{cell.backbone}#{cell.view} {cell.head}" in text or cell.control
        assert str(cell.evaluation.primary) in text
    for expected in ("<b>dog</b>", "$owl$", "shuffled labels", *result.legend):
        assert expected in text


def test_the_same_result_gives_the_same_bytes(result: ProbeResult, tmp_path: Path) -> None:
    page = render_probe(result)
    assert page == render_probe(result)
    assert result.report(tmp_path / "page.html").read_text(encoding="utf-8") == page
    assert page.count("<figure") == 4
    assert "<script" not in page


def test_figures_show_their_numbers(result: ProbeResult) -> None:
    cells = [cell for cell in result.cells if not cell.control]
    best = max(cell.evaluation.primary.value for cell in cells if cell.evaluation)
    texts = svg_of(draw_figure(lambda: results_figure(cells), "results")).itertext()
    shown = " ".join(text.strip() for text in texts if text.strip())
    assert f"{best:.1%}" in shown
    assert "hf:vit#layer:2.cls lda" in shown
    counts = svg_of(draw_figure(lambda: reliability_figure(cells[:1]), "r")).itertext()
    assert str(cells[0].reliability[-1].rows) in {text.strip() for text in counts}
    assert sum(part.rows for part in cells[0].reliability) == 120


def test_layers_are_ordered_and_shots_are_curves(result: ProbeResult) -> None:
    curves = layer_curves(result.cells[:6])
    assert list(curves) == ["hf:vit#layer:*.cls ridge", "hf:vit#layer:*.cls lda"]
    for points in curves.values():
        assert [layer for layer, _ in points] == [1, 2, 3]
        assert points[0][1].value < points[2][1].value
    shots = few_shot_curves(result.cells[:2])
    assert [[x for x, _ in points] for points in shots.values()] == [[1, 4], [1, 4]]
    draw_figure(lambda: curves_figure(curves, "layer", "accuracy", log=False), "layers")


def test_failed_cells_targets_and_empty_results() -> None:
    vectors = np.random.default_rng(0).normal(size=(60, 4))
    single = EmbeddingSet.from_numpy(np.ones((4, 2)), ["a"] * 4, source="single")
    numbers = EmbeddingSet.from_numpy(vectors, targets=vectors[:, :1] * 2, source="numbers")
    result = probe([numbers, single], controls=False)
    page = render_probe(result)
    Elements(page)
    assert "failed" in page
    assert page.count("<article") == 2
    with pytest.raises(InputError, match="cell"):
        render_probe(ProbeResult(()))
