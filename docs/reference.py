"""Write reference.md: commands, exit codes and public names, as the code has them.

python docs/reference.py
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

import probekit
from probekit import errors
from probekit.cli.main import COMMANDS, app, load_command
from probekit.errors import ProbekitError
from probekit.evaluation.metrics import METRICS
from probekit.extraction.vectors import VectorOptions
from probekit.probing.heads import HEADS
from probekit.probing.options import ProbeOptions
from probekit.probing.protocols import PROTOCOLS
from probekit.runs.options import TrainOptions

PAGE = Path(__file__).with_name("reference.md")
COMMON = "Common options"
PANELS = ("Data options", "Options of vectors", "Encoding options", COMMON)
"""Flags that several commands share."""
KEYWORDS = (ProbeOptions, VectorOptions, TrainOptions)


class Shown(str):
    """A default value that is shown without quotes."""

    __repr__ = str.__str__


def reference() -> str:
    commands = dict(_commands())
    panels = {
        panel: {
            flag.name: flag
            for command in commands.values()
            for flag in _flags(command)
            if _panel(flag) == panel
        }
        for panel in PANELS
    }
    parts = [
        "# Reference",
        "What the commands, exit codes and names are; written by `python docs/reference.py`.",
        "## Commands",
        "Every command has the [common options](#common-options), `-h` and `--help`; those without "
        "a cache or chance lack `--cache` or `--seed`. `probekit -V` prints the version.",
    ]
    for name, command in commands.items():
        parts += _command(name, command, panels)
    for panel, flags in panels.items():
        parts += [f"### {panel}", _table(flags.values())]
    parts += ["## Names", *_names(), "## Exit codes", _exit_codes(), "## Python", *_public()]
    return "\n\n".join(parts) + "\n"


def _commands() -> Iterator[tuple[str, click.Command]]:
    """Commands and subcommands by what is typed."""
    for name in COMMANDS:
        command = load_command(name)
        if isinstance(command, click.Group):
            for subname, subcommand in command.commands.items():
                yield f"{name} {subname}", subcommand
        else:
            yield name, command


def _command(
    name: str, command: click.Command, panels: Mapping[str, Mapping[str | None, click.Option]]
) -> list[str]:
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    typed = [f"`{' '.join(['probekit', name, *map(_argument, arguments)])}`"]
    typed += [f"{_argument(each)}: {_text(each)}" for each in arguments]
    parts = [f"### {name}", _first_line(command.help), "  \n".join(typed)]
    own = [flag for flag in _flags(command) if _panel(flag) not in PANELS]
    if own:
        parts.append(_table(own))
    shared = []
    for panel, flags in panels.items():
        names = {flag.name for flag in _flags(command) if _panel(flag) == panel}
        if not names or panel == COMMON:
            continue
        missing = [f"`{flag.opts[0]}`" for key, flag in flags.items() if key not in names]
        link = f"[{panel[0].lower()}{panel[1:]}](#{panel.lower().replace(' ', '-')})"
        shared.append(link + (f" without {', '.join(missing)}" if missing else ""))
    if shared:
        parts.append(f"Also {'; '.join(shared)}.")
    return parts


def _flags(command: click.Command) -> list[click.Option]:
    return [each for each in command.params if isinstance(each, click.Option)]


def _panel(flag: click.Option) -> str | None:
    return vars(flag).get("rich_help_panel")


def _argument(argument: click.Argument) -> str:
    name = argument.metavar or (argument.name or "").upper()
    return f"{name}..." if argument.nargs == -1 and not name.endswith("...") else name


def _table(flags: Iterable[click.Option]) -> str:
    return _rows([["flag", "what it does"], *([_spelling(flag), _text(flag)] for flag in flags)])


def _spelling(flag: click.Option) -> str:
    """`--shots N,N,...`; of a flag that can be off, both."""
    names = ", ".join(f"`{name}`" for name in [*flag.opts, *flag.secondary_opts])
    if flag.is_flag:
        return names
    kind = flag.type
    value = flag.metavar or kind.name.removesuffix(" range").upper()
    if isinstance(kind, click.Choice):
        value = "|".join(map(str, kind.choices))
    return f"{names} {value}"


def _text(parameter: Any) -> str:
    """The help text, with the default where it says nothing of it."""
    text = str(parameter.help or "").strip()
    default = parameter.default
    if isinstance(default, bool):
        default = "on" if default else None
    if parameter.required and isinstance(parameter, click.Option):
        text += " Required."
    elif default not in (None, "") and "default" not in text:
        text += f" Default: {default}."
    return text


def _rows(lines: list[list[str]]) -> str:
    """A table from headers and rows."""
    lines.insert(1, ["---"] * len(lines[0]))
    escaped = [[text.replace("|", "\\|") for text in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def _names() -> list[str]:
    return [
        f"Heads (`--head`): {', '.join(f'`{name}`' for name in HEADS)}",
        f"Metrics (`--metric`): {', '.join(f'`{name}`' for name in METRICS)}",
        f"Protocols (`--protocol`): {', '.join(f'`{name}`' for name in PROTOCOLS)}",
    ]


def _exit_codes() -> str:
    """Each code with its meaning, and the errors of the library that end with it."""
    meanings = str(app.info.epilog).removeprefix("Exit codes: ").rstrip(".")
    rows = []
    for item in meanings.split(", "):
        code, _, meaning = item.partition(" ")
        names = [
            f"`{name}`"
            for name, kind in vars(errors).items()
            if isinstance(kind, type)
            and issubclass(kind, ProbekitError)
            and kind.exit_code == int(code)
        ]
        rows.append([code, meaning, ", ".join(names)])
    return _rows([["code", "meaning", "errors of the library"], *rows])


def _public() -> list[str]:
    """The public names with their parameters and what they are."""
    parts = []
    for name in probekit.__all__:
        value = getattr(probekit, name)
        if isinstance(value, str):
            continue
        text = f"`{name}{_parameters(value)}`  \n{_first_line(value.__doc__)}"
        if isinstance(value, type):
            members = ", ".join(f"`{member}`" for member in _members(value))
            text += f"  \nHas {members}." if members else ""
        parts.append(text)
    listed = "  \n".join(f"`{kind.__name__}{_parameters(kind)}`" for kind in KEYWORDS)
    return [*parts, f"What `probe` and `train` take as further keywords:\n\n{listed}"]


def _parameters(value: Any) -> str:
    """Names and defaults."""
    if isinstance(value, type) and issubclass(value, Exception):
        return ""
    parameters = []
    for parameter in inspect.signature(value).parameters.values():
        default = parameter.default
        if inspect.isfunction(default):
            default = Shown(default.__name__)
        elif repr(default) == "<factory>":
            default = Shown("...")
        parameters.append(parameter.replace(annotation=inspect.Parameter.empty, default=default))
    return str(inspect.Signature(parameters))


def _members(kind: type) -> list[str]:
    """Methods (with parentheses) and properties that it defines itself or has of this library."""
    members = []
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        home = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if name.startswith("_") or not str(getattr(home, "__module__", "")).startswith("probekit"):
            continue
        members.append(name if isinstance(member, property) else f"{name}()")
    return members


def _first_line(text: str | None) -> str:
    return inspect.cleandoc(text or "").partition("\n")[0]


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
