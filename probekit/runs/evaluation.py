"""How good a run's head is on some rows, and how well a trigger works on it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from probekit.cache import DiskStore
from probekit.errors import CacheError, InputError, MismatchError, NotFoundError
from probekit.evaluation import metrics
from probekit.evaluation.backdoor import BackdoorSuccess, backdoor_success
from probekit.evaluation.few_shot import FewShot, few_shot
from probekit.evaluation.metrics import Interval, Share, accuracy
from probekit.federated.trained import Trained
from probekit.linear.neighbours import knn_predict
from probekit.linear.ridge import penalty_of
from probekit.models.heads import Head
from probekit.models.serving import predict, scores
from probekit.protocols import Watch, unwatched
from probekit.runs.folder import OpenRun, RunFolder
from probekit.runs.result import Result
from probekit.runs.rows import rows_at, usable
from probekit.runs.set_evaluation import KnnAccuracy, SetEvaluation
from probekit.runs.snapshot import snapshot
from probekit.runs.target_evaluation import TargetEvaluation, judged_targets, targets_of
from probekit.values import EmbeddingSet

TEST, SERVER, TRAINING = "test", "server", "training"
MEANING = {
    TEST: "a set that the head was not trained on",
    SERVER: "the server's own rows: of the run's set, but not trained on",
    TRAINING: "rows that the head WAS trained on: this says how well it fits, not how good it is",
}
PRETRAINED = "the server's own rows, which the network was pretrained on: no client holds them, but they flatter it"
LISTED = 8

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class BackdoorComparison(Result):
    """How well a trigger works on a head, and on the retrained one; the difference is what counts."""

    set: str
    trigger: str | None
    target: int
    base_rate: float
    head: BackdoorSuccess
    retrained: BackdoorSuccess
    difference_to_retraining: float


@dataclass(frozen=True)
class EvaluationResult(Result):
    """The head of a state on every set that was asked for."""

    run: Path
    state: int
    method: str
    head: str
    results: tuple[SetEvaluation, ...]
    backdoor: BackdoorComparison | None = None


@dataclass(frozen=True)
class EvaluationSet:
    """Rows to evaluate a head on: what they are, and who holds them where that is known."""

    name: str
    kind: str
    rows: EmbeddingSet
    clients: Mapping[str, Indices]
    left_out: int = 0
    pretrained: bool = False

    @property
    def meaning(self) -> str:
        """What the rows are to the head."""
        return PRETRAINED if self.pretrained else MEANING[self.kind]


@dataclass(frozen=True, eq=False)
class Evaluator:
    """A run's state (None: the current one), and its training rows where a question needs them."""

    run: RunFolder
    store: DiskStore
    trained: Trained
    state: int | None = None

    def own(self) -> EvaluationSet:
        """The server's rows or, without any, the rows that were trained on."""
        name = str(self.run.inputs["name"])
        if (server := self.run.server_set(self.store)) is not None:
            return EvaluationSet(name, SERVER, server, {}, pretrained=self.trained.problem.knows_server)
        embeddings, partition = rows_at(self.run, self.store, self.state)
        if len(partition.server):
            rows, known = embeddings.select(partition.server), self.trained.problem.knows_server
            return EvaluationSet(name, SERVER, rows, {}, pretrained=known)
        return EvaluationSet(name, TRAINING, *self.held())

    def named(self, name: str) -> EvaluationSet:
        """A set of the cache."""
        digest = self.store.sets.resolve(name)
        whole = self.store.open(digest)
        rows, _ = usable(whole)
        left_out = len(whole) - len(rows)
        _check_classes(self.trained.head, rows, name)
        if digest == self.run.inputs["set"] and "federation" in self.run.inputs:
            return EvaluationSet(name, SERVER, rows, {}, left_out, self.trained.problem.knows_server)
        if digest == self.run.inputs["set"]:
            return EvaluationSet(name, TRAINING, rows, self.run.partition().clients, left_out)
        places: dict[str, Indices] = {}
        if rows.clients is not None:
            owners = np.asarray(list(rows.clients), dtype=str)
            places = {str(client): np.flatnonzero(owners == client) for client in np.unique(owners)}
        return EvaluationSet(name, TEST, rows, places, left_out)

    def held(self) -> tuple[EmbeddingSet, dict[str, Indices]]:
        """The rows that the state was trained on, in order, and where each client's are among them."""
        embeddings, partition = rows_at(self.run, self.store, self.state)
        clients = {name: partition.clients[name] for name in self.trained.counts if name in partition.clients}
        rows = np.sort(np.concatenate(list(clients.values())))
        return embeddings.select(rows), {name: np.flatnonzero(np.isin(rows, held)) for name, held in clients.items()}

    def evaluate(self, subject: EvaluationSet, how: Interval) -> SetEvaluation:
        """Everything about the head on these rows."""
        labels, head = subject.rows.labels, self.trained.head
        if (targets := targets_of(head, subject.rows)) is not None:
            named = {"set": subject.name, "kind": subject.kind, "meaning": subject.meaning, "rows": len(labels)}
            told = judged_targets(head, subject.rows, targets, how)
            more = {"left_out": subject.left_out, "also_trained_on": self._seen(subject)}
            return TargetEvaluation(**named, **more, scores=told)  # type: ignore[arg-type]
        found = scores(head, subject.rows)
        guesses = np.asarray(np.argmax(found, axis=1), np.int64)
        about = (subject.name, subject.kind, subject.meaning, len(labels), subject.left_out, self._seen(subject))
        groups = subject.rows.groups
        by_class = metrics.accuracy_by_class(guesses, labels, classes=head.classes, groups=groups, interval=how)
        by_client = metrics.accuracy_by_client(guesses, labels, clients=subject.clients, interval=how)
        shares = (accuracy(guesses, labels, groups=groups, interval=how), tuple(by_class), tuple(by_client))
        calibration = metrics.calibration(found, labels, seed=how.seed) if len(labels) > 1 else None
        confusion = metrics.confusion(guesses, labels, classes=head.classes)
        return SetEvaluation(*about, *shares, calibration, confusion, self._pretrained(subject, how))

    def _pretrained(self, subject: EvaluationSet, interval: Interval) -> Share | None:
        """How good a network was before any client trained it."""
        problem, head = self.trained.problem, self.trained.head
        if "start" not in problem.traits:
            return None
        before = problem.head(problem.start, ridge=head.ridge, recipe=head.recipe)
        rows = subject.rows
        return accuracy(predict(before, rows), rows.labels, groups=rows.groups, interval=interval)

    def _seen(self, subject: EvaluationSet) -> int | None:
        """How many of the rows are samples that were trained on; None where the training rows are gone."""
        try:
            known = set(self.held()[0].ids)
        except (NotFoundError, CacheError):
            return None
        return sum(sample in known for sample in subject.rows.ids)

    def knn(self, subject: EvaluationSet, neighbours: int, interval: Interval) -> KnnAccuracy:
        """How good a vote of the nearest training rows is."""
        train, rows = self._training_rows(subject, "knn"), subject.rows
        threads = os.cpu_count() or 1
        guesses = knn_predict(train.to_numpy(), train.labels, rows.to_numpy(), neighbours=neighbours, threads=threads)
        return KnnAccuracy(
            neighbours, "cosine", None, accuracy(guesses, rows.labels, groups=rows.groups, interval=interval)
        )

    def few_shot(self, subject: EvaluationSet, shots: Sequence[int], draws: int, seed: int) -> tuple[FewShot, ...]:
        """How good heads of few training rows of every class are."""
        if "statistics" not in self.trained.problem.traits:
            raise InputError("`shots` draws curves of heads in closed form; a whole network has none. Leave it out.")
        train, trained = self._training_rows(subject, "shots"), self.trained
        rows = trained.rows
        ridge, design = penalty_of(trained.ridge, trained.scaling, rows) / rows, trained.problem.design
        return tuple(few_shot(train, subject.rows, design=design, ridge=ridge, shots=shots, draws=draws, seed=seed))

    def _training_rows(self, subject: EvaluationSet, option: str) -> EmbeddingSet:
        if subject.rows.targets is not None:
            raise InputError(
                f"`{option}` judges classes; these rows have several labels or real targets. Leave it out."
            )
        if subject.kind == TRAINING:
            remedy = "Name a test set, or train with `server_share`, so that the server has rows of its own."
            raise InputError(f"`{option}` learns from the training rows and cannot be judged on them. {remedy}")
        return self.held()[0]


def evaluate(
    run: OpenRun,
    *sets: str,
    state: int | None = None,
    knn: int | None = None,
    shots: Sequence[int] = (),
    draws: int = 5,
    triggered: str | None = None,
    target: int = 0,
    confidence: float = 0.95,
    seed: int = 0,
    watch: Watch = unwatched,
) -> EvaluationResult:
    """Accuracy with an interval, per class and client, calibration and confusion on sets of the cache.

    sets: none: the server's rows, else the training rows.
    knn: also a vote of this many nearest training rows.
    shots, draws: also heads of so few training rows of every class, drawn this often.
    triggered, target: also how often a trigger gives this class, here and retrained.
    """
    folder, store, how = run.folder, run.store, Interval(confidence, seed=seed)
    trained = folder.trained(state)
    evaluator = Evaluator(folder, store, trained, state)
    results = []
    for subject in [evaluator.named(name) for name in sets] or [evaluator.own()]:
        near = None if knn is None else evaluator.knn(subject, knn, how)
        few = evaluator.few_shot(subject, shots, draws, seed) if shots else ()
        results.append(replace(evaluator.evaluate(subject, how), knn=near, few_shot=few))
    backdoor = None
    if triggered is not None and "targets" in trained.problem.traits:
        raise InputError("A trigger asks for a class; this head has several labels or real targets. Leave it out.")
    if triggered is not None:
        retrained, pictures = snapshot(folder, store, state).reference(watch), store.open(triggered)
        backdoor = _compare_backdoor(trained.head, retrained, pictures, target=target, interval=how)
    number = run.state if state is None else state
    return EvaluationResult(run.path, number, trained.method, trained.head.digest, tuple(results), backdoor)


def _compare_backdoor(
    head: Head, retrained: Head, triggered: EmbeddingSet, *, target: int, interval: Interval
) -> BackdoorComparison:
    """Success of the trigger on both heads; being lower than retrained is a difference, too."""
    here, there = (backdoor_success(one, triggered, target=target, interval=interval) for one in (head, retrained))
    rates = [one.excluding_target.value for one in (here, there)]
    if rates[0] is None or rates[1] is None:
        raise InputError("Backdoor success needs triggered pictures of other classes than the target; there are none.")
    apart, trigger = abs(rates[0] - rates[1]), triggered.spec.trigger
    return BackdoorComparison(triggered.source, trigger, target, here.base_rate, here, there, apart)


def find_sets(run: RunFolder, store: DiskStore, names: Sequence[str]) -> tuple[list[EvaluationSet], str]:
    """The test sets or, where none is named, the server's rows; or none, and why."""
    evaluator = Evaluator(run, store, run.trained())
    if "targets" in evaluator.trained.problem.traits:
        return [], "Several labels and real targets are judged by `evaluate`: average precision, AUC, R2."
    if names:
        return [evaluator.named(name) for name in dict.fromkeys(names)], ""
    try:
        own = evaluator.own()
    except (NotFoundError, MismatchError) as error:
        return [], f"No test set was named, and the run's own rows are not at hand. {error}"
    if own.kind == TRAINING:
        return [], "No test set was named and the server has no rows of its own. Name a test set."
    return [replace(own, name="the server's rows")], ""


def _check_classes(head: Head, rows: EmbeddingSet, name: str) -> None:
    """Refuse labels that mean other classes than the head's."""
    top = int(rows.labels.max(initial=-1))
    if rows.class_names == head.classes or (not rows.class_names and top < len(head.classes)):
        return
    found = rows.class_names or tuple(map(str, range(top + 1)))
    raise MismatchError(
        f"The labels of {name} mean other classes than this head's. Head: {_listed(head.classes)}. "
        f"Set: {_listed(found)}. Use a set of the same data set, extracted with the same label column."
    )


def _listed(classes: Sequence[str]) -> str:
    more = f", ... ({len(classes)})" if len(classes) > LISTED else ""
    return ", ".join(classes[:LISTED]) + more
