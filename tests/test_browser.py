"""The browser helper sees what it is there to see: complaints, requests, what stands beyond the edge, the theme."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser import WIDTHS, Browser
from tests.browser import chromium as chromium

GOOD = """<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<style>body{background:#fff} @media (prefers-color-scheme:dark){body{background:#111}}</style><p>all is well</p>
<div style="overflow-x:auto"><div style="width:3000px">scrolls</div></div>"""
BAD = {
    "complaints": "<script>console.error('broken')</script>",
    "requested": "<img alt='' src='beside.png'>",
    "beyond": "<div style='width:2000px'>wide</div>",
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True])
def test_a_sound_page(width: int, dark: bool, chromium: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(GOOD)
    seen = chromium.look(page, width=width, dark=dark, picture=tmp_path / "seen.png")
    assert (seen.complaints, seen.requested, seen.beyond, seen.width) == ((), (), (), width)
    assert (seen.dark, "all is well" in seen.text) == (dark, True)
    assert (tmp_path / "seen.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_is_seen(what: str, chromium: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(GOOD + BAD[what])
    seen = chromium.look(page, width=360)
    assert getattr(seen, what)
    assert (seen.width > 360) == (what == "beyond")
