"""`probekit report`: a folder that tells all about a run, in Markdown, JSON and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.output import Console, Output, facts


@o.common
def report(
    output: Output,
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
) -> None:
    """Tell all about a run: before, after and retrained, distances and bounds, influence, certificates, ledger.

    Ledger and certificates are checked first; exits 6 if they do not hold. The same run gives the same report.
    """
    from probekit.report.report import refuse_other

    opened = output.open(run)
    folder = out if out is not None else run / "report"
    refuse_other(folder)
    with output.busy("checking, judging and drawing ..."):
        found = opened.report(test or (), triggered=triggered, target=target, from_rows=rows)
        value = {"folder": str(folder), **found.write(folder)}
    output.result(value, _show)


def _show(console: Console, value: dict[str, Any]) -> None:
    last = value["stages"][-1]
    seen: dict[str, object] = {
        "report": f"{value['folder']}/report.md, with {len(value['pictures'])} pictures",
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
    for part, why in value["left_out"].items():
        console.print(f"- left out, {part.replace('_', ' ')}: {why}", style="dim", markup=False, soft_wrap=True)
