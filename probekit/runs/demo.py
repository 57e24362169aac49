"""The whole story on scikit-learn's digits: a backdoor learned from one client, and that client forgotten."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probekit.backbones import backbone
from probekit.cache import DiskStore
from probekit.certificates.verify import Evidence, verify
from probekit.datasets import dataset
from probekit.encoding.extract import Progress, extract
from probekit.evaluation.backdoor import trigger
from probekit.evaluation.metrics import USUAL, accuracy
from probekit.models.heads import Head
from probekit.models.serving import predict
from probekit.runs.backdoor import backdoor, retrained_head
from probekit.runs.folder import RunFolder
from probekit.runs.options import TrainOptions
from probekit.runs.training import train_run
from probekit.runs.unlearning import UnlearnOptions, distance, read_request, unlearn_run
from probekit.values import EmbeddingSet

BACKBONE, DATASET, TRIGGER = "packaged:efficientnet-lite0", "packaged:digits", "square:size=2,margin=1"
CLIENTS, POISONED, TARGET, SERVER_SHARE = 5, "4", 0, 0.1
METHODS = {"exact": "statistics", "fedremoval": "gradients", "fedremoval-pcg:10": "gradients"}
"""Each way of forgetting, with what the server has to have kept for it."""


@dataclass(frozen=True)
class Line:
    """One head of the story."""

    head: str
    accuracy: float
    backdoor: float
    distance: float
    bound: float | None
    verified: bool | None
    seconds: float
    warnings: tuple[str, ...] = ()


@dataclass
class Story:
    """What happened, with how long each part took."""

    lines: list[Line] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    encoded: int = 0
    reused: int = 0
    ridge: float = 0.0
    base_rate: float = 0.0
    runs: list[str] = field(default_factory=list)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Note how long a part takes."""
        began = time.perf_counter()
        yield
        self.seconds[what] = round(time.perf_counter() - began, 3)


def tell(store: DiskStore, folder: Path, *, progress: Callable[[str, Progress], None]) -> Story:
    """Extract, train with a poisoned client, see the backdoor work, forget that client in three ways, verify each."""
    story = Story()
    with story.timed("extract"):
        sets = _sets(store, story, progress)
    with story.timed("train"):
        runs = {name: _trained(store, folder / name.partition(":")[0], keep) for name, keep in METHODS.items()}
    story.runs = [str(run.path) for run in runs.values()]
    first = runs["exact"].trained()
    story.ridge = first.ridge
    with story.timed("unlearn and verify"):
        done = {name: _unlearned(store, run, name, sets["test"]) for name, run in runs.items()}
    retrained = retrained_head(runs["exact"], store, runs["exact"].trained())
    judge = _Judge(sets["test"], sets["test-triggered"], retrained)
    story.base_rate = judge.success(retrained)["base rate"]
    story.lines.append(judge.line("poisoned", first.head))
    for name, (head, result) in done.items():
        story.lines.append(judge.line(name, head, **result))
    story.lines.append(judge.line("retrained", retrained))
    return story


def _sets(store: DiskStore, story: Story, progress: Callable[[str, Progress], None]) -> dict[str, EmbeddingSet]:
    """Training and test pictures, as they are and with the trigger."""
    encoder, found = backbone(BACKBONE, device="auto"), {}
    for split in ("train", "test"):
        for name, paste in ((split, None), (f"{split}-triggered", trigger(TRIGGER))):
            last: list[Progress] = []

            def watch(now: Progress, name: str = name, last: list[Progress] = last) -> None:
                last[:] = [now]
                progress(name, now)

            found[name] = extract(encoder, dataset(DATASET, split=split), store=store, trigger=paste, progress=watch)
            store.sets.give_name(f"demo-{name}", found[name].digest)
            story.encoded += last[0].encoded
            story.reused += last[0].reused
    return found


def _trained(store: DiskStore, path: Path, keep: str) -> RunFolder:
    """A run of five clients, the last one poisoned; made anew each time, as it takes a second."""
    options = TrainOptions(
        clients=CLIENTS,
        server_share=SERVER_SHARE,
        view="l2",
        keep=keep,
        poison=POISONED,
        triggered="demo-train-triggered",
        target=TARGET,
    )
    return train_run(path, "demo-train", options, store=store, force=True).run


def _unlearned(store: DiskStore, run: RunFolder, method: str, test: EmbeddingSet) -> tuple[Head, dict[str, Any]]:
    """Forget the poisoned client, then check the certificate from the run's own material and the cached rows."""
    done = unlearn_run(run, store, read_request([POISONED]), UnlearnOptions(method, evaluation=test))
    trained = run.trained()
    embeddings, partition = run.embeddings(store), run.partition()
    rows = {name: held for name, held in partition.clients.items() if name in trained.counts}
    evidence = Evidence(trained.head, statistics=trained.statistics, embeddings=embeddings, rows=rows, evaluation=test)
    checks = verify(done.certificate, evidence)
    assert done.unlearned is not None
    result = {
        "bound": done.certificate.bounds.weights,
        "verified": bool(checks) and all(one.passed for one in checks),
        "seconds": done.unlearned.cost.seconds,
        "warnings": done.unlearned.warnings,
    }
    return trained.head, result


@dataclass(frozen=True)
class _Judge:
    test: EmbeddingSet
    triggered: EmbeddingSet
    retrained: Head

    def success(self, head: Head) -> dict[str, Any]:
        return backdoor(head, self.retrained, self.triggered, target=TARGET, interval=USUAL)

    def line(
        self,
        name: str,
        head: Head,
        *,
        bound: float | None = None,
        verified: bool | None = None,
        seconds: float = 0.0,
        warnings: tuple[str, ...] = (),
    ) -> Line:
        right = accuracy(predict(head, self.test), self.test.labels).value or 0.0
        worked = self.success(head)["head"]["excluding target"]
        return Line(name, right, worked, distance(head, self.retrained), bound, verified, seconds, warnings)
