"""Flags that several commands share, and the TOML file that may give them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import click
import typer


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Let a TOML file give defaults to this command: its own table, or the top level of the file."""
    if path is None or context.resilient_parsing:
        return path
    import tomllib

    try:
        content: dict[str, Any] = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise click.BadParameter(f"{path} is not TOML: {error}") from error
    own = content.get(context.info_name or "", {name: v for name, v in content.items() if not isinstance(v, dict)})
    known = {parameter.name for parameter in context.command.params}
    given = {name.replace("-", "_"): value for name, value in own.items()}
    unknown = sorted(set(given) - known)
    if unknown:
        from probekit.registry import nearest

        hint = nearest(unknown[0], sorted(name for name in known if name))
        raise click.BadParameter(f"{path} sets {', '.join(unknown)}, which this command does not know. {hint}")
    context.default_map = {**(context.default_map or {}), **given}
    return path


Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show where an unexpected error came from.")]
Cache = Annotated[
    Path | None,
    typer.Option("--cache", help="The cache folder (default: PROBEKIT_CACHE, else the user's cache folder)."),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="A TOML file with values for these flags.", callback=read_config, is_eager=True),
]
ObjectiveNoise = Annotated[
    float | None,
    typer.Option(
        help="Sigma of a secret linear term in the objective, which hides what a removal leaves behind: (epsilon, "
        "delta) by objective perturbation. Closed form, a ridge on everything.",
        rich_help_panel="The head",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]


def choice(*names: str) -> click.Choice[str]:
    """One of a few words, known to shell completion."""
    return click.Choice(list(names))
