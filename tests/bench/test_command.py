"""`probekit bench`: listed, run where nothing is left to do, shown, and written as files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from probekit.bench.experiment import packaged_experiments
from probekit.cli.main import run
from tests.bench.conftest import SMALL, Bench


@pytest.fixture
def arguments(bench: Bench, tmp_path: Path) -> list[str]:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    folders = bench.folders
    return [str(path), "--folder", str(folders.root), "--cache", str(folders.cache)]


def test_experiments_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "ls", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["experiments"]) == set(packaged_experiments())


def test_run_prints_one_object(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "run", *arguments, "--method", "exact", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (rows,) = document["settings"].values()
    assert [row["method"] for row in rows] == ["nothing", "exact"]


def test_show_writes_tables_pictures_and_cells(
    bench: Bench, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = tmp_path / "pages"
    table = tmp_path / "cells.csv"
    assert run(["bench", "show", *arguments, "--out", str(pages), "--csv", str(table)]) == 0
    printed = capsys.readouterr().out
    page = (pages / "results.md").read_text()
    for row in bench.rows:
        assert row.chosen in printed
        assert row.chosen in page
    assert (pages / "few-digits.svg").read_text().startswith("<?xml")
    with table.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == sum(len(row.cells) for row in bench.rows)
    exact = next(line for line in lines if line["method"] == "exact" and line["seed"] == "0")
    assert float(exact["distance, minimum"]) < 1e-9


@pytest.mark.parametrize(
    ("extra", "code", "named"),
    [
        (["--only", "few"], 3, "few digits"),
        (["--method", "exactt"], 3, "exact"),
        (["--method", "cf:rounds=0"], 2, "0"),
    ],
)
def test_mistakes_are_refused_before_any_work(
    arguments: list[str],
    extra: list[str],
    code: int,
    named: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["bench", "run", *arguments, *extra]) == code
    assert named in capsys.readouterr().err
