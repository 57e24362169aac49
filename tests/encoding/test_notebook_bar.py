"""A bar in a notebook, and nothing anywhere else."""

from __future__ import annotations

import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from probekit import extract
from probekit.encoding.notebook import bar_html, bar_text, notebook_bar
from probekit.encoding.options import ExtractProgress


class Shown:
    """What a notebook is asked to display: every bar with all that replaced it."""

    def __init__(self) -> None:
        self.bars: list[list[Any]] = []

    def display(self, bar: Any, *, display_id: bool) -> SimpleNamespace:
        assert display_id
        self.bars.append([bar])
        return SimpleNamespace(update=self.bars[-1].append)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """A kernel that runs this test."""
    shown, ipython = Shown(), ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    ipython.display = SimpleNamespace(display=shown.display)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    return shown


def pictures(count: int = 40) -> list[Any]:
    return [(row, 0) for row in np.random.default_rng(0).random((count, 6)).astype(np.float32)]


def twice(batch: Any) -> Any:
    return np.asarray(batch) * 2


def test_a_notebook_shows_one_bar_that_ends_full(notebook: Shown) -> None:
    extract(twice, pictures(), fingerprint="twice")
    [bars] = notebook.bars
    last = bars[-1]._repr_html_()
    assert '<progress value="40" max="40">' in last
    assert "40 of 40 rows, 40 encoded" in repr(bars[-1])


def test_who_gives_a_progress_of_their_own_sees_no_bar(notebook: Shown) -> None:
    told: list[ExtractProgress] = []
    extract(twice, pictures(), fingerprint="twice", progress=told.append)
    assert notebook.bars == []
    assert told[-1].rows == 40


def test_a_bar_changes_seldom_and_ends_full(notebook: Shown) -> None:
    advance = notebook_bar("set")
    for rows in range(1001):
        advance(ExtractProgress(rows, 1000))
    [bars] = notebook.bars
    assert len(bars) < 200
    assert "1,000 of 1,000 rows" in repr(bars[-1])


def test_names_are_text_and_an_unknown_end_has_no_bar() -> None:
    now = ExtractProgress(1200, None, encoded=200, reused=1000, seconds=10.0)
    assert bar_text("s", now) == "s: 1,200 rows, 200 encoded, 20/s, 1,000 reused"
    assert bar_html("<b>", now).count("<") == 2
    assert re.search(r"&lt;b&gt;", bar_html("<b>", now))


@pytest.mark.parametrize("shell", ["no IPython", None, SimpleNamespace()])
def test_terminals_and_scripts_stay_quiet(
    shell: Any, notebook: Shown, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if shell == "no IPython":
        monkeypatch.delitem(sys.modules, "IPython")
    else:
        monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: shell)
    extract(twice, pictures(), fingerprint="twice")
    assert notebook.bars == []
    assert capsys.readouterr() == ("", "")
