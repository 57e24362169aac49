"""Flags that several commands share, and the TOML file that may give them."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext, redirect_stdout
from dataclasses import Field, fields
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import click
import typer

from probekit.cli.output import Output


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Let a TOML file give defaults to this command: its own table, or the top level of the file."""
    if path is None or context.resilient_parsing:
        return path
    import tomllib

    from probekit.files import MOST_BYTES, read_limited

    try:
        content: dict[str, Any] = tomllib.loads(read_limited(path, MOST_BYTES).decode())
    except OSError as error:
        raise click.BadParameter(f"{path} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"{path} is not TOML: {error}") from error
    own = content.get(context.info_name or "", {name: v for name, v in content.items() if not isinstance(v, dict)})
    flags = {long.lstrip("-"): parameter.name for parameter in context.command.params for long in parameter.opts}
    known = {parameter.name for parameter in context.command.params}
    given = {flags.get(name.replace("_", "-")) or name.replace("-", "_"): value for name, value in own.items()}
    unknown = sorted(set(given) - known)
    if unknown:
        from probekit.registry import nearest

        hint = nearest(unknown[0], sorted(name for name in known if name))
        raise click.BadParameter(f"{path} sets {', '.join(unknown)}, which this command does not know. {hint}")
    context.default_map = {**(context.default_map or {}), **given}
    return path


RunFolder = Annotated[Path, typer.Argument(help="A run folder.")]
State = Annotated[int | None, typer.Option(min=1, help="A state of the run (default: the current one).")]
Rows = Annotated[bool, typer.Option("--rows", help="Compute again from rows, or from what clients elsewhere answer.")]
Preset = Annotated[str, typer.Option(help="native, or a preset: f2l2-domainnet, f2l2-imagenet, f2l2-flowers.")]
Triggered = Annotated[str | None, typer.Option(help="Test pictures with a trigger: how often does it work?")]
SetName = Annotated[str, typer.Argument(help="A set's name or the beginning of its digest.")]
Window = Annotated[
    str | None, typer.Option(help="LOW,HIGH: grey values that become black and white, for 12- and 16-bit scans.")
]
Group = Annotated[
    str | None, typer.Option(help="A column that says what belongs together (patients, users), left out together.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]


def among(*names: str, name: str | None = None, help: str | None = None) -> Any:  # noqa: A002
    """A flag that takes one of a few words, known to shell completion."""
    return typer.Option(*([name] if name else []), click_type=click.Choice(names), help=help)


def window(text: str | None) -> tuple[float, float] | None:
    """Two grey values with a comma between."""
    if text is None:
        return None
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        raise typer.BadParameter(f"--window wants two numbers, LOW,HIGH; found {text!r}.") from None
    return low, high


def whole_numbers(text: str, flag: str) -> tuple[int, ...]:
    """Numbers with commas between."""
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise typer.BadParameter(f"{flag} wants whole numbers with commas between; found {text!r}.") from None


Device = Annotated[str, among("auto", "cpu", "cuda", "mps", help="Where the backbone runs.")]


_every = partial(typer.Option, rich_help_panel="Every command")


def common(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """Give a command the flags that all commands share; it takes what they say as an `Output`, its first argument."""
    _, *own = inspect.signature(command, eval_str=True).parameters.values()

    @wraps(command)
    def call(**given: Any) -> Any:
        del given["config"], given["verbose"]  # which were read before
        output = Output(given.pop("json"), given.pop("quiet"), given.pop("cache"), sys.stdout)
        # what a backbone or a plugin prints is not our one object
        with redirect_stdout(sys.stderr) if output.as_json else nullcontext():
            return command(output, **given)

    shared = inspect.signature(_shared, eval_str=True).parameters.values()
    keywords = [one.replace(kind=one.KEYWORD_ONLY) for one in (*own, *shared)]
    call.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    return call


def _shared(
    config: Annotated[
        Path | None, _every(help="A TOML file with values for these flags.", callback=read_config, is_eager=True)
    ] = None,
    cache: Annotated[Path | None, _every(help="The cache folder (default: PROBEKIT_CACHE, else yours).")] = None,
    json: Annotated[bool, _every("--json", help="Print exactly one JSON object on stdout.")] = False,
    quiet: Annotated[bool, _every("--quiet", "-q", help="Say nothing but errors.")] = False,
    verbose: Annotated[bool, _every("--verbose", "-v", help="Show where an unexpected error came from.")] = False,
) -> None:
    """The flags that all commands share."""


def private_key(path: Path, *exposed: Path) -> bytes:
    """A private key (PEM) from a file that does not lie in a folder that is copied and shown around."""
    from probekit.errors import InputError, NotFoundError

    if not path.is_file():
        raise NotFoundError(f"There is no key file {path}. `openssl genpkey -algorithm ed25519 -out {path}` makes one.")
    for folder in exposed:
        if path.resolve().is_relative_to(folder.resolve()):
            raise InputError(f"The private key {path} lies in {folder}, which others get to see. Keep it elsewhere.")
    return path.read_bytes()


Command = TypeVar("Command", bound=Callable[..., Any])


def with_flags(options: type[Any]) -> Callable[[Command], Command]:
    """Give a command a flag for every field of an options class, which it takes as keywords."""

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters.values()
        types = get_type_hints(options)
        made = [_flag(one, types[one.name]) for one in fields(options) if one.metadata]
        kept = [one for one in own if one.kind is not one.VAR_KEYWORD]
        command.__signature__ = inspect.Signature([*kept, *made])  # type: ignore[attr-defined]
        return command

    return decorate


def _flag(one: Field[Any], kind: Any) -> inspect.Parameter:
    info = one.metadata["info"]
    several = info.flag or info.aliases or kind is bool  # a switch has no --no- form
    names = [f"--{name.replace('_', '-')}" for name in (info.flag or one.name, *info.aliases)] if several else []
    if str in get_args(kind):
        kind = str | None  # a number or a word: the options tell which
    offered = typer.Option(
        *names,
        help=info.help,
        min=info.minimum,
        click_type=click.Choice(info.choices) if info.choices else None,
        rich_help_panel=info.panel,
    )
    annotation = Annotated[kind, offered]
    return inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=annotation)


def noted(output: Output, *names: str) -> Callable[[str], None]:
    """What is called with a remark of the library: its arguments of these names are written as flags."""
    return lambda text: output.note(as_flags(text, {name: f"--{name}" for name in names}))


ARGUMENT = re.compile(r"""`([a-z_]+)(?:=([^`]*))?`|\b([a-z_]+)=("[^"]*")|Columns\(([a-z]+)=\.\.\.\)""")


def as_flags(message: str, flags: Mapping[str, str]) -> str:
    """A message of the library with the arguments that it names written as the flags that set them."""

    def flag(found: re.Match[str]) -> str:
        name, value = found[1] or found[3] or f"{found[5]}_column", (found[2] or found[4] or "").strip("\"'")
        if name not in flags:
            return found[0]
        value = value.strip("()").replace(" ", "") if value.startswith("(") else value
        return flags[name] if value in ("", "True") else f"{flags[name]} {value}"

    return ARGUMENT.sub(flag, message)
