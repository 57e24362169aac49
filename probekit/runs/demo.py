"""The whole story on scikit-learn's digits: a backdoor learned from one client, and that client forgotten."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from probekit.backbones import backbone
from probekit.cache import DiskStore
from probekit.datasets import dataset
from probekit.encoding.extract import Progress, extract
from probekit.evaluation.backdoor import trigger
from probekit.evaluation.metrics import accuracy
from probekit.models.heads import Head
from probekit.models.serving import predict
from probekit.runs.backdoor import BackdoorComparison, compare_backdoor
from probekit.runs.options import TrainOptions
from probekit.runs.result import Result
from probekit.runs.run import Run
from probekit.runs.snapshot import snapshot
from probekit.values import EmbeddingSet

BACKBONE, DATASET, TRIGGER = "packaged:efficientnet-lite0", "packaged:digits", "square:size=2,margin=1"
CLIENTS, POISONED, TARGET, SERVER_SHARE = 5, "4", 0, 0.1
METHODS = {"exact": "statistics", "fedremoval": "gradients", "fedremoval-pcg:10": "gradients"}
"""Each way of forgetting, with what the server has to have kept for it."""


@dataclass(frozen=True)
class DemoLine:
    """One head: how good it is, how often the trigger works, how far it is from retraining, and what is proven."""

    head: str
    accuracy: float
    backdoor: float
    distance: float
    bound: float | None = None
    verified: bool | None = None
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


def run_demo(store: DiskStore, folder: Path, *, progress: Callable[[str, Progress], None]) -> DemoResult:
    """Extract, train with a poisoned client, see the backdoor work, forget that client in three ways, verify each."""
    seconds: dict[str, float] = {}

    @contextmanager
    def timed(what: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        seconds[what] = round(time.perf_counter() - began, 3)

    with timed("extract"):
        sets, encoded, reused = _sets(store, progress)
    options = {keep: _options(keep) for keep in METHODS.values()}
    with timed("train"):
        runs = {
            name: Run.train(folder / name.partition(":")[0], "demo-train", options[keep], store=store, force=True)
            for name, keep in METHODS.items()
        }
    first = runs["exact"].trained()
    with timed("unlearn_and_verify"):
        done = {name: run.unlearn(POISONED, method=name, test="demo-test") for name, run in runs.items()}
        verified = {name: run.verify(rows=True, test="demo-test").verified for name, run in runs.items()}
    reference = snapshot(runs["exact"].folder, store).reference()
    judge = _Judge(sets["test"], sets["test-triggered"], reference)
    lines = [judge.line("poisoned", first.head)]
    for name, result in done.items():
        assert result.unlearned is not None
        lines.append(
            judge.line(
                name,
                runs[name].head(),
                bound=result.certificate.bounds.weights,
                verified=verified[name],
                seconds=result.unlearned.cost.seconds,
                warnings=result.unlearned.warnings,
            )
        )
    lines.append(judge.line("retrained", reference))
    base_rate = judge.success(reference).base_rate
    paths = tuple(str(run.path) for run in runs.values())
    return DemoResult(tuple(lines), seconds, encoded, reused, first.ridge, base_rate, paths)


def _options(keep: str) -> TrainOptions:
    """Five clients, the last one poisoned."""
    return TrainOptions(
        clients=CLIENTS,
        server_share=SERVER_SHARE,
        view="l2",
        keep=keep,
        poison=POISONED,
        triggered="demo-train-triggered",
        target=TARGET,
    )


def _sets(store: DiskStore, progress: Callable[[str, Progress], None]) -> tuple[dict[str, EmbeddingSet], int, int]:
    """Training and test pictures, as they are and with the trigger; how many were encoded and how many reused."""
    encoder, found, last = backbone(BACKBONE, device="auto"), {}, dict[str, Progress]()
    for split in ("train", "test"):
        for name, paste in ((split, None), (f"{split}-triggered", trigger(TRIGGER))):

            def watch(now: Progress, name: str = name) -> None:
                last[name] = now
                progress(name, now)

            found[name] = extract(encoder, dataset(DATASET, split=split), store=store, trigger=paste, progress=watch)
            store.sets.give_name(f"demo-{name}", found[name].digest)
    return found, sum(one.encoded for one in last.values()), sum(one.reused for one in last.values())


@dataclass(frozen=True)
class _Judge:
    test: EmbeddingSet
    triggered: EmbeddingSet
    retrained: Head

    def success(self, head: Head) -> BackdoorComparison:
        return compare_backdoor(head, self.retrained, self.triggered, target=TARGET)

    def line(
        self,
        name: str,
        head: Head,
        *,
        bound: float | None = None,
        verified: bool | None = None,
        seconds: float = 0.0,
        warnings: tuple[str, ...] = (),
    ) -> DemoLine:
        right = accuracy(predict(head, self.test), self.test.labels).value or 0.0
        worked = self.success(head).head.excluding_target.value or 0.0
        best = self.retrained.params
        apart = float(np.linalg.norm(head.params - best) / np.linalg.norm(best))
        return DemoLine(name, right, worked, apart, bound, verified, seconds, warnings)
