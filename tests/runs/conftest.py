"""Runs of the library in an empty folder, with a cache of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from probekit import Run
from probekit.cache import DiskStore

Opened = Callable[[Path | str], Run]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is the test's own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def opened(store: DiskStore) -> Opened:
    """Opens a run with the test's cache."""
    return lambda path: Run.open(path, store=store)
