"""`probekit federate server` and `up`: Flower's side of a federation."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.output import Output

app = typer.Typer()
Folder = Annotated[Path, typer.Argument(help="The federation's folder.")]


@app.command("server")
@o.common
def server(
    output: Output,
    folder: Folder,
    bind: Annotated[str | None, typer.Option(help="HOST:PORT to listen on (default: the federation's port).")] = None,
) -> None:
    """Run the server of a federation on Flower until it is told to end.

    The SuperLink listens on this machine alone; nodes reach a proxy that passes Flower's fleet calls and nothing else.
    Members that are added or revoked meanwhile are let in or out at once.
    """
    from probekit.runs.federations import serve

    serve(folder, bind=bind, note=output.note)


@app.command("up")
@o.common
def up(
    output: Output,
    folder: Folder,
    embeddings: Annotated[str, typer.Option("--set", help="The set that is divided among the nodes.")],
    command: Annotated[list[str] | None, typer.Argument(help="A command to run meanwhile, after `--`.")] = None,
    nodes: Annotated[int, typer.Option(min=1, help="How many nodes.")] = 4,
    partition: Annotated[str, typer.Option(help="How the set is divided, as `train` has it.")] = "iid",
    seed: Annotated[int, typer.Option(help="Of the division.")] = 0,
) -> int:
    """Try a whole federation on this machine: server and nodes run until Ctrl-C, or while the COMMAND does."""
    from probekit.runs.trials import running, trial

    given: Any = {"store": output.store, "nodes": nodes, "scheme": partition, "seed": seed}
    with output.busy("making keys and certificates ..."):
        places = trial(folder, embeddings, **given)
    with output.busy("starting ..."):
        started = running(folder, places)
    with started as wait:
        output.note(f"{len(places)} nodes are connected. Train with: probekit train --federation {folder}")
        return subprocess.run(command, check=False).returncode if command else wait()
