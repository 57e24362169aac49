"""`probekit audit influence`: how much each client matters, before any is removed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.output import Output, facts, section

if TYPE_CHECKING:
    from probekit.cache import DiskStore
    from probekit.runs.evaluation import Subject
    from probekit.runs.folder import RunFolder
    from probekit.runs.snapshot import Snapshot

SHOWN = 40


def influence(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    test: Annotated[
        str | None, typer.Option(help="Tell the change in accuracy on this set (default: the server's rows).")
    ] = None,
    state: Annotated[int | None, typer.Option(min=1, help="A state of the run (default: the current one).")] = None,
    cache: o.Cache = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Tell how far the head would move, and how its accuracy would change, without each client.

    The distance is exact: every client is left out in turn and the rest is solved. The bound needs a gradient only.
    """
    from probekit.cache import DiskStore
    from probekit.runs.folder import RunFolder
    from probekit.runs.snapshot import snapshot

    store, opened = DiskStore(cache), RunFolder.open(run)
    subject, judged = _subject(opened, store, test)
    here = snapshot(opened, store, opened.state if state is None else state)
    value: dict[str, Any] = {
        "run": str(run),
        "state": here.number,
        "head": here.trained.head.digest,
        "computed from": here.source
        if here.statistics is not None
        else "the kept gradients: no distances, bounds only",
        "judged on": judged,
        **_clients(here, subject),
    }
    Output(json, quiet).result(value, lambda console: _show(console, value))


def _subject(run: RunFolder, store: DiskStore, test: str | None) -> tuple[Subject | None, str]:
    """The rows for the accuracy, and what they are."""
    from probekit.runs.reporting import JUDGED, ReportOptions, subjects

    left_out: dict[str, str] = {}
    found = subjects(run, store, ReportOptions([test] if test is not None else ()), left_out)
    if not found:
        return None, left_out[JUDGED]
    return found[0], f"{len(found[0].rows)} rows of {found[0].name}: {found[0].meaning}"


def _clients(here: Snapshot, subject: Subject | None) -> dict[str, Any]:
    """Every client's influence, the largest first, and the accuracy with and without it."""
    import numpy as np

    from probekit.errors import InputError
    from probekit.models.serving import predict
    from probekit.unlearning.exact import refit
    from probekit.unlearning.tree import StatisticsTree
    from probekit.unlearning.triage import influences

    trained = here.with_statistics
    if here.statistics is None and trained.gradients is None:
        raise InputError(f"How much clients matter cannot be told. {here.why} Its gradients were not kept either.")
    found = influences(trained)
    now, without = None, dict[str, float]()
    if subject is not None:
        labels = subject.rows.labels
        now = float((predict(trained.head, subject.rows) == labels).mean())
        if here.statistics is not None:
            for name, others in StatisticsTree.of(here.statistics).complements():
                head, _ = refit(trained, others)
                without[name] = float((predict(head, subject.rows) == labels).mean())
    size = float(np.linalg.norm(trained.head.params))
    return {
        "accuracy": now,
        "clients": [
            {
                "client": one.client,
                "rows": one.rows,
                "distance": one.distance,
                "relative": None if one.distance is None else one.distance / size,
                "bound": one.bound,
                "accuracy without": without.get(one.client),
                "change": without[one.client] - now if now is not None and one.client in without else None,
            }
            for one in found
        ],
    }


def _show(console: Any, value: dict[str, Any]) -> None:
    clients, now = value["clients"], value["accuracy"]
    seen = {
        "run": f"{value['run']}, state {value['state']}, {len(clients)} clients",
        "computed from": value["computed from"],
        "judged on": value["judged on"],
    }
    facts(console, seen | ({"accuracy now": f"{now:.2%}"} if now is not None else {}))
    rows = [
        (
            one["client"],
            one["rows"],
            *("" if one[name] is None else f"{one[name]:.4g}" for name in ("distance", "relative", "bound")),
            "" if one["change"] is None else f"{100 * one['change']:+.2f} points",
        )
        for one in clients[:SHOWN]
    ]
    title = "how far the head moves without each client"
    title += f", the first {SHOWN} of {len(clients)}" if len(clients) > SHOWN else ""
    section(console, title, ("client", "rows", "distance", "relative", "at most", "accuracy changes by"), rows)
