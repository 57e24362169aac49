"""`probekit report`: a folder that tells all about a run, in Markdown, JSON and pictures."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.output import Output, facts

if TYPE_CHECKING:
    from probekit.report.report import Report

PAGE, VALUES = "report.md", "report.json"


def report(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path | None, typer.Option("--out", help="The report's folder (default: RUN/report).")] = None,
    test: Annotated[
        list[str] | None,
        typer.Option("--test", help="Judge on this set (default: the server's rows). May be repeated."),
    ] = None,
    triggered: Annotated[
        str | None, typer.Option(help="Test pictures with a trigger: how often does it work, before, after, retrained?")
    ] = None,
    target: Annotated[
        int | None, typer.Option(min=0, help="The class that the trigger asks for (default: a poisoned run's own).")
    ] = None,
    rows: Annotated[
        bool, typer.Option("--rows", help="Retrain from the cached rows even where statistics are kept.")
    ] = False,
    config: o.Config = None,
    cache: o.Cache = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Tell all about a run: before, after and retrained, distances and bounds, influence, certificates, ledger.

    Ledger and certificates are checked first; exits 6 if they do not hold. The same run gives the same report.
    """
    from probekit.cache import DiskStore
    from probekit.runs.folder import RunFolder
    from probekit.runs.reporting import ReportOptions, gather

    opened = RunFolder.open(run)
    folder = out if out is not None else run / "report"
    refuse_other(folder)
    said = Output(json, quiet)
    with said.busy("checking, judging and drawing ..."):
        found = gather(opened, DiskStore(cache), ReportOptions(test or (), triggered, target, rows))
        value = {"folder": str(folder), **write(found, folder)}
    said.result(value, lambda console: _show(console, value))


def refuse_other(folder: Path) -> None:
    """Refuse a folder that holds anything but a report."""
    from probekit.errors import InputError

    if folder.exists() and not (folder / VALUES).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not a report. Choose another folder with --out, or remove it.")


def write(found: Report, folder: Path) -> dict[str, Any]:
    """Write a report into its folder: the old one stands until the new one is whole. Gives its plain values."""
    from filelock import FileLock

    from probekit.files import storing, sync_folder, write_text
    from probekit.report.pages import markdown
    from probekit.report.pictures import draw
    from probekit.report.report import json_text, plain

    # not the names of unfinished files in a run: a run that recovers takes those for its own
    aside, old = (folder.absolute().parent / f".{folder.name}.{word}" for word in ("new", "old"))
    with storing(folder.absolute().parent):
        aside.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(aside.parent / f".{folder.name}.lock"):
            for left in (aside, old):
                shutil.rmtree(left, ignore_errors=True)
            aside.mkdir()
            try:
                value = plain(found)
                value["pictures"] = draw(value, aside)
                write_text(aside / VALUES, json_text(value))
                write_text(aside / PAGE, markdown(value))
                if folder.exists():
                    folder.rename(old)
                aside.rename(folder)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
            sync_folder(folder.absolute().parent)
            shutil.rmtree(old, ignore_errors=True)
    return value


def _show(console: Any, value: dict[str, Any]) -> None:
    last = value["stages"][-1]
    seen: dict[str, object] = {
        "report": f"{value['folder']}/{PAGE}, with {len(value['pictures'])} pictures",
        "run": f"{value['run']}, state {value['state']}, made by {last['method']}",
        "ledger": f"{len(value['ledger'])} entries, the chain holds",
    }
    if value["certificates"]:
        checks = sum(len(one["checks"]) for one in value["certificates"])
        seen["certificates"] = f"{len(value['certificates'])}, all {checks} checks hold"
    for one in value["comparison"]:
        shares = ((label, share) for label, share in one["heads"].items() if share is not None)
        seen[one["measure"]] = ", ".join(f"{label} {share['value']:.2%}" for label, share in shares if share["count"])
    if last["distance"] is not None:
        bound = "no bound" if last["bound"] is None else f"proven at most {last['bound']:.3g}"
        seen["distance"] = f"{last['distance']:.3g} to retraining, {bound}"
    for judged in value["judged"]:
        if judged["margins"] is not None:
            found = judged["margins"]
            seen[f"certain on {judged['name']}"] = f"{found['certified']} of {found['rows']} rows keep their class"
    facts(console, seen)
    for part, why in value["left out"].items():
        console.print(f"- left out, {part}: {why}", style="dim", markup=False, soft_wrap=True)
