"""A probe as a page and in a notebook: sound in a browser, every name is text, what it shows is what it found."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

import probekit
from probekit import EmbeddingSet
from tests.browser import WIDTHS, Browser
from tests.browser import chromium as chromium

SCRIPT = "<script>alert(1)</script>"


def rows(seed: int, *, count: int = 90) -> EmbeddingSet:
    """Three classes that overlap, one with a hostile name."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    found = random.normal(size=(count, 4)).astype(np.float32) + np.eye(3, 4, dtype=np.float32)[labels]
    return EmbeddingSet.from_numpy(found, labels, class_names=(SCRIPT, "{{ b }}", "c" * 120), source="<i>mine</i>")


def test_the_page_is_sound(tmp_path: Path, chromium: Browser) -> None:
    page = probekit.probe(rows(0), test=rows(1)).report(tmp_path / "deep/page.html")
    for width, dark in product(WIDTHS, (False, True)):
        seen = chromium.look(page, width=width, dark=dark)
        assert (seen.complaints, seen.requested, seen.beyond, seen.width) == ((), (), (), width)
        assert seen.dark == dark
    for words in (SCRIPT, "{{ b }}", "<i>mine</i>", "most wrong", "Calibration", "Choice of the ridge"):
        assert words in seen.text


def test_the_page_says_what_the_probe_found(tmp_path: Path) -> None:
    found = probekit.probe(rows(0), ridge=0.5)
    page = found.report(tmp_path / "page.html").read_text()
    assert f"{found.accuracy.value:.1%}" in page
    assert "training rows, each left out in turn" in page
    assert "Ridge 0.5, as given" in page
    assert "Choice of the ridge" not in page
    assert page.count('<tr><th scope="row">') == len(found.by_class) + len(found.most_wrong) + 5 + len(found.seconds)


@pytest.mark.parametrize("kind", ["labels", "real"])
def test_several_targets_have_a_page_too(kind: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    found = random.normal(size=(120, 4)).astype(np.float32)
    wanted = found @ random.normal(size=(4, 3)) + random.normal(size=(120, 3))
    targets = (wanted > 0).astype(np.float64) if kind == "labels" else wanted
    page = probekit.probe((found, targets)).report(tmp_path / "page.html").read_text()
    assert ("mean average precision" in page, "mean R2" in page) == (kind == "labels", kind == "real")
    assert "Targets</h2>" in page
    assert "Calibration" not in page


def test_a_notebook_shows_a_table_of_facts() -> None:
    found = probekit.probe(rows(0))
    shown = found._repr_html_()
    assert shown.startswith("<table>")
    assert shown.count("<tr>") == len(found.facts)
    assert "&lt;i&gt;mine&lt;/i&gt;" in shown
    assert "<i>" not in shown
