"""What unlearning did to a head: accuracies, backdoor, membership and distances, beside retraining.

A head that forgot is like the head that never knew. So each number is read beside the retrained
head's own, and being lower than retraining is a deviation too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Array, Indices
from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError
from probekit.evaluation.intervals import ROWS, Estimate, Sampling, share
from probekit.evaluation.metrics import auroc, r2
from probekit.heads import BaseHead
from probekit.objective import Loss, Squares

BEFORE = "before"
AFTER = "after"
RETRAINED = "retrained"
MINIMUM = "minimum"
HEADS = (BEFORE, AFTER, RETRAINED, MINIMUM)
SQUARES = Squares()
UNKNOWN_CLASS = -2

Measures = Mapping[str, Estimate]
"""A head's numbers by name, as far as there are rows for them.

forgotten, retained, test: accuracies (R2 where there are targets). Of a poisoned client's rows, the
    first is how often the backdoor works on the pictures that planted it.
backdoor: how often the trigger gives the target class, over rows of other classes.
backdoor_all: the same over all rows, as the paper counts it.
membership_auc: how well the loss tells forgotten rows from test rows. A poisoned client's rows
    differ from test rows anyway: compare with the retrained head.
"""


@dataclass(frozen=True, eq=False)
class UnlearningRows:
    """What heads are evaluated on.

    training: all rows that are still here, forgotten ones included.
    clients: who held which of them, by number.
    forgotten: whether each of them was forgotten, (n,).
    triggered: test pictures with a backdoor's trigger and their true labels.
    target: the class that the backdoor asks for.
    """

    training: EmbeddingSet
    clients: Mapping[str, Indices]
    forgotten: NDArray[np.bool_]
    test: EmbeddingSet | None = None
    triggered: EmbeddingSet | None = None
    target: str = ""


@dataclass(frozen=True)
class ClientChange:
    """A client's accuracy by each head, over the rows that it held at training."""

    client: str
    rows: int
    is_forgotten: bool
    accuracy: Mapping[str, float]


@dataclass(frozen=True)
class UnlearningEvaluation:
    """The heads before, after, retrained and at the minimum, as far as they are known.

    agreement: of the head after with the retrained one and with the minimum, on test rows.
    distances: from the retrained parameters and from the minimum to each head's, Euclidean.
    """

    heads: Mapping[str, Measures]
    agreement: Mapping[str, Estimate] = field(default_factory=dict)
    distances: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    clients: tuple[ClientChange, ...] = ()

    def minus_retrained(self, name: str) -> dict[str, float]:
        """Each number of a head minus the retrained head's."""
        retrained = self.heads.get(RETRAINED, {})
        return {
            measure: estimate.value - retrained[measure].value
            for measure, estimate in self.heads[name].items()
            if measure in retrained
        }

    def to_dict(self) -> dict[str, Any]:
        heads = {}
        for name, measures in self.heads.items():
            values = {measure: estimate.to_dict() for measure, estimate in measures.items()}
            heads[name] = {**values, "minus_retrained": self.minus_retrained(name)}
        return {
            "heads": heads,
            "agreement": {name: value.to_dict() for name, value in self.agreement.items()},
            "distances": {name: dict(values) for name, values in self.distances.items()},
            "clients": [vars(client) for client in self.clients],
        }


def evaluate_unlearning(
    heads: Mapping[str, BaseHead],
    rows: UnlearningRows,
    *,
    loss: Loss = SQUARES,
    sampling: Sampling = ROWS,
) -> UnlearningEvaluation:
    """heads: by the names in HEADS; loss: what they were trained to minimize."""
    predictions = {name: _predict(head, rows.training) for name, head in heads.items()}
    truth = _truth(rows.training)
    parts = {"forgotten": rows.forgotten, "retained": ~rows.forgotten}
    members = rows.training.take(np.flatnonzero(rows.forgotten))
    evaluations = {}
    for name, head in heads.items():
        predicted = predictions[name]
        measures = {
            part: _agreement(predicted[chosen], truth[chosen], sampling)
            for part, chosen in parts.items()
            if chosen.any()
        }
        if rows.test is not None:
            measures["test"] = quality(head, rows.test, sampling=sampling)
        if rows.triggered is not None:
            measures["backdoor"], measures["backdoor_all"] = backdoor_success(
                head, rows.triggered, target=rows.target, sampling=sampling
            )
        if rows.test is not None and len(members):
            measures["membership_auc"] = membership_auc(
                head, members, rows.test, loss=loss, sampling=sampling
            )
        evaluations[name] = measures
    agreement = {}
    for name in (RETRAINED, MINIMUM):
        if rows.test is not None and AFTER in heads and name in heads:
            agreement[name] = agreement_of(heads[AFTER], heads[name], rows.test, sampling=sampling)
    return UnlearningEvaluation(
        evaluations, agreement, _distances(heads), _clients(predictions, rows)
    )


def quality(head: BaseHead, rows: EmbeddingSet, *, sampling: Sampling = ROWS) -> Estimate:
    """Accuracy; R2 of real targets; of several labels, the share that is right."""
    return _agreement(_predict(head, rows), _truth(rows), sampling)


def agreement_of(
    head: BaseHead, other: BaseHead, rows: EmbeddingSet, *, sampling: Sampling = ROWS
) -> Estimate:
    """The quality of one head where the other's predictions are taken for the truth."""
    return _agreement(_predict(head, rows), _predict(other, rows), sampling)


def backdoor_success(
    head: BaseHead, triggered: EmbeddingSet, *, target: str, sampling: Sampling = ROWS
) -> tuple[Estimate, Estimate]:
    """How often triggered rows get the target class: rows of other classes, and all rows."""
    if triggered.labels is None or target not in triggered.class_names:
        raise InputError(
            f"A backdoor asks for a class of the rows; {target!r} is none of them. Pass another."
        )
    number = triggered.class_names.index(target)
    hits = _predict(head, triggered) == number
    other_classes = triggered.labels != number
    if not other_classes.any():
        raise InputError(
            f"Backdoor success needs rows of other classes than {target!r}; found none. Pass "
            "test pictures of all classes."
        )
    return share(hits[other_classes], sampling.of(other_classes)), share(hits, sampling)


def membership_auc(
    head: BaseHead,
    members: EmbeddingSet,
    nonmembers: EmbeddingSet,
    *,
    loss: Loss = SQUARES,
    sampling: Sampling = ROWS,
) -> Estimate:
    """The area under the ROC curve of the loss attack: members have less loss than others.

    0.5: they are not told apart. Below it they are too, the other way round.
    """
    if not len(members) or not len(nonmembers):
        raise InputError(
            f"An attack needs members and others; found {len(members)} and {len(nonmembers)} rows. "
            "Pass rows of both."
        )
    scores = [loss_scores(head, rows, loss=loss) for rows in (members, nonmembers)]
    is_member = np.arange(len(members) + len(nonmembers)) < len(members)
    return auroc(np.concatenate(scores), is_member, sampling)


def loss_scores(head: BaseHead, rows: EmbeddingSet, *, loss: Loss = SQUARES) -> Array:
    """Minus the loss of each row."""
    targets = rows.targets
    if targets is None:
        # zeros where the head does not know the class; -1, the last name, is no class
        names = np.array([*rows.class_names, None], object)[rows.labels]
        targets = np.asarray(names[:, None] == np.array(head.names, object), np.float64)
    return -loss.values(head.decision(rows), targets)


def _predict(head: BaseHead, rows: EmbeddingSet) -> NDArray[Any]:
    """Predictions in the rows' own numbering of classes."""
    predicted = head.predict(rows)
    if head.task != "classes":
        return predicted
    numbers = {name: number for number, name in enumerate(rows.class_names)}
    renumbered = np.array([numbers.get(name, UNKNOWN_CLASS) for name in head.names])
    return np.asarray(renumbered[predicted])


def _truth(rows: EmbeddingSet) -> NDArray[Any]:
    return rows.target_matrix if rows.labels is None else rows.labels


def _agreement(predicted: NDArray[Any], truth: NDArray[Any], sampling: Sampling) -> Estimate:
    if predicted.dtype.kind == "f":
        return r2(predicted, truth, sampling)
    hits = predicted == truth
    return share(hits.reshape(len(hits), -1).mean(axis=1), sampling)


def _distances(heads: Mapping[str, BaseHead]) -> dict[str, dict[str, float]]:
    """From the retrained head and from the minimum to all others that have the same classes."""
    return {
        reference: {
            name: _distance(head, heads[reference])
            for name, head in heads.items()
            if name != reference and head.names == heads[reference].names
        }
        for reference in (RETRAINED, MINIMUM)
        if reference in heads
    }


def _distance(head: BaseHead, other: BaseHead) -> float:
    return float(np.linalg.norm(head.params - other.params))


def _clients(
    predicted: Mapping[str, NDArray[Any]], rows: UnlearningRows
) -> tuple[ClientChange, ...]:
    if rows.training.labels is None:
        return ()
    hits = {name: predictions == rows.training.labels for name, predictions in predicted.items()}
    return tuple(
        ClientChange(
            client,
            len(indices),
            bool(rows.forgotten[indices].all()),
            {name: float(right[indices].mean()) for name, right in hits.items()},
        )
        for client, indices in rows.clients.items()
        if len(indices)
    )
