"""`probekit --help` against a process that imports typer and rich."""

from __future__ import annotations

import subprocess
import sys

from _measure import finish, race, report

IMPORTS = "import typer, typer.core, rich.console, rich.panel, rich.table"


def run(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)


if __name__ == "__main__":
    ours, theirs = race(
        lambda: run("-m", "probekit", "--help"), lambda: run("-c", IMPORTS), repeats=9
    )
    report("probekit --help over importing typer and rich", ours, theirs, bar=2.5, better="lower")
    finish()
