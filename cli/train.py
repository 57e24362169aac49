"""`probekit train`: a head from cached embeddings, across clients, with all that unlearning will need."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.output import Output, facts, section, size

if TYPE_CHECKING:
    from probekit.cli.training import Outcome
    from probekit.federated.trained import Progress

WHO, FIT, ROUNDS = "Who holds what", "The head", "FedAvg (with --method fedavg)"
ATTACK = "A backdoor to try unlearning on"
SHOWN_CLIENTS = 20


def train(
    context: typer.Context,
    embeddings: Annotated[str, typer.Argument(help="A set in the cache: its name or the beginning of its digest.")],
    clients: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many (default: 10, or as many as the column or the classes say).", rich_help_panel=WHO
        ),
    ] = None,
    partition: Annotated[
        str, typer.Option(help="iid, dirichlet:ALPHA, shards:K, column:client_id, classes.", rich_help_panel=WHO)
    ] = "iid",
    server_share: Annotated[
        float, typer.Option(help="The server's own part of the rows; no client gets it.", rich_help_panel=WHO)
    ] = 0.0,
    server_choice: Annotated[
        str, typer.Option(click_type=o.choice("random", "representative"), help="How it is drawn.", rich_help_panel=WHO)
    ] = "random",
    seed: Annotated[int, typer.Option(min=0, help="All that is drawn follows from it.")] = 0,
    method: Annotated[
        str,
        typer.Option(
            click_type=o.choice("closed-form", "fedavg", "logistic"),
            help="One round of statistics; rounds of local steps; or one pooled logistic head (no exact unlearning).",
        ),
    ] = "closed-form",
    ridge: Annotated[
        str | None,
        typer.Option(
            help="A number, auto:loo (each row left out), auto:kfold, auto:clients. Default: auto:loo; logistic: 1.",
            rich_help_panel=FIT,
        ),
    ] = None,
    scaling: Annotated[
        str,
        typer.Option(
            click_type=o.choice("mean", "sum"), help="Is the ridge multiplied by the rows?", rich_help_panel=FIT
        ),
    ] = "mean",
    intercept: Annotated[
        str | None,
        typer.Option(
            click_type=o.choice("penalised", "free", "none"),
            help="Default: penalised, as in the paper; logistic: free.",
            rich_help_panel=FIT,
        ),
    ] = None,
    view: Annotated[
        str, typer.Option(click_type=o.choice("raw", "l2"), help="Rows as they are, or of norm 1.", rich_help_panel=FIT)
    ] = "raw",
    fit_view: Annotated[
        str,
        typer.Option(
            click_type=o.choice("none", "centre", "standardise"),
            help="From the summed statistics, so it is forgotten with them.",
            rich_help_panel=FIT,
        ),
    ] = "none",
    class_weight: Annotated[
        str | None, typer.Option(help="balanced, or one number per class: 1,2,1.", rich_help_panel=FIT)
    ] = None,
    normalise_classes: Annotated[
        bool, typer.Option("--normalise-classes", help="Each class's column of norm 1.", rich_help_panel=FIT)
    ] = False,
    arithmetic: Annotated[
        str,
        typer.Option(
            click_type=o.choice("float64", "fast", "exact"),
            help="exact: sums do not depend on their order, in no bit.",
            rich_help_panel=FIT,
        ),
    ] = "float64",
    grid: Annotated[
        float | None,
        typer.Option(help="Step of exact arithmetic (default: from the server's rows).", rich_help_panel=FIT),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            click_type=o.choice("statistics", "gradients", "nothing"),
            help="What the server keeps of each client (default: statistics; fedavg: gradients).",
        ),
    ] = None,
    objective_noise: o.ObjectiveNoise = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Default: 100.", rich_help_panel=ROUNDS)] = None,
    local_steps: Annotated[int | None, typer.Option(min=1, help="Default: 10.", rich_help_panel=ROUNDS)] = None,
    local_epochs: Annotated[int | None, typer.Option(min=1, help="Instead of steps.", rich_help_panel=ROUNDS)] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Default: all rows of the client.", rich_help_panel=ROUNDS)
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Default: 1 / the largest curvature.", rich_help_panel=ROUNDS)
    ] = None,
    optimiser: Annotated[
        str | None, typer.Option(click_type=o.choice("sgd", "momentum", "adam"), rich_help_panel=ROUNDS)
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(click_type=o.choice("size", "uniform"), help="A client's share.", rich_help_panel=ROUNDS),
    ] = None,
    participation: Annotated[
        float | None, typer.Option(help="Share of the clients in each round.", rich_help_panel=ROUNDS)
    ] = None,
    server_learning_rate: Annotated[float | None, typer.Option(rich_help_panel=ROUNDS)] = None,
    init: Annotated[str | None, typer.Option(click_type=o.choice("zeros", "random"), rich_help_panel=ROUNDS)] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Stop when a round changes less than this.", rich_help_panel=ROUNDS)
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            click_type=o.choice("f2l2"),
            help="The paper's own code: Adam forgotten every round, uniform weights, random start, ridge 0.",
            rich_help_panel=ROUNDS,
        ),
    ] = None,
    keep_history: Annotated[
        bool, typer.Option("--keep-history", help="Keep every round's uploads.", rich_help_panel=ROUNDS)
    ] = False,
    poison: Annotated[
        str | None,
        typer.Option(
            help="For trials: this client's rows carry a trigger and the target label.", rich_help_panel=ATTACK
        ),
    ] = None,
    triggered: Annotated[
        str | None, typer.Option(help="The same set, extracted with --trigger.", rich_help_panel=ATTACK)
    ] = None,
    target: Annotated[
        int, typer.Option(min=0, help="The class that the trigger asks for.", rich_help_panel=ATTACK)
    ] = 0,
    poison_fraction: Annotated[
        float, typer.Option(help="How much of the client is poisoned.", rich_help_panel=ATTACK)
    ] = 1.0,
    run: Annotated[Path | None, typer.Option(help="The run folder (default: runs/SET-METHOD).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a finished run.")] = False,
    config: o.Config = None,
    cache: o.Cache = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Train a head across clients from cached embeddings, and keep in a run folder what unlearning will need.

    Killed or interrupted, it leaves no half run: give the same command again.
    """
    from probekit.cli.config import TrainConfig

    out = Output(json, quiet)
    chosen = TrainConfig.of(context.params)
    with out.busy("loading ..."):
        from probekit.cache import DiskStore
        from probekit.cli.run_files import refuse_taken
        from probekit.cli.training import train_run

    path = run or default_run(embeddings, method)
    refuse_taken(path, force=force)
    with out.bar("rounds") as bar:

        def progress(now: Progress) -> None:
            bar(now.done, now.total, f"loss {now.loss:.4g}")

        outcome = train_run(chosen, DiskStore(cache, waiting=out.note), path, force=force, progress=progress)
    if outcome.left_out:
        out.note(f"{outcome.left_out} rows without a label or an embedding were left out.")
    value = described(outcome)
    out.result(value, lambda console: _show(console, value))


def default_run(embeddings: str, method: str) -> Path:
    """runs/SET-METHOD, below the current folder."""
    return Path("runs") / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', embeddings).lstrip('.-')}-{method}"


def described(outcome: Outcome) -> dict[str, Any]:
    """A finished run in plain values."""
    from probekit.cli.training import told

    trained, run = outcome.trained, outcome.run
    traffic = trained.total_traffic
    return {
        "run": str(run.path),
        "state": run.state,
        "set": run.inputs["name"],
        "backbone": outcome.embeddings.spec.backbone,
        "method": trained.method,
        "rows": len(outcome.embeddings),
        "left out": outcome.left_out,
        "dimension": trained.design.dimension,
        "classes": len(trained.head.classes),
        "partition": {"scheme": outcome.partition.scheme, "seed": outcome.partition.seed},
        "clients": dict(trained.counts),
        "server rows": len(outcome.partition.server),
        "ridge": trained.ridge,
        "scaling": trained.scaling,
        "ridge chosen": told(outcome.choice) if outcome.choice else None,
        "solver": trained.solution.method,
        "note": trained.solution.note,
        "residual": trained.solution.residual,
        "condition number": outcome.condition,
        "effective dimension": outcome.effective_dimension,
        "rounds": trained.rounds,
        "learning rate": trained.learning_rate,
        "loss": [trained.losses[0], trained.losses[-1]] if trained.losses else None,
        "bytes up": traffic.up,
        "bytes down": traffic.down,
        "traffic": {purpose: vars(sent) for purpose, sent in trained.traffic.items()},
        "history bytes": trained.history.size if trained.history else 0,
        "seconds": outcome.timings,
        "can unlearn": {name: vars(able) for name, able in _abilities(outcome).items()},
        "head": trained.head.digest,
    }


def _abilities(outcome: Outcome) -> dict[str, Any]:
    """What can be unlearned by which method; a logistic head only by training again."""
    from probekit.federated.trained import Ability
    from probekit.linear.logistic import NO_EXACT_UNLEARNING

    found = outcome.trained.can_unlearn()
    if outcome.trained.method != "logistic":
        return found
    return {name: able if name == "retrain" else Ability(False, NO_EXACT_UNLEARNING) for name, able in found.items()}


def _show(console: Any, value: dict[str, Any]) -> None:
    counts = list(value["clients"].values())
    spread = f", {min(counts)} to {max(counts)} rows each" if len(counts) > 1 else ""
    seen = {
        "run": value["run"],
        "trained": f"{value['method']} head, {value['dimension']} numbers to {value['classes']} classes, on "
        f"{sum(counts)} rows of {value['set']} ({value['backbone']})",
        "clients": f"{len(counts)} by {value['partition']['scheme']}{spread}; the server has {value['server rows']}",
        "ridge": _ridge_line(value),
        "solved": f"{value['solver']}, relative residual {value['residual']:.2g}{_rounds_line(value)}",
    }
    if value["effective dimension"] is not None:
        condition = value["condition number"]
        seen["system"] = f"effective dimension {value['effective dimension']:.1f}, condition number " + (
            f"{condition:.3g}" if condition is not None else "unbounded"
        )
    if value["note"]:
        seen["note"] = value["note"]
    history = f"; the history takes {size(value['history bytes'])}" if value["history bytes"] else ""
    seen["sent"] = f"{size(value['bytes up'])} up, {size(value['bytes down'])} down{history}"
    seen["time"] = ", ".join(f"{what} {seconds:.2f} s" for what, seconds in value["seconds"].items())
    facts(console, seen)
    if len(counts) > 1:
        rows = sorted(value["clients"].items(), key=lambda item: -item[1])[:SHOWN_CLIENTS]
        more = f" (the largest {SHOWN_CLIENTS})" if len(counts) > SHOWN_CLIENTS else ""
        section(console, f"rows per client{more}", ("client", "rows"), rows)
    able = [("yes" if one["possible"] else "no", name, one["why"]) for name, one in value["can unlearn"].items()]
    section(console, "what can be unlearned from this", ("", "method", "why"), able)


def _ridge_line(value: dict[str, Any]) -> str:
    chosen = value["ridge chosen"]
    line = f"{value['ridge']:.4g} ({value['scaling']} scaling)"
    if chosen is None:
        return line
    edge = "; it is the first or last of them, try others by hand" if chosen["at_edge"] else ""
    wrong = f", {chosen['wrong_share']:.1%} wrong" if chosen["wrong_share"] is not None else ""
    return (
        f"{line}, by {chosen['by']} over {chosen['candidates']} from {chosen['from']:.2g} to {chosen['to']:.2g}"
        f"{wrong}{edge}; all clients' rows had a say in it"
    )


def _rounds_line(value: dict[str, Any]) -> str:
    if value["loss"] is None:
        return ""
    return (
        f"; {value['rounds']} rounds at learning rate {value['learning rate']:.4g}, loss {value['loss'][0]:.4g} to "
        f"{value['loss'][1]:.4g}"
    )
