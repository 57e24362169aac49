"""The command line: every command, and what becomes of an error."""

from __future__ import annotations

import gc
import inspect
import os
import sys
from importlib import import_module
from typing import Annotated, Any

import click
import typer
import typer.core
from typer.utils import get_params_from_function

from probekit import __version__
from probekit.cli.described import Described
from probekit.cli.ending import end
from probekit.cli.options import as_flags
from probekit.cli.output import fail
from probekit.errors import ProbekitError

COMMANDS = {
    "probe": ("probekit.cli.probe:probe", "Probe data sets with backbones: one table, honest intervals."),
    "extract": ("probekit.cli.extract:extract", "Encode a dataset with a frozen backbone, once."),
    "import": ("probekit.cli.vectors:import_", "Bring vectors that exist already into the cache."),
    "train": ("probekit.cli.train:train", "Train a head across clients, and keep what unlearning needs."),
    "evaluate": ("probekit.cli.evaluate:evaluate", "Judge the head of a run: accuracy, calibration, confusion."),
    "unlearn": ("probekit.cli.unlearn:unlearn", "Forget clients or samples, with a certificate."),
    "prove": ("probekit.cli.prove:prove", "Give a client a receipt for what the run commits to."),
    "bundle": ("probekit.cli.bundle:bundle", "Write one file by which a stranger checks what was unlearned."),
    "petition": ("probekit.cli.petition:petition", "As a client, ask to leave a run, signed."),
    "verify": ("probekit.cli.verify:verify", "Check a certificate by computing everything again."),
    "export": ("probekit.cli.export:export", "Write a head elsewhere, with the run's noise, and record it."),
    "report": ("probekit.cli.report:report", "Write a page about runs: what was trained, forgotten and proven."),
    "compare": ("probekit.cli.compare:compare", "Compare runs: accuracy, distance to retraining, what is proven."),
    "purge": ("probekit.cli.purge:purge", "Remove from a run, and the cache, data derived from forgotten clients."),
    "erase": ("probekit.cli.erase:erase", "Answer a request for erasure: unlearn, purge, bundle, record."),
    "register": ("probekit.cli.register:register", "List requests for erasure and their answers."),
    "federate": ("probekit.cli.federate:app", "Train and unlearn across machines: signed files, or Flower."),
    "audit": ("probekit.cli.audit:app", "Look closer: duplicates, influence, membership, reconstruction."),
    "bench": ("probekit.cli.bench:app", "Compare unlearning methods: experiments, tuned alike."),
    "demo": ("probekit.cli.demo:demo", "Do the main job on an embedded default: no download."),
    "doctor": ("probekit.cli.doctor:doctor", "Look at the installation and say what is missing."),
    "cache": ("probekit.cli.cache:app", "Look at the cache of embeddings, check it, clean it, carry it."),
    "backbone": ("probekit.cli.backbone:app", "List backbones and test one."),
    "method": ("probekit.cli.method:app", "List unlearning methods: what each takes and gives."),
    "dataset": ("probekit.cli.dataset:app", "List datasets and install well-known ones."),
}
"""Where each command stands, and what the list of commands says of it."""

INTERRUPTED = 130
MARKUP: typer.core.MarkupMode = "markdown"


class OnDemand(typer.core.TyperGroup):
    """Commands that are imported when they are run: listing and completing them needs a name and a line only."""

    def __init__(self, **settings: Any) -> None:
        settings["commands"] = {name: click.Command(name, short_help=line) for name, (_, line) in COMMANDS.items()}
        super().__init__(**settings)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the list of commands."""
        from probekit.cli.overview import show_overview

        show_overview(self, ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that these arguments name, the real one this time."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and load(found.name or ""), rest


def load(name: str) -> click.Command:
    """The command of this name, imported."""
    home, _, attribute = COMMANDS[name][0].partition(":")
    found = getattr(import_module(home), attribute)
    alone = typer.Typer(add_completion=False, rich_markup_mode=MARKUP, suggest_commands=False, callback=lambda: None)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name)
    else:
        alone.command(name, cls=Described)(found)
    command = typer.main.get_group(alone).commands[name]
    _restore_help(command)
    return command


def _restore_help(command: click.Command) -> None:
    """Give arguments their help back: click 8.5 has a `help` of its own and clears the one that typer 0.20 set."""
    said = get_params_from_function(inspect.unwrap(command.callback)) if command.callback else {}
    for parameter in command.params:
        if isinstance(parameter, typer.core.TyperArgument) and parameter.name in said:
            parameter.help = said[parameter.name].default.help
    for part in getattr(command, "commands", {}).values():
        _restore_help(part)


app = typer.Typer(
    name="probekit",
    cls=OnDemand,
    suggest_commands=False,  # click does
    help="Linear probes on frozen foundation models, trained across clients, with certified unlearning.",
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 done, 1 unexpected, 2 usage, 3 not found, offline or awaited, 4 cache corrupt or mismatched, "
    "5 done but samples were skipped, 6 verification failed, 7 intact but not all proven, 130 interrupted.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"probekit {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    """Linear probes on frozen foundation models, trained across clients, with certified unlearning."""


def run(arguments: list[str]) -> int:
    """Carry out a command line; gives the exit code."""
    try:
        result = app(arguments, prog_name="probekit", standalone_mode=False)
    except click.exceptions.Abort:
        return fail("Not confirmed, so nothing was done. Answer y, or give --yes.", INTERRUPTED, "Aborted", arguments)
    except KeyboardInterrupt:
        return _interrupted(arguments)
    except click.ClickException as error:
        if "--json" not in arguments:
            from typer.rich_utils import rich_format_error

            rich_format_error(error)
            return error.exit_code
        return fail(error.format_message(), error.exit_code, type(error).__name__, arguments)
    except ProbekitError as error:
        return fail(as_flags(str(error), _flags(arguments)), error.exit_code, type(error).__name__, arguments)
    except Exception as error:
        if "--verbose" in arguments or "-v" in arguments:
            raise
        what = f"Something unexpected happened ({type(error).__name__}: {error})."
        return fail(f"{what} Run again with --verbose to see where.", 1, type(error).__name__, arguments)
    if result == INTERRUPTED:  # typer catches Ctrl-C itself, and says nothing
        return _interrupted(arguments)
    return result if isinstance(result, int) else 0


def _flags(arguments: list[str]) -> dict[str, str]:
    """The flags of the command that was given, and of `train`, by the library's names for what they set."""
    words = [word for word in arguments if not word.startswith("-")]
    command: click.Command = load(words[0])
    for word in words[1:]:
        command = getattr(command, "commands", {}).get(word, command)
    found: dict[str, str] = {}
    for one in (load("train"), command):
        options = [part for part in one.params if isinstance(part, click.Option) and part.name]
        found |= {str(part.name): max(part.opts, key=len) for part in options}
    return found


def _interrupted(arguments: list[str]) -> int:
    message = "Interrupted. What was written is kept; the same command continues."
    return fail(message, INTERRUPTED, "Interrupted", arguments)


def main() -> None:
    """The entry point of the `probekit` command."""
    if "--json" in sys.argv and sys.stdout is not None:  # what libraries write below Python goes to stderr
        sys.stdout.flush()
        stdout = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)
        os.dup2(2, 1)
        sys.stdout = stdout
    gc.set_threshold(100_000, 20, 20)  # a command ends soon: looking for cycles took a tenth of its time
    end(run(sys.argv[1:]))
