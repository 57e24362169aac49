from __future__ import annotations

from pathlib import Path

import pytest

from probekit.cache import Cache


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")
