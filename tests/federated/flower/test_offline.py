"""A federation needs nothing but loopback."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ALONE = ["unshare", "--map-root-user", "--net", "sh", "-c"]


@pytest.mark.slow
def test_a_federation_runs_with_the_network_cut_off_but_for_loopback(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("no unshare or ip here")
    allowed = subprocess.run([*ALONE, "ip link set lo up"], capture_output=True, text=True, check=False)
    if allowed.returncode:
        pytest.skip(f"a network of one's own is not allowed here: {allowed.stderr.strip()}")
    tests = f"{Path(__file__).with_name('test_up.py')} -p no:cacheprovider --basetemp {tmp_path / 'inside'}"
    script = (
        f"ip link set lo up && test $(ls /sys/class/net | wc -l) -ge 1 && exec {sys.executable} -m pytest -q {tests}"
    )
    done = subprocess.run([*ALONE, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "1 passed" in done.stdout
