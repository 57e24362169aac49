"""`probekit method`: which unlearning methods there are, what each takes and gives, and where the paper errs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.output import Output, table

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(help="List unlearning methods: what each takes and gives.", no_args_is_help=True)

HEADINGS = ("method", "communication", "target", "retained", "history", "certificate")


@app.command("ls")
@o.common
def ls(
    output: Output,
    seen: Annotated[
        bool, typer.Option("--seen", help="Let each forget a client of a small run, and say what it used.")
    ] = False,
) -> None:
    """Every unlearning method, plugins included, as the paper's table: computed from what each declares.

    A * marks where the paper's own table says otherwise; below it is said why. A certificate is the method's own
    statement: of a quadratic loss (heads, linearized networks) the distance to retraining is certified whatever the
    method.
    """
    from probekit.testing.method_table import method_table

    with output.busy("looking at every method"):
        found = method_table(seen=seen)
    output.result({"methods": [one.plain for one in found]}, lambda console, _: _show(console, found, seen))


def _show(console: Console, found: Any, seen: bool) -> None:
    more = ("asked", "rounds", "bytes up", "bytes down") if seen else ()
    rows = []
    for one in found:
        if one.error:
            rows.append((one.name, "cannot be used", *("",) * (len(HEADINGS) - 2 + len(more))))
            continue
        cells = [getattr(one, name) + "*" * (name in one.differs) for name in HEADINGS[1:]]
        rows.append((one.name, *cells, *(_used(one.seen) if seen else ())))
    console.print(table("", (*HEADINGS, *more), rows))
    notes = [f"{one.name}, {name}: {why}." for one in found for name, why in one.differs.items()]
    for text in [*(f"* {note}" for note in notes), *(one.error for one in found if one.error)]:
        console.print(text, style="dim", markup=False)


def _used(seen: Any) -> tuple[str, ...]:
    if seen is None:
        return ("not seen", "", "", "")
    who = " and ".join(name for name in ("target", "retained") if getattr(seen, name)) or "nobody"
    return (who, str(seen.rounds), str(seen.up), str(seen.down))
