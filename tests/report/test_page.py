"""Pages: the same bytes for the same run, names as text, nothing fetched."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from probekit.errors import InputError
from probekit.evaluation.unlearning import UnlearningEvaluation
from probekit.report.figures import Picture, draw
from probekit.report.page import render, write_page
from probekit.report.tables import ReportData

VOID = {"meta", "link", "img"}


class Elements(HTMLParser):
    """Checks that elements are closed in order and fetch nothing; collects visible text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name in ("href", "src"):
                assert value is not None
                assert value.startswith("data:")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        self.text.append(text)


def test_a_page_of_one_run(data: ReportData) -> None:
    elements = Elements(render([data]))
    text = " ".join(elements.text)
    for expected in ("runs/a", "Client south was forgotten.", "0.013", "388 of 400", "12.3 MB"):
        assert expected in text
    assert "Computed from 200 retained rows of 2 clients." in text


def test_the_same_run_gives_the_same_bytes(data: ReportData) -> None:
    assert render([data]) == render([data])


def test_several_runs_share_a_page(data: ReportData) -> None:
    page = render([data, replace(data, name="runs/b")])
    Elements(page)
    assert page.count("<article") == 2


def test_names_are_text(data: ReportData) -> None:
    page = render([replace(data, name="<b>&", summary=("</main><script>",))])
    elements = Elements(page)
    assert "<script" not in page
    assert "<b>&" in elements.text
    assert "<script>$x$" in " ".join(elements.text)
    labels = [element.text for element in svg_of(draw(data)["clients"]).iter() if element.text]
    assert "<script>$x$" in labels  # and no formula


def svg_of(picture: Picture | None) -> ElementTree.Element:
    assert picture is not None
    return ElementTree.fromstring(b64decode(picture.source.partition("base64,")[2]))


def test_every_figure_shows_its_numbers(data: ReportData) -> None:
    pictures = draw(data)
    shown = {
        name: " ".join(text.strip() for text in svg_of(picture).itertext() if text.strip())
        for name, picture in pictures.items()
    }
    assert "backdoor" in shown["heads"]
    assert "0.013" in shown["bounds"]  # the certified distance, rounded up
    assert "south (forgotten)" in shown["clients"]


def test_a_run_that_only_trained_has_a_page(data: ReportData) -> None:
    trained = UnlearningEvaluation({"before": data.evaluation.heads["before"]})
    page = render([ReportData("runs/a", trained)])
    Elements(page)
    assert "certificate" not in page.partition("<main>")[2]
    assert page.count("<figure") == 1


def test_zero_distances_are_drawn(data: ReportData) -> None:
    exact = replace(data.evaluation, distances={"minimum": {"after": 0.0, "before": 0.0}})
    Elements(render([replace(data, evaluation=exact, certificate=None, a_priori=None)]))


def test_a_page_is_written(data: ReportData, tmp_path: Path) -> None:
    path = write_page([data], tmp_path / "page.html")
    assert path.read_text(encoding="utf-8") == render([data])
    with pytest.raises(InputError):
        write_page([], tmp_path / "none.html")
