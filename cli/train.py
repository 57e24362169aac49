"""`probekit train`: a head across clients, written to a run."""

from __future__ import annotations

import math
import shlex
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probekit.cli.options import DRY_RUN, RowFlags, argument, common_flag, flag, keywords
from probekit.cli.output import CacheOutput

if TYPE_CHECKING:
    from probekit.runs.options import TrainOptions
    from probekit.runs.train import TrainingPlan


def parse_number(text: str) -> float | str:
    """A finite number where it is one; else the text, so that an error can show it."""
    for kind in (int, float):
        with suppress(ValueError):
            number: float = kind(str(text))  # a TOML file may hold a number
            return number if math.isfinite(number) else text
    return text


network_flag = partial(flag, rich_help_panel="Options of networks")


@dataclass
class TrainFlags:
    """Whose rows are trained on, and how."""

    clients: Any = flag(
        "How many clients, or the column that names each row's client.",
        default="1",
        metavar="N|COLUMN",
        parser=parse_number,
    )
    partition: str | None = flag("How N clients get rows: iid, dirichlet:0.5, shards:2.")
    head: str | None = flag(
        "ridge or logistic (default: ridge; of a conventional network: logistic)."
    )
    ridge: Any = flag(
        "auto (cross-validation from the clients' sums) or a number.",
        default="auto",
        metavar="RIDGE",
        parser=parse_number,
    )
    C: Any = flag(
        "Of a logistic head, as in scikit-learn: auto (held-out rows, the default) or a number.",
        "--c",
        metavar="C",
        parser=parse_number,
    )
    intercept: str | None = flag("free (default for ridge) or penalized (for logistic).")
    normalize: str = flag("Rows: none (as they are), l2.", default="none")
    method: str | None = flag("closed-form, lbfgs, cg, fedavg:rounds=20,epochs=1,rate=0.1.")
    preset: str | None = flag("A published setting: f2l2-paper, f2l2-code.")
    server_share: float = flag("Share of the rows that only the server has.", default=0.0)
    keep: str | None = flag(
        "What the server keeps: statistics (default), gradients, history, nothing (networks)."
    )
    at_least: int | None = flag("Go on when this many clients answer (default: all).", min=1)
    tolerance: float = flag("How near to the minimum verify wants the head.", default=1e-6)
    poison: str | None = flag("For trials: client=3,trigger=square,target=0 plants a backdoor.")
    test: str | None = flag("Test rows, instead of DATA's own test split.")
    network: str | None = network_flag(
        "A whole network in place of a head: mlp, mlp:500-100, cnn, py:package.module:factory."
    )
    linearize: bool = network_flag(
        "Linearize it around its weights, or train it as it is.",
        "--linearize/--no-linearize",
        default=True,
    )
    weights: Path | None = network_flag("State dict to start from (.safetensors, .pt).")
    pretrain_epochs: int = network_flag("Epochs on the server's rows first.", default=10, min=0)
    center: str = network_flag("What the ridge pulls to: wp (those weights), zero.", default="wp")
    seed: int = common_flag("Random seed.", default=0, min=0)


def train(
    data: list[str] = argument("A cached set, a path, a name with a scheme; statistics files."),
    run: Path = flag("Folder of the run.", "--run", default=...),
    backbone: str | None = flag("Encode with this.", "--backbone", "-b"),
    add: bool = flag(
        "Let the clients of DATA (by a column) join the run that is there.", "--add", default=False
    ),
    transport: str | None = flag(
        "Clients answer on Ray: ray, ray:HOST:PORT (default: in one process)."
    ),
    dry_run: bool = DRY_RUN,
    *,
    training: TrainFlags,
    reading: RowFlags,
    output: CacheOutput,
) -> None:
    """Train a head across clients, and write a run."""
    from probekit.federated.transports.files import is_statistics_file

    paths = [Path(text).expanduser() for text in data]
    are_files = [path.is_file() and is_statistics_file(path) for path in paths]
    plan: TrainingPlan
    if any(are_files) or len(data) > 1:
        from probekit.runs.files import plan_files

        _refuse_reading(
            reading,
            backbone=backbone,
            test=training.test,
            poison=training.poison,
            transport=transport,
        )
        plan = plan_files(data, run=run, cache=output.open_cache(), **keywords(training))
    else:
        from probekit.runs.train import plan_training

        plan = plan_training(
            data[0],
            run=run,
            backbone=backbone,
            transport=transport,
            cache=output.open_cache(),
            progress=output.progress,
            **keywords(training, reading),
        )
    if dry_run:
        output.warn(*plan.notes)
        output.fields(plan.to_dict())
        output.result(plan.to_dict())
        return
    trained = plan.add(output.progress) if add else plan.write(output.progress)
    output.warn(*trained.notes)
    document = trained.to_dict()
    options = trained.options
    noun = "targets" if trained.head.task != "classes" else "classes"
    output.print(
        f"{run}: {describe(options)}, rows: {document['rows']:,}, clients: "
        f"{len(document['clients']):,}, {noun}: {len(document['classes'])}, keeps {options.keep}"
    )
    output.print("\n".join(trained.summary()))
    client = next(iter(document["clients"]))
    words = ["next:", "probekit", "unlearn", str(run), f"--client={client}"]
    if options.network is not None and options.network.startswith("py:"):
        words += ["--network", options.network]
    output.print(shlex.join(words))
    output.result(document)


def describe(options: TrainOptions) -> str:
    """`ridge head`, `linearized mlp`."""
    if options.network is None:
        return f"{options.head} head"
    kind = "linearized" if options.linearize else "conventional"
    return f"{kind} {options.network}"


def _refuse_reading(reading: RowFlags, **settings: str | None) -> None:
    """Statistics files are read as they are."""
    from probekit.errors import InputError

    defaults: dict[str, Any] = {option.name: option.default for option in fields(reading)}
    settings |= {name: vars(reading)[name] for name in defaults}
    for name, value in settings.items():
        if value and (name not in defaults or value != defaults[name].default):
            text = f"--{name.replace('_', '-')}"
            raise InputError(
                f"{text} is about rows; found statistics files, or several DATA, which must be "
                f"such files. Drop {text}."
            )
