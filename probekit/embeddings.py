"""EmbeddingSet: rows, their labels or targets, their ids and columns, and what made them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from probekit.arrays import (
    Array,
    Ids,
    Indices,
    Json,
    Texts,
    canonical_json,
    content_id,
    digest,
    hex_id,
    id_keys,
    stack_ids,
    texts,
)
from probekit.errors import InputError
from probekit.rows import LazyRows, pick_rows
from probekit.rows import Rows as Rows

SCHEMA = 1
"""Raised when equal identities would mean other numbers."""
DTYPES = ("float32", "float16", "float64")
UNLABELED = -1
BLOCK = 4096
SHOWN_ROWS = 3


@dataclass(frozen=True)
class Encoding:
    """What determines the numbers of an embedding.

    backbone: the name as it was typed; not part of the identity (it may be a path or a moving tag).
    identity: weights, resolved configuration, preprocessing, view, precision, trigger; as JSON.
    dtype: how rows are stored.
    sample_shape: of one sample, where rows are flattened samples (`pixels`); else ().
    """

    backbone: str = field(compare=False)
    identity: Mapping[str, Any]
    dtype: str = "float32"
    sample_shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InputError(f"dtype must be one of {', '.join(DTYPES)}; found {self.dtype!r}.")

    @classmethod
    def of_vectors(cls, source: str, width: int, dtype: str) -> Self:
        """The encoding of vectors that come from elsewhere: all of one width are comparable."""
        return cls(source, {"vectors": "imported", "width": width}, dtype)

    @cached_property
    def digest(self) -> str:
        """The key of these embeddings in the cache."""
        key: dict[str, Json] = {"identity": self.identity, "dtype": self.dtype, "schema": SCHEMA}
        return digest(key)

    def same_space(self, other: Encoding) -> bool:
        """Whether embeddings of both can be compared, however they are stored."""
        return canonical_json(self.identity) == canonical_json(other.identity)

    def to_dict(self) -> dict[str, Json]:
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        return msgspec.convert(value, cls)


@dataclass(frozen=True)
class Skipped:
    """A sample that was left out, and why."""

    key: str
    reason: str


@dataclass(frozen=True, eq=False)
class EmbeddingSet:
    """Embeddings in the order of their dataset.

    rows: (n, d), read in blocks; may be memory-mapped.
    ids: (n, 32), the sha256 of each sample's decoded content; equal samples have equal ids.
    labels: class numbers, -1 where a row has none; class_names says what they mean.
    targets: (n, k) real numbers, or 0/1 for several labels; target_names says what they mean.
    weights: multiply each row's loss; None means 1.
    columns: texts by name, (n,) each: `key` (path or row number), `client`, `group`, ...
    source: the dataset as it was asked for.
    """

    rows: Rows
    ids: Ids
    encoding: Encoding
    labels: Indices | None = None
    class_names: tuple[str, ...] = ()
    targets: Array | None = None
    target_names: tuple[str, ...] = ()
    weights: Array | None = None
    columns: Mapping[str, Texts] = field(default_factory=dict)
    source: str = ""
    skipped: tuple[Skipped, ...] = ()

    def __post_init__(self) -> None:
        if len(self.rows.shape) != 2:
            raise InputError(f"Embeddings must have shape (n, d); found {self.rows.shape}.")
        count = len(self.rows)
        arrays: dict[str, Any] = {"ids": self.ids, "labels": self.labels, "targets": self.targets}
        arrays["weights"] = self.weights
        if isinstance(self.columns, dict):  # those of the cache are read when they are asked for
            arrays |= self.columns
        for name, column in arrays.items():
            if column is not None and len(column) != count:
                raise InputError(f"{count} rows need {count} {name}; found {len(column)}.")
        if self.labels is not None and self.targets is not None:
            raise InputError("Rows have labels or targets; found both. Pass one of them.")
        if self.labels is not None and count:
            low, high = int(self.labels.min()), int(self.labels.max())
            if low < UNLABELED or high >= len(self.class_names):
                raise InputError(
                    f"Labels must be 0 to {len(self.class_names) - 1}, or -1 for none; found "
                    f"{low} to {high}. Pass class_names for all of them."
                )

    @classmethod
    def from_numpy(
        cls,
        rows: ArrayLike,
        labels: ArrayLike | None = None,
        *,
        targets: ArrayLike | None = None,
        class_names: Sequence[str] = (),
        target_names: Sequence[str] = (),
        columns: Mapping[str, Sequence[object]] | None = None,
        source: str = "arrays",
    ) -> Self:
        """Vectors that exist already (NumPy, torch, lists); ids are made of their content.

        labels: class numbers or texts; fractions or an (n, k) matrix are taken as targets.
        """
        matrix = as_matrix(rows)
        _check_finite(matrix)
        numbers = target_matrix = None
        names = tuple(class_names)
        values = None if labels is None else as_numpy(labels)
        if targets is None and values is not None and is_real(values):
            targets, values = values, None
        if values is not None:
            numbers, names = number_labels(values, names)
        if targets is not None:
            target_matrix = _as_targets(as_numpy(targets))
            target_names = target_names or [f"target {i}" for i in range(target_matrix.shape[1])]
        return cls(
            rows=matrix,
            ids=vector_ids(matrix),
            encoding=Encoding.of_vectors(source, int(matrix.shape[1]), matrix.dtype.name),
            labels=numbers,
            class_names=names,
            targets=target_matrix,
            target_names=tuple(target_names),
            columns={name: texts(column) for name, column in (columns or {}).items()},
            source=source,
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        what = f"{len(self.class_names)} classes"
        if self.labels is None:
            what = f"{len(self.target_names)} targets" if self.targets is not None else "no labels"
        return f"EmbeddingSet({self.source!r}, {len(self)} x {self.width}, {what})"

    @property
    def width(self) -> int:
        return int(self.rows.shape[1])

    @property
    def weight(self) -> float:
        """The sum of the weights: the number of rows where there are none."""
        return float(len(self)) if self.weights is None else float(self.weights.sum())

    @property
    def row_weights(self) -> Array:
        return np.ones(len(self)) if self.weights is None else self.weights

    @property
    def outputs(self) -> int:
        """k: the number of classes or targets."""
        return len(self.class_names) if self.targets is None else self.targets.shape[1]

    @property
    def target_matrix(self) -> Array:
        """The targets (n, k); labels are one-hot. Take it of blocks, not of a large set."""
        if self.targets is not None:
            return self.targets
        if self.labels is None:
            raise InputError(f"{self.source} has no labels. Pass labels (--labels FILE).")
        matrix = np.zeros((len(self), len(self.class_names)))
        matrix[np.arange(len(self)), self.labels] = 1.0
        return matrix

    @cached_property
    def digest(self) -> str:
        """The sha256 of everything but the source: encoding, ids, labels or targets, columns."""
        hasher = hashlib.sha256(self.encoding.digest.encode())
        hasher.update(np.ascontiguousarray(self.ids).tobytes())
        for array in (self.labels, self.targets, self.weights):
            hasher.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
        columns = {name: list(column.tolist()) for name, column in self.columns.items()}
        hasher.update(
            canonical_json([list(self.class_names), list(self.target_names), columns]).encode()
        )
        return hasher.hexdigest()

    def take(self, indices: Indices) -> Self:
        """These rows, by number or mask; many are not copied but read when they are asked for."""
        if indices.dtype == bool:
            indices = np.flatnonzero(indices)
        columns = {name: column[indices] for name, column in self.columns.items()}
        return replace(self._part(indices), columns=columns)

    def blocks(self, size: int = BLOCK) -> Iterator[Self]:
        """The set in pieces; columns are left out of them."""
        for start in range(0, len(self), size):
            yield self._part(slice(start, min(start + size, len(self))))

    def _part(self, index: Indices | slice) -> Self:
        return replace(
            self,
            rows=self.rows[index] if isinstance(index, slice) else pick_rows(self.rows, index),
            ids=self.ids[index],
            labels=None if self.labels is None else self.labels[index],
            targets=None if self.targets is None else self.targets[index],
            weights=None if self.weights is None else self.weights[index],
            columns={},
            skipped=(),
        )

    def without(self, ids: Collection[str]) -> Self:
        """All rows but those with these ids (hex), all of which must be here."""
        return self.take(np.flatnonzero(~self.has_id(ids)))

    def only(self, ids: Collection[str]) -> Self:
        """The rows with these ids (hex), all of which must be here."""
        return self.take(np.flatnonzero(self.has_id(ids)))

    def has_id(self, ids: Collection[str]) -> NDArray[np.bool_]:
        """Which rows have one of these ids (hex), all of which must be here."""
        unknown = set(ids).difference(hex_id(row) for row in self.ids)
        if unknown:
            raise InputError(f"No row has the id {min(unknown)!r}; {len(self)} rows were searched.")
        wanted = id_keys(stack_ids(bytes.fromhex(sample) for sample in ids))
        return np.isin(id_keys(self.ids), wanted)

    def labeled(self) -> Self:
        """The rows that have a label."""
        if self.labels is None or (self.labels != UNLABELED).all():
            return self
        return self.take(np.flatnonzero(self.labels != UNLABELED))

    def with_classes(self, names: Sequence[str]) -> Self:
        """Labels as numbers of these class names; rows of other classes have none."""
        number = {name: position for position, name in enumerate(names)}
        numbers = [*(number.get(name, UNLABELED) for name in self.class_names), UNLABELED]
        labels = None if self.labels is None else np.array(numbers, np.int64)[self.labels]
        return replace(self, labels=labels, class_names=tuple(names))

    def to_numpy(self) -> NDArray[Any]:
        """The embeddings as one read-only array; no copy where they lie in one file."""
        array = np.asarray(self.rows)
        array.setflags(write=False)
        return array

    def to_torch(self) -> Any:
        import torch

        return torch.from_numpy(np.array(self.rows))

    def to_pandas(self) -> Any:
        """A DataFrame with the ids, labels or targets and columns (not the embeddings)."""
        import pandas

        frame = {"id": [hex_id(row) for row in self.ids]}
        frame |= {name: list(column.tolist()) for name, column in self.columns.items()}
        if self.labels is not None:
            names = np.array([*self.class_names, ""], object)
            frame["label"] = names[self.labels].tolist()
        if self.targets is not None:
            frame |= dict(zip(self.target_names, self.targets.T, strict=True))
        return pandas.DataFrame(frame)


def as_numpy(values: Any) -> NDArray[Any]:
    """Lists, arrays, torch tensors (bfloat16 too), pandas columns and frames as an array."""
    if hasattr(values, "detach"):
        tensor = values.detach().cpu()
        return np.asarray(tensor.float() if "bfloat16" in str(tensor.dtype) else tensor)
    if hasattr(values, "to_numpy"):
        return np.asarray(values.to_numpy())
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InputError(f"Rows of one length were expected; found others ({error}).") from error


def as_matrix(values: Any) -> Rows:
    """Vectors as an (n, d) matrix of a float dtype that we store, contiguous or read in pieces."""
    if isinstance(values, LazyRows) and values.dtype.name in DTYPES:
        return values
    array = as_numpy(values)
    if array.ndim != 2:
        raise InputError(f"Vectors must have shape (n, d); found {array.shape}. Reshape them.")
    if array.dtype.kind == "c":
        raise InputError(f"Vectors must be real; found dtype {array.dtype}. Pass one part of them.")
    if array.dtype.name not in DTYPES:
        try:
            array = array.astype(np.float64 if array.dtype.kind in "iu" else np.float32)
        except (TypeError, ValueError) as error:
            raise InputError(f"Vectors must be numbers; found dtype {array.dtype}.") from error
    return np.ascontiguousarray(array)


def is_real(labels: NDArray[Any]) -> bool:
    """Whether labels are targets: a matrix with several columns, or numbers with fractions."""
    if labels.ndim == 2:
        return True
    if labels.dtype.kind != "f":
        return False
    return not bool((np.isfinite(labels) & (labels == np.round(labels))).all())


def number_labels(
    labels: NDArray[Any], class_names: tuple[str, ...] = ()
) -> tuple[Indices, tuple[str, ...]]:
    """Class numbers and class names of labels that are numbers or texts; texts are sorted."""
    if labels.ndim != 1:
        raise InputError(f"Labels must have shape (n,); found {labels.shape}.")
    if labels.dtype.kind in "iufb":
        numbers = labels.astype(np.int64)
        if class_names:
            return numbers, class_names
        high = int(numbers.max(initial=-1))
        return numbers, tuple(str(number) for number in range(high + 1))
    values = labels.tolist()
    missing = [value is None or value != value or value == "" for value in values]
    present = [value for value, absent in zip(values, missing, strict=True) if not absent]
    if any(isinstance(value, str) for value in present):
        strange = [value for value in present if not isinstance(value, str)]
        if strange:
            raise InputError(
                f"Labels must be all numbers or all texts; found {strange[0]!r} among texts. "
                "Convert them."
            )
    names = class_names or tuple(str(value) for value in sorted(set(present)))
    codes = {name: code for code, name in enumerate(names)}
    unknown = sorted({str(value) for value in present} - codes.keys())
    if unknown:
        raise InputError(f"Label {unknown[0]!r} is not among the class names. Add it to them.")
    coded = [
        UNLABELED if absent else codes[str(value)]
        for value, absent in zip(values, missing, strict=True)
    ]
    return np.array(coded, np.int64), names


def vector_ids(rows: Rows) -> Ids:
    """The ids of vectors, of their content; the same vector in another dtype has the same id."""
    return stack_ids(
        content_id("vector", vector.tobytes())
        for start in range(0, len(rows), BLOCK)
        for vector in np.asarray(rows[start : start + BLOCK], np.float64)
    )


def _as_targets(values: NDArray[Any]) -> Array:
    matrix = np.asarray(values, np.float64)
    matrix = matrix[:, None] if matrix.ndim == 1 else matrix
    bad = np.flatnonzero(~np.isfinite(matrix).all(axis=1))
    if len(bad):
        raise InputError(
            f"Targets must be finite; {len(bad)} rows are not "
            f"(first: {bad[:SHOWN_ROWS].tolist()}). Leave them out, or probe each target alone."
        )
    return matrix


def non_finite_rows(rows: Rows) -> Indices:
    """The rows that hold NaN or infinity; sums of rows are looked at, not every element."""
    bad = []
    for start in range(0, len(rows), BLOCK):
        with np.errstate(all="ignore"):
            sums = np.asarray(rows[start : start + BLOCK]).sum(axis=1, dtype=np.float64)
        bad.append(start + np.flatnonzero(~np.isfinite(sums)))
    return np.concatenate([np.zeros(0, np.int64), *bad])


def _check_finite(matrix: Rows) -> None:
    bad = non_finite_rows(matrix)
    if len(bad):
        raise InputError(
            f"Vectors must be finite; {len(bad)} of {len(matrix)} rows hold NaN or infinity "
            f"(first: {bad[:SHOWN_ROWS].tolist()}). Leave them out (--on-error skip)."
        )
