"""Datasets by name: rows that are found at once and decoded when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from probekit import registry
from probekit.datasets.options import Columns, DatasetOptions
from probekit.datasets.table import FirstRows
from probekit.errors import InputError
from probekit.protocols import Dataset

__all__ = ["Columns", "DatasetOptions", "dataset", "is_dataset"]


def dataset(
    name: str | object,
    *,
    split: str | None = None,
    columns: Columns | None = None,
    streaming: bool = False,
    limit: int | None = None,
) -> Dataset:
    """Rows that are found at once and decoded when asked for.

    name: `hf:NAME[:CONFIG]`, `folder:PATH`, `idx:PATH`, `npz:PATH`, a packaged set such as `digits` or a plugin's
    own; or a Hugging Face dataset, a sequence of contents or of (content, label) pairs, or a Dataset.
    split: which part to read; left out, the only one or `train`.
    columns: where content, labels and clients stand; left out, they are found by type and name.
    streaming: read a hub's rows in passing, without downloading them first.
    limit: keep the first rows only.
    Gives a Dataset, to pass to `extract`.
    """
    options = DatasetOptions(split=split, columns=columns or Columns(), streaming=streaming)
    found = _named(name, options) if isinstance(name, str) else _wrapped(name, options)
    return found if limit is None else FirstRows(found, limit)


def _named(name: str, options: DatasetOptions) -> Dataset:
    if not name.strip():
        raise InputError("An empty name names no dataset. Write for example digits or folder:PATH.")
    scheme, colon, rest = name.partition(":")
    if not colon and scheme not in registry.datasets.names():
        if Path(name).exists():
            raise InputError(f"{name!r} is a path: say how to read it, for example folder:{name} or npz:{name}.")
        scheme, rest = "packaged", name
    found = registry.datasets.get(scheme)(rest, options)
    if not is_dataset(found):
        wanted = "a dataset with name, kind, class_names and rows"
        raise InputError(f"The plugin {scheme!r} must give {wanted}; found {type(found).__name__}. Correct it.")
    return cast(Dataset, found)


def _wrapped(rows: object, options: DatasetOptions) -> Dataset:
    if is_dataset(rows):
        options.refuse("split", "columns", source="A dataset that is given as an object")
        return cast(Dataset, rows)
    # Whoever holds a Hugging Face dataset has imported the library; whoever does not should not have to.
    if type(rows).__module__.partition(".")[0] == "datasets":
        from probekit.datasets import huggingface

        return huggingface.wrap(rows, options)
    if isinstance(rows, Path):
        raise InputError(f"A path alone does not say how to read it: write 'folder:{rows}' or 'npz:{rows}'.")
    if not hasattr(rows, "__len__") or not hasattr(rows, "__getitem__") or isinstance(rows, bytes | dict):
        wanted = "a name, a Hugging Face dataset or a sequence of rows"
        raise InputError(f"A dataset must be {wanted}; found {type(rows).__name__}. Make a list of it.")
    from probekit.datasets import sequence

    return sequence.wrap(cast(Sequence[Any], rows), options)


def is_dataset(value: object) -> bool:
    """Whether it is a data set already, not a name or a sequence of rows."""
    named = all(hasattr(value, name) for name in ("name", "class_names", "__iter__"))
    return named and isinstance(getattr(value, "kind", None), str)
