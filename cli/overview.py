"""The list of commands that `probekit --help` shows."""

from __future__ import annotations

import click
from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table


def show_overview(group: click.Group, context: click.Context) -> None:
    """Print usage, options and commands in the manner of typer.

    typer's own printer first imports a Markdown parser and a syntax highlighter, which takes longer than all the rest
    of `probekit --help`; it still serves every single command.
    """
    console = Console(highlight=False)
    console.print(f"\n [yellow]Usage:[/] [bold]{context.command_path}[/] \\[OPTIONS] COMMAND \\[ARGS]...\n")
    console.print(Padding(group.help or "", (0, 1, 1, 1)))
    options = Table.grid(padding=(0, 2))
    for option in group.get_params(context):
        if isinstance(option, click.Option):
            long, *short = sorted(option.opts, key=len, reverse=True)
            options.add_row(f"[cyan]{long}[/]", f"[green]{' '.join(short)}[/]", option.help)
    console.print(Panel(options, title="Options", title_align="left", border_style="dim"))
    commands = Table.grid(padding=(0, 2))
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        commands.add_row(f"[bold cyan]{name}[/]", command.short_help if command else "")
    console.print(Panel(commands, title="Commands", title_align="left", border_style="dim"))
    console.print(Padding(group.epilog or "", (1, 1)))
