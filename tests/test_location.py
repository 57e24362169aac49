"""Where the cache is."""

from __future__ import annotations

from pathlib import Path

import pytest

from probekit.files import default_root


def test_our_own_variable_wins_then_xdg_then_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_root({"PROBEKIT_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert default_root({"PROBEKIT_CACHE": "", "XDG_CACHE_HOME": "/b"}) == Path("/b/probekit")
    assert default_root({"PROBEKIT_CACHE": "~/c"}) == Path.home() / "c"
    platform = default_root({})
    assert (platform.is_absolute(), platform.parts[-1]) == (True, "probekit")
    assert default_root({"XDG_CACHE_HOME": "relative"}) == platform


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_root({"PROBEKIT_CACHE": "here"}) == tmp_path / "here"


def test_without_an_argument_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBEKIT_CACHE", "/somewhere")
    assert default_root() == Path("/somewhere")
