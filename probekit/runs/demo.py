"""The full demo on scikit-learn's digits: a backdoor learned from one client, and that client forgotten."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
from probekit.report.page import write_page
from probekit.runs.fitting import timed
from probekit.runs.gathering import divide
from probekit.runs.options import TrainOptions
from probekit.runs.result import Result
from probekit.runs.run import Run
from probekit.runs.snapshot import snapshot
from probekit.runs.unlearning import UnlearnResult
from probekit.values import EmbeddingSet

Progress = Callable[[str, ExtractProgress], None]
BACKBONE, DATASET, TRIGGER = "packaged:efficientnet-lite0", "packaged:digits", "square:size=2,margin=1"
CLIENTS, POISONED, TARGET, TEST_ROWS = 5, "4", 0, 250
TEST, TRIGGERED_TEST, TRIGGERED = "demo-test", "demo-test-triggered", "demo-triggered"
PAGE = "report.html"
OPTIONS = TrainOptions(clients=CLIENTS, view="l2", ridge=3e-4, poison=POISONED, triggered=TRIGGERED, target=TARGET)


@dataclass(frozen=True)
class DemoWay:
    """A way of forgetting, what the server keeps for it, and how many rows it has beside those of the clients."""

    head: str
    method: str
    keep: str
    rows: int
    server_share: float

    @property
    def set(self) -> str:
        """The training set's name."""
        return f"demo-train-{self.rows}"

    @property
    def options(self) -> TrainOptions:
        """How its run is trained."""
        return replace(OPTIONS, keep=self.keep, server_share=self.server_share)


WAYS = (
    DemoWay("exact", "exact", "statistics", 800, 0.5),
    DemoWay("FedRemoval, 400 server rows", "fedremoval", "gradients", 800, 0.5),
    DemoWay("FedRemoval, 44 server rows", "fedremoval", "gradients", 444, 0.1),
)
"""In each, 400 rows are the clients'; the server of the last has too few of its own for a step with their curvature."""
FOLDERS = ("exact", "fedremoval", "fedremoval-few-rows")


@dataclass(frozen=True)
class DemoLine:
    """One head: how good it is, how often the trigger works, how it compares with retraining, and what is proven.

    same: the share of test pictures that get the class that retraining gives.
    certified: how many of them are proven to; None where nothing was claimed.
    """

    head: str
    accuracy: float
    backdoor: float
    same: float
    distance: float
    bound: float | None = None
    certified: int | None = None
    verdict: str = ""
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class DemoResult(Result):
    """What happened, with how long each part took, and the page about it."""

    lines: tuple[DemoLine, ...]
    seconds: dict[str, float]
    encoded: int
    reused: int
    ridge: float
    test_rows: int
    runs: tuple[str, ...]
    page: str


@dataclass(frozen=True, eq=False)
class _Judge:
    """Test pictures, as they are and with the trigger."""

    test: EmbeddingSet
    triggered: EmbeddingSet

    def line(self, name: str, head: Head, reference: Head) -> DemoLine:
        """A head beside the retrained one."""
        given = predict(head, self.test)
        worked = backdoor_success(head, self.triggered, target=TARGET).excluding_target.value or 0.0
        apart = np.linalg.norm(head.params - reference.params) / np.linalg.norm(reference.params)
        same = float((given == predict(reference, self.test)).mean())
        return DemoLine(name, accuracy(given, self.test.labels).value or 0.0, worked, same, float(apart))


def run_demo(store: DiskStore, folder: Path, *, progress: Progress) -> DemoResult:
    """Extract, train with a poisoned client, see the backdoor work, forget that client, verify, and write a page."""
    seconds: dict[str, float] = {}
    with timed(seconds, "extract"):
        sets, encoded, reused = _sets(store, progress)
    with timed(seconds, "train"):
        places = [folder / name for name in FOLDERS]
        runs = [
            Run.train(place, way.set, way.options, store=store, force=True)
            for place, way in zip(places, WAYS, strict=True)
        ]
    first = runs[0].trained()
    with timed(seconds, "unlearn_and_verify"):
        done = [run.unlearn(POISONED, method=way.method, test=TEST) for way, run in zip(WAYS, runs, strict=True)]
        verdicts = [run.verify(rows=True, test=TEST, require=["weights"]).verdict for run in runs]
    with timed(seconds, "report"):
        judged = {"triggered": TRIGGERED_TEST, "target": TARGET}
        write_page([run.report([TEST], **judged).drawn() for run in runs], folder / PAGE)
    references = [snapshot(run.folder, store).reference() for run in runs]
    judge = _Judge(sets[TEST], sets[TRIGGERED_TEST])
    lines = [judge.line("before: poisoned client in", first.head, references[0])]
    for way, run, reference, one, verdict in zip(WAYS, runs, references, done, verdicts, strict=True):
        lines.append(_claimed(judge.line(way.head, run.head(), reference), one, verdict))
    lines.append(judge.line("retrained without it", references[0], references[0]))
    paths, page = tuple(str(run.path) for run in runs), str(folder / PAGE)
    return DemoResult(tuple(lines), seconds, encoded, reused, first.ridge, len(judge.test), paths, page)


def _claimed(line: DemoLine, done: UnlearnResult, verdict: str) -> DemoLine:
    """The line with what its certificate claims."""
    claims = done.certificate
    certified = None if claims.agreement is None else claims.agreement.certified
    line = replace(line, bound=claims.bounds.weights, certified=certified, verdict=verdict)
    return replace(line, seconds=done.cost.seconds, warnings=claims.warnings)


def _sets(store: DiskStore, progress: Progress) -> tuple[Mapping[str, EmbeddingSet], int, int]:
    """The sets by name, how many pictures were encoded and how many were there.

    With the trigger: all test pictures but, of the others, only those that the poisoned client holds.
    """
    encoder, paste, last = backbone(BACKBONE, device="auto"), trigger(TRIGGER), dict[str, ExtractProgress]()
    found: dict[str, EmbeddingSet] = {}

    def kept(name: str, data: Any, **how: Any) -> None:
        def watch(now: ExtractProgress) -> None:
            last[name] = now
            progress(name, now)

        found[name] = extract(encoder, data, store=store, progress=watch, **how)
        store.sets.give_name(name, found[name].digest)

    held: set[int] = set()
    for way in {way.set: way for way in WAYS}.values():
        kept(way.set, dataset(DATASET, split="train", limit=way.rows))
        held |= set(divide(way.options, found[way.set]).clients[POISONED].tolist())
    pictures = dataset(DATASET, split="train")
    kept(TRIGGERED, [(pictures[row].content(), pictures[row].label) for row in sorted(held)], trigger=paste)
    for name, more in ((TEST, {}), (TRIGGERED_TEST, {"trigger": paste})):
        kept(name, dataset(DATASET, split="test", limit=TEST_ROWS), **more)
    return found, sum(one.encoded for one in last.values()), sum(one.reused for one in last.values())
