"""`probekit bench`: experiments on unlearning methods, tuned alike and judged beside retraining."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.output import Console, Output, facts, given, remarks, section

if TYPE_CHECKING:
    from probekit.bench.comparing import BenchComparison
    from probekit.bench.results import BenchResult

app = typer.Typer(help="Compare unlearning methods: experiments as data, tuned alike.", no_args_is_help=True)

SHOWN = {
    "accuracy": "accuracy %",
    "backdoor": "backdoor %",
    "distance": "from minimum",
    "distance_fedavg": "from FedAvg",
    "rounds": "rounds",
    "seconds": "seconds",
}
"""The measures that fit on a terminal."""
Name = Annotated[str, typer.Argument(help="An experiment by name (`bench ls`), or a file that ends in .toml.")]
Folder = Annotated[Path, typer.Argument(help="What `bench run` wrote: its folder, or result.json.")]


@app.command("ls")
@o.common
def ls(output: Output) -> None:
    """The experiments that come with the package."""
    from probekit.bench.reading import names, read

    found = {name: read(name) for name in names()}
    value = {
        "experiments": [
            {"name": name, "title": one.title, "settings": len(one.settings)} for name, one in found.items()
        ]
    }
    rows = [(name, one.title, len(one.settings), len(one.seeds)) for name, one in found.items()]
    output.result(
        value, lambda console, _: section(console, "experiments", ("name", "what it asks", "settings", "seeds"), rows)
    )


@app.command("run")
@o.common
def run(
    output: Output,
    name: Name,
    out: Annotated[Path | None, typer.Option(help="Where tables and pictures go (default: bench/NAME).")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only these settings or methods; may be given again.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rows and seeds: minutes on two cores.")] = False,
    full: Annotated[bool, typer.Option("--full", help="All rows: hours.")] = False,
    seeds: Annotated[str | None, typer.Option(help="Other seeds: 0,1,2.")] = None,
    tune: Annotated[int | None, typer.Option(min=1, help="Settings of each method that are tried.")] = None,
    tuned: Annotated[
        Path | None, typer.Option(help="Take what tuning chose in this outcome, instead of trying again.")
    ] = None,
    aim: Annotated[str | None, o.among("oracle", "blind", help="What tuning wants.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes (default: as many as cores).")] = None,
    again: Annotated[bool, typer.Option("--again", help="Compute failed cells again.")] = False,
    dry_run: o.DryRun = False,
) -> None:
    """Compute what is not there yet, and write tables and pictures. Killed anywhere, the same command continues.

    Every cell is kept in the cache by what determines it: a second run computes nothing and writes the same bytes.
    """
    import os

    from probekit.bench.cells import BenchPlace
    from probekit.bench.reading import narrowed, read, tuned_as
    from probekit.bench.results import read_result, result_of
    from probekit.bench.running import BenchRun
    from probekit.bench.writing import write
    from probekit.errors import InputError
    from probekit.files import default_root

    if quick and full:
        raise InputError("Give --quick or --full, not both.")
    experiment = read(name, scale="quick" if quick else "full" if full else "usual")
    if seeds is not None:
        experiment = replace(experiment, seeds=o.whole_numbers(seeds, "--seeds"))
    if tuned is not None and (tune is not None or aim is not None):
        raise InputError("--tuned takes over budget and aim of that outcome. Leave --tune and --aim out.")
    how: Any = {key: value for key, value in (("budget", tune), ("aim", aim)) if value is not None}
    experiment = narrowed(replace(experiment, tune=replace(experiment.tune, **how)), only or ())
    if tuned is not None:
        experiment = tuned_as(experiment, read_result(tuned).plain, str(tuned))
    work = BenchRun(experiment, BenchPlace((output.cache or default_root()).absolute()), output.note, again)
    many = jobs or min(4, len(os.sched_getaffinity(0)))
    expected = work.estimate()
    output.note(expected.text(many))
    if dry_run:
        output.result({"estimate": vars(expected)}, facts)
        return
    with output.bar(experiment.name) as bar:
        work.run(jobs=many, look=bar)
    result = result_of(work)
    files = write(result, out or Path("bench") / experiment.name)
    value = {"experiment": experiment.name, "files": [str(path) for path in files], "failed": _failed(result)}
    output.result(value, lambda console, _: _show(console, result, files[0].parent))


@app.command("show")
@o.common
def show(output: Output, folder: Folder) -> None:
    """The tables of an outcome."""
    from probekit.bench.results import read_result

    result = read_result(folder)
    output.result(dict(result.plain), lambda console, _: _show(console, result, folder))


@app.command("compare")
@o.common
def compare(output: Output, first: Folder, second: Folder) -> None:
    """Two outcomes, line by line: by how many standard errors they differ."""
    from probekit.bench.comparing import compare as both
    from probekit.bench.results import read_result

    output.result(both(read_result(first), read_result(second)), _show_comparison)


@app.command("leaderboard")
@o.common
def leaderboard(
    output: Output, source: Folder, to: Annotated[Path, typer.Argument(help="The page, in Markdown.")]
) -> None:
    """Write the methods of an outcome in the order of their distance to retraining."""
    from probekit.bench.leaderboard import page
    from probekit.bench.results import read_result
    from probekit.files import write_text

    write_text(to, page(read_result(source), str(source), str(to)))
    output.result({"page": str(to)}, facts)


def _failed(result: BenchResult) -> list[dict[str, str]]:
    return [{"setting": one.setting, "method": one.method, "error": one.errors[0]} for one in result.failed]


def _show(console: Console, result: BenchResult, folder: Path) -> None:
    from probekit.bench.results import grouped
    from probekit.bench.tables import about_setting, number, setup, shown_columns

    for setting in result.settings:
        rows = [row for row in result.of(setting) if row.means]
        columns = [one for one in shown_columns(rows) if one.key in SHOWN]
        texts = [(row.method, *(number(row, one) for one in columns)) for row in rows]
        section(console, setting, ("method", *(SHOWN[one.key] for one in columns)), texts)
        tuned = [row.spec for row in rows if row.spec != row.method]
        remarks(console, [about_setting(result, setting), *([f"With {', '.join(tuned)}."] if tuned else [])])
    remarks(console, setup(result))
    for setting in result.settings:
        failed = [one for one in result.failed if one.setting == setting]
        remarks(console, [f"{setting}: {names} failed: {error}" for names, error in grouped(failed)])
    console.print(f"\nTables and pictures: [bold]{folder}[/]", soft_wrap=True)


def _show_comparison(console: Console, found: BenchComparison) -> None:
    rows = [
        (one.setting, one.method, one.measure, f"{one.first:.4g}", f"{one.second:.4g}", given(one.beyond, ".1f"))
        for one in found.differences
    ]
    section(console, "both", ("setting", "method", "measure", "first", "second", "standard errors apart"), rows)
    remarks(console, [f"They differ in {one}." for one in found.changed])
    for which, names in (("first", found.only_first), ("second", found.only_second)):
        remarks(console, [f"Only the {which} has {name}." for name in names])
