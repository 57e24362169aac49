"""Values on a page: bounds are rounded up, text is text, and a picture takes the page's colours."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as some

from probekit.pages.formats import Markdown, code, escaped, interval, upper
from probekit.pages.render import render
from probekit.pages.svg import inline


@given(some.floats(1e-300, 1e300), some.integers(1, 8))
def test_a_bound_is_never_rounded_down(value: float, digits: int) -> None:
    told = float(upper(value, digits))
    assert value <= told <= value * (1 + 10.0 ** (1 - digits)) * (1 + 1e-12)


def test_a_bound_that_is_not_known_is_not_told() -> None:
    assert upper(None) == ""
    assert upper(1.95e-6, 2) == "2e-06"  # nearest would be 1.9e-06, which is not proven


@pytest.mark.parametrize("low", [None, 0.25])
def test_shares_with_and_without_an_interval(low: float | None) -> None:
    told = interval({"value": 0.5, "low": low, "high": 0.75})
    assert told == ("50.00%" if low is None else "50.00% (25.00% to 75.00%)")


def test_markdown_takes_text_for_nothing_else() -> None:
    assert escaped("a | b\n*c* <d>") == "a \\| b \\*c\\* \\<d\\>"
    assert escaped(Markdown("*c*")) == "*c*"
    assert code("x`|`y") == "`x\\|y`"


def test_templates_escape_what_they_are_given() -> None:
    page = render("facts.html.j2", facts=[("<b>", "{{ 1 }}")])
    assert "&lt;b&gt;" in page
    assert "{{ 1 }}" in page


def test_a_picture_has_its_own_names_and_the_page_s_colours() -> None:
    drawn = """<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 72 36">
    <metadata>m</metadata><defs><style>*{}</style><path id="a" style="stroke: #000000"/></defs>
    <rect style="fill: #ffffff"/><use xlink:href="#a" clip-path="url(#a)" style="fill: #0072b2"/>
    <text style="fill: #ffffff">word</text></svg>"""
    found = ElementTree.fromstring(inline(drawn, name="n", title="<what>"))
    assert [one.tag for one in found.iter()] == ["svg", "title", "defs", "path", "rect", "use", "text"]
    assert found.get("aria-labelledby") == "n-title"
    assert found[0].text == "<what>"
    use, path = found.find("use"), found.find("defs/path")
    assert use is not None
    assert path is not None
    assert (path.get("id"), path.get("style")) == ("n-a", "stroke: currentColor")
    assert (use.get("href"), use.get("clip-path"), use.get("style")) == ("#n-a", "url(#n-a)", "fill: var(--blue)")
    assert [one.get("style") for one in found if one.tag in ("rect", "text")] == ["fill: none", "fill: #ffffff"]
