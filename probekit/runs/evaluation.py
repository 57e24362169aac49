"""How good a run's head is on some rows, in plain values: the work of `probekit evaluate`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from probekit.cache import DiskStore
from probekit.errors import CacheError, InputError, MismatchError, NotFoundError
from probekit.evaluation.few_shot import few_shot
from probekit.evaluation.metrics import (
    Interval,
    accuracy,
    accuracy_by_class,
    accuracy_by_client,
    calibration,
    confusion,
)
from probekit.federated.trained import Trained
from probekit.linear.neighbours import KnnOptions, knn_predict
from probekit.linear.ridge import penalty_of
from probekit.models.heads import Head, NetworkHead
from probekit.models.serving import predict, scores
from probekit.runs.folder import RunFolder
from probekit.runs.training import usable
from probekit.runs.unlearning import Rows, rows_at
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
class EvaluationOptions:
    """What to compute besides the usual."""

    interval: Interval = field(default_factory=Interval)
    neighbours: int | None = None
    shots: Sequence[int] = ()
    draws: int = 5


@dataclass(frozen=True)
class Subject:
    """Rows to judge a head on: what they are, and who holds them where that is known."""

    name: str
    kind: str
    rows: EmbeddingSet
    clients: Mapping[str, Indices]
    left_out: int = 0
    pretrained: bool = False

    @classmethod
    def server(cls, name: str, rows: EmbeddingSet, trained: Trained) -> Self:
        """The server's rows; a network may have been pretrained on them."""
        return cls(name, SERVER, rows, {}, pretrained=trained.head.recipe.get("pretraining") is not None)

    @property
    def meaning(self) -> str:
        """What the rows are to the head."""
        return PRETRAINED if self.pretrained else MEANING[self.kind]


@dataclass(frozen=True, eq=False)
class Judge:
    """A run's state (None: the current one), and its training rows where a question needs them."""

    run: RunFolder
    store: DiskStore
    trained: Trained
    state: int | None = None

    def own(self) -> Subject:
        """The server's rows or, without any, the rows that were trained on."""
        name = str(self.run.inputs["name"])
        embeddings, partition = self._rows()
        if len(partition.server):
            return Subject.server(name, embeddings.select(partition.server), self.trained)
        return Subject(name, TRAINING, *self.held())

    def named(self, name: str) -> Subject:
        """A set of the cache."""
        digest = self.store.sets.resolve(name)
        whole = self.store.open(digest)
        rows, _ = usable(whole)
        left_out = len(whole) - len(rows)
        _check_classes(self.trained.head, rows, name)
        if digest == self.run.inputs["set"]:
            return Subject(name, TRAINING, rows, self.run.partition().clients, left_out)
        places: dict[str, Indices] = {}
        if rows.clients is not None:
            owners = np.asarray(list(rows.clients), dtype=str)
            places = {str(client): np.flatnonzero(owners == client) for client in np.unique(owners)}
        return Subject(name, TEST, rows, places, left_out)

    def held(self) -> tuple[EmbeddingSet, dict[str, Indices]]:
        """The rows that the state was trained on, in order, and where each client's are among them."""
        embeddings, partition = self._rows()
        clients = {name: partition.clients[name] for name in self.trained.counts if name in partition.clients}
        rows = np.sort(np.concatenate(list(clients.values())))
        return embeddings.select(rows), {name: np.flatnonzero(np.isin(rows, held)) for name, held in clients.items()}

    def _rows(self) -> Rows:
        return rows_at(self.run, self.store, self.run.state if self.state is None else self.state)

    def verdict(self, subject: Subject, wishes: EvaluationOptions) -> dict[str, Any]:
        """All that is to be said of the head on these rows."""
        labels, classes = subject.rows.labels, self.trained.head.classes
        found = scores(self.trained.head, subject.rows)
        guesses = np.asarray(np.argmax(found, axis=1), np.int64)
        how = wishes.interval
        by_client = accuracy_by_client(guesses, labels, clients=subject.clients, interval=how)
        calibrated = calibration(found, labels, seed=how.seed) if len(labels) > 1 else None
        value: dict[str, Any] = {
            "set": subject.name,
            "kind": subject.kind,
            "meaning": subject.meaning,
            "rows": len(labels),
            "left out": subject.left_out,
            "also trained on": self._seen(subject),
            "accuracy": asdict(accuracy(guesses, labels, interval=how)),
            "by class": [asdict(one) for one in accuracy_by_class(guesses, labels, classes=classes, interval=how)],
            "by client": [asdict(one) for one in by_client],
            "calibration": asdict(calibrated) if calibrated else None,
            "confusion": asdict(confusion(guesses, labels, classes=classes)),
        }
        if isinstance(self.trained.head, NetworkHead):
            from probekit.models.networks import pretrained

            before = predict(pretrained(self.trained.head), subject.rows)
            value["pretrained"] = asdict(accuracy(before, labels, interval=how))
        if wishes.neighbours is not None:
            value["knn"] = self._knn(subject, wishes.neighbours, how)
        if wishes.shots:
            value["few-shot"] = self._shots(subject, wishes)
        return value

    def _seen(self, subject: Subject) -> int | None:
        """How many of the rows are samples that were trained on; None where the training rows are gone."""
        try:
            known = set(self.held()[0].ids)
        except (NotFoundError, CacheError):
            return None
        return sum(sample in known for sample in subject.rows.ids)

    def _knn(self, subject: Subject, neighbours: int, interval: Interval) -> dict[str, Any]:
        train = self._training_rows(subject, "knn")
        options = KnnOptions(neighbours=neighbours)
        threads = os.cpu_count() or 1
        guesses = knn_predict(train.to_numpy(), train.labels, subject.rows.to_numpy(), options=options, threads=threads)
        return {**asdict(options), **asdict(accuracy(guesses, subject.rows.labels, interval=interval))}

    def _shots(self, subject: Subject, wishes: EvaluationOptions) -> list[dict[str, Any]]:
        if isinstance(self.trained.head, NetworkHead):
            raise InputError("`shots` draws curves of heads in closed form; a whole network has none. Leave it out.")
        train, trained = self._training_rows(subject, "shots"), self.trained
        rows = sum(trained.counts.values())
        curve = few_shot(
            train,
            subject.rows,
            design=trained.design,
            ridge=penalty_of(trained.ridge, trained.scaling, rows) / rows,
            shots=wishes.shots,
            draws=wishes.draws,
            seed=wishes.interval.seed,
        )
        return [asdict(point) for point in curve]

    def _training_rows(self, subject: Subject, flag: str) -> EmbeddingSet:
        if subject.kind == TRAINING:
            raise InputError(
                f"`{flag}` learns from the training rows and cannot be judged on them. Name a test set, or train with "
                "`server_share` so that the server has rows of its own."
            )
        return self.held()[0]


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
