"""Every command alike: exit codes, one JSON object, help, versions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module

import click
import pytest

from probekit import __version__
from probekit import registry as registries
from probekit.cli import main
from probekit.cli.described import NAMED, described
from probekit.errors import (
    CorruptError,
    InputError,
    MismatchError,
    NotFoundError,
    OfflineError,
    ProbekitError,
    SampleError,
    SolverError,
    StorageError,
    VerificationError,
)
from tests.cli.conftest import Command


def test_no_arguments_show_help_and_are_a_usage_error(command: Command) -> None:
    outcome = command()
    assert outcome.code == 2
    assert "extract" in outcome.out + outcome.err


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_names_every_command(command: Command, flag: str) -> None:
    outcome = command(flag)
    assert outcome.code == 0
    for name, (_, line) in main.COMMANDS.items():
        assert name in outcome.out
        assert line.split()[0] in outcome.out


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_version(command: Command, flag: str) -> None:
    assert command(flag).out.strip() == f"probekit {__version__}"


@pytest.mark.parametrize("name", sorted(main.COMMANDS))
def test_every_command_has_help_and_so_have_its_arguments(command: Command, name: str) -> None:
    outcome = command(name, "-h")
    assert outcome.code == 0
    assert f"Usage: probekit {name}" in outcome.out
    for part in [main.load(name), *getattr(main.load(name), "commands", {}).values()]:
        assert part.help, part.name
        unexplained = [
            parameter.name
            for parameter in part.params
            if parameter.param_type_name == "argument" and not getattr(parameter, "help", None)
        ]
        assert not unexplained, part.name


@pytest.mark.parametrize(("name", "groups"), NAMED.items())
def test_help_shows_the_options_of_every_registered_name(command: Command, name: str, groups: tuple[str, ...]) -> None:
    shown = " ".join(command(name, "-h").out.split())
    for registry in (getattr(registries, group) for group in groups):
        texts = described(registry)
        assert sorted(texts) == registry.names()
        for one, text in texts.items():
            assert one in shown
            factory = registry.get(one)
            options = [field for field in fields(factory) if field.repr] if is_dataclass(factory) else []
            assert [part.partition("=")[0] for part in text.rpartition(": ")[2].split(", ") if "=" in part] == [
                field.name for field in options
            ]
            for field in options:
                assert field.name in shown
                if isinstance(field.default, str | int | float | None):
                    assert f"{field.name}={field.default}" in text


def test_help_of_methods_imports_no_numbers() -> None:
    shown = "print({'numpy', 'torch'} & {*sys.modules})"
    script = f"import sys; from probekit.cli.main import run; run(['train', '-h']); {shown}"
    outcome = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert outcome.stdout.splitlines()[-1] == "set()"


def test_listed_commands_can_be_imported() -> None:
    for home, _ in main.COMMANDS.values():
        module, _, attribute = home.partition(":")
        assert hasattr(import_module(module), attribute)


def test_wrong_command_offers_the_near_one(command: Command) -> None:
    outcome = command("extrct")
    assert outcome.code == 2
    assert outcome.message.count("'extract'") == 1


def test_wrong_flag_is_a_usage_error_in_both_manners(command: Command) -> None:
    plain = command("doctor", "--jsn")
    assert plain.code == 2
    assert "--json" in plain.message
    assert plain.out == ""
    as_json = command("cache", "info", "--json")
    assert as_json.code == 2
    assert as_json.value["error"]["exit_code"] == 2
    assert "NAME" in as_json.value["error"]["message"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("what was wanted"), 2),
        (SampleError("what was wanted"), 2),
        (NotFoundError("what was wanted"), 3),
        (OfflineError("what was wanted"), 3),
        (CorruptError("what was wanted"), 4),
        (MismatchError("what was wanted"), 4),
        (StorageError("what was wanted"), 4),
        (SolverError("what was wanted"), 1),
        (VerificationError("what was wanted"), 6),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("what was wanted"), 1),
    ],
)
def test_errors_become_exit_codes(
    command: Command, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("probekit.cache.DiskStore.__init__", fails)
    outcome = command("cache", "ls", "--json")
    assert outcome.code == code
    assert outcome.value["error"]["exit_code"] == code
    assert outcome.value["error"]["kind"] in (type(error).__name__, "Interrupted")
    if isinstance(error, ProbekitError):
        assert outcome.value["error"]["message"] == "what was wanted"
    quiet = command("cache", "ls", "--quiet")
    assert quiet.code == code
    assert quiet.out == ""
    assert quiet.err.startswith("error: ")


def test_unexpected_errors_show_where_only_when_asked(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr("probekit.cache.DiskStore.__init__", fails)
    assert "--verbose" in command("cache", "ls").message
    with pytest.raises(ZeroDivisionError):
        command("cache", "ls", "--verbose")


def test_markup_in_a_message_is_printed_as_it_is(command: Command) -> None:
    outcome = command("cache", "info", "[red]not a style[/]")
    assert outcome.code == 3
    assert "[red]not a style[/]" in outcome.message


def test_completion_offers_commands_and_flags() -> None:
    def complete(words: str) -> list[str]:
        script = "from probekit.cli.main import main; main()"
        asked = {"_PROBEKIT_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        done = subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, **asked}, text=True, capture_output=True, check=False
        )
        return done.stdout.split()

    assert complete("probekit ext") == ["extract"]
    assert "purge" in complete("probekit cache pu")
    assert "--on-error" in complete("probekit extract --on")
    assert complete("probekit extract digits --on-error m") == ["mask"]


@pytest.mark.parametrize("arguments", [["--help"], ["dataset", "ls"], ["dataset", "ls", "--json"]])
def test_a_reader_who_went_away_is_no_reason_to_complain(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "probekit", *arguments], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert done.stderr == ""


def _commands() -> Iterator[tuple[str, click.Command]]:
    for name in main.COMMANDS:
        found = main.load(name)
        below = getattr(found, "commands", None) or {"": found}
        yield from ((f"{name} {part}".strip(), one) for part, one in below.items())


@pytest.mark.parametrize(("name", "command"), [pytest.param(*one, id=one[0]) for one in _commands()])
def test_every_option_has_a_text_and_a_view_is_a_backbones_tensor(name: str, command: click.Command) -> None:
    assert command.help
    for option in command.params:
        text = getattr(option, "help", None) or ""
        assert text.strip(), f"{name}: {option.name} has no text"
        assert not [flag for flag in option.opts if "view" in flag]
        assert "#" in text or not re.search(r"\bviews?\b", text, re.IGNORECASE), f"{name}: {option.name}"


def test_train_shows_first_what_matters() -> None:
    panels: dict[str, list[str]] = {}
    for option in main.load("train").params:
        if isinstance(option, click.Option):
            panels.setdefault(getattr(option, "rich_help_panel", None) or "", []).append(max(option.opts, key=len))
    assert panels[""] == ["--run", "--force", "--clients", "--partition", "--method", "--ridge", "--seed"]
    assert list(panels)[-1] == "Every command"
    assert "--json" in panels["Every command"]
