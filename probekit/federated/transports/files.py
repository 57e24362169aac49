"""Statistics files: what an organization hands over instead of rows.

They hold sums, so nobody is asked anything later, and nothing foreign runs where the rows are.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from probekit.arrays import canonical_json
from probekit.embeddings import EmbeddingSet, Encoding
from probekit.errors import InputError, MismatchError, NotFoundError, WireError
from probekit.federated.federation import LARGEST, check_possible, single_thread
from probekit.files import parse_json, read_limited
from probekit.linear.stats import SufficientStats, normalized
from probekit.records import MAX_HEADER, dump, parse, record

SUFFIX = ".safetensors"
MAX_BYTES = 1 << 31
MIN_CLASS_ROWS = 10
"""A class's sum over fewer rows says too much of each: of one row it is that row."""
NAME = re.compile(r"\w[\w .@+-]{0,199}")
DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", re.ASCII)
ROUNDING = 1e-9


@record("statistics-file/1")
@dataclass(frozen=True, eq=False)
class StatisticsFile:
    """A client's sums, and what they are sums of.

    outputs: names of the classes or targets, also of classes that the client has no row of.
    task: what a head of the rows predicts. encoding: as canonical JSON.
    normalize: what was done to the rows. date: in UTC. checksum: of all the rest, against damage.
    """

    client: str
    stats: SufficientStats
    outputs: tuple[str, ...]
    task: Literal["classes", "labels", "numbers"]
    encoding: str
    normalize: str
    date: str
    federation: str = ""
    checksum: str = ""

    def __post_init__(self) -> None:
        names = [self.client, self.federation or self.client]
        if not all(map(NAME.fullmatch, names)) or not DATE.fullmatch(self.date):
            raise InputError(
                "A statistics file names a client and a date, of letters and digits; found "
                f"{self.client[:99]!r}, {self.federation[:99]!r}, {self.date[:99]!r}. Rename it."
            )
        count = self.stats.targets
        least = 2 if self.task == "classes" else 1
        if not len(set(self.outputs)) == len(self.outputs) == count >= least:
            raise InputError(
                f"Statistics of {count} {self.task} need as many names, {least} or more; found "
                f"{len(self.outputs)}, of which {len(set(self.outputs))} differ. Pass all names "
                "once (--classes)."
            )
        self.read_encoding()
        _check_sums(self.stats, of_classes=self.task == "classes")

    def read_encoding(self) -> Encoding:
        try:
            encoding = Encoding.from_dict(parse_json(self.encoding.encode()))
            is_ours = canonical_json(encoding.to_dict()) == self.encoding
        except (ValueError, TypeError):
            is_ours = False
        if not is_ours:
            raise InputError(
                f"An encoding was expected; found {self.encoding[:99]!r}. Summarize the rows again."
            )
        return encoding

    def to_bytes(self) -> bytes:
        return dump(replace(self, checksum=self._checksum()))

    def _checksum(self) -> str:
        return hashlib.sha256(dump(replace(self, checksum=""))).hexdigest()

    @classmethod
    def read(cls, path: Path) -> Self:
        """The file as it was written; anything else is refused before its sums are used."""
        if not path.exists():
            raise NotFoundError(f"No statistics file {path}. Check the path.")
        content = read_limited(path, MAX_BYTES)
        try:
            file = parse(content, cls, max_bytes=MAX_BYTES)
        except WireError as error:
            raise MismatchError(f"{path} is no readable statistics file: {error}") from error
        if file.checksum != file._checksum() or dump(file) != content:
            raise MismatchError(
                f"{path} is not as it was written: its checksum differs. Ask client "
                f"{file.client} for the file again."
            )
        return file


def is_statistics_file(path: Path) -> bool:
    """Whether a file says of itself that it is one, of any version; the rest is not looked at."""
    if path.suffix != SUFFIX:
        return False
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = file.read(min(size, MAX_HEADER, path.stat().st_size))
    return b"statistics-file" in header


def read_files(paths: Iterable[Path]) -> dict[str, StatisticsFile]:
    """Files by their clients, in order: of one encoding, the same classes, one federation."""
    files: dict[str, StatisticsFile] = {}
    first: StatisticsFile | None = None
    for path in paths:
        file = StatisticsFile.read(path)
        first = first or file
        if file.client in files:
            raise InputError(
                f"Each client has one file; {path} is a second one of {file.client}. Remove one."
            )
        for noun, remedy in DESIGN.items():
            ours, theirs = _design(first)[noun], _design(file)[noun]
            if ours != theirs:
                raise MismatchError(
                    f"{path} must have the {noun} of {first.client}, {_shown(ours)}; it has "
                    f"{_shown(theirs)}. {remedy}"
                )
        files[file.client] = file
    return dict(sorted(files.items()))


DESIGN = {
    "encoding": "Extract the rows alike.",
    "number of columns": "Extract the rows alike.",
    "classes or targets": "Summarize again with --classes, the same for all.",
    "task": "Label the rows alike.",
    "normalization": "Summarize again with the same --normalize.",
    "federation": "Summarize again with the same --federation.",
}
"""What all files share, and what to do where one does not."""


def _design(file: StatisticsFile) -> dict[str, object]:
    values = (
        file.read_encoding().digest,
        file.stats.columns,
        file.outputs,
        file.task,
        file.normalize,
        file.federation,
    )
    return dict(zip(DESIGN, values, strict=True))


def _shown(value: object) -> str:
    text = ", ".join(value) if isinstance(value, tuple) else str(value)
    return text if len(text) < 100 else f"{text[:99]}..."


def summarize(
    rows: EmbeddingSet,
    client: str,
    *,
    classes: Sequence[str] = (),
    normalize: str = "none",
    federation: str = "",
    min_rows: int | None = None,
    min_class_rows: int = MIN_CLASS_ROWS,
) -> StatisticsFile:
    """The sums of the labeled rows; so few that they could be read off the sums are refused.

    classes: the federation's, in its order; rows of others are refused.
    min_rows: as many as columns by default: the sums of fewer are the rows up to a rotation.
    min_class_rows: of every class that has rows; of targets, that are not 0.
    """
    if rows.weights is not None:
        raise InputError("Rows of a statistics file have no weights; these do. Drop them.")
    rows = rows.labeled()
    if classes:
        rows = _with_classes(rows, tuple(classes))
    least = rows.width + 1 if min_rows is None else min_rows
    if len(rows) < least:
        raise InputError(
            f"Statistics hide {least} rows or more; client {client} has {len(rows)}. Add rows, "
            "or lower --min-rows."
        )
    names = rows.class_names if rows.targets is None else rows.target_names
    task, counts = _counts(rows)
    few = [f"{name} ({n})" for name, n in zip(names, counts, strict=True) if 0 < n < min_class_rows]
    if few:
        raise InputError(
            f"Statistics hide {min_class_rows} rows of a class or more; client {client} has fewer "
            f"of {', '.join(few)}. Leave these rows out, or lower --min-class-rows."
        )
    with single_thread():
        stats = SufficientStats.from_rows(normalized(rows, normalize))
    date = datetime.now(UTC).isoformat(timespec="microseconds")
    encoding = canonical_json(rows.encoding.to_dict())
    return StatisticsFile(client, stats, names, task, encoding, normalize, date, federation)


def _with_classes(rows: EmbeddingSet, classes: tuple[str, ...]) -> EmbeddingSet:
    if rows.labels is None:
        raise InputError("Class names are of labels; found targets. Drop --classes.")
    used = {rows.class_names[number] for number in np.unique(rows.labels).tolist()}
    if unknown := sorted(used - set(classes)):
        raise InputError(
            f"Rows are of the given classes; found {', '.join(unknown)}. Add these to --classes, "
            "or leave the rows out."
        )
    return rows.with_classes(classes)


def _counts(rows: EmbeddingSet) -> tuple[Any, list[int]]:
    """The task, and how many rows each sum is about: of 0/1 targets the rarer of the two."""
    if rows.targets is None:
        assert rows.labels is not None
        return "classes", np.bincount(rows.labels, minlength=len(rows.class_names)).tolist()
    ones = np.count_nonzero(rows.targets, axis=0)
    if not np.isin(rows.targets, (0.0, 1.0)).all():
        return "numbers", ones.tolist()
    zeros = len(rows) - ones
    return "labels", np.where(zeros > 0, np.minimum(ones, zeros), ones).tolist()


def _check_sums(stats: SufficientStats, *, of_classes: bool) -> None:
    """Refuse sums that no rows have; a root stays as small as it is."""
    arrays = [stats.root] if stats.root is not None else [stats.gram, stats.moment]
    if not all((np.abs(array) < LARGEST).all() for array in arrays if array is not None):
        raise InputError(f"Sums are numbers below {LARGEST:g}; found others. Check the rows.")
    check_possible(stats)
    if stats.root is None:
        ones = stats.moment[-1]
    else:
        ones = stats.root[:, stats.columns - 1] @ stats.root[:, stats.columns :]
    rounding = ROUNDING * stats.count
    is_counted = stats.weight == stats.count
    if of_classes:
        is_counted &= bool((np.abs(ones - stats.target_squares) <= rounding).all())
        is_counted &= bool(abs(ones.sum() - stats.count) <= rounding)
    if not is_counted:
        raise InputError(
            f"Sums of {stats.count} rows with a class each were expected; found others. "
            "Summarize the rows again."
        )


def sums_digest(stats: SufficientStats) -> bytes:
    """The sha256 of sums."""
    return hashlib.sha256(dump(stats)).digest()
