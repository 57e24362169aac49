"""Pictures in folders, one folder per class; train, val and test folders are splits."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probekit.data.pictures import is_picture_name
from probekit.data.splits import (
    DataOptions,
    Splits,
    Table,
    check_columns,
    make_splits,
    sort_splits,
    split_role,
)
from probekit.errors import InputError, NotFoundError
from probekit.registry import nearest

METADATA = "metadata.csv"
TABLE_SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".arrow", ".tar")


def is_table_name(name: str) -> bool:
    return name.lower().removesuffix(".gz").endswith(TABLE_SUFFIXES)


@dataclass(frozen=True, eq=False)
class Files(Sequence[str]):
    """The paths of files below a folder, made when asked for: there may be millions."""

    folder: str
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, row: int) -> str:  # type: ignore[override]
        return f"{self.folder}/{self.names[row]}"


def walk(folder: Path) -> Iterator[str]:
    """Every file below a folder by its path from there, in order; hidden ones are left out.

    Links are followed, except back to a folder above.
    """
    return _walk(str(folder), "", frozenset({os.path.realpath(folder)}))


def _walk(folder: str, prefix: str, above: frozenset[str]) -> Iterator[str]:
    with os.scandir(folder) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        if entry.name.startswith(".") or entry.name == "__MACOSX":
            continue
        is_folder = Path(entry.path).is_dir() if entry.is_symlink() else entry.is_dir()
        if not is_folder:
            yield prefix + entry.name
        elif (real := os.path.realpath(entry.path)) not in above:
            yield from _walk(entry.path, f"{prefix}{entry.name}/", above | {real})


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
        tables[split] = _read_split(folder, split, names, source, options)
    return make_splits(source, tables, options, _notes(files, source))


def _splits(images: Sequence[str], split: str | None) -> list[str]:
    """The folders that are splits; "" where there are none."""
    folders = {name.partition("/")[0] if "/" in name else "" for name in images}
    if split and split in folders:
        return [split]  # also one with an unusual name
    if all(split_role(name) for name in folders):
        return sort_splits(folders)
    return [""]


def _notes(files: Sequence[str], source: str) -> list[str]:
    unread = [name for name in files if not is_picture_name(name)]
    unread = [name for name in unread if name.rpartition("/")[2] != METADATA]
    if not unread:
        return []
    return [
        f"{source}: {len(unread)} files are no pictures and were left out (first: {unread[0]}). "
        "If one of them lists the pictures, read it instead."
    ]


def _read_split(
    folder: Path, split: str, names: Sequence[str], source: str, options: DataOptions
) -> Table:
    keys = [_readable(name) for name in names]
    columns = _read_metadata(folder, split, keys, options)
    label: str | None = options.label_column or "label"
    loose = [key for key in keys if "/" not in key]
    if label not in columns and len(loose) < len(keys):
        if loose:
            raise InputError(
                f"{source} has pictures beside the class folders ({loose[0]}). Move them."
            )
        columns["label"] = [key.partition("/")[0] for key in keys]
    paths = Files(str(folder / split), names)
    label = label if label in columns else None
    return Table(paths, "image", columns, label, keys=keys, files=paths)


def _readable(name: str) -> str:
    """A file's name as text that can be written anywhere, whatever bytes it is made of."""
    if name.isascii():
        return name
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _read_metadata(
    folder: Path, split: str, keys: Sequence[str], options: DataOptions
) -> dict[str, Any]:
    """The columns of metadata.csv in the order of the pictures; it stands in the split or above."""
    path = folder / split / METADATA
    prefix = ""
    if split and not path.is_file():
        path = folder / METADATA
        prefix = f"{split}/"
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
    if not frame.index.is_unique:
        repeated = frame.index[frame.index.duplicated()][0]
        raise InputError(f"{path} lists {repeated!r} twice. Remove a line.")
    paths = [f"{prefix}{key}" for key in keys]
    unknown = sorted(name for name in set(frame.index) - set(paths) if name.startswith(prefix))
    if unknown:
        raise NotFoundError(
            f"{path} lists {len(unknown)} pictures that are not there (first: {unknown[0]!r}). "
            f"{nearest(unknown[0], paths[:1000])}"
        )
    rows = frame.reindex(paths)
    return {str(name): rows[name].tolist() for name in rows}
