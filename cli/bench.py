"""`probekit bench`: the methods of unlearning beside retraining, by experiments in TOML."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from probekit.cli.options import argument, flag
from probekit.cli.output import CacheOutput

if TYPE_CHECKING:
    from probekit.bench.cells import Folders
    from probekit.bench.experiment import Experiment
    from probekit.bench.run import Row
    from probekit.report.tables import Table

app = typer.Typer(help="Compare methods of unlearning with retraining.", no_args_is_help=True)


@dataclass
class CellFlags:
    """Which cells of an experiment, and where they are kept."""

    experiment: str = argument("An experiment of `bench ls`, or a TOML file.")
    folder: Path = flag("Where trainings and results are kept.", default=Path("bench"))
    only: list[str] | None = flag("Only this setting; may be repeated.")
    method: list[str] | None = flag(
        "This method in place of the experiment's, py:module:Class too; may be repeated."
    )
    add: list[str] | None = flag("This method beside the experiment's; may be repeated.")

    def select(self, output: CacheOutput) -> tuple[Experiment, Folders]:
        from probekit.bench.cells import Folders
        from probekit.bench.experiment import read_experiment
        from probekit.bench.run import selected

        experiment = read_experiment(self.experiment)
        chosen = selected(experiment, self.only or (), self.method or (), self.add or ())
        return chosen, Folders(self.folder.resolve(), output.open_cache().root)


@app.command()
def ls(*, output: CacheOutput) -> None:
    """List the experiments that come with probekit."""
    from probekit.bench.experiment import packaged_experiments, read_experiment

    experiments = {name: read_experiment(name) for name in packaged_experiments()}
    rows = [
        (name, len(experiment.settings), len(experiment.seeds), experiment.title)
        for name, experiment in experiments.items()
    ]
    output.table(("experiment", "settings", "seeds", "what it compares"), rows)
    output.result({"experiments": {name: value.title for name, value in experiments.items()}})


@app.command()
def run(
    *,
    cells: CellFlags,
    jobs: int = flag("Processes, of one thread each.", default=1, min=1),
    output: CacheOutput,
) -> None:
    """Train, forget by every method, and compare; an interrupted run goes on where it stopped."""
    from probekit.bench.run import run_experiment

    chosen, folders = cells.select(output)
    rows = run_experiment(chosen, folders, jobs=jobs, progress=output.progress)
    _print(chosen, rows, output)


@app.command()
def show(
    *,
    cells: CellFlags,
    csv: Path | None = flag("Write the single cells to this file."),
    out: Path | None = flag("Write tables and pictures into this folder.", "--out"),
    record: Path | None = flag("Write the cells, trials too, into this .jsonl file, to be shown."),
    output: CacheOutput,
) -> None:
    """Print what is computed so far."""
    from probekit.bench.pages import write_pages
    from probekit.bench.run import read_rows, recorded_cells
    from probekit.bench.tables import cells_csv
    from probekit.files import write_bytes

    chosen, folders = cells.select(output)
    rows = read_rows(chosen, folders)
    if csv is not None:
        write_bytes(csv, cells_csv(rows).encode())
    if record is not None:
        write_bytes(record, recorded_cells(chosen, folders).encode())
    if out is not None:
        for path in write_pages(chosen, rows, out):
            output.print(f"wrote {path}")
    _print(chosen, rows, output)


def _print(experiment: Experiment, rows: list[Row], output: CacheOutput) -> None:
    from probekit.bench import tables

    if experiment.about:
        output.print(experiment.about.strip())
        output.print()
    document: dict[str, Any] = {}
    shown: dict[str, Table] = {}
    for name, part in tables.by_setting(rows).items():
        extras = {f"{name}, {title}": table for title, table in tables.extra_tables(part).items()}
        shown |= {name: tables.setting_table(part), **extras}
        shown[f"{name}, what was asked"] = tables.costs_table(part)
        document[name] = [
            {"method": row.method, "chosen": row.chosen, "cells": row.cells} for row in part
        ]
    shown |= tables.overall_tables(rows)
    for title, table in shown.items():
        if not table.rows:
            continue
        output.print(title)
        output.table(table.headers, table.rows)
        if table.note:
            output.print(table.note)
        output.print()
    output.result({"settings": document})
