"""The rows of a setting: clean ones, the same with the trigger, and test rows apart for tuning and for the tables.

What is encoded stays in the store under a name made of what it is; a benchmark brings its data and falls back on none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from probekit.bench.experiment import BenchSetting, DataPart
from probekit.cache import DiskStore
from probekit.datasets import dataset
from probekit.datasets.installed import SETS, install, read
from probekit.datasets.triggers import trigger
from probekit.errors import InputError, NotFoundError
from probekit.evaluation.backdoor import poison
from probekit.federated.partition import parse_scheme, partition
from probekit.federated.trained import Kept
from probekit.protocols import Dataset, Sample
from probekit.values import EmbeddingSet, Indices, Partition, digest

ROWS_STREAM, CLIENT_STREAM, VALIDATION_STREAM = 70, 71, 72
Note = Callable[[str], None]


class DrawnRows:
    """Some rows of a data set, in an order of their own, with all its classes."""

    def __init__(self, whole: Dataset, rows: Indices) -> None:
        self.whole, self.rows, self.name = whole, rows, f"{whole.name}[{len(rows)} drawn]"
        self.kind, self.class_names = whole.kind, whole.class_names

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Sample:
        return self.whole[int(self.rows[row])]

    def __iter__(self) -> Iterator[Sample]:
        return (self[row] for row in range(len(self)))


@dataclass(frozen=True, eq=False)
class SettingRows:
    """What a setting's clients and tests are made of, before anybody is poisoned. `triggered`: of some rows by name."""

    clean: EmbeddingSet
    test: EmbeddingSet
    test_triggered: EmbeddingSet | None
    triggered: Callable[[Indices], EmbeddingSet]

    @property
    def digest(self) -> str:
        """The sha256 of all that can be read here."""
        sets = [self.clean.digest, self.test.digest]
        return digest([*sets, self.test_triggered.digest if self.test_triggered is not None else None])


@dataclass(frozen=True, eq=False)
class DividedRows:
    """The rows of one seed: divided, one client poisoned, test rows apart from validation rows."""

    embeddings: EmbeddingSet
    partition: Partition
    poisoned: str | None
    test: EmbeddingSet
    validation: EmbeddingSet
    test_triggered: EmbeddingSet | None
    validation_triggered: EmbeddingSet | None
    pairs: Kept | None = None
    """The poisoned client's rows with and without the trigger: what a method that forgets a feature is shown."""


def some_rows(count: int, wanted: float | None, seed: int, first: Indices | None = None) -> Indices:
    """Row numbers: a number or a share of all, drawn at random and in order; all where nothing is wanted."""
    every = np.arange(count) if first is None else first
    if wanted is None:
        return every
    number = round(wanted * len(every)) if wanted <= 1 else round(wanted)
    if not 1 <= number <= len(every):
        raise InputError(f"{number} rows were asked for of {len(every)}. Ask for fewer, or for a share up to 1.")
    if number == len(every):
        return every
    drawn = np.random.Generator(np.random.PCG64([seed, ROWS_STREAM])).permutation(len(every))[:number]
    return every[np.sort(drawn)]


def bring(setting: BenchSetting, store: DiskStore, note: Note = lambda text: None) -> SettingRows:
    """The rows of a setting: opened, or encoded now and kept in the store."""
    data, mark = setting.data, setting.poison.trigger
    if data.cached is not None and data.cached_test is not None:
        return _cached(data, mark, store)
    train_rows, test_rows = _chosen(data, store, note)

    def encoded(rows: Dataset, paste: str = "", some: Indices | None = None) -> EmbeddingSet:
        what = {
            "data": _identity(data),
            "rows": rows.name,
            "trigger": paste,
            "some": None if some is None else some.tolist(),
        }
        name = f"bench-{digest(what)[:24]}"
        try:
            return store.open(name)
        except NotFoundError:
            pass
        picked = rows if some is None else DrawnRows(rows, some)
        note(f"encoding {len(picked)} rows of {rows.name} by {data.backbone}" + (f" with {paste}" if paste else ""))
        from probekit.encoding.extract import extract  # which takes torch along

        more: dict[str, Any] = {"trigger": trigger(paste)} if paste else {}
        found = extract(data.backbone, picked, store=store, note=note, **more)
        store.sets.give_name(name, found.digest)
        return found

    clean, test = encoded(train_rows), encoded(test_rows)
    test_triggered = encoded(test_rows, mark) if mark else None
    return SettingRows(clean, test, test_triggered, lambda some: encoded(train_rows, mark, some))


def _identity(data: DataPart) -> dict[str, Any]:
    names = ("set", "backbone", "split", "test", "rows", "test_rows", "draw")
    return {name: value for name, value in asdict(data).items() if name in names}


def _chosen(data: DataPart, store: DiskStore, note: Note) -> tuple[Dataset, Dataset]:
    """The rows to train on and to test; a well-known set is installed if it is not there."""
    packaged = data.set.removeprefix("packaged:")
    if packaged in SETS:
        install(packaged, store.root, progress=note)

    def split_of(name: str | None) -> Dataset:
        return read(packaged, store.root, split=name) if packaged in SETS else dataset(data.set, split=name)

    whole = split_of(data.split or None)
    if isinstance(data.test, str):
        tests = split_of(data.test)
        train, test = np.arange(len(whole)), np.arange(len(tests))
    else:
        tests = whole
        order = np.random.Generator(np.random.PCG64([data.draw, VALIDATION_STREAM])).permutation(len(whole))
        held = round(data.test * len(whole))
        test, train = np.sort(order[:held]), np.sort(order[held:])
    return (
        DrawnRows(whole, some_rows(0, data.rows, data.draw, train)),
        DrawnRows(tests, some_rows(0, data.test_rows, data.draw, test)),
    )


def _cached(data: DataPart, mark: str, store: DiskStore) -> SettingRows:
    """Sets that a person extracted, or imported, before."""
    clean, test = (store.open(str(name)) for name in (data.cached, data.cached_test))
    clean = clean.select(some_rows(0, data.rows, data.draw, clean.usable))
    test = test.select(some_rows(0, data.test_rows, data.draw, test.usable))
    if not mark:
        return SettingRows(clean, test, None, lambda some: clean)
    if data.cached_triggered is None or data.cached_test_triggered is None:
        raise InputError(
            "A poisoned client of cached sets needs the same rows with the trigger: data.cached_triggered and "
            "data.cached_test_triggered. Extract them with --trigger, or set poison.trigger to an empty text."
        )
    triggered, test_triggered = (store.open(name) for name in (data.cached_triggered, data.cached_test_triggered))
    place = {name: row for row, name in enumerate(test_triggered.ids)}
    absent = [name for name in test.ids if name not in place]
    if absent:
        raise InputError(f"{data.cached_test_triggered} lacks {len(absent)} rows of {data.cached_test}. Extract them.")
    same = test_triggered.select(np.array([place[name] for name in test.ids]))
    return SettingRows(clean, test, same, lambda some: triggered)


def divide(setting: BenchSetting, rows: SettingRows, seed: int) -> DividedRows:
    """The rows of one seed: who holds which, who is poisoned, what is tuned on."""
    who, clean = setting.clients, rows.clean
    counted: Any = {"clients": who.number} if parse_scheme(who.partition).counted else {}
    parts = partition(
        clean.labels, who.partition, **counted, seed=seed, server_share=who.server_share, client_ids=clean.clients
    )
    poisoned, embeddings, pairs = None, clean, None
    if setting.poison.trigger:
        names = sorted(parts.clients)
        poisoned = names[int(np.random.Generator(np.random.PCG64([seed, CLIENT_STREAM])).integers(len(names)))]
        own = parts.clients[poisoned]
        embeddings = poison(clean, rows.triggered(own), rows=own, target=setting.poison.label)
        both = {"with": embeddings.embeddings[own], "without": clean.embeddings[own]}
        arrays = {name: np.array(one, np.float64) for name, one in both.items()}
        pairs = Kept(arrays, about=frozenset({poisoned}))
    order = np.random.Generator(np.random.PCG64([setting.data.draw, VALIDATION_STREAM])).permutation(len(rows.test))
    cut = max(1, round(setting.data.validation * len(order)))
    tuned, judged = np.sort(order[:cut]), np.sort(order[cut:])
    marked = rows.test_triggered
    return DividedRows(
        embeddings,
        parts,
        poisoned,
        rows.test.select(judged),
        rows.test.select(tuned),
        None if marked is None else marked.select(judged),
        None if marked is None else marked.select(tuned),
        pairs,
    )
