"""`probekit train`: a head from cached embeddings, across clients, with all that unlearning will need."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.output import Console, Output, facts, section, size
from probekit.cli.output import given as shown
from probekit.runs.options import WHO, TrainOptions

if TYPE_CHECKING:
    from probekit.runs.training import TrainResult

SHOWN_CLIENTS = 20


@o.common
@o.with_flags(TrainOptions)
def train(
    output: Output,
    embeddings: Annotated[
        str | None, typer.Argument(help="A set's name, or how its digest begins; for jvp also a data set.")
    ] = None,
    run: Annotated[Path | None, typer.Option(help="The run folder (default: runs/SET-METHOD).")] = None,
    federation: Annotated[
        str | None,
        typer.Option(
            help="Clients elsewhere instead of a set: a federation's folder. Or ray[:HOST:PORT]: a cluster asks a "
            "set's clients.",
            rich_help_panel=WHO,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a finished run.")] = False,
    client_keys: Annotated[
        Path | None,
        typer.Option(help="A folder with public keys CLIENT.pem, by which clients ask to leave.", rich_help_panel=WHO),
    ] = None,
    **given: Any,
) -> None:
    """Train a head, or a whole network, across clients, and keep in a run folder what unlearning will need.

    Killed or interrupted, it leaves no half run: give the same command again, also where clients elsewhere are awaited.
    """
    options = TrainOptions(**given)
    with output.busy("loading ..."):
        from probekit.runs.asking import client_keys as read_keys
        from probekit.runs.run import Run

    keys = None if client_keys is None else read_keys(client_keys)
    path = run or default_run(embeddings or Path(federation or "run").name, options.label)
    with output.watch() as watch:
        how: Any = {
            "store": output.store,
            "force": force,
            "watch": watch,
            "note": o.noted(output, "split", "partition", "ridge"),
        }
        made = Run.train(path, embeddings, options, client_keys=keys, federation=federation, **how)
    result = made.training
    assert result is not None
    if result.left_out:
        output.note(f"{result.left_out} rows without a label or an embedding were left out.")
    output.result(result, _show)


def default_run(embeddings: str, label: str) -> Path:
    """runs/SET-METHOD, below the current folder."""
    return Path("runs") / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', embeddings).lstrip('.-')}-{label}"


def _show(console: Console, result: TrainResult) -> None:
    trained, inputs, partition = result.trained, result.folder.inputs, result.folder.partition()
    counts, solution, sent = list(trained.counts.values()), trained.solution, trained.total_traffic
    spread = f", {min(counts)} to {max(counts)} rows each" if len(counts) > 1 else ""
    seen = {
        "run": result.folder.path,
        "trained": f"{trained.method} {result.kind}, {trained.head.dimension} numbers to {len(trained.head.classes)} "
        f"classes, on {sum(counts)} rows of {inputs['name']} ({trained.head.recipe['backbone']})",
        "clients": f"{len(counts)} by {partition.scheme}{spread}; the server has {len(partition.server)}",
        **{f"without {name}": f"{one.reason}: {one.why}" for name, one in result.missing.items()},
        "ridge": _ridge_line(result),
        "solved": f"{solution.method}, relative residual {solution.residual:.2g}{_rounds_line(result)}",
    }
    if result.effective_dimension is not None:
        condition = shown(result.condition_number, ".3g") or "unbounded"
        seen["system"] = f"effective dimension {result.effective_dimension:.1f}, condition number {condition}"
    if solution.note:
        seen["note"] = solution.note
    history = f"; the history takes {size(trained.history.size)}" if trained.history else ""
    seen["sent"] = f"{size(sent.up)} up, {size(sent.down)} down{history}"
    times = ((what.replace("_", " "), seconds) for what, seconds in result.seconds.items())
    seen["time"] = ", ".join(f"{what} {seconds:.2f} s" for what, seconds in times)
    facts(console, seen)
    if len(counts) > 1:
        rows = sorted(trained.counts.items(), key=lambda item: -item[1])
        section(console, "rows per client", ("client", "rows"), rows, SHOWN_CLIENTS, "largest")
    able = [("yes" if one.possible else "no", name, one.why) for name, one in result.can_unlearn.items()]
    section(console, "what can be unlearned from this", ("", "method", "why"), able)
    leaver = next(iter(trained.counts))
    run = shlex.quote(str(result.folder.path))
    following = {"next": f"probekit evaluate {run} TEST-SET", "or": f"probekit unlearn {run} --client {leaver}"}
    facts(console, following if len(counts) > 1 else {"next": following["next"]})


def _ridge_line(result: TrainResult) -> str:
    chosen = result.ridge_chosen
    line = f"{result.trained.ridge:.4g} ({result.trained.scaling} scaling)"
    if chosen is None:
        return line
    edge = "; it is the first or last of them, try others by hand" * chosen.at_edge
    wrong = f", {chosen.wrong_share:.1%} wrong" if chosen.wrong_share is not None else ""
    tried = f"{chosen.candidates} from {chosen.lowest:.2g} to {chosen.highest:.2g}"
    return f"{line}, by {chosen.by} over {tried}{wrong}{edge}; chosen using all clients' rows"


def _rounds_line(result: TrainResult) -> str:
    trained = result.trained
    if not trained.losses:
        return ""
    rate = "" if trained.learning_rate is None else f" at learning rate {trained.learning_rate:.4g}"
    first, last = trained.losses[0], trained.losses[-1]
    return f"; {trained.rounds} rounds{rate}, loss {f'{first:.4g} to ' * (first != last)}{last:.4g}"
