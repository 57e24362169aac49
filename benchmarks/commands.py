"""Whole commands, each in a process of its own: medians of interleaved runs, one BLAS thread.

bare     `unlearn` of one of 20 clients, 20,000 x 512 rows of 10 classes, beside a script that reads
         the same sums, adds those of the others, solves and writes
clients  `train` and `unlearn` of the same rows in 10 and in 10,000 clients
many     the same of 10,000 and of 100,000 clients with two rows of 256 numbers each

Without arguments all of them. Bytecode is kept, as it is of installed packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from _measure import finish, report
from safetensors.numpy import load_file, save_file

from probekit.cache import Cache
from probekit.embeddings import EmbeddingSet
from probekit.federated.state import KeptStatistics
from probekit.runs.run import Run

CLIENTS = 20
CLASSES = 10
RIDGE = 1e-3
BARE = """
import sys
import numpy as np
from safetensors.numpy import load_file, save_file

folder, ridge, *clients = sys.argv[1:]
gram = moment = 0.0
for client in clients:
    sums = load_file(f"{folder}/{client}.safetensors")
    gram = gram + sums["gram"]
    moment = moment + sums["moment"]
penalty = np.full(len(gram), float(ridge) * gram[-1, -1])
penalty[-1] = 0.0
params = np.linalg.solve(gram + np.diag(penalty), moment)
save_file({"weight": params[:-1].T.copy()}, f"{folder}/head.safetensors")
"""


@dataclass(frozen=True)
class Spent:
    seconds: float
    cpu_seconds: float
    megabytes: float


@dataclass
class Bench:
    """A cache with a set `rows`, runs beside it, and the clients that were not forgotten yet."""

    folder: Path
    clients: count[int] = field(default_factory=count)

    def spend(self, *arguments: object) -> Spent:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["PYTHONPYCACHEPREFIX"] = str(self.folder / "bytecode")
        command = [sys.executable, *map(str, arguments)]
        start = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as child:
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        if child.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {child.returncode}.")
        return Spent(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)

    def probekit(self, *arguments: object) -> Spent:
        return self.spend("-m", "probekit", *arguments, "--cache", self.folder / "cache", "-q")

    def train(self, clients: int) -> Spent:
        """Train anew."""
        shutil.rmtree(self.run(clients), ignore_errors=True)
        options = ("--clients", clients, "--ridge", RIDGE)
        return self.probekit("train", "rows", "--run", self.run(clients), *options)

    def unlearn(self, clients: int) -> Spent:
        return self.probekit("unlearn", self.run(clients), "--client", next(self.clients))

    def command(self, name: str, clients: int) -> Callable[[], Spent]:
        return partial({"train": self.train, "unlearn": self.unlearn}[name], clients)

    def run(self, clients: int) -> Path:
        return self.folder / f"run-{clients}"


@contextmanager
def bench(rows: int, width: int) -> Iterator[Bench]:
    """The rows are written by a child: who starts a command gives it a peak of memory."""
    with tempfile.TemporaryDirectory(prefix="probekit-commands-") as name:
        child = get_context("spawn").Process(target=write_rows, args=(Path(name), rows, width))
        child.start()
        child.join()
        if child.exitcode:
            raise SystemExit("The rows could not be written.")
        yield Bench(Path(name))


def write_rows(folder: Path, rows: int, width: int) -> None:
    """A cache with rows around a center for each class."""
    generator = np.random.default_rng(0)
    labels = generator.permutation(np.arange(rows) % CLASSES)
    centers = 0.3 * generator.standard_normal((CLASSES, width), dtype=np.float32)
    matrix = generator.standard_normal((rows, width), dtype=np.float32)
    matrix += centers[labels] + np.float32(0.5)
    names = [str(number) for number in range(CLASSES)]
    embeddings = EmbeddingSet.from_numpy(matrix, labels, class_names=names)
    Cache(folder / "cache").save("rows", embeddings)


def compare(
    name: str,
    ours: Callable[[], Spent],
    theirs: Callable[[], Spent],
    *,
    bar: float,
    repeats: int,
    **details: Any,
) -> None:
    """Medians of the seconds, in turns."""
    taken: tuple[list[Spent], list[Spent]] = ([], [])
    for turn in range(repeats):
        sides = list(zip((ours, theirs), taken, strict=True))
        for work, spent in sides if turn % 2 == 0 else reversed(sides):
            spent.append(work())
    seconds = [median(run.seconds for run in spent) for spent in taken]
    details["cpu_seconds"] = [round(median(run.cpu_seconds for run in spent), 3) for spent in taken]
    details["megabytes"] = [round(max(run.megabytes for run in spent)) for spent in taken]
    report(name, *seconds, bar=bar, better="lower", **details)


def beside_a_script() -> None:
    """`unlearn` of one client of 20, over a script that does its arithmetic."""
    with bench(20_000, 512) as work:
        work.train(CLIENTS)
        sums = work.folder / "sums"
        sums.mkdir()
        run = Run(work.run(CLIENTS), cache=work.folder / "cache")
        kept = run.newest.state.get(KeptStatistics)
        assert kept is not None
        for client, stats in kept.parts.items():
            tensors = {"gram": stats.gram, "moment": stats.moment}
            save_file(tensors, sums / f"{client}.safetensors")
        script = work.folder / "bare.py"
        script.write_text(BARE)
        bare = partial(work.spend, script, sums, RIDGE, *range(1, CLIENTS))
        work.unlearn(CLIENTS)
        bare()
        weights = load_file(sums / "head.safetensors")["weight"]
        head = Run(work.run(CLIENTS), cache=work.folder / "cache").head
        difference = float(np.abs(head.weights.T - weights).max())
        compare("unlearn over a bare script", partial(work.unlearn, CLIENTS), bare, bar=6,
                repeats=9, difference=difference)  # fmt: skip


def few_and_many(rows: int, width: int, many: int, few: int, bars: Mapping[str, float]) -> None:
    """The same rows in few clients and in many."""
    with bench(rows, width) as work:
        for name, bar in bars.items():
            title = f"{name}, {rows:,} x {width} rows, {many:,} over {few:,} clients"
            ours, theirs = (work.command(name, clients) for clients in (many, few))
            compare(title, ours, theirs, bar=bar, repeats=5)


def ten_times_the_clients(few: int, width: int, bar: float) -> None:
    """Clients of two rows each, and ten times as many."""
    many = 10 * few
    with bench(2 * few, width) as small, bench(2 * many, width) as large:
        for name in ("train", "unlearn"):
            title = f"{name}, two rows of {width} each, {many:,} over {few:,} clients"
            ours, theirs = large.command(name, many), small.command(name, few)
            compare(title, ours, theirs, bar=bar, repeats=3)


PARTS: dict[str, Callable[[], None]] = {
    "bare": beside_a_script,
    "clients": partial(few_and_many, 20_000, 512, 10_000, 10, {"train": 5, "unlearn": 2}),
    "many": partial(ten_times_the_clients, 10_000, 256, 12),
}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
    finish()
