"""`probekit federate`: training and unlearning across machines, by signed files or on Flower."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.federate_node import app as node
from probekit.cli.federate_server import app as server
from probekit.cli.output import Console, Output, facts, size, table

if TYPE_CHECKING:
    from probekit.runs.federations import FederationResult, Member

app = typer.Typer(help="Train and unlearn across machines: by signed files, or on Flower.", no_args_is_help=True)
app.add_typer(node, name="node")
app.add_typer(server)
Folder = Annotated[Path, typer.Argument(help="The federation's folder.")]


@app.command("init")
@o.common
def init(
    output: Output,
    folder: Folder,
    name: Annotated[str, typer.Option(help="What the federation is called (default: the folder's name).")] = "",
    files: Annotated[bool, typer.Option("--files", help="By signed files, with no server and no network.")] = False,
    address: Annotated[str, typer.Option(help="HOST:PORT at which nodes reach the server.")] = "localhost:9092",
) -> None:
    """Begin a federation: its keys, its certificates, the Flower app, and an invitation for every node."""
    from probekit.runs.federations import init as begin

    made = begin(folder, name=name, transport="files" if files else "flower", address="" if files else address)
    output.result(made, _show_new)


def _show_new(console: Console, made: FederationResult) -> None:
    facts(
        console, {"federation": made.name, "folder": made.folder, "by": made.transport, "address": made.address or "-"}
    )
    facts(console, {"next": f"copy {made.folder / 'invitation'} to every node; its README.md says what to do there"})


@app.command("add")
@o.common
def add(
    output: Output,
    folder: Folder,
    cards: Annotated[list[Path], typer.Argument(help="The cards of nodes, NODE/card.json.")],
) -> None:
    """Take nodes in by their cards, or a new key of theirs. Compare the fingerprints with the nodes' owners."""
    from probekit.runs.federations import add as take

    _members(output, take(folder, cards))


@app.command("revoke")
@o.common
def revoke(
    output: Output, folder: Folder, names: Annotated[list[str], typer.Argument(help="The members to take out.")]
) -> None:
    """Take nodes out: their keys open nothing any more. What was trained with them is `unlearn`'s matter."""
    from probekit.runs.federations import revoke as out

    _members(output, out(folder, names))


def _members(output: Output, members: list[Member]) -> None:
    def show(console: Console, _: Any) -> None:
        rows = [(one.change, one.name, one.fingerprint, one.rows, one.backbone) for one in members]
        console.print(table("", ("", "node", "fingerprint", "rows", "backbone"), rows))

    output.result({"members": [one.plain for one in members]}, show)


@app.command("status")
@o.common
def status(output: Output, folder: Folder) -> None:
    """Who belongs to a federation, who is there, who is awaited, and until when its certificate holds."""
    from probekit.runs.federations import status as look

    output.result(look(folder), _show_status)


def _show_status(console: Console, found: FederationResult) -> None:
    about = {"federation": found.name, "by": found.transport, "address": found.address}
    about["server"] = {None: "", True: "runs", False: "does not run: `probekit federate server`"}[found.running]
    about["certificates"] = ", ".join(f"{name} until {until}" for name, until in found.certificates.items())
    about["revoked"] = f"{found.revoked} keys" if found.revoked else ""
    facts(console, {name: value for name, value in about.items() if value})
    rows = [(one.name, one.fingerprint, one.rows, one.backbone, found.seen.get(one.name, "")) for one in found.members]
    console.print(table("", ("node", "fingerprint", "rows", "backbone", ""), rows))


@app.command("renew")
@o.common
def renew(
    output: Output,
    folder: Folder,
    host: Annotated[list[str] | None, typer.Option(help="Another name or address of the server.")] = None,
) -> None:
    """Renew the server's certificate; keys stay, and nodes need nothing new. Start the server again afterwards."""
    from probekit.runs.federations import renew as certify

    output.result(certify(folder, host or []), _show_status)


@app.command("files")
@o.common
def files(
    output: Output,
    folder: Annotated[Path, typer.Argument(help="A node's folder, or a federation's.")],
    papers: Annotated[
        list[Path] | None, typer.Argument(help="Questions to a node, or answers to the operator.")
    ] = None,
    exchange: Annotated[Path | None, typer.Option(help="A folder that both sides see, or a copy of it.")] = None,
    dry_run: o.DryRun = False,
) -> None:
    """Answer the questions that came to a node as files; or take answers into a federation, and say who is awaited."""
    from probekit.runs import federations, nodes

    if not (folder / "node.json").is_file():
        taken = federations.take_answers(folder, papers or [])
        seen = federations.status(folder)
        output.result({"taken": taken, "awaited": list(seen.seen)}, facts)
        return
    given: Any = {"exchange": exchange, "questions": papers or [], "dry_run": dry_run}
    done = nodes.answer_questions(folder, store=output.store if output.cache else None, **given)

    def show(console: Console, _: Any) -> None:
        rows = [(one.kind, one.outcome, one.rows, size(one.bytes), one.digest[:16], one.why) for one in done]
        console.print(table("", ("question", "", "rows", "would send" if dry_run else "sent", "sha256", "why"), rows))

    output.result({"sent": not dry_run, "answers": [one.plain for one in done]}, show)
