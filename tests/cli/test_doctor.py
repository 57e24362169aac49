"""`probekit doctor`: what is here, and what to do about what is not."""

from __future__ import annotations

import json
import os
import sys
from importlib import metadata
from pathlib import Path
from urllib.error import URLError

import pytest
import torch

from probekit.cli.main import run


def examine(
    capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0
) -> dict[str, dict[str, str]]:
    assert run(["doctor", *arguments, "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert document["healthy"] is (code == 0)
    return {check["name"]: check for check in document["checks"]}


def test_a_sound_installation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "not" / "yet"
    checks = examine(capsys, "--cache", str(root))
    assert checks["torch"]["detail"] == torch.__version__
    assert checks["faiss"]["state"] == "ok"
    assert checks["torchvision"]["state"] == "ok"
    assert "cpu" in checks["devices"]["detail"]
    assert str(root) in checks["cache"]["detail"]
    assert "HF_HUB_OFFLINE" in checks["hub"]["detail"]
    assert "other package" not in checks
    assert not root.parent.exists()


@pytest.mark.parametrize("name", ["faiss", "torchvision"])
def test_a_package_that_cannot_be_imported(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    check = examine(capsys, code=1)[name]
    assert check["state"] == "problem"
    assert f"reinstall {name}" in check["detail"]


def test_the_other_package_of_that_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    information = tmp_path / "probekit-9.8.7.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: probekit\nVersion: 9.8.7\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert metadata.version("probekit") == "9.8.7"
    detail = examine(capsys, code=1)["other package"]["detail"]
    assert "9.8.7" in detail
    assert "probekit-heads" in detail


def test_a_cache_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests may run as root, who can write everywhere: so the system's answer is made up."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
        check = examine(capsys, "--cache", str(tmp_path), code=1)["cache"]
    assert "PROBEKIT_CACHE" in check["detail"]
    (tmp_path / "file").write_text("")
    assert examine(capsys, "--cache", str(tmp_path / "file"), code=1)["cache"]["state"] == "problem"


def test_a_hub_that_cannot_be_reached_is_a_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(url: str, timeout: float) -> None:
        assert timeout < 10
        raise URLError("no route")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("urllib.request.urlopen", refuse)
    check = examine(capsys)["hub"]
    assert check["state"] == "warning"
    assert "no route" in check["detail"]
