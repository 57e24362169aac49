"""How long `probekit --help` takes against importing the two libraries that print it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from _measure import finish, race, report

HELP = [str(Path(sys.executable).with_name("probekit")), "--help"]
LIBRARIES = [sys.executable, "-c", "import typer, rich"]


def run(command: list[str]) -> None:
    """Run a command and drop what it prints."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    run(HELP)  # compiles what was never imported here before
    run(LIBRARIES)
    ours, theirs = race(lambda: run(HELP), lambda: run(LIBRARIES), repeats=9)
    report("probekit --help", ours, theirs, bar=2.5, better="lower", unit="seconds")
    finish()
