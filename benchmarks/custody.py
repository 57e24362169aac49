"""What custody costs: whole commands as a user runs them, each in a process of its own.

clients  20,000 x 512 rows of 100 classes in 10, 1,000 and 10,000 clients: CPU seconds, those of the imports told
         apart; the run folder after training and after 20 removals that were not purged; the largest memory
many     100,000 clients of two rows, d = 256: times and memory
large    1,000,000 x 512 rows of 1,000 classes in 50 clients: `unlearn` against a bare NumPy script that reads the
         partial sums it needs, solves and writes the head, against `train`, and beside two busy processes; `verify`

Without arguments all three, else those that are named. The fewest of some repeats count: a machine that is shared makes
everything slower and nothing faster. `large` takes 8 GB of disk in the folder for temporary files.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from _measure import finish, report

from probekit import Run
from probekit.cache import DiskStore
from probekit.federated.summation import Branch, StatisticsTree, key_of
from probekit.values import EmbeddingSet, EncodingSpec

CLIENTS = (10, 1_000, 10_000)
REMOVALS, REPEATS = 20, 3
RIDGE = "0.001"
IMPORTS = "import probekit.cli.main, probekit.runs.unlearning"
PROBEKIT = str(Path(sys.executable).with_name("probekit"))
NOT_PROVEN = 7
"""What `verify` ends with where statistics are at hand and rows were not asked for."""
BARE = """
import sys
import numpy as np
folder, ridge = sys.argv[1], float(sys.argv[2])
gram, moment = np.load(f"{folder}/gram-0.npy"), np.load(f"{folder}/moment-0.npy")
for number in range(1, int(sys.argv[3])):
    gram += np.load(f"{folder}/gram-{number}.npy")
    moment += np.load(f"{folder}/moment-{number}.npy")
gram[np.diag_indices(len(gram))] += ridge * gram[-1, -1]
np.save(f"{folder}/head.npy", np.linalg.solve(gram, moment).astype(np.float32))
"""


@dataclass(frozen=True)
class Spent:
    """What a command took; of several times the fewest seconds and the most memory."""

    cpu: float
    wall: float
    megabytes: float

    def __or__(self, other: Spent) -> Spent:
        wall, most = min(self.wall, other.wall), max(self.megabytes, other.megabytes)
        return Spent(min(self.cpu, other.cpu), wall, most)


@dataclass(frozen=True)
class Bench:
    """A cache with a set `rows`, and runs beside it."""

    folder: Path

    def spent(self, *arguments: str, ends: Sequence[int] = (0,)) -> Spent:
        """What a program takes, in a process of its own."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = str(Path(tempfile.gettempdir()) / "probekit-bytecode")  # as if installed
        began = time.perf_counter()
        with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, env=environment) as child:
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode not in ends:
            raise SystemExit(f"{' '.join(arguments)} ended with {child.returncode}.")
        wall = time.perf_counter() - began
        return Spent(used.ru_utime + used.ru_stime, wall, used.ru_maxrss / 1024)

    def start(self) -> float:
        """The CPU seconds of the imports."""
        return min(self.spent(sys.executable, "-c", IMPORTS).cpu for _ in range(REPEATS))

    def train(self, clients: int, _: int = 0) -> Spent:
        """Train a run of so many clients."""
        more = ("--clients", str(clients), "--ridge", RIDGE, "--force", "--json")
        return self.spent(PROBEKIT, "train", "rows", "--run", self.run(clients), *more, *self.cache)

    def unlearn(self, clients: int, client: int) -> Spent:
        """Forget a client."""
        return self.spent(PROBEKIT, "unlearn", self.run(clients), "--client", str(client), "--json", *self.cache)

    def verify(self, clients: int) -> Spent:
        """Check the last certificate."""
        last = max(Path(self.run(clients)).glob("states/*/certificate.json"))
        how = (str(last), "--run", self.run(clients), "--json", *self.cache)
        return self.spent(PROBEKIT, "verify", *how, ends=(0, NOT_PROVEN))

    def run(self, clients: int) -> str:
        """Where the run of so many clients is."""
        return str(self.folder / f"run-{clients}")

    @property
    def cache(self) -> tuple[str, str]:
        """The option that names the cache."""
        return "--cache", str(self.folder / "cache")


def fewest(work: Callable[[int], Spent], repeats: int = REPEATS) -> Spent:
    """The fewest seconds of some repeats."""
    found = work(0)
    for number in range(1, repeats):
        found |= work(number)
    return found


def write_rows(folder: Path, rows: int, dimension: int, classes: int) -> None:
    """A cache with a set of rows around one centre per class."""
    generator = np.random.default_rng(0)
    labels = generator.permutation(np.arange(rows) % classes)  # so that no class is without rows
    centres = generator.standard_normal((classes, dimension), dtype=np.float32) * np.float32(0.3)
    embeddings = generator.standard_normal((rows, dimension), dtype=np.float32)
    embeddings += np.float32(0.5)
    for begin in range(0, rows, 8192):
        embeddings[begin : begin + 8192] += centres[labels[begin : begin + 8192]]
    ids = [hashlib.sha256(str(row).encode()).hexdigest() for row in range(rows)]
    spec = EncodingSpec("synthetic", "0" * 64, {}, "pooled", dtype="float32")
    store = DiskStore(folder)
    store.save(spec, ids, embeddings)
    names = tuple(map(str, range(classes)))
    sealed = store.seal(EmbeddingSet(spec, embeddings, labels, ids, class_names=names))
    store.sets.give_name("rows", sealed.digest)


@contextmanager
def bench(rows: int, dimension: int, classes: int) -> Iterator[Bench]:
    """A cache with a set of rows, for a while."""
    with tempfile.TemporaryDirectory(prefix="probekit-custody-") as name:
        folder = Path(name) / "bench"
        # in another process: the memory of whoever starts a command counts as the command's
        child = multiprocessing.Process(target=write_rows, args=(folder / "cache", rows, dimension, classes))
        child.start()
        child.join()
        if child.exitcode:
            raise SystemExit("The rows could not be written.")
        yield Bench(folder)


def size(folder: str) -> int:
    """The bytes of all files below a folder; a file of several names counts once."""
    files = [path.stat() for path in Path(folder).rglob("*") if path.is_file()]
    return sum({one.st_ino: one.st_size for one in files}.values())


def by_clients() -> None:
    """Few and many clients of the same rows."""
    rows, dimension = 20_000, 512
    floats, found = 4 * rows * dimension, {}
    with bench(rows, dimension, 100) as own:
        start = own.start()
        print(json.dumps({"name": "imports", "cpu_seconds": round(start, 3)}), flush=True)
        for clients in CLIENTS:
            train = fewest(partial(own.train, clients))
            whole = size(own.run(clients))
            unlearn = fewest(partial(own.unlearn, clients))
            verify = own.verify(clients)
            for client in range(REPEATS, min(REMOVALS, clients - 1)):
                own.unlearn(clients, client)
            found[clients] = train, unlearn
            more = {"clients": clients, "unit": "times the rows' float32 bytes"}
            report(f"run folder, {clients} clients", whole, floats, bar=8, better="lower", **more)
            later = size(own.run(clients))
            report(f"after removals, {clients} clients", later, floats, bar=8, better="lower", **more)
            memory = max(one.megabytes for one in (train, unlearn, verify))
            told = {"verify_cpu": round(verify.cpu, 3), "clients": clients, "unit": "MB"}
            report(f"memory, {clients} clients", memory, 1024, bar=1, better="lower", **told)
    for what, place, bar in (("train", 0, 5), ("unlearn", 1, 2)):
        many, few = (found[clients][place].cpu for clients in (CLIENTS[-1], CLIENTS[0]))
        apart = {"start": round(start, 3), "without_start": [round(many - start, 3), round(few - start, 3)]}
        name = f"{what}, {CLIENTS[-1]} against {CLIENTS[0]} clients"
        report(name, many, few, bar=bar, better="lower", unit="CPU seconds", **apart)


def by_many() -> None:
    """A hundred thousand clients of two rows."""
    clients = 100_000
    with bench(2 * clients, 256, 10) as own:
        taken = {"train": own.train(clients), "unlearn": own.unlearn(clients, 0), "verify": own.verify(clients)}
        for what, one in taken.items():
            told = {"cpu_seconds": round(one.cpu, 2), "seconds": round(one.wall, 2), "unit": "MB"}
            report(f"{what}, {clients} clients, memory", one.megabytes, 2048, bar=1, better="lower", **told)


def by_rows() -> None:
    """A million rows of few clients."""
    clients = 50
    with bench(1_000_000, 512, 1_000) as own:
        train = fewest(partial(own.train, clients))
        sums = own.folder / "sums"
        parts = write_partial(own, clients, sums)
        script = own.folder / "bare.py"
        script.write_text(BARE)
        bare = fewest(lambda _: own.spent(sys.executable, str(script), str(sums), RIDGE, str(parts)), 5)
        alone = fewest(partial(own.unlearn, clients), 5)
        verify = fewest(lambda _: own.verify(clients))
        with busy():
            beside = fewest(lambda client: own.unlearn(clients, 10 + client), 3)
        head = np.load(sums / "head.npy")
        state = Run.open(own.run(clients), store=DiskStore(own.folder / "cache")).head(2)
        apart = float(np.abs(state.params - head).max())
    told = {"unit": "seconds", "cpu_seconds": [round(alone.cpu, 3), round(bare.cpu, 3)], "apart": apart}
    report("unlearn, over a bare script", alone.wall, bare.wall, bar=4, better="lower", **told)
    report("unlearn, times faster than train", train.wall, alone.wall, bar=10, unit="seconds")
    report("verify, times faster than train", train.wall, verify.wall, bar=5, unit="seconds")
    report("unlearn beside two busy processes, over alone", beside.wall, alone.wall, bar=3, better="lower")


def write_partial(own: Bench, clients: int, folder: Path) -> int:
    """Write the sums that forgetting client 0 adds: those beside its way to the top; gives how many."""
    tree = Run.open(own.run(clients), store=DiskStore(own.folder / "cache")).trained().statistics
    assert isinstance(tree, StatisticsTree)
    node, key, found = tree.root, key_of("0"), []
    while isinstance(node, Branch):
        node, other = node.sides(key)
        found.append(other)
    folder.mkdir()
    for number, one in enumerate(found):
        leaves = one.leaves if isinstance(one, Branch) else (one,)
        total = StatisticsTree.of({leaf.name: tree[leaf.name] for leaf in leaves}).total
        np.save(folder / f"gram-{number}.npy", total.gram)
        np.save(folder / f"moment-{number}.npy", total.moment)
    return len(found)


@contextmanager
def busy() -> Iterator[None]:
    """Two processes that never rest, for a while."""
    loop = (sys.executable, "-c", "while True: pass")
    others = [subprocess.Popen(loop) for _ in range(2)]
    try:
        yield
    finally:
        for one in others:
            one.kill()
            one.wait()


PARTS = {"clients": by_clients, "many": by_many, "large": by_rows}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
    finish()
