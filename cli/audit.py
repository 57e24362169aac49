"""`probekit audit`: duplicates, influence of clients, membership leakage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from probekit.cli import options as o
from probekit.cli.influence import influence
from probekit.cli.membership import membership
from probekit.cli.output import Console, Output, facts, section

if TYPE_CHECKING:
    from probekit.runs.duplicates import DuplicatesResult, Twins

app = typer.Typer(help="Duplicates, influence of clients, membership leakage.", no_args_is_help=True)
app.command("influence")(influence)
app.command("membership")(membership)

SHOWN = 15


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
    opened = output.open(run)
    result = opened.duplicates(test=test, threshold=threshold, client=client, limit=limit)
    output.result(result, _show)


def _show(console: Console, result: DuplicatesResult) -> None:
    facts(
        console,
        {
            "run": result.run,
            "nearly the same": f"a cosine of {result.threshold} or more",
            "across clients": f"{len(result.across)} pairs of rows",
        },
    )
    affected = [one for one in result.clients if one.stay_known]
    if affected:
        shown = sorted(affected, key=lambda one: -one.stay_known / one.rows)[:SHOWN]
        headers = ("client", "rows", "stay known when it leaves", "of them the very same sample")
        section(console, "per client", headers, [tuple(vars(one).values()) for one in shown])
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
            "same sample" if pair.same_sample else "",
        )
        for pair in pairs[:SHOWN]
    ]
    more = f"{title}, the closest {SHOWN} of {len(pairs)}" if len(pairs) > SHOWN else title
    section(console, more, ("cosine", "client", "sample", "other", "its sample", ""), rows)
