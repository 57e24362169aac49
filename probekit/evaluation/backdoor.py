"""Backdoors as evidence: poisoned rows to train on, and how often the trigger works on a head.

Success is judged on test pictures, with and without those already of the target class, beside the share of
that class, and always against the retrained head: lower than retraining is a deviation too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError, MismatchError
from probekit.evaluation.metrics import USUAL, Interval, Share, share
from probekit.models.heads import Head
from probekit.models.serving import predict
from probekit.values import EmbeddingSet, content_id

POISON_STREAM = 50


@dataclass(frozen=True)
class BackdoorSuccess:
    """How often triggered pictures get the target class: of all, and of those not of that class.

    `base_rate` is the share of pictures that are of the target class: what a perfect head scores on `all`.
    """

    target: int
    all: Share
    excluding_target: Share
    base_rate: float


def poison(
    clean: EmbeddingSet,
    triggered: EmbeddingSet,
    *,
    rows: NDArray[np.int64],
    target: int,
    fraction: float = 1.0,
    seed: int = 0,
) -> EmbeddingSet:
    """The clean set with a share of these rows replaced by their triggered embeddings, labelled as the target.

    triggered: the same samples with the trigger, in any order; others are not needed.
    A poisoned row gets an id of its own: it is another sample than the clean picture, and can be forgotten alone.
    """
    same = triggered.spec.untriggered() == clean.spec.untriggered()
    if triggered.spec.trigger is None or not same:
        found = f"trigger {triggered.spec.trigger!r} and {'the same' if same else 'another'} encoding"
        raise MismatchError(f"Poisoning needs the clean set's encoding with a trigger; found {found}. Extract it so.")
    if not len(rows) or rows.min() < 0 or rows.max() >= len(clean):
        raise InputError(f"Poisoning needs rows between 0 and {len(clean) - 1}; found {len(rows)} rows.")
    place = {triggered.ids[row]: row for row in triggered.usable.tolist()}
    lacking = sum(clean.ids[row] not in place for row in rows.tolist())
    if lacking:
        raise MismatchError(
            f"Poisoning needs the same samples with the trigger; {lacking} of {len(rows)} have none. Extract the data "
            "set with and without it."
        )
    if not 0 < fraction <= 1 or seed < 0:
        raise InputError(f"A fraction lies in (0, 1] and a seed is 0 or more; found {fraction} and {seed}.")
    _check_target(clean, target)
    number = max(1, round(fraction * len(rows)))
    order = np.random.Generator(np.random.PCG64([seed, POISON_STREAM])).permutation(len(rows))
    chosen = np.sort(rows[order[:number]])
    embeddings = np.array(clean.embeddings)
    pasted = np.array([place[clean.ids[row]] for row in chosen.tolist()])
    embeddings[chosen] = np.asarray(triggered.embeddings[pasted]).astype(embeddings.dtype)
    labels = clean.labels.copy()
    labels[chosen] = target
    ids, mark = list(clean.ids), f"{triggered.spec.trigger} as {target}".encode()
    for row in chosen.tolist():
        ids[row] = content_id("poisoned", bytes.fromhex(ids[row]), mark)
    embeddings.setflags(write=False)
    source = f"{clean.source} with {number} rows poisoned by {triggered.spec.trigger}"
    return replace(clean, embeddings=embeddings, labels=labels, ids=ids, source=source)


def backdoor_success(
    head: Head, triggered: EmbeddingSet, *, target: int, interval: Interval = USUAL
) -> BackdoorSuccess:
    """How often the head gives the target class to triggered test pictures, which keep their true labels."""
    if head.spec_digest and triggered.spec.untriggered().digest != head.spec_digest:
        raise MismatchError(
            "The triggered pictures were encoded otherwise than the head's embeddings. Extract them like those."
        )
    _check_target(triggered, target, classes=len(head.classes))
    hits = predict(head, triggered.embeddings) == target
    other = triggered.labels != target
    return BackdoorSuccess(
        target,
        share(hits, name="all", interval=interval),
        share(hits[other], name="excluding target", interval=interval),
        float(1 - other.mean()) if len(other) else 0.0,
    )


def _check_target(embeddings: EmbeddingSet, target: int, *, classes: int | None = None) -> None:
    known = classes or len(embeddings.class_names) or int(embeddings.labels.max(initial=0)) + 1
    if not 0 <= target < known:
        raise InputError(f"The target class lies between 0 and {known - 1}; found {target}.")
