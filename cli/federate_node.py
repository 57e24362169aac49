"""`probekit federate node`: what the owner of a client's machine does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.output import Console, Output, facts, table

if TYPE_CHECKING:
    from probekit.runs.nodes import Joined

app = typer.Typer(help="A client's own machine: join a federation, answer its questions.", no_args_is_help=True)
Node = Annotated[Path, typer.Argument(help="The node's folder.")]


@app.command("join")
@o.common
def join(
    output: Output,
    invitation: Annotated[Path, typer.Argument(help="The invitation's folder, as it came from the operator.")],
    name: Annotated[str, typer.Option(help="What this client is called.")],
    embeddings: Annotated[str, typer.Option("--set", help="The set of this machine's cache to answer from.")],
    node: Annotated[Path | None, typer.Option(help="The node's folder (default: NAME, below the current one).")] = None,
    allow: Annotated[
        str, typer.Option(help="Questions to allow, with commas between; none: nothing is answered.")
    ] = "",
    least_rows: Annotated[int, typer.Option(min=1, help="The fewest rows that an answer is given about.")] = 1,
) -> None:
    """Make this machine a node: its keys are made here, and only the card, NODE/card.json, goes to the operator."""
    from probekit.runs.nodes import join as become

    allowed = [one.strip() for one in allow.split(",") if one.strip()]
    given: Any = {"store": output.store, "allow": allowed, "least_rows": least_rows}
    output.result(become(invitation, node or Path(name), name, embeddings, **given), _show)


@app.command("run")
@o.common
def run(
    output: Output,
    node: Annotated[Path, typer.Argument(help="The node's folder.")] = Path(),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be sent, with its digest, and refuse.")
    ] = False,
    unit: Annotated[bool, typer.Option("--unit", help="Print a systemd unit that runs this node, and stop.")] = False,
) -> None:
    """Run a node on Flower until it is told to end: it connects to the server, and opens no port to others."""
    from probekit.runs.nodes import run_node, service_unit

    if unit:
        text = service_unit(node)
        output.result({"unit": text}, lambda console, _: console.print(text, end="", markup=False, soft_wrap=True))
        return
    run_node(node, note=output.note, dry=(lambda line: print(line, flush=True)) if dry_run else None)


@app.command("rotate")
@o.common
def rotate(output: Output, node: Node) -> None:
    """Give a node a new key; the card, endorsed by the old one, goes to the operator again."""
    from probekit.runs.nodes import rotate as change

    output.result(change(node), _show)


def _show(console: Console, made: Joined) -> None:
    allowed = ", ".join(made.allow) or "nothing yet: edit policy.toml"
    about = {"node": made.name, "folder": made.folder, "rows": made.rows, "allowed": allowed}
    facts(console, {**about, "fingerprint": made.fingerprint, "next": f"send {made.card} to the operator"})


@app.command("log")
@o.common
def log(output: Output, node: Node) -> None:
    """What a node was asked and what it answered; every line is bound to the one before, and that is checked."""
    from probekit.runs.nodes import log_of

    lines = log_of(node)

    def show(console: Console, _: Any) -> None:
        rows = []
        for one in lines:
            asked, answered = one["asked"] or {}, one["answered"]
            about = (one["number"], one["time"], asked.get("kind", "?"), answered["outcome"], answered["rows"])
            rows.append((*about, one["bytes_out"], answered["digest"][:16]))
        console.print(table("", ("", "time", "asked", "", "rows", "bytes", "sha256"), rows))

    output.result({"lines": lines}, show)
