"""Asking a person about runs that lose rows by what a command does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import typer

from probekit.cli.output import Output
from probekit.errors import OtherRunsError

Value = TypeVar("Value")


def agreed(output: Output, work: Callable[[bool], Value], yes: bool) -> Value:
    """Do what may take rows from other runs: those are named, and a person is asked; a program has to say --yes."""
    try:
        return work(yes)
    except OtherRunsError as error:
        if output.as_json:
            raise
        named = "\n".join(f"  {run}" for run in error.runs)
        typer.confirm(f"These runs lose rows by it:\n{named}\nErase them all the same?", abort=True, err=True)
        return work(True)
