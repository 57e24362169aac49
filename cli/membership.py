"""`probekit audit membership`: can it be told from a head which rows it was trained on?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.output import Output, facts, section

MEANS = (
    "0.5 means that members and others cannot be told apart, 1 that they always can. Far below 0.5 they are told "
    "apart, too, as rows that fit worse.",
    "After unlearning, what counts is the difference to the retrained head, which never saw the forgotten. It need not "
    "be at 0.5: a client's pictures may be unlike the unseen ones.",
)


def membership(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    client: Annotated[
        str | None, typer.Option(help="Look for this client's rows (default: all that was forgotten).")
    ] = None,
    unseen: Annotated[
        str | None, typer.Option(help="A set that was never trained on (default: the server's rows).")
    ] = None,
    most: Annotated[int, typer.Option(min=16, help="At most this many rows of each kind, drawn at random.")] = 1000,
    shadows: Annotated[int, typer.Option(min=4, help="Shadow heads for the likelihood ratio.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws and the shadows.")] = 0,
    cache: o.Cache = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Attack every head of a run: are forgotten, and retained, rows told from unseen ones?

    By the loss of a row, and by the likelihood ratio of its errors with and without it (LiRA), beside retraining.
    """
    from probekit.cache import DiskStore
    from probekit.runs.folder import RunFolder
    from probekit.runs.membership import Attack, groups, heads, refuse_network

    opened, store = RunFolder.open(run), DiskStore(cache)
    refuse_network(opened.trained())
    found = groups(opened, store, client, unseen=unseen, most=most, seed=seed)
    attack = Attack.on(found, opened.trained(), shadows=shadows, seed=seed)
    value: dict[str, Any] = {
        "run": str(run),
        "forgotten": {"what": found.what, "rows": len(found.forgotten), "not available": list(found.purged)},
        "retained": {"rows": len(found.retained)},
        "unseen": {"what": found.unseen_name, "rows": len(found.unseen), "left out as trained on": found.seen},
        "heads": attack.judge_all(heads(opened, store, found, client)),
        "meaning": [*MEANS, *([found.note] if found.note else [])],
    }
    Output(json, quiet).result(value, lambda console: _show(console, value))


def _show(console: Any, value: dict[str, Any]) -> None:
    forgotten, unseen = value["forgotten"], value["unseen"]
    seen = {
        "run": value["run"],
        "forgotten": f"{forgotten['rows']} rows of {forgotten['what']}",
        "retained": f"{value['retained']['rows']} rows",
        "unseen": f"{unseen['rows']} rows of {unseen['what']}",
    }
    if forgotten["not available"]:
        gone = ", ".join(forgotten["not available"])
        seen["not available"] = f"the rows of client {gone} were purged: nobody can attack them from here"
    if unseen["left out as trained on"]:
        seen["left out"] = f"{unseen['left out as trained on']} unseen rows that are samples of the run"
    facts(console, seen)
    for attack in ("loss", "likelihood ratio"):
        headers = ("head", "trained on", "forgotten", "from retraining", "found at false alarms", "retained")
        rows = [_row(one, one[attack]) for one in value["heads"]]
        section(console, f"by {attack}: area under the curve against the unseen", headers, rows)
    for line in value["meaning"]:
        console.print(f"- {line}", style="dim", markup=False, soft_wrap=True)


def _row(head: dict[str, Any], told: dict[str, Any]) -> tuple[object, ...]:
    rate, share = told["forgotten"]["found"][-1]
    apart = told["difference to retraining"]
    return (
        head["head"],
        f"{head['forgotten rows in training']} of them",
        _area(told["forgotten"]),
        "" if apart is None else f"{apart:.3f}",
        f"{share['value']:.1%} at {rate:g}",
        _area(told["retained"]),
    )


def _area(found: dict[str, Any]) -> str:
    return f"{found['auc']:.3f} ({found['low']:.3f} to {found['high']:.3f})"
