"""`probekit probe`: flags, printing, exit codes, files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from probekit.cli.main import run


@pytest.fixture
def cache(tmp_path: Path) -> list[str]:
    return ["--cache", str(tmp_path / "cache")]


def test_a_table_with_controls_curves_and_a_cell_that_fails(
    cache: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: tmp_path / f"table.{name}" for name in ("csv", "markdown", "picture")}
    flags = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    backbones = ["-b", "pixels:8", "-b", "pixels:4", "-b", "nope:x"]
    code = run(["probe", "packaged:digits", *backbones, "--shots", "1,4", "--draws", "2", "--knn", "5", *flags, *cache])
    out = capsys.readouterr().out
    assert code == 5
    assert "nope:x: There is no backbone 'nope'" in out
    assert "control: shuffled labels" in out
    assert "SUSPICIOUS" not in out
    with files["csv"].open(newline="") as file:
        lines = list(csv.DictReader(file))
    cells = [line for line in lines if not line["shots"]]
    assert [line["backbone"] for line in cells[:3]] == ["pixels:8", "pixels:4", "nope:x"]
    assert [line["control"] for line in cells] == ["False"] * 3 + ["True"] * 2
    assert all(float(line["low"]) < float(line["accuracy"]) < float(line["high"]) for line in cells if line["accuracy"])
    curve = [line for line in lines if line["shots"]]
    assert [(line["backbone"], line["shots"]) for line in curve] == [
        (name, shots) for name in ("pixels:8", "pixels:4") for shots in ("1", "4")
    ]
    assert all(line["seeds_deviation"] and line["test_low"] for line in curve)
    assert "| pixels:8 | " in files["markdown"].read_text()
    assert "rows per class" in files["picture"].read_text()


def test_one_cell_is_shown_whole_and_json_has_every_number(
    cache: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    one = ["probe", "packaged:digits", "-b", "pixels:8", "--no-controls", *cache]
    assert run(one) == 0
    text = capsys.readouterr().out
    assert "397 test rows" in text
    assert run([*one, "--json", "--picture", str(tmp_path / "dots.svg")]) == 0
    (cell,) = json.loads(capsys.readouterr().out)["cells"]
    assert f"{cell['accuracy']:.1%}" in text
    assert cell["judged_on"] == "test rows"
    assert "accuracy" in (tmp_path / "dots.svg").read_text()
    assert run(["probe", "digits-train-8", "--test", "digits-test-8", "--no-controls", "--json", *cache]) == 0
    assert json.loads(capsys.readouterr().out)["cells"][0]["accuracy"] == cell["accuracy"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--ridge", "big"], "auto or a number"),
        (["--shots", "1,x"], "whole numbers"),
        (["--normalise", "l3"], "l3"),
        (["--knn", "0"], "0"),
    ],
)
def test_bad_flags_are_refused(
    flags: list[str], said: str, cache: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["probe", "packaged:digits", "-b", "pixels:8", *flags, *cache]) == 2
    assert said in capsys.readouterr().err
