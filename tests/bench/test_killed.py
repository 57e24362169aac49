"""Killed without warning, twice: the same command goes on, and a second one computes nothing and writes the same."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import tree

EXPERIMENT = """
title = "To be killed"
methods = ["fedremoval", "fedremoval-line"]
seeds = [0, 1]
data = {set = "digits", backbone = "pixels:8", rows = 400, test_rows = 150}
poison.trigger = "square:size=2"
model = {ridge = 0.001, trainer = "fedavg:rounds=20,local_steps=5"}
tune.budget = 2
[quick]
seeds = [0]
"""
PATIENCE = 120


@pytest.mark.slow
def test_killed_twice_it_continues_and_then_computes_nothing(tmp_path: Path) -> None:
    file, cache = tmp_path / "killed.toml", tmp_path / "cache"
    file.write_text(EXPERIMENT)
    begin = "import sys; from probekit.cli.main import main; sys.exit(main())"

    def start(out: str) -> subprocess.Popen[bytes]:
        words = [
            "bench",
            "run",
            str(file),
            "--quick",
            "--jobs",
            "2",
            "--cache",
            str(cache),
            "--out",
            str(tmp_path / out),
        ]
        return subprocess.Popen([sys.executable, "-c", begin, *words], stderr=subprocess.PIPE, stdout=subprocess.PIPE)

    def cells() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (cache / "bench" / "cells").glob("*/*.json")}

    seen: list[dict[Path, int]] = [{}]
    for _ in range(2):
        running, until = start("never"), time.monotonic() + PATIENCE
        while len(cells()) < len(seen[-1]) + 2 and running.poll() is None and time.monotonic() < until:
            time.sleep(0.005)
        running.send_signal(signal.SIGKILL)
        running.communicate()  # ends when the last of its processes has closed its output
        assert running.returncode == -signal.SIGKILL
        seen.append(cells())
    assert not (tmp_path / "never").exists()
    assert seen[1].items() <= seen[2].items()
    assert 2 <= len(seen[1]) < len(seen[2])
    for out in ("one", "two"):
        said = start(out).communicate(timeout=PATIENCE)[1]
        seen.append(cells())
    assert seen[2].items() < seen[3].items()
    assert seen[3] == seen[4]
    assert b"all of them computed before" in said
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
