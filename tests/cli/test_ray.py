"""Commands on Ray: the same heads and sets as without it, and many clients in little memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit.cache import DiskStore
from probekit.encoding.cluster import TOKEN, TOKEN_FILE, Cluster
from probekit.linear.threads import libraries
from probekit.values import EmbeddingSet
from tests.cli.conftest import Command

CLIENTS, DIMENSION = 100_000, 256
MOST = 1e9
"""Bytes that the driver may take."""


def test_heads_are_those_of_one_process(command: Command, ray_cluster: Cluster) -> None:
    rows = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)
    DiskStore().adopt(EmbeddingSet.from_numpy(rows, (rows[:, 0] > 0).astype(int)), "data")
    heads: dict[str, list[Any]] = {}
    with libraries().limit(limits=1, user_api="blas"):
        for place, how in {"here": (), "there": ("--federation", "ray")}.items():
            given = ("--clients", 5, "--server-share", 0.2, "--ridge", 0.1, "--keep", "gradients", "--json", *how)
            trained = command("train", "data", "--run", place, *given)
            rounds = command("unlearn", place, "--client", 1, "--method", "fedremoval-pcg:2", "--json", *how)
            exact = command("train", "data", "--run", f"{place}-sums", "--clients", 5, "--json", *how)
            removed = command("unlearn", f"{place}-sums", "--client", 2, "--json", *how)
            found = [one.value for one in (trained, rounds, exact, removed)]
            heads[place] = [(one["head"], one.get("bytes_up"), one.get("bytes_down")) for one in found]
    assert heads["there"] == heads["here"]


def test_others_machines_and_odd_names_are_refused(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (TOKEN, TOKEN_FILE):
        monkeypatch.delenv(name, raising=False)
    rows = np.random.default_rng(0).normal(size=(30, 3))
    DiskStore().adopt(EmbeddingSet.from_numpy(rows, np.arange(30) % 2), "data")
    outcome = command("train", "data", "--clients", 3, "--federation", "ray:10.0.0.7:6379")
    assert outcome.code == 2
    assert "there is no token for it" in outcome.message
    assert not Path("runs").exists()


def measured(cache: Path, *arguments: object) -> tuple[dict[str, Any], int]:
    """What a command said in a process of its own, and the most memory that it took."""
    code = (  # getrusage would count the process that this one was forked from, too
        "import re, sys; from probekit.cli.main import run; code = run(sys.argv[1:]);"
        "print(1024 * int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]), file=sys.stderr);"
        "sys.exit(code)"
    )
    environ = {**os.environ, "PROBEKIT_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-c", code, *map(str, arguments), "--json"]
    done = subprocess.run(line, env=environ, text=True, capture_output=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), int(done.stderr.split()[-1])


def failed(cache: Path, environ: dict[str, str], *arguments: object) -> str:
    """What a command says that finds nobody."""
    line = [sys.executable, "-m", "probekit", *map(str, arguments)]
    own = {**os.environ, "PROBEKIT_CACHE": str(cache), **environ}
    done = subprocess.run(line, env=own, text=True, capture_output=True, check=False, timeout=300)
    assert done.returncode == 3, done.stderr
    return done.stderr


@pytest.mark.slow
def test_a_cluster_that_runs_is_joined_with_its_token_only(tmp_path: Path, ray_cluster: Cluster) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 4))
    DiskStore(tmp_path / "cache").adopt(EmbeddingSet.from_numpy(rows, np.arange(60) % 2), "data")
    how = ("data", "--clients", 3, "--ridge", 0.1, "--run", tmp_path / "run")
    at = f"ray:{ray_cluster.ray.get_runtime_context().gcs_address}"
    there, _ = measured(tmp_path / "cache", "train", *how, "--federation", at)
    here, _ = measured(tmp_path / "cache", "train", *how, "--force")
    assert there["head"] == here["head"]
    assert ray_cluster.cpus  # it still runs
    said = failed(tmp_path / "cache", {TOKEN: "0" * 64}, "train", *how, "--force", "--federation", at)
    assert "There is no Ray for us" in said
    assert "uthenticat" in said


@pytest.mark.slow
def test_many_clients_take_the_driver_little_memory(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 10, 2 * CLIENTS)
    rows = generator.normal(size=(2 * CLIENTS, DIMENSION)).astype(np.float32)
    rows[:, :10] += 2 * np.eye(10, dtype=np.float32)[labels]
    DiskStore(tmp_path / "cache").adopt(EmbeddingSet.from_numpy(rows, labels), "many")
    how = ("--clients", CLIENTS, "--ridge", 0.1, "--run", tmp_path / "run", "--federation", "ray")
    trained, taken = measured(tmp_path / "cache", "train", "many", *how)
    assert len(trained["clients"]) == CLIENTS
    assert taken < MOST
    forgotten, taken = measured(tmp_path / "cache", "unlearn", tmp_path / "run", "--client", 17)
    assert len(forgotten["retained"]) == CLIENTS - 1
    assert forgotten["method"] == "exact"
    assert taken < MOST
