"""`probekit doctor`: what is here, and what to do about what is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch

from probekit.cli.main import run


@pytest.fixture(autouse=True)
def torchvision_process(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the process that imports torchvision answers; a test may change it."""
    answer: dict[str, Any] = {"returncode": 0, "stdout": "0.28.0\n", "stderr": ""}

    real = subprocess.run

    def imitate(command: list[str], **settings: Any) -> subprocess.CompletedProcess[str]:
        if command[0] != sys.executable:  # `uname`, of the platform module
            return real(command, **settings)
        assert "probekit" not in " ".join(command[1:])
        return subprocess.CompletedProcess(command, **answer)

    monkeypatch.setattr(subprocess, "run", imitate)
    return answer


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
    assert checks["torchvision"]["detail"] == "0.28.0"
    assert "cpu" in checks["devices"]["detail"]
    assert str(root) in checks["cache"]["detail"]
    assert "HF_HUB_OFFLINE" in checks["hub"]["detail"]
    assert "other package" not in checks
    assert not root.parent.exists()


def test_a_package_that_cannot_be_imported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    check = examine(capsys, code=1)["faiss"]
    assert check["state"] == "problem"
    assert "faiss-cpu" in check["detail"]


@pytest.mark.parametrize(
    ("reason", "state", "code"),
    [
        ("RuntimeError: operator torchvision::nms does not exist", "warning", 0),
        ("ModuleNotFoundError: No module named 'torchvision'", "problem", 1),
        ("", "problem", 1),
    ],
)
def test_a_broken_torchvision(
    torchvision_process: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    reason: str,
    state: str,
    code: int,
) -> None:
    torchvision_process.update(returncode=1, stderr=reason)
    check = examine(capsys, code=code)["torchvision"]
    assert check["state"] == state
    assert reason in check["detail"]


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
