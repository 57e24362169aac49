"""The report as a page, seen in a browser: sound at every width and in both themes, and names are text."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from probekit import Run, backbone, dataset, extract
from probekit.cache import DiskStore
from probekit.report.page import write_page
from tests.browser import WIDTHS, Browser
from tests.browser import chromium as chromium
from tests.conftest import spec
from tests.runs.conftest import Opened
from tests.shelves import Shelve
from tests.shelves import shelve as shelve

SCRIPT = "<script>alert(1)</script>"
PICTURE = '<img src="https://example.org/x.png" onerror="alert(2)">'
CLASSES = (PICTURE, "{{ 7 * 7 }}", "a very long class name " * 6)


@pytest.fixture
def page(shelve: Shelve, store: DiskStore, opened: Opened) -> Path:
    """One page about a run with hostile names that forgot twice, and one that forgot nothing."""
    shelve("rows", rows=160, clients=(SCRIPT, "b" * 90, "$c_1$ `d`", "日本") * 40, class_names=CLASSES)
    shelve("test", rows=90, seed=5, class_names=CLASSES)
    shelve("pasted", rows=50, seed=6, spec=spec(trigger="square"), class_names=CLASSES)
    how = {"partition": "column:client_id", "server_share": 0.2, "ridge": 0.01, "store": store}
    made = Run.train("run", "rows", **how)  # type: ignore[arg-type]
    made.unlearn(SCRIPT, test="test")
    made.unlearn("日本", method="fedremoval-pcg:2")
    Run.train("other", "rows", **how)  # type: ignore[arg-type]
    runs = [opened(name).report(["test"], triggered="pasted", target=1) for name in ("run", "other")]
    write_page([one.drawn() for one in runs], "page.html")
    return Path("page.html")


def test_it_is_sound_at_every_width_and_in_both_themes(page: Path, chromium: Browser) -> None:
    for width in WIDTHS:
        for dark in (False, True):
            seen = chromium.look(page, width=width, dark=dark)
            assert (seen.complaints, seen.requested, seen.beyond, seen.width) == ((), (), (), width)
            assert seen.dark == dark
    for words in (
        SCRIPT,
        "{{ 7 * 7 }}",
        "日本",
        "Before, after, retrained",
        "What is proven, and what is not",
        "Ledger",
    ):
        assert words in seen.text
    assert PICTURE in " ".join(seen.text.split())


def test_pictures_have_titles_and_names_of_their_own(shelve: Shelve, store: DiskStore) -> None:
    shelve("rows", rows=160)
    drawn = Run.train("run", "rows", clients=3, server_share=0.2, ridge=0.1, store=store).report().drawn()
    write_page([drawn, drawn], "page.html")
    text = Path("page.html").read_text()
    pictures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(pictures) == 2 * 5  # distance, influence, margins, classes, confusion
    named = re.findall(r"\bid=\"([^\"]+)\"", text)
    assert len(named) == len(set(named))
    used = set(re.findall(r"url\(#([^)]+)\)|href=\"#([^\"]+)\"", text))
    assert {first or second for first, second in used} <= set(named)
    for one in pictures:
        title = re.search(r'aria-labelledby="([^"]+)".*?<title id="([^"]+)">([^<]+)</title>', one, re.DOTALL)
        assert title is not None
        assert title[1] == title[2]
    assert not re.search(r"<(script|link [^>]*href=\"(?!data:))", text)
    assert not re.search(r"(src|href)=\"(?!data:|#)", text)


def test_rows_that_can_be_shown_are_shown(tmp_path: Path, store: DiskStore, opened: Opened) -> None:
    random = np.random.default_rng(0)
    pictures = {name: random.integers(0, 255, (60, 8, 8), np.uint8) for name in ("train", "test")}
    np.savez(
        tmp_path / "set.npz",
        **{f"{name}_images": one for name, one in pictures.items()},  # type: ignore[arg-type]
        **{f"{name}_labels": np.arange(60) % 3 for name in pictures},  # type: ignore[arg-type]
    )
    for split in ("train", "test"):
        made = extract(backbone("pixels:4"), dataset(f"npz:{tmp_path}/set.npz", split=split), store=store)
        store.sets.give_name(split, made.digest)
    Run.train("run", "train", clients=3, ridge=0.1, store=store).unlearn("1")
    found = opened("run").report(["test"])
    wrong = found.judged[0].most_wrong
    assert found.judged[0].thumbnails.keys() == {one.id for one in wrong}
    assert all(one.startswith(b"\x89PNG") for one in found.judged[0].thumbnails.values())
    write_page([found.drawn()], "page.html")
    assert Path("page.html").read_text().count("<img src=") == len(wrong) == 12
    (tmp_path / "set.npz").unlink()
    [judged] = opened("run").report(["test"]).judged
    assert (judged.most_wrong, judged.thumbnails) == (wrong, {})
