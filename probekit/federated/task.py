"""What is to be trained: embeddings, who holds them, and the options, checked once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from probekit.errors import InputError, MismatchError, NotFoundError
from probekit.federated.client import client_statistics
from probekit.federated.fedavg import FedAvg
from probekit.federated.trained import NUMBER_BYTES
from probekit.linear.design import ClientStats, Design
from probekit.linear.ridge import CHOLESKY, penalty_of
from probekit.linear.solvers import Solver
from probekit.linear.views import ClassWeight, View
from probekit.registry import nearest
from probekit.values import UNLABELLED, EmbeddingSet, Partition

KEEPS = ("statistics", "gradients", "nothing")
METHODS = ("closed-form", "fedavg", "fedavg:f2l2")


@dataclass(frozen=True)
class ClosedForm:
    """One round: clients send statistics, the server adds them up and solves. The options are the fit's."""

    view: str | View = "none"
    class_weight: ClassWeight = None
    normalise_classes: bool = False
    solver: Solver = CHOLESKY

    @property
    def plain(self) -> bool:
        """Whether the head minimises the clients' mean ridge losses, so that their gradients are its own."""
        return self.view == "none" and self.class_weight is None and not self.normalise_classes


@dataclass(frozen=True)
class Task:
    """What is to be trained, checked. `parts` are the clients' statistics where they are known already."""

    embeddings: EmbeddingSet
    partition: Partition
    design: Design
    ridge: float
    scaling: str
    keep: str
    parts: Mapping[str, ClientStats] | None = None

    @property
    def mean_ridge(self) -> float:
        """The ridge in mean scaling."""
        rows = sum(len(held) for held in self.partition.clients.values())
        return penalty_of(self.ridge, self.scaling, rows) / rows

    @property
    def block(self) -> int:
        """The bytes of one set of parameters, or of one gradient."""
        return self.design.columns * self.design.classes * NUMBER_BYTES

    @property
    def statistics_bytes(self) -> int:
        """The bytes of one client's statistics: a triangle per Gram, the moment and the class counts."""
        grams = self.design.classes if self.design.per_class else 1
        triangle = self.design.columns * (self.design.columns + 1) // 2
        return grams * triangle * NUMBER_BYTES + self.block + self.design.classes * NUMBER_BYTES

    def stream(self) -> Iterator[ClientStats]:
        """The clients' statistics, one at a time."""
        for name, rows in self.partition.clients.items():
            known = self.parts.get(name) if self.parts is not None else None
            yield known if known is not None else client_statistics(self.embeddings, rows, self.design)

    def each(self) -> dict[str, ClientStats]:
        """The clients' statistics, by name."""
        return dict(zip(self.partition.clients, self.stream(), strict=True))


def design_for(
    embeddings: EmbeddingSet,
    *,
    view: str = "raw",
    intercept: str = "penalised",
    arithmetic: str = "float64",
    per_class: bool = False,
    grid: float = 0.0,
) -> Design:
    """The design of these embeddings: their dimension and classes, with these options."""
    classes = len(embeddings.class_names) or int(embeddings.labels.max(initial=UNLABELLED)) + 1
    if classes < 2:
        raise InputError(
            f"A head needs at least two classes to tell apart; this embedding set has {max(classes, 0)}. "
            "Extract a data set with labels of two or more classes."
        )
    return Design(embeddings.dimension, classes, view, intercept, arithmetic, per_class, grid)


def method_named(method: str | ClosedForm | FedAvg) -> ClosedForm | FedAvg:
    """A method by its name, or as it is."""
    if not isinstance(method, str):
        return method
    if method not in METHODS:
        raise NotFoundError(f"There is no training method {method!r}. {nearest(method, list(METHODS))}")
    if method == "closed-form":
        return ClosedForm()
    return FedAvg() if method == "fedavg" else FedAvg.preset(method.partition(":")[2])


def task_of(
    embeddings: EmbeddingSet,
    partition: Partition,
    method: ClosedForm | FedAvg,
    *,
    ridge: float | None,
    scaling: str,
    design: Design | None,
    keep: str | None,
) -> Task:
    """The task, its parts checked against each other."""
    own = method.ridge if isinstance(method, FedAvg) else None
    if ridge is None or (own is not None and own != ridge):
        if ridge is not None or own is None:
            raise InputError(f"Training needs one ridge; found {ridge}, and {own} from the method. Give one number.")
        ridge = own
    keep = keep or ("gradients" if isinstance(method, FedAvg) else "statistics")
    if keep not in KEEPS:
        raise InputError(f"What the server keeps is one of {', '.join(KEEPS)}; found {keep!r}.")
    if keep == "gradients" and isinstance(method, ClosedForm) and not method.plain:
        raise InputError(
            "Gradients belong to a head without view, class weights or normalised classes; this one has "
            "some. "
            'Keep "statistics" or "nothing".'
        )
    weighted = isinstance(method, ClosedForm) and method.class_weight is not None
    design = design or design_for(embeddings, per_class=weighted)
    check_rows(embeddings, partition, design)
    task = Task(embeddings, partition, design, ridge, scaling, keep)
    penalty_of(ridge, scaling, 1.0)
    return task


def check_rows(embeddings: EmbeddingSet, partition: Partition, design: Design) -> None:
    """Refuse rows, clients, labels and a design that do not belong together."""
    _check_sizes(embeddings, partition, design)
    _check_labels(embeddings, partition, design)


def _check_sizes(embeddings: EmbeddingSet, partition: Partition, design: Design) -> None:
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
    if (design.dimension, design.classes) != (wanted.dimension, wanted.classes):
        raise MismatchError(
            f"The design is for {design.dimension} dimensions and {design.classes} classes, the embedding "
            f"set has {wanted.dimension} and {wanted.classes}. Make it with design_for(embeddings)."
        )


def _check_labels(embeddings: EmbeddingSet, partition: Partition, design: Design) -> None:
    labels = embeddings.labels
    unusable = labels == UNLABELLED if embeddings.masked is None else (labels == UNLABELLED) | embeddings.masked
    if unusable.any():
        row = int(np.argmax(unusable))
        raise InputError(
            f"Training needs a label and an embedding for every row; sample {embeddings.ids[row]} (row "
            f"{row}) has none. Leave such rows out with EmbeddingSet.select before the partition."
        )
    held = np.concatenate(list(partition.clients.values()))
    among_clients = np.bincount(labels[held], minlength=design.classes)
    if np.count_nonzero(among_clients) < 2:
        raise InputError(
            "A head needs rows of two or more classes; the clients hold only class "
            f"{int(np.argmax(among_clients))}. Add rows of other classes."
        )
    known = among_clients + np.bincount(labels[partition.server], minlength=design.classes)
    if not known.all():
        number = int(np.argmin(known))
        name = embeddings.class_names[number] if embeddings.class_names else number
        raise InputError(
            f"Every class needs a row; no client and not the server has one of class {name}. Add rows of it, "
            "or extract the data set without that class."
        )
