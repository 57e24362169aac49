"""Pictures in folders, one folder per class; train, val and test folders are splits."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from probekit.data.pictures import is_picture_name
from probekit.data.splits import (
    DataOptions,
    Splits,
    Table,
    check_columns,
    make_splits,
    split_role,
)
from probekit.errors import InputError
from probekit.registry import nearest

METADATA = "metadata.csv"
SHOWN_PATHS = 1000


def walk(
    folder: str | Path, prefix: str = "", above: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Every file below a folder by its path from there, in order; hidden ones are left out.

    Links are followed, except back to a folder above.
    """
    above |= {os.path.realpath(folder)}
    with os.scandir(folder) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        if entry.name.startswith(".") or entry.name == "__MACOSX":
            continue
        is_folder = Path(entry.path).is_dir() if entry.is_symlink() else entry.is_dir()
        if not is_folder:
            yield prefix + entry.name
        elif os.path.realpath(entry.path) not in above:
            yield from walk(entry.path, f"{prefix}{entry.name}/", above)


def read_folder(folder: Path, files: Sequence[str], source: str, options: DataOptions) -> Splits:
    """The pictures below a folder, of which `walk` gave the files.

    A file `metadata.csv` (file_name, label, client_id, split, ...) beside the classes gives
    columns, and labels that replace the folders'.
    """
    tables = {}
    images = [name for name in files if is_picture_name(name)]
    for split in _splits(images, options.split):
        prefix = f"{split}/" if split else ""
        names = [name.removeprefix(prefix) for name in images if name.startswith(prefix)]
        columns = _read_metadata(folder, prefix, [_readable(name) for name in names], options)
        tables[split] = _read_split(folder / split, names, columns, source, options)
    unread = [name for name in set(files).difference(images) if Path(name).name != METADATA]
    notes = []
    if unread:
        notes.append(
            f"{source}: {len(unread)} files are no pictures and were left out (first: "
            f"{min(unread)}). If one of them lists the pictures, read it instead."
        )
    return make_splits(source, tables, options, notes)


def _splits(images: Sequence[str], split: str | None) -> set[str]:
    """The folders that are splits; "" where there are none."""
    folders = {name.partition("/")[0] if "/" in name else "" for name in images}
    if split and split in folders:
        return {split}  # also one with an unusual name
    return folders if all(map(split_role, folders)) else {""}


def _read_split(
    folder: Path, names: Sequence[str], columns: dict[str, Any], source: str, options: DataOptions
) -> Table:
    keys = [_readable(name) for name in names]
    label = options.label_column or "label"
    loose = [key for key in keys if "/" not in key]
    if label not in columns and len(loose) < len(keys):
        if loose:
            raise InputError(f"{source}: {loose[0]} lies beside the class folders. Move it.")
        columns["label"] = [key.partition("/")[0] for key in keys]
    paths = [f"{folder}/{name}" for name in names]
    return Table(paths, "image", columns, label if label in columns else None, keys=keys)


def _readable(name: str) -> str:
    """A file's name as text that can be written anywhere, whatever bytes it is made of."""
    if name.isascii():
        return name
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _read_metadata(
    folder: Path, prefix: str, keys: Sequence[str], options: DataOptions
) -> dict[str, Any]:
    """The columns of metadata.csv in the order of the pictures; it stands in the split or above."""
    path = folder / prefix / METADATA
    if path.is_file():
        prefix = ""
    else:
        path = folder / METADATA
        keys = [prefix + key for key in keys]
    if not path.is_file():
        return {}
    import pandas

    try:
        frame = pandas.read_csv(path, keep_default_na=False, na_values=[""], encoding="utf-8-sig")
    except (UnicodeDecodeError, ValueError) as error:
        raise InputError(f"{path} must be comma-separated UTF-8 text: {error}.") from error
    file_column = options.image_column or "file_name"
    check_columns(list(frame), DataOptions(image_column=file_column), str(path))
    frame.index = [Path(str(name)).as_posix() for name in frame[file_column]]
    unknown = [name for name in frame.index.difference(keys) if name.startswith(prefix)]
    if unknown or not frame.index.is_unique:
        [wrong, *_] = unknown or frame.index[frame.index.duplicated()]
        raise InputError(
            f"{path} must have a line for each picture; {wrong!r} is not there or listed twice. "
            f"{nearest(wrong, list(keys[:SHOWN_PATHS]))}"
        )
    rows = frame.reindex(list(keys))
    return {str(name): rows[name].tolist() for name in rows}
