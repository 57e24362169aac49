"""The demo: few pictures, a table that says what counts, a page, and FedRemoval with and without rows enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from probekit.cache import DiskStore
from probekit.cli.demo import _show
from probekit.runs import demo
from probekit.runs.demo import DemoResult, run_demo
from tests.browser import WIDTHS, Browser
from tests.browser import chromium as chromium

MOST = 1500


def done(store: DiskStore, folder: Path) -> DemoResult:
    return run_demo(store, folder, progress=lambda name, now: None)


def shown(result: DemoResult) -> str:
    """What people see in a terminal of usual width."""
    from rich.console import Console

    console = Console(width=80, record=True, force_terminal=False, quiet=False)
    with console.capture() as captured:
        _show(console, result, None)
    return captured.get()


def check(result: DemoResult) -> None:
    """What holds whatever encodes the pictures."""
    assert result.encoded <= MOST
    before, exact, _, _, retrained = result.lines
    assert before.backdoor > 0.5 > retrained.backdoor
    assert (exact.same, exact.accuracy, exact.backdoor) == (1.0, retrained.accuracy, retrained.backdoor)
    assert (exact.certified, exact.verdict) == (result.test_rows, "proven")
    assert (retrained.same, retrained.distance, retrained.certified) == (1.0, 0.0, None)
    table = shown(result).partition("test pictures\n")[2].splitlines()
    assert [line.split("  ")[0].strip() for line in table[:6]] == ["head", *(line.head for line in result.lines)]
    assert "250 of 250" in table[2]


def test_the_story_is_told_from_few_pictures(store: DiskStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "BACKBONE", "pixels:8")
    first = done(store, tmp_path / "runs")
    check(first)
    _, encoded, reused = demo._sets(store, lambda name, now: None)
    assert (encoded, reused) == (0, first.encoded + first.reused)
    assert Path(first.page).read_text().count("<article") == len(first.runs) == 3
    assert first.page in shown(first)


@pytest.mark.slow
def test_one_step_needs_rows_enough(store: DiskStore, tmp_path: Path, chromium: Browser) -> None:
    result = done(store, tmp_path / "runs")
    check(result)
    before, _, enough, few, _ = result.lines
    assert enough.warnings == ()
    assert "are fewer than 4 times their effective dimension" in few.warnings[0]
    assert enough.distance < before.distance < few.distance
    assert enough.same > before.same > few.same
    for width in WIDTHS:
        seen = chromium.look(Path(result.page), width=width, dark=width == WIDTHS[0])
        assert (seen.complaints, seen.requested, seen.beyond, seen.width) == ((), (), (), width)
