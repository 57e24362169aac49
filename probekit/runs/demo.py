"""The whole story on scikit-learn's digits: a backdoor learned from one client, and that client forgotten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from probekit.backbones import backbone
from probekit.cache import DiskStore
from probekit.datasets import dataset
from probekit.datasets.triggers import trigger
from probekit.encoding.extract import ExtractProgress, extract
from probekit.evaluation.backdoor import backdoor_success
from probekit.evaluation.metrics import accuracy
from probekit.models.heads import Head
from probekit.models.serving import predict
from probekit.runs.fitting import timed
from probekit.runs.options import TrainOptions
from probekit.runs.result import Result
from probekit.runs.run import Run
from probekit.runs.snapshot import snapshot
from probekit.values import EmbeddingSet

Progress = Callable[[str, ExtractProgress], None]
BACKBONE, DATASET, TRIGGER = "packaged:efficientnet-lite0", "packaged:digits", "square:size=2,margin=1"
CLIENTS, POISONED, TARGET = 5, "4", 0
METHODS = {"exact": "statistics", "fedremoval": "gradients", "fedremoval-pcg:10": "gradients"}
"""Each way of forgetting, with what the server has to have kept for it."""
OPTIONS = TrainOptions(
    clients=CLIENTS, server_share=0.1, view="l2", poison=POISONED, triggered="demo-train-triggered", target=TARGET
)


@dataclass(frozen=True)
class DemoLine:
    """One head: how good it is, how often the trigger works, how far it is from retraining, and what is proven."""

    head: str
    accuracy: float
    backdoor: float
    distance: float
    bound: float | None = None
    proven: str = ""
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class DemoResult(Result):
    """What happened, with how long each part took."""

    lines: tuple[DemoLine, ...]
    seconds: dict[str, float]
    encoded: int
    reused: int
    ridge: float
    base_rate: float
    runs: tuple[str, ...]


def run_demo(store: DiskStore, folder: Path, *, progress: Progress) -> DemoResult:
    """Extract, train with a poisoned client, see the backdoor work, forget that client in three ways, verify each."""
    seconds: dict[str, float] = {}
    with timed(seconds, "extract"):
        sets, encoded, reused = _sets(store, progress)
    with timed(seconds, "train"):
        options = {name: replace(OPTIONS, keep=keep) for name, keep in METHODS.items()}
        places = {name: folder / name.partition(":")[0] for name in METHODS}
        runs = {name: Run.train(places[name], "demo-train", options[name], store=store, force=True) for name in METHODS}
    first = runs["exact"].trained()
    with timed(seconds, "unlearn_and_verify"):
        done = {name: run.unlearn(POISONED, method=name, test="demo-test") for name, run in runs.items()}
        checked = {name: run.verify(rows=True, test="demo-test", require=["weights"]) for name, run in runs.items()}
    reference = snapshot(runs["exact"].folder, store).reference()
    test, triggered = sets["test"], sets["test-triggered"]

    def line(name: str, head: Head) -> DemoLine:
        right = accuracy(predict(head, test), test.labels).value or 0.0
        worked = backdoor_success(head, triggered, target=TARGET).excluding_target.value or 0.0
        apart = np.linalg.norm(head.params - reference.params) / np.linalg.norm(reference.params)
        made, result = DemoLine(name, right, worked, float(apart)), done.get(name)
        if result is None:
            return made
        claims, seconds = result.certificate, result.cost.seconds
        made = replace(made, bound=claims.bounds.weights, proven=checked[name].verdict)
        return replace(made, seconds=seconds, warnings=claims.warnings)

    heads = {"poisoned": first.head, **{name: run.head() for name, run in runs.items()}, "retrained": reference}
    lines, paths = tuple(line(*one) for one in heads.items()), tuple(str(run.path) for run in runs.values())
    base_rate = backdoor_success(reference, triggered, target=TARGET).base_rate
    return DemoResult(lines, seconds, encoded, reused, first.ridge, base_rate, paths)


def _sets(store: DiskStore, progress: Progress) -> tuple[dict[str, EmbeddingSet], int, int]:
    """Training and test pictures, as they are and with the trigger; how many were encoded and how many reused."""
    encoder, found, last = backbone(BACKBONE, device="auto"), {}, dict[str, ExtractProgress]()
    for split in ("train", "test"):
        for name, paste in ((split, None), (f"{split}-triggered", trigger(TRIGGER))):

            def watch(now: ExtractProgress, name: str = name) -> None:
                last[name] = now
                progress(name, now)

            found[name] = extract(encoder, dataset(DATASET, split=split), store=store, trigger=paste, progress=watch)
            store.sets.give_name(f"demo-{name}", found[name].digest)
    return found, sum(one.encoded for one in last.values()), sum(one.reused for one in last.values())
