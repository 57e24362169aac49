"""The command line: every command, and what becomes of an error."""

from __future__ import annotations

import sys
from typing import Annotated

import click
import typer

from probekit import __version__
from probekit.cli import backbone, cache, dataset, demo, doctor, extract
from probekit.cli.output import fail, wants_json
from probekit.errors import ProbekitError

app = typer.Typer(
    name="probekit",
    help="Linear probes on frozen foundation models, trained across clients and taken back with proof.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 done, 1 unexpected, 2 usage, 3 not found or offline, 4 cache corrupt or mismatched, "
    "5 done but samples were skipped, 6 verification failed, 130 interrupted.",
)
app.command("extract")(extract.extract)
app.command("demo")(demo.demo)
app.command("doctor")(doctor.doctor)
app.add_typer(cache.app, name="cache")
app.add_typer(backbone.app, name="backbone")
app.add_typer(dataset.app, name="dataset")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"probekit {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_version, is_eager=True, help="Show the version and stop."),
    ] = False,
) -> None:
    """Linear probes on frozen foundation models, trained across clients and taken back with proof."""


def run(arguments: list[str]) -> int:
    """Carry out a command line; gives the exit code."""
    try:
        result = app(arguments, standalone_mode=False)
    except click.exceptions.Exit as stop:
        return int(stop.exit_code)
    except (click.exceptions.Abort, KeyboardInterrupt):
        return fail(
            "Interrupted. What was written is kept; the same command continues.",
            130,
            "Interrupted",
            arguments,
        )
    except click.ClickException as error:
        if not wants_json(arguments):
            from typer.rich_utils import rich_format_error

            rich_format_error(error)
            return error.exit_code
        return fail(error.format_message(), error.exit_code, type(error).__name__, arguments)
    except ProbekitError as error:
        return fail(str(error), error.exit_code, type(error).__name__, arguments)
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except Exception as error:
        if "--verbose" in arguments or "-v" in arguments:
            raise
        message = (
            f"Something unexpected happened ({type(error).__name__}: {error}). Run again with --verbose to see where."
        )
        return fail(message, 1, type(error).__name__, arguments)
    return result if isinstance(result, int) else 0


def main() -> None:
    """The entry point of the `probekit` command."""
    sys.exit(run(sys.argv[1:]))
