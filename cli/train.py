"""`probekit train`: a head from cached embeddings, across clients, with all that unlearning will need."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from probekit.cli import options as o
from probekit.cli.output import Output

WHO, FIT, ROUNDS = "Who holds what", "The head", "FedAvg (with --method fedavg)"
ATTACK = "A backdoor to try unlearning on"
WHOLE = "A whole network instead of a head (with --backend jvp)"


def train(
    context: typer.Context,
    embeddings: Annotated[
        str,
        typer.Argument(help="A set in the cache: its name, or how its digest begins. With --backend jvp: a data set."),
    ],
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
            click_type=o.choice("closed-form", "cg", "fedavg", "logistic"),
            help="One round of statistics; rounds of local steps; one pooled logistic head (no exact unlearning); of a "
            "whole network cg, conjugate gradients across the clients, or fedavg.",
        ),
    ] = "closed-form",
    ridge: Annotated[
        str | None,
        typer.Option(
            help="A number, auto:loo (each row left out), auto:kfold, auto:clients. Default: auto:loo; logistic: 1; "
            "a whole network: 0.01.",
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
    backend: Annotated[
        str,
        typer.Option(
            click_type=o.choice("embeddings", "jvp"),
            help="jvp: a whole network, linearized around weights pretrained on the server's rows.",
            rich_help_panel=WHOLE,
        ),
    ] = "embeddings",
    network: Annotated[
        str,
        typer.Option(help="mlp, mlp-large, cnn, lenet, resnet, vit, or py:module:factory.", rich_help_panel=WHOLE),
    ] = "mlp",
    split: Annotated[
        str | None, typer.Option(help="Of a data set that is named instead of a set.", rich_help_panel=WHOLE)
    ] = None,
    subset: Annotated[
        str | None,
        typer.Option(
            help="Train these parameters only: a pattern of names, or how many last layers.", rich_help_panel=WHOLE
        ),
    ] = None,
    centre: Annotated[
        str,
        typer.Option(
            "--centre",
            "--center",
            click_type=o.choice("wp", "zero"),
            help="What the ridge pulls to: the pretrained weights, or zero as in the paper.",
            rich_help_panel=WHOLE,
        ),
    ] = "wp",
    precision: Annotated[
        str, typer.Option(click_type=o.choice("float64", "float32"), help="To train in.", rich_help_panel=WHOLE)
    ] = "float64",
    network_weights: Annotated[
        str | None, typer.Option(help="A safetensors file, instead of pretraining.", rich_help_panel=WHOLE)
    ] = None,
    pretrain_epochs: Annotated[int, typer.Option(min=1, rich_help_panel=WHOLE)] = 50,
    pretrain_batch: Annotated[int, typer.Option(min=1, rich_help_panel=WHOLE)] = 32,
    pretrain_rate: Annotated[float, typer.Option(rich_help_panel=WHOLE)] = 1e-3,
    run: Annotated[Path | None, typer.Option(help="The run folder (default: runs/SET-METHOD).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a finished run.")] = False,
    config: o.Config = None,
    cache: o.Cache = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Train a head, or a whole network, across clients, and keep in a run folder what unlearning will need.

    Killed or interrupted, it leaves no half run: give the same command again.
    """
    from probekit.runs.options import TrainOptions

    out = Output(json, quiet)
    chosen = TrainOptions.of(context.params)
    with out.busy("loading ..."):
        from probekit.cache import DiskStore
        from probekit.cli.outcome import described, show
        from probekit.runs.layout import refuse_taken
        from probekit.runs.training import train_run

    store = DiskStore(cache, waiting=out.note)
    path = run or default_run(embeddings, chosen.network if backend == "jvp" else method)
    refuse_taken(path, force=force)
    if backend == "jvp":
        from probekit.runs.network_training import pictures

        chosen = pictures(chosen, store, note=out.note)
    with out.watch() as watch:
        outcome = train_run(chosen, store, path, force=force, watch=watch, note=out.note)
    if outcome.left_out:
        out.note(f"{outcome.left_out} rows without a label or an embedding were left out.")
    value = described(outcome)
    out.result(value, lambda console: show(console, value))


def default_run(embeddings: str, method: str) -> Path:
    """runs/SET-METHOD, below the current folder."""
    return Path("runs") / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', embeddings).lstrip('.-')}-{method}"
