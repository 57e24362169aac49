"""The command line: its commands, and what becomes of an error."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

import click
import typer
import typer.core
from typer.utils import get_params_from_function

from probekit import __version__
from probekit.cli.options import expand_flags
from probekit.errors import ProbekitError

PROBE = "Probe"
FEDERATE = "Federate and unlearn"
MORE = "More"
COMMANDS = {
    "probe": ("probekit.cli.probe:probe", PROBE, "Compare backbones and heads on a dataset."),
    "predict": ("probekit.cli.predict:predict", PROBE, "Predict with a saved head."),
    "extract": ("probekit.cli.extract:extract", PROBE, "Encode a dataset once with a backbone."),
    "import": ("probekit.cli.import_:import_", PROBE, "Keep vectors that exist already."),
    "train": ("probekit.cli.train:train", FEDERATE, "Train a head across clients."),
    "summarize": ("probekit.cli.summarize:summarize", FEDERATE, "Write sums in place of rows."),
    "unlearn": ("probekit.cli.unlearn:unlearn", FEDERATE, "Forget clients or samples."),
    "preset": ("probekit.cli.preset:app", MORE, "Show published settings."),
    "verify": ("probekit.cli.verify:verify", FEDERATE, "Check a run against its rows."),
    "erase": ("probekit.cli.erase:erase", FEDERATE, "Remove clients or samples for good."),
    "evaluate": ("probekit.cli.evaluate:evaluate", FEDERATE, "Compare a run's heads."),
    "report": ("probekit.cli.report:report", FEDERATE, "Write a page about runs."),
    "bench": ("probekit.cli.bench:app", MORE, "Compare methods of unlearning with retraining."),
    "cache": ("probekit.cli.cache:app", MORE, "List, check and clean cached embeddings."),
    "backbone": ("probekit.cli.backbone:app", MORE, "List backbones and check one."),
    "dataset": ("probekit.cli.dataset:app", MORE, "List datasets and install well-known ones."),
    "method": ("probekit.cli.method:app", MORE, "List the ways to forget, and their needs."),
    "demo": ("probekit.cli.demo:demo", MORE, "Plant a backdoor in digits, and forget it."),
    "doctor": ("probekit.cli.doctor:doctor", MORE, "Check the installation."),
}
"""Where each command stands, its panel, and its line in the list of commands."""

INTERRUPTED = 130
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
KEPT_BYTES = 1 << 30


class LazyGroup(typer.core.TyperGroup):
    """Commands that are imported when they run; listing them needs their names and lines only."""

    def __init__(self, **settings: Any) -> None:
        settings["commands"] = {
            name: typer.core.TyperCommand(name, help=line, rich_help_panel=panel)
            for name, (_, panel, line) in COMMANDS.items()
        }
        super().__init__(**settings)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, remaining = super().resolve_command(ctx, args)
        if command is not None and command.name is not None:
            command = load_command(command.name)
        return name, command, remaining


def load_command(name: str) -> click.Command:
    """The command of this name, imported."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    command = getattr(import_module(module), attribute)
    parent = typer.Typer(add_completion=False, callback=lambda: None)
    if isinstance(command, typer.Typer):
        for subcommand in command.registered_commands:
            assert subcommand.callback is not None
            subcommand.callback = expand_flags(subcommand.callback)
        parent.add_typer(command, name=name)
    else:
        parent.command(name)(expand_flags(command))
    loaded = typer.main.get_group(parent).commands[name]
    _restore_argument_help(loaded)
    return loaded


def _restore_argument_help(command: click.Command) -> None:
    """Undo what click 8.5 does to typer 0.20: it clears the help of arguments."""
    declared = get_params_from_function(command.callback) if command.callback else {}
    for parameter in command.params:
        if isinstance(parameter, typer.core.TyperArgument) and parameter.name in declared:
            parameter.help = declared[parameter.name].default.help
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            _restore_argument_help(subcommand)


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    suggest_commands=False,  # click does
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 done, 1 unexpected error, 2 usage, 3 not found or offline, "
    "4 cache damaged or mismatched, 5 done but samples were skipped, 6 verification failed, "
    "7 not all is shown, 130 interrupted.",
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"probekit {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", "-V", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Linear probes on frozen foundation models."""


def run(arguments: list[str]) -> int:
    """Run a command line; returns the exit code."""
    try:
        code = app(arguments, prog_name="probekit", standalone_mode=False)
        if code == INTERRUPTED:  # typer swallows Ctrl-C and returns its code
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except (BrokenPipeError, SystemExit) as error:
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        _drop_output()
        return 0
    except (Exception, KeyboardInterrupt) as error:
        message, code = _explain(error)
        if code == 1 and ("--verbose" in arguments or "-v" in arguments):
            raise
        kind = type(error).__name__
    if "--json" in arguments:  # even where the arguments cannot be parsed
        document = {"error": {"kind": kind, "message": message, "exit_code": code}}
        print(json.dumps(document, ensure_ascii=False), flush=True)
    print(f"error: {message}", file=sys.stderr, flush=True)
    return code


def _drop_output() -> None:
    """The reader went away: `| head`. typer exits with 1 then."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explain(error: BaseException) -> tuple[str, int]:
    """The message and the exit code of an error."""
    if isinstance(error, KeyboardInterrupt):
        return "Interrupted. What is finished is kept; the same command continues.", INTERRUPTED
    if isinstance(error, click.exceptions.Abort):
        return "Not confirmed; nothing was changed. Pass --yes.", INTERRUPTED
    if isinstance(error, click.ClickException):
        return error.format_message(), error.exit_code
    if isinstance(error, ProbekitError):
        return str(error), error.exit_code
    name = type(error).__name__
    return f"Unexpected error ({name}: {error}). Run again with --verbose for its origin.", 1


def keep_freed_memory() -> None:
    """Let glibc reuse large blocks.

    A network on a CPU frees tens of megabytes after every layer. By default glibc returns them to
    the kernel, which clears them again: for EfficientNet-Lite0 longer than the convolutions took.
    """
    if sys.platform.startswith("linux"):
        with suppress(OSError, AttributeError):
            libc = ctypes.CDLL("libc.so.6")
            libc.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
            libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def main() -> None:
    """The entry point of the `probekit` command."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    keep_freed_memory()
    if "--json" in sys.argv:  # what libraries print goes to stderr
        sys.stdout.flush()
        stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        sys.stdout = stdout
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
    sys.exit(code)
