"""`probekit report`: one page about runs, or a folder with Markdown, JSON and pictures of one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.output import Console, Output, facts, remarks


@o.common
def report(
    output: Output,
    runs: Annotated[list[Path], typer.Argument(help="The folder of a run; several give one page.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A page (NAME.html), or a folder for all of it (default: RUN/report)."),
    ] = None,
    test: Annotated[
        list[str] | None, typer.Option(help="Judge on this set (default: the server's). Repeatable.")
    ] = None,
    triggered: o.Triggered = None,
    target: Annotated[int | None, typer.Option(min=0, help="The trigger's class (default: the run's own).")] = None,
    rows: o.Rows = False,
) -> None:
    """Tell all about runs: before, after and retrained, distances and bounds, influence, certificates, ledger.

    Ledger and certificates are checked first; exits 6 if they do not hold. The same run gives the same report. A page
    is one file that needs no other; a folder holds the page, Markdown, JSON and pictures.
    """
    from probekit.report.report import refuse_other

    is_page = out is not None and out.suffix == ".html"
    if len(runs) > 1 and not is_page:
        raise typer.BadParameter(f"{len(runs)} runs give one page: name it, for example --out report.html.")
    opened = [output.open(run) for run in runs]
    place = out or runs[0] / "report"
    if not is_page:
        refuse_other(place)
    with output.busy("checking, judging and drawing ..."):
        how: dict[str, Any] = {"triggered": triggered, "target": target, "from_rows": rows}
        found = [one.report(test or (), **how) for one in opened]
        if is_page:
            from probekit.report.page import write_page

            value = {"page": str(place), "runs": write_page([one.drawn() for one in found], place)}
        else:
            value = {"folder": str(place), **found[0].write(place)}
    output.result(value, _show)


def _show(console: Console, value: dict[str, Any]) -> None:
    for number, one in enumerate(value.get("runs", [value])):
        if number:
            console.print()
        _show_run(console, one)
    where = value.get("page") or f"{value['folder']}/report.html, with report.md, report.json and pictures beside it"
    console.print(f"\nwrote {where}", markup=False, soft_wrap=True)


def _show_run(console: Console, value: dict[str, Any]) -> None:
    from probekit.pages.formats import upper

    last = value["stages"][-1]
    seen: dict[str, object] = {
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
        bound = "no bound" if last["bound"] is None else f"proven at most {upper(last['bound'])}"
        before = "" if last["distance_before"] is None else f" ({last['distance_before']:.3g} before the last request)"
        seen["distance"] = f"{last['distance']:.3g} to retraining{before}, {bound}"
    for judged in value["judged"]:
        if judged["margins"] is not None:
            margins = judged["margins"]
            seen[f"certain on {judged['name']}"] = f"{margins['certified']} of {margins['rows']} rows keep their class"
    facts(console, seen)
    remarks(console, (f"left out, {part.replace('_', ' ')}: {why}" for part, why in value["left_out"].items()))
