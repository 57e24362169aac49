"""`probekit audit membership`: can it be told from a head which rows it was trained on?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from probekit.cli import options as o
from probekit.cli.output import Console, Output, facts, section

if TYPE_CHECKING:
    from probekit.evaluation.membership import AttackResult
    from probekit.runs.membership import AttackOutcome, HeadMembership, MembershipResult


@o.common
def membership(
    output: Output,
    run: o.RunFolder,
    client: Annotated[str | None, typer.Option(help="Look for its rows (default: all that was forgotten).")] = None,
    unseen: Annotated[str | None, typer.Option(help="A set never trained on (default: the server's rows).")] = None,
    most: Annotated[int, typer.Option(min=16, help="At most this many rows of each kind, drawn at random.")] = 1000,
    shadows: Annotated[int, typer.Option(min=4, help="Shadow heads for the likelihood ratio.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws and the shadows.")] = 0,
) -> None:
    """Attack every head of a run: are forgotten, and retained, rows told from unseen ones?

    By the loss of a row, and by the likelihood ratio of its errors with and without it (LiRA), beside retraining.
    """
    result = output.open(run).membership(client=client, unseen=unseen, most=most, shadows=shadows, seed=seed)
    output.result(result, _show)


def _show(console: Console, result: MembershipResult) -> None:
    seen = {
        "run": str(result.run),
        "forgotten": f"{result.rows['forgotten']} rows of {result.forgotten}",
        "retained": f"{result.rows['retained']} rows",
        "unseen": f"{result.rows['unseen']} rows of {result.unseen}",
    }
    if result.purged:
        gone = ", ".join(result.purged)
        seen["not available"] = f"the rows of client {gone} were purged: nobody can attack them from here"
    if result.seen:
        seen["left out"] = f"{result.seen} unseen rows that are samples of the run"
    facts(console, seen)
    headers = ("head", "trained on", "forgotten", "from retraining", "found at false alarms", "retained")
    for attack, outcomes in (
        ("loss", [one.loss for one in result.heads]),
        ("likelihood ratio", [one.likelihood_ratio for one in result.heads]),
    ):
        rows = [_row(one, outcome) for one, outcome in zip(result.heads, outcomes, strict=True)]
        section(console, f"by {attack}: area under the curve against the unseen", headers, rows)
    for line in result.meaning:
        console.print(f"- {line}", style="dim", markup=False, soft_wrap=True)


def _row(head: HeadMembership, found: AttackOutcome) -> tuple[object, ...]:
    rate, share = found.forgotten.found[-1]
    apart = found.difference_to_retraining
    return (
        head.head,
        f"{head.forgotten_rows_in_training} of them",
        _area(found.forgotten),
        "" if apart is None else f"{apart:.3f}",
        f"{share.value:.1%} at {rate:g}",
        _area(found.retained),
    )


def _area(found: AttackResult) -> str:
    return f"{found.auc:.3f} ({found.low:.3f} to {found.high:.3f})"
