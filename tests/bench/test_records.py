"""Cells that were computed elsewhere, as one file for an experiment."""

from __future__ import annotations

from pathlib import Path

import pytest

from probekit.bench.cells import Folders
from probekit.bench.experiment import read_experiment
from probekit.bench.run import read_rows, recorded_cells, run_experiment
from probekit.bench.tables import setting_table
from probekit.bench.tuning import trials
from probekit.cli.main import run
from probekit.errors import CorruptError
from tests.bench.conftest import SMALL, Bench

COMMITTED = sorted((Path(__file__).parents[2] / "benchmarks" / "records").glob("*.jsonl"))


def test_a_record_gives_the_same_tables_and_nothing_is_computed(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = tmp_path / "small.toml"
    experiment.write_text(SMALL)
    file = tmp_path / "records" / "small.jsonl"
    show = ["bench", "show", str(experiment), "--cache", str(bench.folders.cache), "--folder"]
    assert run([*show, str(bench.folders.root), "--record", str(file)]) == 0
    printed = capsys.readouterr().out
    assert run([*show, str(file.parent)]) == 0
    assert capsys.readouterr().out == printed
    folders = Folders(file.parent, bench.folders.cache)
    assert run_experiment(bench.experiment, folders) == bench.rows
    assert [path.name for path in file.parent.iterdir()] == ["small.jsonl"]
    assert recorded_cells(bench.experiment, folders) == file.read_text()


@pytest.mark.parametrize("line", ["{", "[]", '{"measures": {}}'])
def test_what_is_no_record_is_refused(bench: Bench, tmp_path: Path, line: str) -> None:
    (tmp_path / "small.jsonl").write_text(line)
    with pytest.raises(CorruptError, match=r"small\.jsonl"):
        read_rows(bench.experiment, Folders(tmp_path, bench.folders.cache))


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_committed_records_are_those_of_the_experiments(path: Path, tmp_path: Path) -> None:
    """Their keys are still those of the settings, and no seed is missing."""
    experiment = read_experiment(path.stem)
    rows = read_rows(experiment, Folders(path.parent, tmp_path))
    shown = {row.setting.name for row in rows if row.cells}
    assert shown
    for row in rows:
        if row.setting.name in shown and row.method in row.setting.methods:
            assert row.cells.keys() == set(experiment.seeds), (row.setting.name, row.method)
            budget = len(trials(row.method, experiment.budget(row.setting)))
            assert row.trials == (budget if budget > 1 else 0), (row.setting.name, row.method)
    for name in shown:
        table = setting_table([row for row in rows if row.setting.name == name])
        assert "not computed" not in {line[1] for line in table.rows}
