"""Datasets: pictures, texts or arrays with labels, from wherever they are."""

from __future__ import annotations

import re
from pathlib import Path

from probekit.data import arrays, folder, packaged, tables
from probekit.data.dataset import Dataset, Sample
from probekit.data.pictures import is_picture_name
from probekit.data.splits import DataOptions, Splits, list_names
from probekit.errors import InputError, NotFoundError
from probekit.registry import DATASETS, nearest

__all__ = ["DataOptions", "Dataset", "Sample", "Splits", "read_dataset"]

IDX_NAME = re.compile(r"(?:([^/]+?)[-_.])?images[-_.]idx3[-_.]ubyte(?:\.gz)?", re.IGNORECASE)


def read_dataset(source: object, options: DataOptions | None = None) -> Splits:
    """The splits of a dataset; contents are decoded when asked for.

    source: a path (a folder of pictures, csv, tsv, parquet, jsonl, npz or idx files, a folder that
        `save_to_disk` wrote), a name (`hf:NAME[:CONFIG][@REV]`, `packaged:digits`,
        `py:module:factory`, a plugin's own), arrays or tensors (X, y), a DataFrame, a
        `datasets.Dataset` or `DatasetDict`, a list of contents or of (content, label) pairs, or
        any object that is a Dataset.
    """
    options = options or DataOptions()
    if not isinstance(source, str | Path):
        return arrays.wrap(source, f"a {type(source).__name__}", options)
    text = str(source)
    if not text.strip():
        raise InputError(
            "Expected a path or a name such as packaged:digits; found an empty text. Pass one."
        )
    path = Path(text).expanduser()
    if path.exists():  # a path may hold colons
        return read_path(path, text, options)
    scheme, colon, name = text.partition(":")
    if colon and scheme in DATASETS.names():
        value = DATASETS.get(scheme)(name, options)
        return value if isinstance(value, Splits) else arrays.wrap(value, text, options)
    if text in packaged.NAMES:
        return packaged.load(text, options)
    above = next(parent for parent in path.parents if parent.is_dir())
    files = [str(entry) for entry in above.iterdir() if not entry.name.startswith(".")]
    suggestion = nearest(text, [*packaged.NAMES, *files])
    raise NotFoundError(f"No file, folder or dataset {text!r}. {suggestion}")


def read_path(path: Path, source: str, options: DataOptions) -> Splits:
    """What a path holds: pictures, a table, arrays, or a saved dataset."""
    files = [path.name] if path.is_file() else list(folder.walk(path))
    if path.suffix.lower() == ".npz" and path.is_file():
        return arrays.read_npz(path, source, options)
    matches = [match for name in reversed(files) if (match := IDX_NAME.fullmatch(name))]
    if matches:  # the last of a split is the unpacked file, not its gzipped copy
        parent = path.parent if path.is_file() else path
        images = {match[1] or "": parent / match[0] for match in matches}
        return arrays.read_idx_splits(images, source, options)
    if path.is_dir() and any(map(is_picture_name, files)):
        return folder.read_folder(path, files, source, options)
    if any(map(tables.is_table_name, files)):
        return tables.read(path, source, options)
    raise InputError(
        f"{source} must hold pictures (one folder per class), or tables, npz or idx files; found "
        f"{list_names(files)}. Vectors (npy, h5, safetensors, pt, ...) need no backbone: "
        "`probekit probe FILE`, or `probekit import FILE`."
    )
