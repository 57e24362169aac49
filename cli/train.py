"""`probekit train`: a head from cached embeddings, across clients, with all that unlearning will need."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.output import Output
from probekit.runs.options import TrainOptions


@o.with_flags(TrainOptions)
def train(
    embeddings: Annotated[
        str,
        typer.Argument(help="A set in the cache: its name, or how its digest begins. With --backend jvp: a data set."),
    ],
    run: Annotated[Path | None, typer.Option(help="The run folder (default: runs/SET-METHOD).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a finished run.")] = False,
    config: o.Config = None,
    cache: o.Cache = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    **given: Any,
) -> None:
    """Train a head, or a whole network, across clients, and keep in a run folder what unlearning will need.

    Killed or interrupted, it leaves no half run: give the same command again.
    """
    out = Output(json, quiet)
    options = TrainOptions(**given)
    with out.busy("loading ..."):
        from probekit.cache import DiskStore
        from probekit.cli.outcome import described, show
        from probekit.runs.training import train_run

    store = DiskStore(cache, waiting=out.note)
    path = run or default_run(embeddings, options.label)
    with out.watch() as watch:
        outcome = train_run(path, embeddings, options, store=store, force=force, watch=watch, note=out.note)
    if outcome.left_out:
        out.note(f"{outcome.left_out} rows without a label or an embedding were left out.")
    value = described(outcome)
    out.result(value, lambda console: show(console, value))


def default_run(embeddings: str, label: str) -> Path:
    """runs/SET-METHOD, below the current folder."""
    return Path("runs") / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', embeddings).lstrip('.-')}-{label}"
