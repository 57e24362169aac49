"""Two processes under one: started together, ended together, started again after a pause, none left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from probekit.federated.flower import supervisor
from tests.federated.flower.parties import Party, below, rows_of

SLEEPING = [sys.executable, "-c", "import time; time.sleep(600)"]
ENDING = [sys.executable, "-c", "print('SuperNode ID: 1')"]


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node's folder."""
    return Party(tmp_path).make({"a": rows_of("a")}).nodes["a"]


def starts(monkeypatch: pytest.MonkeyPatch, node: Path, first: list[str], second: list[str], times: int) -> list[str]:
    """What is said while a node runs with these processes until its SuperNode was started so many times."""
    said, until, began, before = list[str](), threading.Event(), list[int](), below(os.getpid())

    def command(folder: Path, port: int) -> list[str]:
        began.append(port)
        if len(began) == times:
            until.set()
        return first

    monkeypatch.setattr(supervisor, "check", lambda folder: None)
    monkeypatch.setattr(supervisor, "_supernode", command)
    supervisor.run(node, pause=0.01, executor=lambda folder, port: second, until=until, watch=said.append)
    assert len(began) == times
    assert below(os.getpid()) <= before
    return said


def test_a_supernode_that_ends_is_started_again(monkeypatch: pytest.MonkeyPatch, node: Path) -> None:
    said = starts(monkeypatch, node, ENDING, SLEEPING, 3)
    assert len(said) == 2
    assert all("The SuperNode ended (0)" in one and "started again in 0.01 s" in one for one in said)


def test_when_the_answering_process_ends_both_are_started_again(monkeypatch: pytest.MonkeyPatch, node: Path) -> None:
    said = starts(monkeypatch, node, SLEEPING, [sys.executable, "-c", "raise SystemExit(3)"], 2)
    assert len(said) == 1
    assert "The process that answers ended (3)" in said[0]


def test_a_supernode_that_was_not_let_in_is_said(monkeypatch: pytest.MonkeyPatch, node: Path) -> None:
    [said] = starts(monkeypatch, node, [sys.executable, "-c", "raise SystemExit(1)"], SLEEPING, 2)
    assert "does not let this node in" in said


SCRIPT = f"""
import sys
from pathlib import Path
from probekit.federated.flower import supervisor
supervisor.check = lambda folder: None
supervisor._supernode = lambda folder, port: {SLEEPING!r}
supervisor.run(Path(sys.argv[1]), executor=lambda folder, port: {SLEEPING!r})
"""


def until(true: Callable[[], bool]) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_told_to_end_or_killed_a_node_leaves_nobody_behind_and_does_not_start_again(node: Path, number: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(node)])
    until(lambda: len(below(process.pid)) == 2)
    both = below(process.pid)
    process.send_signal(number)
    assert process.wait() == (-signal.SIGKILL if number == signal.SIGKILL else 0)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in both))


def test_after_a_crash_a_minute_passes_by_default() -> None:
    assert supervisor.PAUSE >= 65  # Flower refuses a key that ended without a word for about a minute
