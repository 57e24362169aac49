"""What README and the pages in docs/ say can be typed and is so."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import click
import pytest

from probekit.cli import main
from probekit.cli.verify import EXIT_CODES
from probekit.errors import ProbekitError
from tests.pages import PAGES, ROOT

TEXT = "\n\n".join(page.read_text() for page in PAGES)


def command_lines() -> list[str]:
    """Every command line of ours in a fenced block or between backquotes, without comments."""
    fenced = "\n".join(re.findall(r"^```[a-z]*\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))
    lines = re.findall(r"^(?:\$ )?(probekit .*)$", fenced, re.MULTILINE)
    lines += re.findall(r"`(probekit [^`\n]+)`", TEXT)
    return sorted({line.partition("  #")[0].strip() for line in lines})


def resolved(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that these words name, and what is left of them."""
    command: click.Command = main.load(words[0])
    rest = words[1:]
    while isinstance(command, click.Group) and rest:
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


def test_there_are_commands_to_check() -> None:
    assert len(command_lines()) >= 50


@pytest.mark.parametrize("line", command_lines())
def test_commands_of_the_pages_exist_with_their_flags(line: str) -> None:
    command, rest = resolved(shlex.split(line)[1:])
    flags = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    used = {word.partition("=")[0] for word in rest if word.startswith("-")}
    assert used <= flags | {"-h", "--help"}
    assert main.run([*shlex.split(line)[1 : len(shlex.split(line)) - len(rest)], "--help"]) == 0


@pytest.mark.parametrize("target", sorted(set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", TEXT, re.MULTILINE))))
def test_make_targets_of_the_pages_exist(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


PATHS = sorted(set(re.findall(r"`((?:examples|benchmarks|tests|cli|cache|probekit|\.ci)/[\w./-]*)`", TEXT)))


@pytest.mark.parametrize("path", PATHS)
def test_files_of_the_pages_exist(path: str) -> None:
    assert (ROOT / path).exists()


def test_exit_codes_of_the_pages_are_those_of_the_errors() -> None:
    section = (ROOT / "docs" / "commands.md").read_text().partition("## Exit codes")[2].partition("\n#")[0]
    stated = {int(code) for code in re.findall(r"(?:^|· |·\n)(\d+) ", section.strip())}
    family = [ProbekitError]
    for kind in family:
        family += kind.__subclasses__()
    assert {kind.exit_code for kind in family} | {0, 5, *EXIT_CODES.values(), main.INTERRUPTED} == stated
    helped = {int(code) for code in re.findall(r"(?:: |, )(\d+) ", str(main.app.info.epilog))}
    assert helped == stated


@pytest.mark.parametrize(
    ("ours", "better", "code"), [(0.9, "higher", 0), (0.5, "higher", 1), (0.5, "lower", 0), (0.9, "lower", 1)]
)
def test_a_bar_that_does_not_hold_ends_a_benchmark_with_1(ours: float, better: str, code: int) -> None:
    second = f"report('b', {ours}, 1, bar=0.7, better={better!r})"
    script = f"from _measure import *; report('a', 1, 1, bar=1); {second}; finish()"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT / "benchmarks", text=True, capture_output=True, check=False
    )
    assert done.returncode == code
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [list(line)[:6] for line in lines] == [["name", "ours", "theirs", "ratio", "bar", "holds"]] * 2
    assert [line["holds"] for line in lines] == [True, code == 0]


def test_every_benchmark_reports_and_finishes() -> None:
    scripts = sorted((ROOT / "benchmarks").glob("[!_]*.py"))
    assert {"extract", "cache", "startup"} <= {script.stem for script in scripts}
    silent = [script.name for script in scripts if not re.search(r"\bfinish\(\)", script.read_text())]
    assert not silent
