"""`probekit audit`: duplicates, influence of clients, membership leakage, reconstruction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from probekit.cli import options as o
from probekit.cli.audit_reconstruction import reconstruction
from probekit.cli.output import Console, Output, facts, given, remarks, section

if TYPE_CHECKING:
    from probekit.evaluation.membership import AttackResult
    from probekit.runs.duplicates import DuplicatesResult, Twins
    from probekit.runs.influence import InfluenceResult
    from probekit.runs.membership import AttackOutcome, HeadMembership, MembershipResult

app = typer.Typer(help="Duplicates, influence of clients, membership leakage, reconstruction.", no_args_is_help=True)
app.command("reconstruction")(reconstruction)

SHOWN, SHOWN_CLIENTS = 15, 40


@app.command("duplicates")
@o.common
def duplicates(
    output: Output,
    run: o.RunFolder,
    test: Annotated[str | None, typer.Option(help="Also compare with this test set in the cache.")] = None,
    threshold: Annotated[float, typer.Option(help="The cosine from which two rows are nearly the same.")] = 0.999,
    client: Annotated[str | None, typer.Option(help="Only what concerns this client.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Give up beyond this many pairs.")] = 100_000,
) -> None:
    """Find samples of one client that (nearly) stand in another's rows, or in a test set.

    They stay known after that client leaves, and they make a test look too good.
    """
    result = output.open(run).duplicates(test=test, threshold=threshold, client=client, limit=limit)
    output.result(result, _show_duplicates)


def _show_duplicates(console: Console, result: DuplicatesResult) -> None:
    near, pairs = f"a cosine of {result.threshold} or more", f"{len(result.across)} pairs of rows"
    facts(console, {"run": result.run, "nearly the same": near, "across clients": pairs})
    affected = sorted((one for one in result.clients if one.stay_known), key=lambda one: -one.stay_known / one.rows)
    if affected:
        headers = ("client", "rows", "stay known when it leaves", "of them the very same sample")
        section(console, "per client", headers, [tuple(vars(one).values()) for one in affected[:SHOWN]])
        rows = [(" and ".join(one.holders), one.pairs) for one in result.between[:SHOWN]]
        section(console, "between", ("holders", "pairs"), rows)
        _show_pairs(console, "across clients", result.across)
    if result.test is not None:
        twins, rows_of_test = result.test.rows_with_a_twin, result.test.rows
        console.print(
            f"\n{twins} of {rows_of_test} rows of {result.test.set} ({twins / rows_of_test:.1%}) nearly stand in the "
            "run's rows: a test on them flatters."
        )
        _show_pairs(console, "against the test set", result.test.pairs)


def _show_pairs(console: Console, title: str, pairs: Sequence[Twins]) -> None:
    if not pairs:
        return
    from probekit.runs.duplicates import holder

    rows = [
        (
            f"{pair.similarity:.6f}",
            holder(pair.client),
            pair.name or pair.row,
            pair.other_client or "",
            pair.other_name or pair.other_row,
            "same sample" * pair.same_sample,
        )
        for pair in pairs
    ]
    section(console, title, ("cosine", "client", "sample", "other", "its sample", ""), rows, SHOWN, "closest")


@app.command("influence")
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
    output.result(output.open(run).influence(test=test, state=state), _show_influence)


def _show_influence(console: Console, result: InfluenceResult) -> None:
    clients = result.clients
    seen = {"run": f"{result.run}, state {result.state}, {len(clients)} clients", "computed from": result.computed_from}
    seen["judged on"] = result.judged_on
    if result.accuracy is not None:
        seen["accuracy now"] = f"{result.accuracy:.2%}"
    facts(console, seen)
    rows = [
        (
            one.client,
            one.rows,
            *(given(value, ".4g") for value in (one.distance, one.relative, one.bound)),
            "" if one.change is None else f"{100 * one.change:+.2f} points",
        )
        for one in clients
    ]
    headers = ("client", "rows", "distance", "relative", "at most", "accuracy changes by")
    section(console, "how far the head moves without each client", headers, rows, SHOWN_CLIENTS)


@app.command("membership")
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
    output.result(result, _show_membership)


def _show_membership(console: Console, result: MembershipResult) -> None:
    seen = {
        "run": str(result.run),
        "forgotten": f"{result.rows['forgotten']} rows of {result.forgotten}",
        "retained": f"{result.rows['retained']} rows",
        "unseen": f"{result.rows['unseen']} rows of {result.unseen}",
    }
    if result.purged:
        seen["not available"] = f"the rows of {result.purged} requests were purged: nobody can attack them from here"
    if result.seen:
        seen["left out"] = f"{result.seen} unseen rows that are samples of the run"
    facts(console, seen)
    headers = ("head", "trained on", "forgotten", "from retraining", "found at false alarms", "retained")
    for attack in ("loss", "likelihood_ratio"):
        rows = [_row(one, getattr(one, attack)) for one in result.heads]
        title = f"by {attack.replace('_', ' ')}: area under the curve against the unseen"
        section(console, title, headers, rows)
    remarks(console, result.meaning)


def _row(head: HeadMembership, found: AttackOutcome) -> tuple[object, ...]:
    rate, share = found.forgotten.found[-1]
    apart, alarms = given(found.difference_to_retraining, ".3f"), f"{share.value:.1%} at {rate:g}"
    trained_on = f"{head.forgotten_rows_in_training} of them"
    return (head.head, trained_on, _area(found.forgotten), apart, alarms, _area(found.retained))


def _area(found: AttackResult) -> str:
    return f"{found.auc:.3f} ({found.low:.3f} to {found.high:.3f})"
