"""A person inside clients: the rows whose column of the data set has a value."""

from __future__ import annotations

from collections.abc import Container

from probekit.cache import DiskStore
from probekit.custody.columns import matching
from probekit.errors import InputError
from probekit.runs.folder import RunFolder
from probekit.runs.rows import RunRows, rows_at
from probekit.unlearning.request import SampleRef
from probekit.values import EmbeddingSet


def subject_rows(run: RunFolder, store: DiskStore, text: str) -> tuple[SampleRef, ...]:
    """The samples of a person, COLUMN=VALUE, in a run."""
    return RunPeople(run, store).samples(text)


class RunPeople:
    """The people in a run's rows, read once for many questions."""

    def __init__(self, run: RunFolder, store: DiskStore) -> None:
        self.path, self.counts = run.path, run.at().counts
        self.whole, self.now = RunRows(run.embeddings(store), run.partition()), rows_at(run, store)

    def samples(self, text: str) -> tuple[SampleRef, ...]:
        """The samples of a person, COLUMN=VALUE (or VALUE, where the set has one column), each with who holds it.

        A person whom nobody holds, or of whom every row is, is refused. One whose rows were all forgotten before is
        found as long as they are in the cache, so that the same again changes nothing.
        """
        column, value = read_subject(self.whole.embeddings, text)
        found = _held(self.now, column, value, self.counts)
        found = found or _held(self.whole, column, value, self.whole.partition.clients)
        if not found:
            raise InputError(
                f"{column}={value} matches nobody: no row of {self.path} has that value. Values are compared as text, "
                "letter by letter; nothing was changed."
            )
        rows = sum(self.counts.values()) + len(self.now.partition.server)
        if len(found) >= rows:
            raise InputError(
                f"{column}={value} matches everybody: all {rows} rows of {self.path} have that value. Name a column "
                "that tells people apart, or delete the run; nothing was changed."
            )
        return found


def read_subject(embeddings: EmbeddingSet, text: str) -> tuple[str, str]:
    """The column and the value that a text names."""
    known = list(embeddings.columns)
    if not known:
        raise InputError(
            "The set has no column that tells people apart. Extract it again with `column`: rows that are in the cache "
            "are not encoded again."
        )
    column, equals, value = text.partition("=")
    if not equals or (column not in known and len(known) == 1):
        column, value = known[0], text
        if len(known) > 1:
            raise InputError(f"A person is written COLUMN=VALUE; found {text!r}. The columns are {', '.join(known)}.")
    if column not in known:
        raise InputError(f"There is no column {column!r}; the set has {', '.join(known)}.")
    if not value:
        raise InputError(f"A person is written COLUMN=VALUE; found {text!r} without a value.")
    return column, value


def _held(rows: RunRows, column: str, value: str, clients: Container[str]) -> tuple[SampleRef, ...]:
    """Rows with this value that these clients or the server hold; those of the server are named wherever they are."""
    embeddings, partition = rows
    owner: dict[int, str | None] = dict.fromkeys(partition.server.tolist())
    for name, own in partition.clients.items():
        if name in clients:
            owner |= dict.fromkeys(own.tolist(), name)
    found = matching(embeddings.columns[column], value).tolist()
    return tuple(sorted({SampleRef(embeddings.ids[row], owner[row]) for row in found if row in owner}, key=str))
