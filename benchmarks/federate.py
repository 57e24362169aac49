"""One federation of four clients by four engines: in process, signed files, Flower, Ray. Whole commands.

small    one round of statistics, d = 512, and 20 rounds of FedAvg on the same rows: rounds, bytes, seconds, memory
large    statistics of d = 4,096, different ones from every client
shards   extraction of pictures in two shards against one process, five times in turns

Without arguments all three, else those that are named. --quick: the closed form and fewer pictures once, in about a
minute where nobody else works. Bytes are those of encoded questions and answers before signing; they and the head must
be the same by all engines. Processor seconds are of all processes together. One BLAS thread.
"""

from __future__ import annotations

import os

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")  # before NumPy is there

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _measure import finish, report, seconds
from _watching import Watching
from custody import PROBEKIT, RIDGE, bench

from probekit.cache import DiskStore
from probekit.runs.trials import trial

ENGINES = ("in process", "files", "flower", "ray")
CLIENTS, ROUNDS, PATIENCE = 4, 20, "600"
SMALL, LARGE = (2_000, 512, 10), (CLIENTS * 2_200, 4_096, 10)
"""Rows, dimension and classes; of the large one a client has too many rows for a root."""
TURNS, PICTURES = 5, 480
NODE = """
import sys, time
from contextlib import suppress
from pathlib import Path
from probekit.federated.files import serve
from probekit.runs.nodes import open_node
node = open_node(Path(sys.argv[1]))
while True:
    with suppress(FileNotFoundError):  # a question of work that has ended meanwhile
        serve(node, Path(sys.argv[2]))
    time.sleep(0.02)
"""


@dataclass(frozen=True)
class Trained:
    """What a training took: as the command says it, and as its processes were seen."""

    said: Mapping[str, Any]
    wall: float
    cpu: float
    memory: Mapping[str, float]

    @property
    def questions(self) -> int:
        """Rounds of questions."""
        return sum(one["rounds"] for one in self.said["traffic"].values())

    @property
    def sent(self) -> tuple[int, int]:
        """Bytes up and down."""
        return int(self.said["bytes_up"]), int(self.said["bytes_down"])

    @property
    def plain(self) -> dict[str, Any]:
        """For a line of the report."""
        up, down = self.sent
        spent = {"seconds": round(self.wall, 2), "cpu_seconds": round(self.cpu, 2)}
        return {"questions": self.questions, "up": up, "down": down, **spent, "megabytes": dict(self.memory)}

    def per_question(self, fewer: Trained) -> dict[str, float]:
        """What one more question takes, by a training that asked fewer: what comes once is in both."""
        more = self.questions - fewer.questions
        wall, cpu = ((one - other) / more for one, other in ((self.wall, fewer.wall), (self.cpu, fewer.cpu)))
        return {"seconds_per_question": round(wall, 3), "cpu_per_question": round(cpu, 3)}


@dataclass(frozen=True)
class Party:
    """A set in a cache, and the four clients that hold it, by every engine; `roots` are processes of the clients."""

    folder: Path
    cache: tuple[str, str]
    roots: Mapping[str, tuple[int, ...]]

    def train(self, engine: str, name: str, *more: str) -> Trained:
        """Train, as a user does."""
        run = (
            "--run",
            str(self.folder / f"{name}-{engine}"),
            "--ridge",
            RIDGE,
            "--force",
            "--json",
            *more,
            *self.cache,
        )
        where: tuple[str, ...] = ("rows", "--clients", str(CLIENTS))
        if engine in ("files", "flower"):
            where = ("--federation", str(self.folder / engine), "--timeout", PATIENCE)
        elif engine == "ray":
            where = (*where, "--federation", "ray")
        began = time.perf_counter()
        with subprocess.Popen([PROBEKIT, "train", *where, *run], stdout=subprocess.PIPE, text=True) as child:
            with Watching((child.pid, *self.roots.get(engine, ()))) as watching:
                assert child.stdout is not None
                text = child.stdout.read()
                child.wait()
            wall = time.perf_counter() - began
        if child.returncode:
            raise SystemExit(f"Training by {engine} ended with {child.returncode}.")
        return Trained(json.loads(text), wall, watching.cpu, watching.memory)


@contextmanager
def party(shape: tuple[int, int, int]) -> Iterator[Party]:
    """Clients that wait for questions: by files in processes of their own, on Flower behind a SuperLink."""
    with bench(*shape) as own, ExitStack() as stack:
        store, roots = DiskStore(own.folder / "cache"), dict[str, tuple[int, ...]]()
        for engine in ("files", "flower"):
            nodes = trial(own.folder / engine, "rows", store=store, nodes=CLIENTS, transport=engine)
            entered = by_files if engine == "files" else on_flower
            roots[engine] = stack.enter_context(entered(own.folder / engine, nodes))
        yield Party(own.folder, own.cache, roots)


@contextmanager
def by_files(folder: Path, nodes: Mapping[str, Path]) -> Iterator[tuple[int, ...]]:
    """A process for every client that answers what comes into the common folder."""
    command = (sys.executable, "-c", NODE)
    started = [subprocess.Popen([*command, str(node), str(folder / "exchange")]) for node in nodes.values()]
    try:
        yield tuple(one.pid for one in started)
    finally:
        for one in started:
            one.kill()
            one.wait()


@contextmanager
def on_flower(folder: Path, nodes: Mapping[str, Path]) -> Iterator[tuple[int, ...]]:
    """SuperLink, proxy and a SuperNode for every client."""
    from probekit.federated.flower.up import up

    with up(folder, nodes) as running:
        assert running.server is not None
        yield (running.server.pid, *(one.pid for one in running.nodes.values()))


def side_by_side(party: Party, name: str, *more: str, fewer: Mapping[str, Trained] | None = None) -> dict[str, Trained]:
    """Train by every engine, tell what each took, and hold bytes and heads against those of one process."""
    found = dict[str, Trained]()
    for engine in ENGINES:
        found[engine] = one = party.train(engine, name, *more)
        first = found["in process"]
        same = (one.sent, one.questions, one.said["head"]) == (first.sent, first.questions, first.said["head"])
        told = {**one.plain, **({} if fewer is None else one.per_question(fewer[engine]))}
        report(f"{name}, {engine}: bytes, rounds and head of one process", float(same), 1.0, bar=1.0, **told)
    return found


def small(*, rounds: bool) -> None:
    """The closed form, and FedAvg on the same rows."""
    with party(SMALL) as own:
        closed = side_by_side(own, "closed form, d = 512")
        if not rounds:
            return
        how = ("--method", "fedavg", "--rounds", str(ROUNDS))
        averaged = side_by_side(own, f"{ROUNDS} rounds of FedAvg", *how, fewer=closed)
    for engine, one in averaged.items():
        other = closed[engine]
        told = {
            "unit": "seconds",
            "questions": [one.questions, other.questions],
            "bytes": [sum(one.sent), sum(other.sent)],
        }
        report(f"FedAvg over the closed form, {engine}", one.wall, other.wall, bar=1.0, **told)


def large() -> None:
    """Statistics of d = 4,096, whose messages have tens of megabytes."""
    with party(LARGE) as own:
        side_by_side(own, "closed form, d = 4,096")


def shards(pictures: int = PICTURES, turns: int = TURNS) -> None:
    """Two shards at a time against one process, in turns; the merged set must be that of one process."""
    from extract import LITE, draw

    with tempfile.TemporaryDirectory(prefix="probekit-shards-") as name:
        folder = Path(name)
        draw(folder / "pictures", pictures)
        what = ("extract", f"folder:{folder / 'pictures'}", "--backbone", LITE, "--name", "set", "--quiet")

        def run(cache: str, *more: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen([PROBEKIT, *what, *more, "--cache", str(folder / cache)], stdout=subprocess.DEVNULL)

        def ended(*children: subprocess.Popen[bytes]) -> None:
            if sum(one.wait() != 0 for one in children):
                raise SystemExit("An extraction failed.")

        def merged() -> None:
            ended(*(run("shards", "--shard", f"{number}/2") for number in range(2)))
            join = (PROBEKIT, "cache", "merge", "set", "--quiet", "--cache", str(folder / "shards"))
            subprocess.run(join, check=True, stdout=subprocess.DEVNULL)

        times: dict[str, list[float]] = {"two shards": [], "one process": []}
        ways = {"two shards": merged, "one process": lambda: ended(run("whole"))}
        for turn in range(turns):
            for cache in ("shards", "whole"):
                shutil.rmtree(folder / cache, ignore_errors=True)
            for way in list(ways) if turn % 2 == 0 else list(ways)[::-1]:
                times[way].append(seconds(ways[way]))
        sets = [DiskStore(folder / cache).sets.resolve("set") for cache in ("shards", "whole")]
    middle = {way: round(statistics.median(found), 2) for way, found in times.items()}
    told = {"median_seconds": middle, "cores": len(os.sched_getaffinity(0)), "turns": turns}
    report("two shards merged are the set of one process", float(sets[0] == sets[1]), 1.0, bar=1.0, **told)


def main() -> None:
    """What was asked for."""
    asked = sys.argv[1:]
    if asked == ["--quick"]:
        small(rounds=False)
        shards(24, 1)
    else:
        for part in asked or PARTS:
            PARTS[part]()
    finish()


PARTS = {"small": lambda: small(rounds=True), "large": large, "shards": shards}

if __name__ == "__main__":
    main()
