"""The rows of a run: who holds them, and the salted digests by which they are committed.

A row's leaf is the sha256 of its salt, id, role, client, label and embedding. Whoever has the row
and its salt can open the leaf; without the salt it says nothing. Leaves are sorted by value, so
that their order says nothing either.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import TEXT, Array, Ids, Indices, Texts, id_keys, stack_ids
from probekit.embeddings import BLOCK, EmbeddingSet, Encoding, Rows
from probekit.errors import InputError
from probekit.heads import Task
from probekit.records import record
from probekit.rows import PickedRows

TRAINING, TEST, SERVER = range(3)
"""Roles. Test rows belong to client ""; the server's to the client they came from, or to ""."""

SALT_BYTES = 16
SAMPLE = re.compile(r"[0-9a-f]{8,64}", re.ASCII)
"""A sample's id, or at least its first eight digits."""
Bytes = NDArray[np.uint8]
Mask = NDArray[np.bool_]
ClientSets = dict[str, EmbeddingSet]
"""Each client's training rows."""


@record("run/rows")
@dataclass(frozen=True, eq=False)
class RunRows:
    """The rows of a run, by role, then by client, then in the order of the data.

    clients, holders: the clients' names, in order; the number of each row's client.
    outputs: names of the classes or of the targets; labels (n,) or targets (n, k) say which.
    salts: (n, 16), which open the rows' leaves; leaves: their places in the commitment.
    """

    clients: tuple[str, ...]
    holders: Indices
    roles: Bytes
    ids: Ids
    outputs: tuple[str, ...]
    labels: Indices | None
    targets: Array | None
    salts: Bytes
    leaves: Indices

    def __post_init__(self) -> None:
        count = len(self.ids)
        widths = {"ids": (32,), "targets": (len(self.outputs),), "salts": (SALT_BYTES,)}
        wrong = [
            name
            for name, column in self.columns.items()
            if column.shape != (count, *widths.get(name, ()))
        ]
        if wrong or (self.labels is None) == (self.targets is None):
            raise InputError(
                f"A run's {count} rows need every column, and labels or targets; found wrong "
                f"{', '.join(wrong) or 'labels or targets'}. Train again."
            )
        order = self.holders + len(self.clients) * self.roles.astype(np.int64)
        is_right = {
            "clients": _are_numbers(self.holders, self.clients)
            and list(self.clients) == sorted(set(self.clients)),
            "roles": _are_numbers(self.roles, (TRAINING, TEST, SERVER)),
            "labels": self.labels is None or _are_numbers(self.labels, self.outputs),
            "outputs": len(set(self.outputs)) == len(self.outputs),
            "targets": self.targets is None or bool(np.isfinite(self.targets).all()),
            "leaves": len(np.unique(self.leaves)) == count and not (self.leaves < 0).any(),
            "order": not (np.diff(order) < 0).any(),
        }
        if not all(is_right.values()):
            wrong = [name for name, right in is_right.items() if not right]
            raise InputError(
                f"A run's {count} rows need clients in order, each row one of them, a label and a "
                f"leaf of its own; found wrong {', '.join(wrong)}. Train again."
            )

    @classmethod
    def of(cls, rows: EmbeddingSet, *, clients: Texts, roles: Bytes) -> Self:
        """Rows with new salts, not yet committed; the client and the role of each row."""
        count = len(rows)
        names, holders = np.unique(clients, return_inverse=True)
        order = np.lexsort((holders, roles))
        salts = np.frombuffer(secrets.token_bytes(SALT_BYTES * count), np.uint8)
        return cls(
            clients=tuple(names.tolist()),
            holders=holders[order].astype(np.int64),
            roles=roles[order],
            ids=rows.ids[order],
            outputs=rows.class_names if rows.targets is None else rows.target_names,
            labels=None if rows.labels is None else rows.labels[order].astype(np.int64),
            targets=None if rows.targets is None else rows.targets[order],
            salts=salts.reshape(-1, SALT_BYTES),
            leaves=np.arange(count),
        ).take(np.arange(count))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The arrays with an entry for each row."""
        names = ("holders", "roles", "ids", "labels", "targets", "salts", "leaves")
        return {name: vars(self)[name] for name in names if vars(self)[name] is not None}

    @property
    def size(self) -> int:
        """How many rows these stand for."""
        return len(self)

    def same_rows(self, other: RunRows) -> bool:
        """Whether the same clients hold the same rows, whatever the salts."""
        return (
            self.clients == other.clients
            and (self.targets is None) == (other.targets is None)
            and all(
                np.array_equal(self.columns[name], other.columns[name])
                for name in ("holders", "roles", "ids")
            )
            and np.array_equal(self.answers, other.answers)
        )

    @property
    def answers(self) -> Texts | Array:
        """The class's name of each row, or its targets."""
        if self.targets is not None:
            return self.targets
        assert self.labels is not None
        return np.array(self.outputs, TEXT)[self.labels]

    def joined(self, other: RunRows) -> RunRows:
        """These rows and others, of other clients."""
        clients = tuple(sorted({*self.clients, *other.clients}))
        outputs = tuple(dict.fromkeys((*self.outputs, *other.outputs)))
        columns = []
        for part in (self, other):
            holders = _renumbered(part.holders, part.clients, clients)
            columns.append({**part.columns, "holders": holders})
            if part.labels is not None:
                columns[-1]["labels"] = _renumbered(part.labels, part.outputs, outputs)
        joined = {name: np.concatenate([part[name] for part in columns]) for name in columns[0]}
        order = np.lexsort((joined["holders"], joined["roles"]))
        ordered = {name: column[order] for name, column in joined.items()}
        return replace(self, clients=clients, outputs=outputs, **ordered)

    def take(self, rows: Indices | Mask) -> Self:
        """These rows, in their order; without the clients and classes that have none of them."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        used, columns["holders"] = np.unique(columns["holders"], return_inverse=True)
        outputs = self.outputs
        if self.labels is not None:
            classes, columns["labels"] = np.unique(columns["labels"], return_inverse=True)
            outputs = tuple(outputs[number] for number in classes.tolist())
        clients = tuple(self.clients[number] for number in used.tolist())
        return replace(self, clients=clients, outputs=outputs, **columns)

    def held_by(self, clients: Collection[str]) -> Mask:
        """Which rows these clients hold."""
        are_these = np.array([name in clients for name in self.clients], bool)
        return np.asarray(are_these[self.holders])

    def with_ids(self, samples: Collection[str]) -> Mask:
        """Which rows are of these samples (hex ids)."""
        keys = id_keys(stack_ids(bytes.fromhex(sample) for sample in samples))
        return np.isin(id_keys(self.ids), keys)

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of a head that is trained on these rows, or all targets."""
        if self.labels is None:
            return self.outputs
        present = np.unique(self.labels[self.roles == TRAINING])
        return tuple(self.outputs[number] for number in present.tolist())

    @property
    def task(self) -> Task:
        """What a head of these rows predicts."""
        if self.targets is None:
            return "classes"
        is_binary = np.isin(self.targets[self.roles == TRAINING], (0.0, 1.0)).all()
        return "labels" if is_binary else "numbers"

    def counts(self) -> dict[str, int]:
        """How many rows each client trains on."""
        counts = np.bincount(self.holders[self.roles == TRAINING], minlength=len(self.clients))
        pairs = zip(self.clients, counts.tolist(), strict=True)
        return {client: count for client, count in pairs if count}

    def client_sets(self, matrix: Rows, encoding: Encoding, classes: Sequence[str]) -> ClientSets:
        """Each client's training rows; matrix: the embeddings of all of these rows."""
        rows = self.embedding_set(matrix, encoding, classes)
        stop = int((self.roles == TRAINING).sum())
        starts = np.searchsorted(self.holders[:stop], np.arange(len(self.clients) + 1)).tolist()
        spans = zip(self.clients, starts, starts[1:], strict=False)
        return {client: part_of(rows, start, end) for client, start, end in spans if end > start}

    def role_set(
        self, matrix: Rows, encoding: Encoding, classes: Sequence[str], role: int
    ) -> EmbeddingSet | None:
        """The test rows or the server's; a label of no class is -1. None where there are none."""
        rows = self.embedding_set(matrix, encoding, classes)
        start, stop = np.searchsorted(self.roles, [role, role + 1]).tolist()
        return part_of(rows, start, stop) if stop > start else None

    def embedding_set(
        self, matrix: Rows, encoding: Encoding, classes: Sequence[str]
    ) -> EmbeddingSet:
        rows = EmbeddingSet(matrix, self.ids, encoding)
        if self.labels is None:
            return replace(rows, targets=self.targets, target_names=self.outputs)
        return replace(rows, labels=self.labels, class_names=self.outputs).with_classes(classes)


@record("run/file")
@dataclass(frozen=True)
class FileFacts:
    """Of a statistics file: how many rows its sums are of, and its date."""

    rows: int
    date: str


@record("run/files")
@dataclass(frozen=True, eq=False)
class RunFiles(RunRows):
    """Clients of whom only statistics files exist, an entry each; their classes are all outputs.

    ids: the digests of their sums, which stand for embeddings in leaves too. targets: 0.
    kind: what a head predicts. files: by client.
    """

    kind: Task
    files: Mapping[str, FileFacts]

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = [self.files[name].rows for name in self.clients if name in self.files]
        if len(counts) < len(self.clients) or min(counts, default=1) < 1 or self.roles.any():
            raise InputError("Every client of files needs one, with rows. Train again.")

    @property
    def size(self) -> int:
        return sum(self.counts().values())

    def take(self, rows: Indices | Mask) -> Self:
        taken = super().take(rows)
        return replace(taken, files={name: self.files[name] for name in taken.clients})

    def joined(self, other: RunRows) -> RunRows:
        assert isinstance(other, RunFiles)
        with_files = replace(self, files={**self.files, **other.files})
        return super(RunFiles, with_files).joined(other)

    @property
    def task(self) -> Task:
        return self.kind

    def counts(self) -> dict[str, int]:
        return {name: self.files[name].rows for name in self.clients}

    def client_sets(self, matrix: Rows, encoding: Encoding, classes: Sequence[str]) -> ClientSets:
        return {}

    def role_set(
        self, matrix: Rows, encoding: Encoding, classes: Sequence[str], role: int
    ) -> EmbeddingSet | None:
        return None


def commit(rows: RunRows, matrix: Rows) -> tuple[RunRows, Ids]:
    """The rows, and the commitment to them: all leaves, sorted; matrix: embeddings as stored."""
    numbers, commitment = sort_leaves(leaves_of(rows, matrix))
    return replace(rows, leaves=numbers), commitment


def sort_leaves(leaves: Ids) -> tuple[Indices, Ids]:
    """The number of each leaf among the sorted ones, and those."""
    by_value = np.argsort(id_keys(leaves))
    numbers = np.empty(len(leaves), np.int64)
    numbers[by_value] = np.arange(len(leaves))
    return numbers, np.ascontiguousarray(leaves[by_value])


def _are_numbers(column: NDArray[Any], names: Sequence[object]) -> bool:
    return not len(column) or bool(column.min() >= 0 and column.max() < len(names))


def _renumbered(numbers: Indices, old: Sequence[str], new: Sequence[str]) -> Indices:
    """Numbers of some names as numbers of others."""
    number = {name: position for position, name in enumerate(new)}
    return np.array([number[name] for name in old], np.int64)[numbers]


def part_of(rows: EmbeddingSet, start: int, stop: int) -> EmbeddingSet:
    """Some rows of a set, read when they are used."""
    return replace(
        rows,
        rows=PickedRows(rows.rows, np.arange(start, stop)),
        ids=rows.ids[start:stop],
        labels=None if rows.labels is None else rows.labels[start:stop],
        targets=None if rows.targets is None else rows.targets[start:stop],
        columns={name: column[start:stop] for name, column in rows.columns.items()},
    )


def leaf(salt: bytes, sample: bytes, role: int, client: bytes, answer: bytes, row: bytes) -> bytes:
    """The salted digest of one row: what it is, who holds it, its label, its embedding."""
    header = struct.pack("<BII", role, len(client), len(answer))
    return hashlib.sha256(b"".join((salt, sample, header, client, answer, row))).digest()


def leaves_of(rows: RunRows, matrix: Rows) -> Ids:
    """The leaf of every row, in the order of the rows; matrix: their embeddings as stored."""
    clients = [name.encode() for name in rows.clients]
    outputs = [name.encode() for name in rows.outputs]
    leaves = []
    for start in range(0, len(rows), BLOCK):
        block = np.ascontiguousarray(matrix[start : start + BLOCK])
        for number, row in enumerate(block, start):
            if rows.labels is not None:
                answer = outputs[rows.labels[number]]
            else:
                assert rows.targets is not None
                answer = rows.targets[number].tobytes()
            leaves.append(
                leaf(
                    rows.salts[number].tobytes(),
                    rows.ids[number].tobytes(),
                    int(rows.roles[number]),
                    clients[rows.holders[number]],
                    answer,
                    row.tobytes(),
                )
            )
    return stack_ids(leaves)


def fingerprint_of(description: bytes, leaves: Ids) -> str:
    """F: of a run's options (the bytes of run.json) and of all its leaves, sorted."""
    options = hashlib.sha256(description).digest()
    return hashlib.sha256(b"probekit run 1\n" + options + leaves.tobytes()).hexdigest()


def state_fingerprint(fingerprint: str, retained: Ids) -> str:
    """S: of a run's fingerprint and of the leaves of the rows that a state retains, sorted."""
    content = b"probekit state 1\n" + fingerprint.encode() + retained.tobytes()
    return hashlib.sha256(content).hexdigest()
