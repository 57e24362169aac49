"""The example app on a SuperLink with TLS and registered nodes, one of which is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "examples" / "flower" / "real.py"


@pytest.mark.slow
def test_heads_of_three_nodes_have_the_bits_of_one_process(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path / "party")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "without south: late" in done.stdout or "without south: gone" in done.stdout
