"""`probekit report`: a folder that tells all about a run, in Markdown, JSON and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.output import Console, Output, facts, remarks


@o.common
def report(
    output: Output,
    run: o.RunFolder,
    out: Annotated[Path | None, typer.Option(help="The report's folder (default: RUN/report).")] = None,
    test: Annotated[
        list[str] | None, typer.Option(help="Judge on this set (default: the server's). Repeatable.")
    ] = None,
    triggered: o.Triggered = None,
    target: Annotated[int | None, typer.Option(min=0, help="The trigger's class (default: the run's own).")] = None,
    rows: o.Rows = False,
) -> None:
    """Tell all about a run: before, after and retrained, distances and bounds, influence, certificates, ledger.

    Ledger and certificates are checked first; exits 6 if they do not hold. The same run gives the same report.
    """
    from probekit.report.report import refuse_other

    opened = output.open(run)
    folder = out or run / "report"
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
        found = [one["verdict"] for page in value["certificates"] for one in page["findings"]]
        proven = f"{found.count('proven')} of {len(found)} claims proven, none false"
        seen["certificates"] = f"{len(value['certificates'])}, {proven}"
    for one in value["comparison"]:
        shares = ((label, share) for label, share in one["heads"].items() if share is not None)
        seen[one["measure"]] = ", ".join(f"{label} {share['value']:.2%}" for label, share in shares if share["count"])
    if last["distance"] is not None:
        bound = "no bound" if last["bound"] is None else f"proven at most {last['bound']:.3g}"
        before = "" if last["distance_before"] is None else f" ({last['distance_before']:.3g} before the last request)"
        seen["distance"] = f"{last['distance']:.3g} to retraining{before}, {bound}"
    for judged in value["judged"]:
        if judged["margins"] is not None:
            margins = judged["margins"]
            seen[f"certain on {judged['name']}"] = f"{margins['certified']} of {margins['rows']} rows keep their class"
    facts(console, seen)
    remarks(console, (f"left out, {part.replace('_', ' ')}: {why}" for part, why in value["left_out"].items()))
