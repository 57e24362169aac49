"""What unlearning did to a head: accuracies, backdoor, agreement and distances, beside retraining.

A head that forgot is like the head that never knew. So each number is read beside the retrained
head's own, and being lower than retraining is a deviation too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Indices
from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError
from probekit.evaluation.intervals import ROWS, Estimate, Sampling, share
from probekit.evaluation.membership import SQUARES, Membership, membership
from probekit.evaluation.metrics import r2
from probekit.heads import Head
from probekit.objective import Loss

BEFORE = "before"
AFTER = "after"
RETRAINED = "retrained"
MINIMUM = "minimum"
HEADS = (BEFORE, AFTER, RETRAINED, MINIMUM)
UNKNOWN_CLASS = -2


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
class HeadEvaluation:
    """One head's numbers; None where there are no such rows.

    forgotten, retained, test: accuracies (R2 where there are targets). Of a poisoned client's rows,
        the first is how often the backdoor works on the pictures that planted it.
    backdoor: how often the trigger gives the target class, over rows of other classes.
    backdoor_all: the same over all rows, as the paper counts it.
    membership: whether forgotten rows are told from test rows. A poisoned client's rows differ from
        test rows anyway: compare with the retrained head.
    """

    forgotten: Estimate | None = None
    retained: Estimate | None = None
    test: Estimate | None = None
    backdoor: Estimate | None = None
    backdoor_all: Estimate | None = None
    membership: Membership | None = None

    @property
    def estimates(self) -> dict[str, Estimate]:
        """What there is, by name."""
        estimates = {
            name: value for name, value in vars(self).items() if isinstance(value, Estimate)
        }
        if self.membership is not None:
            estimates["membership_auc"] = self.membership.auc
        return estimates


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

    agreement: of the head after with the retrained one and with the minimum: the share of test rows
        that get the same class.
    distances: from the retrained parameters and from the minimum to each head's, Euclidean.
    """

    heads: Mapping[str, HeadEvaluation]
    agreement: Mapping[str, Estimate] = field(default_factory=dict)
    distances: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    clients: tuple[ClientChange, ...] = ()

    def minus_retrained(self, name: str) -> dict[str, float]:
        """Each number of a head minus the retrained head's."""
        if RETRAINED not in self.heads:
            return {}
        retrained = self.heads[RETRAINED].estimates
        estimates = self.heads[name].estimates
        return {
            measure: estimate.value - retrained[measure].value
            for measure, estimate in estimates.items()
            if measure in retrained
        }

    def to_dict(self) -> dict[str, Any]:
        heads = {}
        for name, evaluation in self.heads.items():
            estimates = evaluation.estimates
            heads[name] = {
                **{measure: estimate.to_dict() for measure, estimate in estimates.items()},
                "minus_retrained": self.minus_retrained(name),
            }
        return {
            "heads": heads,
            "agreement": {name: value.to_dict() for name, value in self.agreement.items()},
            "distances": {name: dict(values) for name, values in self.distances.items()},
            "clients": [vars(client) for client in self.clients],
        }


def evaluate_unlearning(
    heads: Mapping[str, Head],
    rows: UnlearningRows,
    *,
    loss: Loss = SQUARES,
    sampling: Sampling = ROWS,
) -> UnlearningEvaluation:
    """heads: by the names in HEADS."""
    predictions = {name: _predict(head, rows.training) for name, head in heads.items()}
    forgotten = np.flatnonzero(rows.forgotten)
    retained = np.flatnonzero(~rows.forgotten)
    members = rows.training.take(forgotten)
    evaluations = {}
    for name, head in heads.items():
        evaluation = HeadEvaluation(
            _quality(predictions[name], rows.training, forgotten, sampling),
            _quality(predictions[name], rows.training, retained, sampling),
        )
        if rows.test is not None:
            evaluation = replace(evaluation, test=quality(head, rows.test, sampling=sampling))
        if rows.test is not None and len(members):
            attacked = membership(head, members, rows.test, loss=loss, sampling=sampling)
            evaluation = replace(evaluation, membership=attacked)
        if rows.triggered is not None:
            other_classes, all_rows = backdoor_success(
                head, rows.triggered, target=rows.target, sampling=sampling
            )
            evaluation = replace(evaluation, backdoor=other_classes, backdoor_all=all_rows)
        evaluations[name] = evaluation
    agreement = {}
    for name in (RETRAINED, MINIMUM):
        if rows.test is not None and AFTER in heads and name in heads:
            agreement[name] = agreement_of(heads[AFTER], heads[name], rows.test, sampling=sampling)
    return UnlearningEvaluation(
        evaluations, agreement, _distances(heads), _clients(predictions, rows)
    )


def quality(head: Head, rows: EmbeddingSet, *, sampling: Sampling = ROWS) -> Estimate | None:
    """Accuracy; R2 of real targets; of several labels, the share that is right."""
    return _quality(_predict(head, rows), rows, np.arange(len(rows)), sampling)


def backdoor_success(
    head: Head, triggered: EmbeddingSet, *, target: str, sampling: Sampling = ROWS
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


def agreement_of(
    head: Head, other: Head, rows: EmbeddingSet, *, sampling: Sampling = ROWS
) -> Estimate:
    """The share of rows that get the same class from both; R2 where there are targets."""
    ours, theirs = _predict(head, rows), _predict(other, rows)
    if head.task == "numbers":
        return r2(ours, theirs, sampling)
    return share((ours == theirs).reshape(len(rows), -1).all(axis=1), sampling)


def _predict(head: Head, rows: EmbeddingSet) -> NDArray[Any]:
    """Predictions in the rows' own numbering of classes."""
    predicted = head.predict(rows)
    if head.task != "classes":
        return predicted
    numbers = {name: number for number, name in enumerate(rows.class_names)}
    renumbered = np.array([numbers.get(name, UNKNOWN_CLASS) for name in head.names])
    return np.asarray(renumbered[predicted])


def _quality(
    predicted: NDArray[Any], rows: EmbeddingSet, indices: Indices, sampling: Sampling
) -> Estimate | None:
    if not len(indices):
        return None
    if rows.targets is not None and predicted.dtype.kind == "f":
        return r2(predicted[indices], rows.targets[indices], sampling)
    truth = rows.labels if rows.targets is None else rows.targets
    hits = np.asarray(predicted == truth)[indices]
    return share(hits.reshape(len(indices), -1).mean(axis=1), sampling)


def _distances(heads: Mapping[str, Head]) -> dict[str, dict[str, float]]:
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


def _distance(head: Head, other: Head) -> float:
    weights = np.linalg.norm(head.weights - other.weights)
    return float(np.hypot(weights, np.linalg.norm(head.intercept - other.intercept)))


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
