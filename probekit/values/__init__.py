"""The nouns: frozen values that check themselves once and neither load, save nor print themselves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probekit.errors import InputError
from probekit.values.groups import group_numbers
from probekit.values.identity import DTYPES as DTYPES
from probekit.values.identity import SCHEMA as SCHEMA
from probekit.values.identity import Array as Array
from probekit.values.identity import EncodingSpec as EncodingSpec
from probekit.values.identity import Indices as Indices
from probekit.values.identity import Json as Json
from probekit.values.identity import canonical as canonical
from probekit.values.identity import content_id as content_id
from probekit.values.identity import digest as digest
from probekit.values.identity import frozen as frozen
from probekit.values.identity import one_line as one_line
from probekit.values.targets import LABELS as LABELS
from probekit.values.targets import REAL as REAL
from probekit.values.targets import TARGET as TARGET
from probekit.values.targets import UNLABELLED as UNLABELLED
from probekit.values.targets import check_targets, known_rows, real_targets
from probekit.values.targets import target_kind as target_kind

if TYPE_CHECKING:
    import datasets
    import torch


class Rows(Protocol):
    """An (n, d) matrix that may be an array, a memory map or several of them in a row."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: Any) -> NDArray[Any]: ...
    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> NDArray[Any]: ...


@dataclass(frozen=True)
class Skipped:
    """A sample that could not be encoded, and why."""

    row: int
    name: str
    reason: str


@dataclass(frozen=True)
class EmbeddingSet:
    """Embeddings in dataset order, one label, one sample id and (optionally) one client per row.

    spec: what determined the embeddings.
    embeddings: the (n, d) matrix.
    labels: class numbers (-1: no label), and class_names what they mean.
    ids: of the samples' contents.
    clients, names: whose a row is, and where it came from (a path, a key, a row number).
    masked: rows of samples that could not be encoded; their embeddings are NaN.
    skipped: samples that were left out.
    source: the data set's name.
    columns: by name, salted digests of what a column of the data set says of each row; no part of the set's identity.
    targets: several labels of 0 or 1, or real numbers, (n, k), NaN where unknown; class_names are then their names, and
    labels 0 where a row knows any.
    groups: numbers of what rows belong together (patients, users, videos), which mean the same in all sets of one
    cache, or made in one process; group_column: what says so. No part of the set's identity either.
    """

    spec: EncodingSpec
    embeddings: Rows
    labels: NDArray[np.int64]
    ids: Sequence[str]
    class_names: tuple[str, ...] = ()
    clients: Sequence[str] | None = None
    names: Sequence[str] | None = None
    masked: NDArray[np.bool_] | None = None
    skipped: tuple[Skipped, ...] = ()
    source: str = ""
    columns: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)
    groups: NDArray[np.int64] | None = None
    targets: Array | None = None
    group_column: str = ""

    __repr__ = one_line

    def __post_init__(self) -> None:
        n = len(self.ids)
        if len(self.embeddings.shape) != 2:
            raise InputError(f"Embeddings must be a matrix, one row per sample; found shape {self.embeddings.shape}.")
        told = {name: getattr(self, name) for name in ("embeddings", "labels", "clients", "names", "masked", "groups")}
        for name, column in (told | dict(self.columns)).items():
            if column is not None and len(column) != n:
                raise InputError(f"Each of the {n} samples needs one entry in {name}; found {len(column)}.")
        top = int(self.labels.max(initial=UNLABELLED))
        if int(self.labels.min(initial=UNLABELLED)) < UNLABELLED or (self.class_names and top >= len(self.class_names)):
            raise InputError(
                f"Labels must lie between 0 and {len(self.class_names) - 1} (-1 for none); found "
                f"{int(self.labels.min(initial=0))} to {top}. Give the data set's own class names or fix the labels."
            )
        if self.targets is not None:
            check_targets(self.targets, self.class_names, n)
        for array in (self.labels, self.masked, self.groups):
            if array is not None:
                array.setflags(write=False)

    @classmethod
    def from_numpy(
        cls,
        rows: ArrayLike,
        labels: ArrayLike | None = None,
        *,
        ids: Sequence[Any] | None = None,
        clients: Sequence[Any] | None = None,
        groups: ArrayLike | None = None,
        class_names: Sequence[str] = (),
        source: str = "vectors",
    ) -> EmbeddingSet:
        """Vectors that exist already, as a set: identified by content, stored in the numbers they have.

        rows: an (n, d) matrix of float16, float32 or float64.
        labels: class numbers (-1: none) or names of classes; or real targets: a matrix with a column each (several
        labels are columns of 0 and 1), or one column of fractions. NaN: unknown.
        ids: what the rows are called elsewhere; kept as their names.
        clients, groups: whose a row is, and what rows belong together.
        class_names: what class numbers mean, or the targets' names.
        source: where the vectors come from. Sets of one source are taken to be encoded alike.
        """
        matrix = np.ascontiguousarray(rows)
        if matrix.ndim != 2 or matrix.dtype.name not in DTYPES:
            found = f"{matrix.dtype} of shape {matrix.shape}"
            raise InputError(f"Vectors must be a matrix of {', '.join(DTYPES)}, one row per sample; found {found}.")
        if len(matrix) and not np.isfinite(bad := matrix.sum(axis=1, dtype=np.float64)).all():
            raise InputError(
                f"Row {int(np.argmin(np.isfinite(bad)))} holds NaN or infinity. Leave it out or correct it."
            )
        given = np.full(len(matrix), UNLABELLED) if labels is None else np.asarray(labels)
        targets = real_targets(given)
        if targets is None:
            numbers, names = _numbered(given)
        else:
            numbers, names = known_rows(targets), tuple(map(str, range(targets.shape[1])))
        kind = f"vector {matrix.dtype.name}"
        origin: dict[str, Json] = {"origin": source, "dimension": int(matrix.shape[1])}
        spec = EncodingSpec(f"vectors:{source}", digest({"vectors": source}), origin, "as given", matrix.dtype.name)
        own = [content_id(kind, row.tobytes()) for row in matrix]
        return cls(
            spec=spec,
            embeddings=frozen(matrix.view()),
            labels=numbers,
            ids=own,
            class_names=tuple(class_names) or names,
            clients=None if clients is None else tuple(map(str, clients)),
            names=None if ids is None else tuple(map(str, ids)),
            source=source,
            targets=targets,
            groups=None if groups is None else group_numbers(np.asarray(groups).tolist(), own),
        )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def dimension(self) -> int:
        """The length of one embedding."""
        return int(self.embeddings.shape[1])

    @cached_property
    def digest(self) -> str:
        """The sha256 that names this set: its spec, its samples in order and what is said of them."""
        hasher = hashlib.sha256(self.spec.digest.encode())
        packed = getattr(self.ids, "tobytes", None)  # a million ids one by one take a second
        hasher.update(packed() if packed else bytes.fromhex("".join(self.ids)))
        hasher.update(np.ascontiguousarray(self.labels, dtype="<i8").tobytes())
        masked = [] if self.masked is None else np.flatnonzero(self.masked).tolist()
        said: Json = [list(self.class_names), list(self.clients or ()), list(self.names or ()), masked]
        hasher.update(canonical(said).encode())
        if self.targets is not None:
            hasher.update(b"targets" + np.ascontiguousarray(self.targets, dtype="<f8").tobytes())
        return hasher.hexdigest()

    @property
    def usable(self) -> NDArray[np.int64]:
        """The numbers of the rows that have an embedding."""
        return np.flatnonzero(np.ones(len(self), bool) if self.masked is None else ~self.masked)

    def blocks(self, rows: int = 8192) -> Iterator[NDArray[Any]]:
        """The embeddings, some rows at a time, without copying where the store allows."""
        for start in range(0, len(self), rows):
            yield self.embeddings[start : start + rows]

    def select(self, rows: NDArray[np.int64], *, read: Rows | None = None) -> EmbeddingSet:
        """The set of these rows, in this order; `read` are their embeddings, where there is a better way to them."""
        pick = rows.tolist()
        return replace(
            self,
            embeddings=self.embeddings[rows] if read is None else read,
            labels=self.labels[rows],
            ids=[self.ids[i] for i in pick],
            clients=None if self.clients is None else tuple(self.clients[i] for i in pick),
            names=None if self.names is None else [self.names[i] for i in pick],
            masked=None if self.masked is None else self.masked[rows],
            skipped=(),
            columns={name: column[rows] for name, column in self.columns.items()},
            groups=None if self.groups is None else self.groups[rows],
            targets=None if self.targets is None else self.targets[rows],
        )

    def to_numpy(self) -> NDArray[Any]:
        """The embeddings as one read-only array; no copy where they lie in one piece."""
        array = np.asarray(self.embeddings)
        array.setflags(write=False)
        return array

    def to_torch(self) -> torch.Tensor:
        """The embeddings as a tensor of their own (torch has no read-only tensors)."""
        import torch

        return torch.from_numpy(np.array(self.embeddings))

    def to_dataset(self) -> datasets.Dataset:
        """A Hugging Face dataset with columns `id`, `embedding`, `label` and, where known, `client_id` and `name`."""
        import datasets

        columns: dict[str, Any] = {"id": list(self.ids), "embedding": self.to_numpy(), "label": self.labels}
        texts = {"client_id": self.clients, "name": self.names}
        columns |= {name: list(column) for name, column in texts.items() if column is not None}
        kinds: dict[str, Any] = dict.fromkeys(columns, datasets.Value("string"))
        if self.targets is not None:
            named = {f"{TARGET}{name}": number for number, name in enumerate(self.class_names)}
            columns |= {name: self.targets[:, number] for name, number in named.items()}
            kinds |= dict.fromkeys(named, datasets.Value("float64"))
        kinds["embedding"] = datasets.List(datasets.Value(str(self.embeddings.dtype)), length=self.dimension)
        classes = self.class_names if self.targets is None else ()
        label = datasets.ClassLabel(names=list(classes)) if classes else datasets.Value("int64")
        return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds | {"label": label}))


def _numbered(labels: NDArray[Any]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Class numbers and, where labels are texts, the names of the classes in their order."""
    if labels.dtype.kind in "OUS":
        if missing := [label for label in labels.tolist() if not isinstance(label, str)]:
            raise InputError(f"Labels must be class numbers or texts; found {missing[0]!r} among the texts.")
        names, numbers = np.unique(labels.astype(str), return_inverse=True)
        return numbers.astype(np.int64), tuple(names.tolist())
    if labels.dtype.kind not in "iubf":
        raise InputError(f"Labels must be class numbers, texts or real numbers; found {labels.dtype}.")
    return labels.astype(np.int64), ()


@dataclass(frozen=True)
class Partition:
    """Row numbers: which rows each client holds and which the server. Disjoint, and together all rows.

    clients, server: row numbers. rows: how many there are. scheme, seed: how they were divided.
    """

    clients: Mapping[str, NDArray[np.int64]]
    server: NDArray[np.int64]
    rows: int
    scheme: str
    seed: int

    __repr__ = one_line

    def __post_init__(self) -> None:
        held = np.concatenate([self.server, *self.clients.values()])
        if len(held) != self.rows or not np.array_equal(np.sort(held), np.arange(self.rows)):
            raise InputError(
                f"A partition must give each of the {self.rows} rows to exactly one client or the server; "
                f"found {len(held)} entries, {len(np.unique(held))} of them different."
            )
        for array in (self.server, *self.clients.values()):
            array.setflags(write=False)

    @property
    def digest(self) -> str:
        """The sha256 that names this division of the rows."""
        hasher = hashlib.sha256(str(self.rows).encode())
        for name, held in sorted([("", self.server), *((f"client {c}", r) for c, r in self.clients.items())]):
            hasher.update(name.encode() + b"\0" + np.ascontiguousarray(held, dtype="<i8").tobytes())
        return hasher.hexdigest()
