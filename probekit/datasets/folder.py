"""Pictures in folders, one folder per class."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from probekit.datasets import pictures
from probekit.datasets.options import DatasetOptions
from probekit.datasets.table import Table, choose_split, classify, client_names
from probekit.errors import InputError, NotFoundError

EXTENSIONS = {".avif", ".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm"}
EXTENSIONS |= {".tif", ".tiff", ".webp"}
SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation", "dev", "eval"}
METADATA = "metadata.csv"


def load(name: str, options: DatasetOptions) -> Table:
    """The pictures under a folder in the order of their paths, hidden ones left out.

    A sub-folder is a class, also an empty one; a folder that holds only splits is read at one of them. A file
    `metadata.csv` (file_name, label, client_id) beside the classes gives clients, and labels that replace
    the folders'.
    """
    top = Path(name).expanduser()
    options.refuse("text", source=f"folder:{name}")
    if not name or not top.is_dir():
        raise NotFoundError(f"There is no folder {name!r}. Give the folder that holds one folder per class.")
    root, note = _split_folder(top, options.split)
    files, others = _pictures(root)
    if not files:
        known = " ".join(sorted(EXTENSIONS))
        raise InputError(f"{root} holds no pictures: found {others} other files. Pictures end in one of {known}.")
    source = f"folder:{name}" + ("" if root == top else f"[{root.name}]")
    names = [_readable("/".join(parts)) for parts in files]
    noted = _metadata(root, options, names=names, source=source)
    stated = (_plain(noted["label"]), []) if "label" in noted else _folder_labels(root, files, source=source)
    labels, classes = classify(*stated, source=source)
    clients = client_names(noted["client"], source=source) if "client" in noted else None
    reader = partial(_reader, root, files)
    kept = {name: noted[f"kept {name}"] for name in options.columns.kept}
    more: dict[str, Any] = {"names": names, "clients": clients, "ignored": others, "columns": kept, "note": note}
    return Table(source, "image", reader, labels, classes, **more)


def _reader(root: Path, files: Sequence[tuple[str, ...]], row: int) -> Callable[[], Any]:
    return partial(pictures.decode, root.joinpath(*files[row]))


def _split_folder(top: Path, wanted: str | None) -> tuple[Path, str]:
    """The folder to read, and what to say where nobody chose it."""
    folders = _subfolders(top)
    splits = [name for name in folders if name.lower() in SPLITS]
    if wanted is not None:
        # An unusual name is a split too when it is asked for; the usual ones are what an error should list.
        known = folders if wanted in folders else splits
        return top / choose_split(wanted, known, source=f"folder:{top}"), ""
    listed = ", ".join(splits)
    if splits and splits == folders and not any(_is_picture(entry.name) for entry in os.scandir(top)):
        chosen = choose_split(None, splits, source=f"folder:{top}")
        told = f"folder:{top} has the splits {listed}; {chosen} is read. Choose another with `split`."
        return top / chosen, told if len(splits) > 1 else ""
    mixed = f"folder:{top} holds {listed} beside other folders: they are taken for classes. `split` reads one alone."
    return top, mixed if len(splits) > 1 else ""


def _subfolders(top: Path) -> list[str]:
    with os.scandir(top) as entries:
        return sorted(entry.name for entry in entries if _is_folder(entry) and not _is_hidden(entry.name))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder; a link to itself is none, and is told as a sample that cannot be read."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _pictures(root: Path) -> tuple[list[tuple[str, ...]], int]:
    """The pictures below a folder as path parts, sorted class by class, and how many files are none."""
    files = [parts for parts in _walk(root, (), frozenset({os.path.realpath(root)})) if parts != (METADATA,)]
    found = sorted(parts for parts in files if _is_picture(parts[-1]))
    return found, len(files) - len(found)


def _walk(folder: Path, parts: tuple[str, ...], above: frozenset[str]) -> Iterator[tuple[str, ...]]:
    """Every file below a folder. Links are followed wherever they lead, except back to a folder above."""
    with os.scandir(folder) as entries:
        listed = [entry for entry in entries if not _is_hidden(entry.name)]
    for entry in listed:
        if not _is_folder(entry):
            yield (*parts, entry.name)
        elif (place := os.path.realpath(entry.path)) not in above:
            yield from _walk(Path(entry.path), (*parts, entry.name), above | {place})


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _is_picture(name: str) -> bool:
    return not _is_hidden(name) and Path(name).suffix.lower() in EXTENSIONS


def _readable(name: str) -> str:
    """A file's name as text that can be written anywhere, whatever bytes it is made of."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _folder_labels(root: Path, files: Sequence[tuple[str, ...]], *, source: str) -> tuple[list[str | None], list[str]]:
    loose = [parts[0] for parts in files if len(parts) == 1]
    if len(loose) == len(files):
        return [None] * len(files), []
    if loose:
        found = f"class folders and {len(loose)} pictures beside them (first: {loose[0]})"
        raise InputError(f"{source} holds {found}. Move those into a class, or away.")
    return [_readable(parts[0]) for parts in files], [_readable(name) for name in _subfolders(root)]


def _plain(values: Sequence[str]) -> Sequence[int | str | None]:
    """Labels from a text file: class numbers if all of them are whole numbers, class names otherwise."""
    try:
        return [int(value) if value else None for value in values]
    except ValueError:
        return values


def _metadata(root: Path, options: DatasetOptions, *, names: Sequence[str], source: str) -> dict[str, list[str]]:
    """The columns `label` and `client`, and those to keep, of metadata.csv, in the order of the pictures."""
    path, columns = root / METADATA, options.columns
    chosen = [name for name in (columns.image, columns.label, columns.client, *columns.kept) if name is not None]
    if not path.is_file():
        if chosen:
            raise InputError(f"{source} has no {METADATA} beside its classes, so there is no column {chosen[0]!r}.")
        return {}
    header, lines = _read(path)
    key = columns.image or "file_name"
    for field in (key, *chosen):
        if field not in header:
            raise InputError(f"{path} has no column {field!r}; found {', '.join(header)}. Rename it or name another.")
    by_name = _by_name(path, lines, key, set(names))
    fields = {"label": columns.label or "label", "client": columns.client or "client_id"}
    fields |= {f"kept {name}": name for name in columns.kept}
    return {
        noun: [by_name.get(name, {}).get(field) or "" for name in names]
        for noun, field in fields.items()
        if field in header
    }


def _read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            return list(reader.fieldnames or ()), list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as comma-separated UTF-8 text: {error}. Save it as such.") from error


def _by_name(path: Path, lines: Sequence[dict[str, str]], key: str, names: set[str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for number, line in enumerate(lines, start=2):
        file = Path(line[key] or "").as_posix()
        if file in found or file not in names:
            reason = "is listed twice" if file in found else "is no picture in that folder"
            raise InputError(f"{path}, line {number}: {file!r} {reason}. Correct the line.")
        found[file] = line
    return found
