"""docs/erasure.md works as printed: every command, in order; and what must be gone is gone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "erasure.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", PAGE, flags=re.DOTALL)
LINES = [line for block in BLOCKS for line in block.splitlines() if line]


@pytest.fixture
def hospital(tmp_path: Path) -> Path:
    """Pictures of forty people in four hospitals, and a list of backups."""
    generator = np.random.default_rng(0)
    labels = np.arange(240) % 3
    pictures = generator.integers(0, 120, (240, 8, 8), dtype=np.uint8)
    for row, label in enumerate(labels):
        pictures[row, 2 * label : 2 * label + 3] += 120
    people = np.array([str(row % 40) for row in range(240)])
    clients = np.array([("north", "south", "east", "west")[row % 4] for row in range(240)])
    np.savez(tmp_path / "scans.npz", images=pictures, labels=labels, patient=people, client_ids=clients)
    (tmp_path / "backups.toml").write_text('[[backup]]\nwhat = "nightly"\nwhere = "tape 7"\nexpires = 2027-01-01\n')
    return tmp_path


def test_every_command_is_one_that_is_known() -> None:
    assert len(LINES) >= 15
    assert {line.split()[0] for line in LINES} == {"probekit", "openssl", "mkdir"}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the page makes keys with openssl")
def test_the_page_works_as_printed(hospital: Path) -> None:
    bin_folder = hospital / "bin"
    bin_folder.mkdir()
    (bin_folder / "probekit").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m probekit "$@"\n')
    (bin_folder / "probekit").chmod(0o755)
    path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PROBEKIT_CACHE": str(hospital / "cache"), "OMP_NUM_THREADS": "1"}
    for line in LINES:
        done = subprocess.run(line, shell=True, cwd=hospital, env=environment, text=True, capture_output=True)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    book = hospital / "runs" / "erasures"
    first = json.loads((book / "2026-017" / "record.json").read_text())
    assert (first["rows_erased"], first["received"], first["due"]) == (6, "2026-11-02", "2026-12-02")
    assert "backup nightly at tape 7, until 2027-01-01" in first["remains"]
    second = json.loads((book / "2026-018" / "record.json").read_text())
    assert second["asked_by"].startswith("a client")
    named = set(re.findall(r"^\| `([^`]+)` \|", PAGE, flags=re.MULTILINE))
    assert named == {one.name for one in (book / "2026-017").iterdir()}
    for bundle in book.glob("*/bundle-*.zip"):
        assert bundle.stat().st_size < 1_000_000
        assert b"north" not in bundle.read_bytes()
