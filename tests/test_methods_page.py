"""docs/methods.md says what the registry says, and has every quirk that is measured."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from probekit.registry import methods
from probekit.testing.method_table import as_markdown, method_table

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "methods.md").read_text()


def between(name: str) -> str:
    return PAGE.partition(f"<!-- {name} -->")[2].partition(f"<!-- end of {name} -->")[0].strip()


def test_the_table_is_computed() -> None:
    """Wanted: what `as_markdown(method_table())` gives for our own methods."""
    ours = {point.name for point in methods.built_in}
    wanted = as_markdown(tuple(one for one in method_table() if one.name in ours))
    assert between("methods") == wanted.strip()


def test_every_quirk_has_its_measured_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    quirks = importlib.import_module("quirks")
    rows = [line for line in between("quirks").splitlines() if line.startswith("|")]
    for one in quirks.QUIRKS:
        [row] = [line for line in rows if f"| {one.what}: " in line]
        assert row.count(" / ") == 4
        assert one.published in row
    assert len(rows) == len(quirks.QUIRKS) + 4
