"""What names can be given to a command, with their options: read from the sources, so that help imports no method."""

from __future__ import annotations

import importlib.util
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
import typer.core

from probekit import registry
from probekit.registry import Point, Registry

if TYPE_CHECKING:
    import ast

NAMED = {"train": ("trainers", "problems"), "unlearn": ("methods",)}
"""The registries that a command's flags name things of."""

OPTIONS_OF_NAMES = "Methods and backends by name, with their options and defaults; give them as NAME:key=value,..."


class Described(typer.core.TyperCommand):
    """A command whose help ends with what its flags can name, and the options of each."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print usage and flags, then the names."""
        for group in NAMED.get(self.name or "", ()):
            found = described(getattr(registry, group))
            lines = (f"- **{name}** {text}" for name, text in found.items())
            self.epilog = "\n\n".join([self.epilog or OPTIONS_OF_NAMES, *lines])
        super().format_help(ctx, formatter)


def described(kind: Registry) -> dict[str, str]:
    """What each name is and its options with their defaults, read from the source: help imports no method."""
    return {point.name: _described(point) for point in sorted(kind.points)}


def _described(point: Point) -> str:
    import ast

    made, options = _read(point.module, point.attribute)
    what = " ".join((ast.get_docstring(made) or "").split()).partition(". ")[0].rstrip(".") if made else ""
    return f"{what}: {', '.join(f'{name}={value}' for name, value in options.items())}" if options else what


def _read(module: str, attribute: str) -> tuple[ast.ClassDef | None, dict[str, str]]:
    """A class in its source, and the fields of the dataclass that it is with their defaults, those inherited first."""
    import ast

    body: list[ast.stmt] = []
    with suppress(ImportError, OSError, SyntaxError):
        found = importlib.util.find_spec(module)
        body = ast.parse(Path(found.origin).read_text() if found and found.origin else "").body
    constants = {ast.unparse(one.targets[0]): one.value for one in body if isinstance(one, ast.Assign)}
    homes = {name.name: one.module for one in body if isinstance(one, ast.ImportFrom) for name in one.names}
    made = next((one for one in body if isinstance(one, ast.ClassDef) and one.name == attribute), None)
    options: dict[str, str] = {}
    if made is None or not made.decorator_list:  # no dataclass
        return made, options
    for one in made.bases:
        options |= _read(homes.get(ast.unparse(one)) or module, ast.unparse(one))[1]
    for field in made.body:
        if (
            isinstance(field, ast.AnnAssign)
            and field.value
            and not re.search("ClassVar|repr=False", ast.unparse(field))
        ):
            default = constants.get(ast.unparse(field.value), field.value)
            options[ast.unparse(field.target)] = ast.unparse(default).replace("'", "")
    return made, options
