"""Pictures in folders, one folder per class; train, val and test folders are splits."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from probekit.data.pictures import is_picture_name
from probekit.data.splits import DataOptions, Splits, Table, check_columns, make_splits, split_role
from probekit.errors import InputError, NotFoundError
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

    Files `metadata.csv` (file_name, label, client_id, split, ...) beside the pictures or above
    give columns, and labels that replace the folders'.
    """
    images = [name for name in files if is_picture_name(name)]
    folders = {name.partition("/")[0] if "/" in name else "" for name in images}
    is_divided = all(map(split_role, folders))
    if options.split and options.split in folders:  # also one with an unusual name
        is_divided = True
        images = [name for name in images if name.startswith(f"{options.split}/")]
    keys = [_readable(name) for name in images]
    names = [key.partition("/")[2] for key in keys] if is_divided else keys
    labels = [name.partition("/")[0] if "/" in name else None for name in names]
    columns: dict[str, list[Any]] = {"label": labels}
    if is_divided:
        columns["split"] = [key.partition("/")[0] for key in keys]
        options = replace(options, split_column=options.split_column or "split")
    columns |= _read_metadata(folder, files, keys, options)
    paths = [f"{folder}/{name}" for name in images]
    table = Table(paths, "image", columns, options.label_column or "label", keys=keys)
    unread = [name for name in files if not is_picture_name(name) and not _is_metadata(name)]
    notes = []
    if unread:
        notes.append(
            f"{source}: {len(unread)} files are no pictures and were left out (first: "
            f"{unread[0]}). If one of them lists the pictures, read it instead."
        )
    return make_splits(source, {"": table}, options, notes)


def _is_metadata(name: str) -> bool:
    return name.rpartition("/")[2] == METADATA


def _readable(name: str) -> str:
    """A file's name as text that can be written anywhere, whatever bytes it is made of."""
    if name.isascii():
        return name
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _read_metadata(
    folder: Path, files: Sequence[str], keys: Sequence[str], options: DataOptions
) -> dict[str, list[Any]]:
    """The columns of all files metadata.csv, in the order of the pictures."""
    paths = list(filter(_is_metadata, files))
    if not paths:
        return {}
    import pandas

    frames = []
    for path in paths:
        try:
            frame = pandas.read_csv(
                folder / path, keep_default_na=False, na_values=[""], encoding="utf-8-sig"
            )
        except (UnicodeDecodeError, ValueError) as error:
            raise InputError(f"{path} must be comma-separated UTF-8 text: {error}.") from error
        column = options.image_column or "file_name"
        check_columns(list(frame), {column: "--image-column"}, path)
        frame.index = [(Path(path).parent / str(name)).as_posix() for name in frame[column]]
        frames.append(frame)
    rows = pandas.concat(frames)
    unknown = rows.index.difference([_readable(name) for name in files])
    if len(unknown):
        raise NotFoundError(
            f"{METADATA} lists {len(unknown)} pictures that are not there (first: {unknown[0]!r}). "
            f"{nearest(unknown[0], list(keys[:SHOWN_PATHS]))}"
        )
    if not rows.index.is_unique:
        repeated = rows.index[rows.index.duplicated()][0]
        raise InputError(f"{METADATA} lists {repeated!r} twice. Remove a line.")
    rows = rows.reindex(keys)
    return {str(name): rows[name].tolist() for name in rows}
