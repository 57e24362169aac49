"""What clients cost: whole commands on 20,000 x 512 rows of 100 classes in 10, 1,000 and 10,000 clients.

CPU seconds of each command, those of its imports printed apart; the size of the run
folder after training and after 20 removals that were not purged; the largest memory. The fewest of `REPEATS` count: a
machine that is shared makes everything slower and nothing faster.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from _measure import finish, report

from probekit.cache import DiskStore
from probekit.values import EmbeddingSet, EncodingSpec

ROWS, DIMENSION, CLASSES = 20_000, 512, 100
CLIENTS = (10, 1_000, 10_000)
REMOVALS, REPEATS = 20, 3
FLOATS = 4 * ROWS * DIMENSION
START = (sys.executable, "-c", "import probekit.cli.main, probekit.runs.unlearning, scipy.linalg")
PROBEKIT = str(Path(sys.executable).with_name("probekit"))


@dataclass(frozen=True)
class Spent:
    """What a command took."""

    cpu: float
    megabytes: float

    def __add__(self, other: Spent) -> Spent:
        return Spent(min(self.cpu, other.cpu), max(self.megabytes, other.megabytes))


def spent(*arguments: str) -> Spent:
    """Run a command in a process of its own."""
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL) as child:
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with {child.returncode}.")
    return Spent(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def made(folder: Path) -> None:
    """A cache with a set of rows around one centre per class."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, CLASSES, ROWS)
    centres = generator.standard_normal((CLASSES, DIMENSION)).astype(np.float32) * np.float32(0.3)
    rows = generator.standard_normal((ROWS, DIMENSION), dtype=np.float32) + centres[labels] + np.float32(0.5)
    ids = [hashlib.sha256(str(row).encode()).hexdigest() for row in range(ROWS)]
    spec = EncodingSpec("synthetic", "0" * 64, {}, "pooled", dtype="float32")
    store = DiskStore(folder)
    store.save(spec, ids, rows)
    sealed = store.seal(EmbeddingSet(spec, rows, labels, ids, class_names=tuple(map(str, range(CLASSES)))))
    store.sets.give_name("rows", sealed.digest)


def size(folder: Path) -> int:
    """The bytes of all files below a folder; a file of several names counts once."""
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return sum({one.st_ino: one.st_size for one in files}.values())


def measured(folder: Path, clients: int) -> tuple[Spent, Spent, int, int]:
    """Training, forgetting a client, and the folder after the one and after twenty of the other."""
    run, cache = str(folder / f"run-{clients}"), ("--cache", str(folder / "cache"), "--json")
    how = ("--run", run, "--clients", str(clients), "--ridge", "0.001", "--force")
    trainings = [spent(PROBEKIT, "train", "rows", *how, *cache) for _ in range(REPEATS)]
    whole = size(Path(run))
    removals = min(REMOVALS, clients - 1)
    removed = [spent(PROBEKIT, "unlearn", run, "--client", str(client), *cache) for client in range(removals)]
    train, unlearn = trainings[0], removed[0]
    for one in trainings[1:]:
        train += one
    for one in removed[1:REPEATS]:
        unlearn += one
    return train, unlearn, whole, size(Path(run))


def main() -> None:
    """Measure all, each against the fewest clients or the rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made(folder / "cache")
        start = min(spent(*START).cpu for _ in range(REPEATS))
        print(json.dumps({"name": "start-up (imports)", "cpu_seconds": start}), flush=True)
        found = {clients: measured(folder, clients) for clients in CLIENTS}
        few, many = found[CLIENTS[0]], found[CLIENTS[-1]]
        for clients, (train, unlearn, whole, later) in found.items():
            more = {"clients": clients, "unit": "times the rows' float32 bytes"}
            report(f"run folder, {clients} clients", whole, FLOATS, bar=8, better="lower", **more)
            report(f"after removals, {clients} clients", later, FLOATS, bar=8, better="lower", **more)
            memory = max(train.megabytes, unlearn.megabytes)
            report(f"memory, {clients} clients", memory, 1024, bar=1, better="lower", clients=clients, unit="MB")
        for what, place, bar in (("train", 0, 5), ("unlearn", 1, 2)):
            ours, theirs = many[place], few[place]
            assert isinstance(ours, Spent)
            assert isinstance(theirs, Spent)
            apart = [round(one.cpu - start, 3) for one in (ours, theirs)]
            about = {"unit": "CPU seconds", "start": start, "without_start": apart}
            name = f"{what}, {CLIENTS[-1]} against {CLIENTS[0]} clients"
            report(name, ours.cpu, theirs.cpu, bar=bar, better="lower", **about)
    finish()


if __name__ == "__main__":
    main()
