"""What the site has besides the pages: README as its first page, CONTRIBUTING, and the options of every command."""

from __future__ import annotations

import re
from pathlib import Path

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from probekit.cli import main

ROOT = Path(__file__).parents[2]
COMMON = {"--help", "--json", "--config", "--cache", "--quiet", "--verbose"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made or stand elsewhere."""
    made = {
        "index.md": _moved((ROOT / "README.md").read_text()),
        "contributing.md": (ROOT / ".github" / "CONTRIBUTING.md").read_text(),
        "options.md": options(),
    }
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def _moved(text: str) -> str:
    """README's links as they are from within docs/."""
    return text.replace("](.github/CONTRIBUTING.md)", "](contributing.md)").replace("](docs/", "](")


def options() -> str:
    """Every command with its options, from the texts that `--help` prints."""
    parts = [
        "# Options of every command",
        "",
        "All have `--json`, `--config`, `--cache`, `--quiet`, `--verbose` and `-h`.",
    ]
    for name in main.COMMANDS:
        parts += _command(f"probekit {name}", main.load(name))
    return "\n".join(parts) + "\n"


def _command(name: str, command: click.Command) -> list[str]:
    parts = ["", f"## {name}", "", _flat((command.help or "").partition("\n\n")[0])]
    if isinstance(command, click.Group):
        return parts + [line for word, one in command.commands.items() for line in _command(f"{name} {word}", one)]
    rows = [_row(one) for one in command.params if not COMMON & set(one.opts)]
    return [*parts, "", "| option | meaning |", "|---|---|", *rows] if rows else parts


def _row(parameter: click.Parameter) -> str:
    named = ", ".join(f"`{one}`" for one in parameter.opts) if isinstance(parameter, click.Option) else ""
    shown = named or f"`{parameter.human_readable_name}`"
    return f"| {shown} | {_flat(getattr(parameter, 'help', None) or '')} |"


def _flat(text: str) -> str:
    """A text in one line of Markdown."""
    return re.sub(r"([|*\[\]#_])", r"\\\1", re.sub(r"\s+", " ", text)).replace("<", "&lt;").strip()
