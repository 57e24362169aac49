"""What a person means by DATA: a cached set, a path, a name with a scheme, or objects in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from probekit.arrays import texts
from probekit.cache import Cache
from probekit.cache.erasure import without_erased
from probekit.data import DataOptions, read_dataset
from probekit.data.packaged import NAMES
from probekit.data.pictures import describe
from probekit.data.splits import choose_split, sort_splits, split_role
from probekit.embeddings import EmbeddingSet, as_numpy
from probekit.errors import InputError, NotFoundError
from probekit.extraction.extract import (
    ExtractOptions,
    erased_note,
    extract_dataset,
    open_backbone,
    set_name,
    source_text,
)
from probekit.extraction.vectors import (
    VectorOptions,
    VectorSets,
    is_vector_file,
    read_arrays,
    read_vector_frame,
    read_vectors,
)
from probekit.progress import Progress, silent
from probekit.registry import DATASETS, nearest

AMBIGUOUS = (".csv", ".parquet", ".jsonl", ".npz")
"""Files of vectors, or of pictures and texts where a backbone is given."""


@dataclass(frozen=True)
class RowSplits:
    """Rows to fit on, to choose by and to evaluate on, of one encoding."""

    train: EmbeddingSet
    validation: EmbeddingSet | None = None
    test: EmbeddingSet | None = None
    notes: tuple[str, ...] = ()

    @property
    def by_role(self) -> dict[str, EmbeddingSet]:
        """Those that are there."""
        sets = {"train": self.train, "validation": self.validation, "test": self.test}
        return {role: rows for role, rows in sets.items() if rows is not None}


def read_rows(
    source: object,
    *,
    cache: Cache,
    backbone: object | None = None,
    test: object | None = None,
    groups: object | None = None,
    data: DataOptions | None = None,
    options: ExtractOptions | None = None,
    vectors: VectorOptions | None = None,
    progress: Progress = silent,
) -> list[RowSplits]:
    """The rows that `source` means, one RowSplits for each view of the backbone.

    Texts are looked for among cached sets, then among paths, then as names with a scheme.
    test: rows or data to evaluate on, read the same way; groups: a value for each row in memory.
    """
    split = None if data is None else data.split
    rows = _encoded_rows(source, cache, backbone, vectors, split)
    if rows is not None:
        parts = [rows]
    elif backbone is not None:
        data = data or DataOptions()
        options = options or ExtractOptions()
        parts = _encode_splits(source, backbone, cache, data, options, progress)
    else:
        if isinstance(source, str | Path) and Path(source).expanduser().exists():
            read_dataset(source, data)  # says so where it is none
        raise InputError(
            f"{_described(source)} must be encoded, or be vectors of shape (n, d): pass a backbone "
            "(-b packaged:efficientnet-lite0, -b open_clip:ViT-B-32/laion2b_s34b_b79k)."
        )
    if groups is not None:
        parts = [replace(part, train=_with_group(part.train, groups)) for part in parts]
    if rows is not None:
        parts = [_without_erased(part, cache) for part in parts]
    if test is None:
        return parts
    test_parts = read_rows(
        test,
        cache=cache,
        backbone=backbone,
        data=None if data is None else replace(data, split=None),
        options=options,
        vectors=vectors,
        progress=progress,
    )
    if len(test_parts) != len(parts):
        raise InputError(f"{test} has {len(test_parts)} encodings; {source} has {len(parts)}.")
    return [
        replace(part, test=held_out.test or held_out.train, notes=(*part.notes, *held_out.notes))
        for part, held_out in zip(parts, test_parts, strict=True)
    ]


def is_encoded(source: object, cache: Cache) -> bool:
    """Whether a source needs no backbone: objects in memory, a cached set, a file of vectors."""
    if not isinstance(source, str | Path):
        return True
    path = Path(source).expanduser()
    is_cached = str(source) in cache or bool(_split_names(str(source), cache))
    return is_cached or (path.exists() and is_vector_file(path))


def _without_erased(part: RowSplits, cache: Cache) -> RowSplits:
    """Rows that were erased from the cache stay out, wherever they come from."""
    split = {role: without_erased(cache, rows) for role, rows in part.by_role.items()}
    count = sum(erased for _, erased in split.values())
    if not count:
        return part
    remaining = {role: rows for role, (rows, _) in split.items()}
    return RowSplits(notes=(*part.notes, erased_note(count, cache)), **remaining)


def _with_group(rows: EmbeddingSet, groups: object) -> EmbeddingSet:
    values = texts(as_numpy(groups).tolist())
    if len(values) != len(rows):
        raise InputError(
            f"groups must have a value for each of {len(rows)} rows; found {len(values)}. Pass all."
        )
    return replace(rows, columns={**rows.columns, "group": values})


def _encoded_rows(
    source: object,
    cache: Cache,
    backbone: object | None,
    vectors: VectorOptions | None,
    split: str | None,
) -> RowSplits | None:
    """Rows that need no backbone; None where the source is to be encoded."""
    if isinstance(source, RowSplits):
        return source
    if isinstance(source, EmbeddingSet):
        return RowSplits(source)
    if not isinstance(source, str | Path):
        if isinstance(source, Mapping) and backbone is None:
            rows = _mapping_in_memory(source, vectors, split)
        else:
            rows = _rows_in_memory(source)
        if rows is None and backbone is None and hasattr(source, "iloc"):
            return _by_role(read_vector_frame(source, vectors), split)
        title = "vectors in memory"
    else:
        title = str(source)
        path = Path(title).expanduser()
        rows = _cached_rows(title, cache, split)
        may_be_vectors = backbone is None or path.suffix.lower() not in AMBIGUOUS
        if rows is None and may_be_vectors and is_vector_file(path):
            rows = _by_role(read_vectors(path, vectors), split)
        elif rows is None and not path.exists() and title.partition(":")[0] not in DATASETS.names():
            raise _not_found(title, cache)
    if rows is not None and backbone is not None:
        raise InputError(f"{title}: encoded already, a backbone cannot be applied. Drop -b.")
    return rows


def _cached_rows(title: str, cache: Cache, split: str | None) -> RowSplits | None:
    """The cached set of this name, or those of its splits, as `import` keeps them."""
    if title in cache:
        stored = cache.open(title)
        return RowSplits(stored, notes=(f"{title}: a cached set ({stored.source}).",))
    names = _split_names(title, cache)
    if not names:
        return None
    note = f"{title}: the cached sets {', '.join(names.values())}."
    return _by_role(({name: cache.open(names[name]) for name in names}, (note,)), split)


def _split_names(title: str, cache: Cache) -> dict[str, str]:
    """The cached sets TITLE-train, TITLE-test, and so on, by split; training first."""
    prefix = f"{title}-"
    names = {name.removeprefix(prefix): name for name in cache.names() if name.startswith(prefix)}
    return {split: names[split] for split in sort_splits(names) if split_role(split)}


def _rows_in_memory(source: object) -> RowSplits | None:
    """(X, y) or X, where X is a matrix of numbers or a list of vectors."""
    X, labels = source if isinstance(source, tuple) and len(source) == 2 else (source, None)
    if isinstance(X, list) and X and isinstance(X[0], list | np.ndarray):
        X = as_numpy(X)
    if getattr(X, "ndim", 0) != 2:
        return None
    matrix = as_numpy(X)
    if matrix.dtype.kind not in "fiub":
        return None
    return RowSplits(EmbeddingSet.from_numpy(matrix, labels))


def _mapping_in_memory(
    source: Mapping[str, object], vectors: VectorOptions | None, split: str | None
) -> RowSplits | None:
    """(X, y) by split, or arrays by name, such as X_train; None where these are no vectors."""
    is_frame = [hasattr(value, "iloc") for value in source.values()]
    if not any(is_frame) and any(getattr(value, "ndim", 0) == 2 for value in source.values()):
        return _by_role(read_arrays(source, vectors), split)
    sets: dict[str, EmbeddingSet] = {}
    for name, value in source.items():
        if hasattr(value, "iloc"):
            [sets[str(name)]] = read_vector_frame(value, vectors)[0].values()
        elif isinstance(value, EmbeddingSet):
            sets[str(name)] = value
        else:
            rows = _rows_in_memory(value)
            if rows is None:
                return None
            sets[str(name)] = rows.train
    return _by_role((sets, ()), split) if sets else None


def _described(source: object) -> str:
    """A name as it was typed; of objects in memory their kind and shape."""
    if isinstance(source, str | Path):
        return str(source)
    X = source[0] if isinstance(source, tuple) and source else source
    return describe(X) if hasattr(X, "shape") else f"Data of type {type(X).__name__}"


def _not_found(text: str, cache: Cache) -> NotFoundError:
    folder = Path(text).expanduser().parent
    files = [str(path) for path in folder.iterdir()] if folder.is_dir() else []
    names = [*cache.names(), *files, *(f"packaged:{name}" for name in NAMES)]
    return NotFoundError(
        f"Not found: {text}. It is no cached set, no path, and no name such as "
        f"hf:uoft-cs/cifar10. {nearest(text, names)}"
    )


def _roles(names: Iterable[str], split: str | None) -> dict[str, str]:
    """The split to fit on and, where nobody chose it, those to choose by and to evaluate on."""
    chosen = choose_split(list(names), split)
    roles = {"train": chosen}
    for name in names:
        role = split_role(name)
        if split is None and role is not None and name != chosen:
            roles.setdefault(role, name)
    return roles


def _by_role(read: VectorSets, split: str | None) -> RowSplits:
    sets, notes = read
    roles = _roles(sets, split)
    return RowSplits(notes=notes, **{role: sets[name] for role, name in roles.items()})


def _encode_splits(
    source: object,
    backbone: object,
    cache: Cache,
    data: DataOptions,
    options: ExtractOptions,
    progress: Progress,
) -> list[RowSplits]:
    """The training, validation and test splits of a dataset, encoded."""
    splits = read_dataset(source, data)
    roles = _roles(splits.by_name, data.split)
    train = splits.by_name[roles["train"]]
    text = source_text(source, train)
    encoder = open_backbone(backbone, train.kind, options)
    extracted = {
        role: extract_dataset(
            splits.by_name[split],
            encoder,
            name=set_name(text, split, encoder.name, limit=data.limit),
            source=text,
            cache=cache,
            window=data.window,
            options=options,
            progress=progress,
        )
        for role, split in roles.items()
    }
    notes = (*splits.notes, *(note for part in extracted.values() for note in part.notes))
    return [
        RowSplits(notes=notes, **{role: part.sets[view] for role, part in extracted.items()})
        for view in extracted["train"].sets
    ]
