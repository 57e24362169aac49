"""`probekit audit influence`: how much each client matters, before any is removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from probekit.cli import options as o
from probekit.cli.output import Console, Output, facts, section

if TYPE_CHECKING:
    from probekit.runs.influence import InfluenceResult

SHOWN = 40


@o.common
def influence(
    output: Output,
    run: o.RunFolder,
    test: Annotated[str | None, typer.Option(help="Judge accuracy on this set (default: the server's rows).")] = None,
    state: o.State = None,
) -> None:
    """Tell how far the head would move, and how its accuracy would change, without each client.

    The distance is exact: every client is left out in turn and the rest is solved. The bound needs a gradient only.
    """
    output.result(output.open(run).influence(test=test, state=state), _show)


def _show(console: Console, result: InfluenceResult) -> None:
    clients, now = result.clients, result.accuracy
    seen = {
        "run": f"{result.run}, state {result.state}, {len(clients)} clients",
        "computed from": result.computed_from,
        "judged on": result.judged_on,
    }
    facts(console, seen | ({"accuracy now": f"{now:.2%}"} if now is not None else {}))
    rows = [
        (
            one.client,
            one.rows,
            *("" if value is None else f"{value:.4g}" for value in (one.distance, one.relative, one.bound)),
            "" if one.change is None else f"{100 * one.change:+.2f} points",
        )
        for one in clients[:SHOWN]
    ]
    title = "how far the head moves without each client"
    title += f", the first {SHOWN} of {len(clients)}" if len(clients) > SHOWN else ""
    section(console, title, ("client", "rows", "distance", "relative", "at most", "accuracy changes by"), rows)
