"""Exit codes, one JSON object, lazy commands, configuration files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from probekit.cli.main import COMMANDS, load_command, run
from probekit.errors import InputError
from probekit.progress import Progress, Step


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        assert load_command(name).name == name
        assert run([name, "-h"]) == 0
        has_subcommands = isinstance(load_command(name), click.Group)
        assert has_subcommands or "--json" in capsys.readouterr().out


def test_version_and_list_of_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-V"]) == 0
    assert capsys.readouterr().out.startswith("probekit ")
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "code", "clue"),
    [
        (["prob"], 2, "probe"),
        (["extract", "packaged:digits"], 2, "--backbone"),
        (["extract", "packaged:digits", "-b", "pixels", "--limit", "0"], 2, "--limit"),
        (["extract", "packaged:digits", "-b", "pixels", "--shard", "4/4"], 2, "4/4"),
        (["extract", "packaged:digits", "-b", "pixels", "--window", "a"], 2, "--window"),
        (["extract", "packaged:digits", "-b", "pixels", "--dtype", "int8"], 2, "int8"),
        (["extract", "packaged:digitz", "-b", "pixels"], 3, "digits"),
        (["extract", "./nowhere", "-b", "pixels"], 3, "nowhere"),
        (["extract", "packaged:digits", "-b", "pixel"], 3, "pixels"),
        (["extract", "packaged:digits", "-b", "py:nowhere:f"], 3, "nowhere"),
    ],
)
def test_errors_name_the_value(
    arguments: list[str], code: int, clue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == code
    assert clue in capsys.readouterr().err
    assert run([*arguments, "--json"]) == code
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["exit_code"] == code
    assert clue in error["message"]


def test_a_config_file_sets_options_and_flags_win(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "options.toml"
    config.write_text('[extract]\nlimit = 7\nbackbone = "pixels:4"\n[probe]\nshots = "1"\n')
    arguments = ["extract", "packaged:digits", "--config", str(config), "--json"]
    assert run(arguments) == 0
    assert json.loads(capsys.readouterr().out)["sets"][0]["rows"] == 7
    assert run([*arguments, "--limit", "3"]) == 0
    assert json.loads(capsys.readouterr().out)["sets"][0]["rows"] == 3
    config.write_text("[extract]\nlimits = 7\n")
    assert run(arguments) == 2
    assert "limit" in json.loads(capsys.readouterr().out)["error"]["message"]
    config.write_text("[extract\n")
    assert run(arguments) == 2


def test_unexpected_errors_are_reported_with_their_class(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("nothing to divide")

    monkeypatch.setattr("probekit.data.read_dataset", fail)
    arguments = ["extract", "packaged:digits", "-b", "pixels"]
    assert run(arguments) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError):
        run([*arguments, "--verbose"])


def test_without_a_terminal_a_line_is_printed_every_30_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]

    class Slow:
        """Takes ten seconds for a batch."""

        name, kind, identity, views = "py:slow", "image", {"slow": 1}, {"gray": 4}

        def prepare(self, content: Image.Image) -> NDArray[np.float32]:
            return np.asarray(content.resize((2, 2)).convert("L"), np.float32).ravel()

        def encode(self, batch: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
            clock[0] += 10
            return np.stack(batch)

    monkeypatch.setattr("probekit.cli.output.monotonic", lambda: clock[0])
    monkeypatch.setattr("probekit.extraction.extract.open_backbone", lambda *_: Slow())
    arguments = ["extract", "packaged:digits", "-b", "slow", "--limit", "120", "--workers", "0"]
    assert run([*arguments, "--batch-size", "10", "--json"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "encoding:" in line]
    assert 4 <= len(lines) <= 5  # of 120 seconds, and the canary's
    assert all("of 120" in line for line in lines)
    clock[0] += 1000
    assert run([*arguments, "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_an_error_gives_the_terminal_its_cursor_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object, progress: Progress, **options: object) -> None:
        progress(Step("encoding", 1, 2))
        raise InputError("nothing to encode")

    monkeypatch.setattr("probekit.extraction.extract.extract_dataset", fail)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert run(["extract", "packaged:digits", "-b", "pixels"]) == 2
    error = capsys.readouterr().err
    assert 0 <= error.rindex("\x1b[?25l") < error.rindex("\x1b[?25h") < error.rindex("nothing")


SLOW_BACKBONE = """
import time
import numpy as np
class Slow:
    name, kind, identity, views = "py:slow_backbone:load", "image", {"slow": 1}, {"output": 4}
    def prepare(self, content):
        return np.asarray(content.resize((2, 2)).convert("L"), np.float32).ravel()
    def encode(self, batch):
        time.sleep(0.2)
        return np.stack(batch)
def load():
    return Slow()
"""


def listen_to_interrupts() -> None:
    """Who is started in the background by a shell ignores Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_exits_130_and_continues(tmp_path: Path, number: int) -> None:
    (tmp_path / "slow_backbone.py").write_text(SLOW_BACKBONE)
    environment = {**os.environ, "PROBEKIT_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "probekit", "extract", "packaged:digits", "--json"]
    command += ["-b", "py:slow_backbone:load", "--batch-size", "8", "--workers", "0"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=listen_to_interrupts,
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.rglob("canary*.json")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1.0)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads(output)["error"]["exit_code"] == 130
    assert b"Traceback" not in errors
    finished = subprocess.run(
        [*command, "--limit", "40"], cwd=tmp_path, env=environment, capture_output=True, check=True
    )
    assert json.loads(finished.stdout)["reused"] >= 8


@pytest.mark.parametrize("arguments", [["dataset", "ls"], ["dataset", "ls", "--json"], ["--help"]])
def test_a_reader_that_goes_away_is_no_error(arguments: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "probekit", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, b"")
