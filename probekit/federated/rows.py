"""Whether rows, clients, labels and a problem belong together, and the problem of a head of some rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from probekit.errors import InputError, MismatchError
from probekit.linear.design import Design
from probekit.linear.targets import TargetDesign
from probekit.models.linear_problem import HeadProblem
from probekit.models.problem import class_count
from probekit.models.target_problem import kind_of
from probekit.values import UNLABELLED, EmbeddingSet, Indices, Partition, target_kind


def head_problem(embeddings: EmbeddingSet, design: Design) -> HeadProblem:
    """The problem of a head of these embeddings."""
    return kind_of(design)(design, embeddings.class_names, embeddings.spec.digest)


def design_for(embeddings: EmbeddingSet, **options: Any) -> Design:
    """The design of these embeddings: their dimension and classes, with other fields of `Design` as options."""
    classes = class_count(embeddings)
    if embeddings.targets is not None:
        return TargetDesign(embeddings.dimension, classes, **options, targets=target_kind(embeddings.targets))
    if classes < 2:
        raise InputError(
            f"A head needs at least two classes to tell apart; this embedding set has {max(classes, 0)}. "
            "Extract a data set with labels of two or more classes."
        )
    return Design(embeddings.dimension, classes, **options)


def check_rows(embeddings: EmbeddingSet, partition: Partition, problem: Any) -> None:
    """Refuse rows, clients, labels and a problem that do not belong together."""
    if partition.rows != len(embeddings):
        raise MismatchError(
            f"The partition divides {partition.rows} rows, the embedding set has {len(embeddings)}. Use the "
            "set that the partition was made from."
        )
    if not partition.clients:
        raise InputError("Training needs at least one client; the partition has none.")
    for name, rows in partition.clients.items():
        if not len(rows):
            raise InputError(f"Every client needs a row; client {name} has none. Leave it out of the partition.")
    wanted = design_for(embeddings)
    design = getattr(problem, "design", wanted)
    if embeddings.targets is not None and "targets" not in problem.traits:
        raise InputError("Several labels and real targets are trained in closed form; this method wants classes.")
    if isinstance(design, TargetDesign) != (embeddings.targets is not None):
        raise MismatchError("Real targets and classes are different problems. Make one with design_for(embeddings).")
    if (design.dimension, design.classes) != (wanted.dimension, wanted.classes):
        raise MismatchError(
            f"The design is for {design.dimension} dimensions and {design.classes} classes, the embedding "
            f"set has {wanted.dimension} and {wanted.classes}. Make it with design_for(embeddings)."
        )
    _check_labels(embeddings, partition, wanted.classes)


def _check_targets(embeddings: EmbeddingSet, partition: Partition) -> None:
    """Refuse a target that no client knows."""
    assert embeddings.targets is not None
    known = ~np.isnan(embeddings.targets[np.concatenate(list(partition.clients.values()))])
    if not known.any(axis=0).all():
        name = embeddings.class_names[int(np.argmin(known.any(axis=0)))]
        raise InputError(
            f"Every target needs a row that knows it; no client has one for {name}. Leave that target out."
        )


def check_classes(counts: Indices, names: Sequence[str], *, own: Indices) -> None:
    """Refuse clients whose rows, by these counts of classes, do not make a head; `own` are the labels of the server."""
    if np.count_nonzero(counts) < 2:
        raise InputError(
            "A head needs rows of two or more classes; the clients hold only class "
            f"{int(np.argmax(counts))}. Add rows of other classes."
        )
    known = counts + np.bincount(own, minlength=len(counts))
    if not known.all():
        number = int(np.argmin(known))
        name = names[number] if names else number
        raise InputError(
            f"Every class needs a row; no client and not the server has one of class {name}. Add rows of it, "
            "or extract the data set without that class."
        )


def _check_labels(embeddings: EmbeddingSet, partition: Partition, classes: int) -> None:
    labels, masked = embeddings.labels, embeddings.masked
    unusable = (labels == UNLABELLED) | (False if masked is None else masked)
    if unusable.any():
        row = int(np.argmax(unusable))
        raise InputError(
            f"Training needs a label and an embedding for every row; sample {embeddings.ids[row]} (row "
            f"{row}) has none. Leave such rows out with EmbeddingSet.select before the partition."
        )
    if embeddings.targets is not None:
        _check_targets(embeddings, partition)
        return
    among_clients = np.bincount(labels[np.concatenate(list(partition.clients.values()))], minlength=classes)
    check_classes(among_clients, embeddings.class_names, own=labels[partition.server])
