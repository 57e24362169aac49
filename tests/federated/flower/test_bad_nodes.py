"""Nodes that die, come late, lie or replay: the run ends with the right clients, and says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit import Run, TrainOptions
from probekit.cache import DiskStore
from probekit.federated.flower.up import Up, up
from probekit.federated.in_process import InProcess
from probekit.federated.methods.fedavg import FedAvg
from probekit.federated.node_log import NodeLog
from probekit.federated.rows import design_for, head_problem
from probekit.federated.training import train
from probekit.values import EmbeddingSet, Partition
from tests.federated.flower.parties import Party, rows_of

pytest.importorskip("flwr")
BAD = ("nan", "count", "replay", "late", "killed")
HONEST = ("a", "b", "c")
PROBEKIT = str(Path(sys.executable).with_name("probekit"))


def bad(folder: Path) -> list[str]:
    """The command of a node that does what NODE/how says."""
    return [sys.executable, str(Path(__file__).with_name("bad_node.py")), "run", str(folder)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Party, Up]]:
    """Three honest nodes and one of each bad kind, connected."""
    party = Party(tmp_path_factory.mktemp("bad")).make({name: rows_of(name) for name in (*HONEST, *BAD)})
    for name in BAD:
        (party.nodes[name] / "how").write_text(name)
    with up(party.folder, party.nodes, command=bad) as processes:
        yield party, processes


def near(names: tuple[str, ...], method: Any = "closed-form", **options: Any) -> Any:
    """The same training in one process."""
    each = [rows_of(name) for name in names]
    whole = EmbeddingSet(
        each[0].spec,
        np.concatenate([one.to_numpy() for one in each]),
        np.concatenate([one.labels for one in each]),
        [sample for one in each for sample in one.ids],
        each[0].class_names,
    )
    ends = np.cumsum([len(one) for one in each])
    parts = {name: np.arange(end - len(one), end) for name, one, end in zip(names, each, ends, strict=True)}
    problem = head_problem(whole, design_for(whole))
    divided = Partition(parts, np.empty(0, np.int64), len(whole), "iid", 0)
    given: Any = {"ridge": 0.01, "problem": problem, "federation": InProcess.of(problem, whole, parts), **options}
    return train(whole, divided, method=method, **given)


@pytest.mark.slow
def test_the_run_ends_with_the_right_clients_and_says_so(running: tuple[Party, Up], tmp_path: Path) -> None:
    party, _ = running
    store = DiskStore(tmp_path / "cache")
    options = TrainOptions(ridge=0.01, at_least=3, timeout=20.0)
    run = Run.train(tmp_path / "run", federation=str(party.folder), options=options, store=store)
    assert run.training is not None
    missing = run.training.missing
    reasons = {name: one.reason for name, one in missing.items()}
    assert reasons.pop("killed") in ("gone", "late")  # before a minute has passed nobody knows that it is gone
    assert reasons == {"nan": "garbage", "count": "garbage", "replay": "garbage", "late": "late"}
    assert "NaN" in missing["nan"].why
    assert "no rows have its statistics" in missing["count"].why
    assert "an old one" in missing["replay"].why
    assert tuple(run.trained().counts) == HONEST
    assert run.head().params.tobytes() == near(HONEST).head.params.tobytes()
    [entry] = run.folder.entries()
    assert set(entry.details["missing"]) == set(BAD)  # type: ignore[arg-type]
    told = NodeLog(party.nodes["nan"] / "log.jsonl").lines()
    assert told[-1]["answered"]["outcome"] == "answered"  # its own log tells on it


FEDAVG = ("train", "--method", "fedavg", "--rounds", "5", "--ridge", "0.01", "--keep", "nothing")


@contextmanager
def begin(party: Party, run: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """`train` in a process of its own; whoever begins it ends it."""
    command = [PROBEKIT, *FEDAVG, "--federation", str(party.folder), "--run", str(run), *more]
    own = {"PROBEKIT_CACHE": str(run.parent / "cache"), "OMP_NUM_THREADS": "1"}
    with (
        (run.parent / "err").open("ab") as log,
        subprocess.Popen(command, env={**os.environ, **own}, stderr=log) as found,
    ):
        try:
            yield found
        finally:
            found.kill()


def rounds_in(party: Party, name: str) -> int:
    """How many rounds a node has answered so far."""
    return [line["asked"]["kind"] for line in NodeLog(party.nodes[name] / "log.jsonl").lines()].count("fit")


def until(party: Party, name: str, rounds: int) -> None:
    """Wait until a node has answered so many rounds."""
    end = time.monotonic() + 120
    while rounds_in(party, name) < rounds:
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.mark.slow
def test_a_restarted_node_a_killed_superlink_and_a_killed_command(tmp_path: Path) -> None:
    party = Party(tmp_path / "party").make({name: rows_of(name) for name in HONEST})
    wanted = near(HONEST, FedAvg(rounds=5), keep="nothing").head.params.tobytes()
    run = tmp_path / "run"
    with up(party.folder, party.nodes, command=bad) as processes, ExitStack() as stack:
        first = stack.enter_context(begin(party, run))
        until(party, "a", 2)
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert not run.exists()
        again = stack.enter_context(begin(party, run))  # the same command goes on
        until(party, "a", 3)
        processes.nodes["b"].terminate()  # a node is restarted between two rounds
        processes.nodes["b"].wait(timeout=60)
        processes.start_node("b", party.nodes["b"])
        until(party, "a", 4)
        superlink = subprocess.check_output(["pgrep", "-f", f"superlink .*{party.folder}"], text=True).split()
        for pid in superlink:
            os.kill(int(pid), signal.SIGKILL)
        assert again.wait(timeout=300) == 0, (tmp_path / "err").read_text()
    found = Run.open(run, store=DiskStore(tmp_path / "cache"))
    assert found.head().params.tobytes() == wanted
    assert tuple(found.trained().counts) == HONEST
    kinds = [line["asked"]["number"] for line in NodeLog(party.nodes["a"] / "log.jsonl").lines()]
    assert len(set(kinds)) >= len(kinds) - 2  # what was accepted was not asked again
