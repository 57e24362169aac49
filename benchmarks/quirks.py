"""What public codes do otherwise than their papers describe, measured: each quirk on the packaged digits, as a table.

One of five clients put a bright patch of 2 x 2 pixels into the corner of all its pictures and called them 0. Linear
heads of 8 x 8 pixels by FedAvg; means of three seeds. `python benchmarks/quirks.py` prints Markdown (docs/methods.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from _measure import finish, report
from sklearn.datasets import load_digits

from probekit.federated.partition import partition
from probekit.federated.trained import Trained
from probekit.federated.training import train
from probekit.registry import configured, trainers
from probekit.unlearning.choice import unlearn
from probekit.unlearning.method import Material
from probekit.unlearning.request import UnlearnRequest
from probekit.values import Array, EmbeddingSet, Indices, Partition

SEEDS, CLIENTS, ROUNDS, RIDGE, LEAVER = (0, 1, 2), 5, 60, 1e-3, "0"
PATCH = [48 + 6, 48 + 7, 56 + 6, 56 + 7]
REGION = "region=6:6:2"
PLAIN = f"fedavg:rounds={ROUNDS},local_steps=5,keep_history=true"
FEDAU = f"fedau:rounds={ROUNDS},local_steps=5"
KNOT = f"knot:rounds={ROUNDS},local_steps=5"
SIFU = f"sifu:rounds={ROUNDS},local_steps=5"


@dataclass(frozen=True)
class Quirk:
    """A method as described and as published; each perhaps after another training."""

    what: str
    described: str
    published: str
    trainer: str = PLAIN
    other: str | None = None


QUIRKS = (
    Quirk("one random label for a whole batch", "flipping:batch=32", "flipping:batch=32,labels=batch"),
    Quirk("importance from the forgotten rows", "ew-sga", "ew-sga:fisher=target"),
    Quirk("a pull of 5000", "ew-sga", "ew-sga:weight=5000"),
    Quirk("radius from random starts", "pga:post=0", "pga:post=0,ball=random"),
    Quirk("stops at a squared distance of 2.2", "pga:post=0", "pga:post=0,tau=2.2"),
    Quirk("projects always", "fedosd", "fedosd:project=always"),
    Quirk("sums over the batch", f"ferrari:{REGION}", f"ferrari:{REGION},reduce=sum"),
    Quirk("the noisy side is constant", f"ferrari:{REGION}", f"ferrari:{REGION},detach=true"),
    Quirk("one label in k is right", "fedau", "fedau", FEDAU, f"{FEDAU},labels=random"),
    Quirk("alpha 0.9", "fedau", "fedau:alpha=0.9", FEDAU),
    Quirk("2 rounds by default", "fused", "fused:rounds=2"),
    Quirk("the length is off by one", "federaser", "federaser:reference=true"),
    Quirk("takes the retained updates off", "fedrecovery", "fedrecovery:residual=fedau"),
    Quirk("clusters of clients far apart", "knot", "knot", KNOT, f"{KNOT},assign=reference"),
    Quirk("one cluster's model", "knot", "knot", KNOT, f"{KNOT},result=best"),
    Quirk("a limit without regard to the norm", "sifu", "sifu", SIFU, f"{SIFU},reference=true"),
    Quirk("Adam, weight decay for the ridge", "fedremoval", "fedremoval:f2l2"),
)


def poisoned(rows: Array) -> Array:
    """The same pictures with the patch."""
    found = rows.copy()
    found[:, PATCH] = 1.0
    return found


@cache
def rows_of(seed: int) -> tuple[EmbeddingSet, Partition, Array, Indices]:
    """Training rows with the poisoned client's, who has which, and test rows."""
    pixels, labels = load_digits(return_X_y=True)
    pixels = pixels / 16
    order = np.random.default_rng(seed).permutation(len(labels))
    test, own = order[:360], order[360:]
    split = partition(labels[own], "iid", clients=CLIENTS, server_share=0.2, seed=seed)
    x, y, bad = pixels[own].copy(), labels[own].copy(), split.clients[LEAVER]
    x[bad], y[bad] = poisoned(x[bad]), 0
    data = EmbeddingSet.from_numpy(x, y.astype(np.int64), class_names=[str(one) for one in range(10)])
    return data, split, pixels[test], labels[test]


@cache
def trained_by(spec: str, seed: int) -> tuple[Trained, Any]:
    """A run by a trainer, and the trainer."""
    data, split, _, _ = rows_of(seed)
    options = replace(configured(trainers, spec), seed=seed)
    return train(data, split, ridge=RIDGE, method=options, keep="gradients"), options


def measured(trainer: str, spec: str, seed: int) -> Array:
    """Accuracy, backdoor over others (both in percent), and the distance to retraining, relative to its norm."""
    data, split, test, labels = rows_of(seed)
    run, options = trained_by(trainer, seed)
    material = Material(data, split, options=options)
    if spec == "nothing":
        params = run.params
    else:
        params = unlearn(run, UnlearnRequest.of([LEAVER]), method=spec, material=material).trained_after.params
    again = _retrained(trainer, seed)
    others = labels != 0
    hits = _guess(params, poisoned(test[others])) == 0
    return np.array(
        [
            100 * (_guess(params, test) == labels).mean(),
            100 * hits.mean(),
            np.linalg.norm(params - again) / np.linalg.norm(again),
        ]
    )


@cache
def _retrained(trainer: str, seed: int) -> Array:
    """What plain FedAvg comes to without the poisoned client."""
    data, split, _, _ = rows_of(seed)
    run, options = trained_by(PLAIN, seed)
    material = Material(data, split, options=options)
    found = unlearn(run, UnlearnRequest.of([LEAVER]), method="retrain-fedavg", material=material)
    return found.trained_after.params


def _guess(params: Array, rows: Array) -> Indices:
    return np.asarray((rows @ params[:-1] + params[-1]).argmax(axis=1))


def mean(trainer: str, spec: str) -> Array:
    """The measures, over seeds."""
    return np.asarray(np.mean([measured(trainer, spec, seed) for seed in SEEDS], axis=0))


def cell(found: Array) -> str:
    """Three measures in one cell."""
    return f"{found[0]:.1f} / {found[1]:.1f} / {found[2]:.2f}"


def main() -> None:
    """Print the table, then what the page says of it against its bars."""
    print("| method | as published | as described: accuracy / backdoor / distance | as published |")
    print("|---|---|---|---|")
    print(f"| doing nothing | | {cell(mean(PLAIN, 'nothing'))} | |")
    print(f"| retraining | | {cell(mean(PLAIN, 'retrain-fedavg'))} | |")
    both = {}
    for one in QUIRKS:
        theirs = f"`{one.published}`" if one.other is None else f"`{one.published}` after `{_changes(one)}`"
        ours, other = mean(one.trainer, one.described), mean(one.other or one.trainer, one.published)
        both[one.what] = (ours, other)
        name = one.described.partition(":")[0]
        print(f"| {name} | {one.what}: {theirs} | {cell(ours)} | {cell(other)} |", flush=True)
    for what, measure, bar in BARS:
        ours, other = (float(found[measure]) for found in both[what])
        report(what, other, ours, bar=bar, better="higher" if bar > 1 else "lower")
    finish()


BARS = (
    ("the noisy side is constant", 1, 10.0),
    ("a pull of 5000", 1, 1.3),
    ("radius from random starts", 0, 0.3),
    ("alpha 0.9", 0, 0.3),
    ("takes the retained updates off", 1, 1.1),
    ("a limit without regard to the norm", 2, 5.0),
)
"""What is said of quirks: a measure (accuracy, backdoor, distance) as published over that as described; its bar."""


def _changes(quirk: Quirk) -> str:
    """The options of another training that differ."""
    name = quirk.trainer.partition(":")[0]
    return f"{name}:{(quirk.other or '').removeprefix(quirk.trainer).lstrip(',')}"


if __name__ == "__main__":
    main()
