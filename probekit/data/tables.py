"""Tables of `datasets`: from the hub, saved folders, csv, parquet and jsonl files, in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from probekit.data.hub import hub_error
from probekit.data.pictures import is_picture_name
from probekit.data.splits import (
    CLIENT_NAMES,
    LABEL_NAMES,
    NO_LABELS,
    SPLIT_NAMES,
    DataOptions,
    Splits,
    Table,
    check_columns,
    list_names,
    make_splits,
)
from probekit.errors import InputError, NotFoundError, OfflineError

IMAGE_NAMES = ("image", "images", "img", "picture", "photo", "jpg", "jpeg", "png", "webp")
PATH_NAMES = ("file_name", "filename", "file", "path", "filepath", "file_path", "image_path")
TEXT_NAMES = ("text", "texts", "sentence", "caption", "content", "document", "review", "txt")
KEY_NAMES = ("id", "idx", "index", "__key__", "__url__")
UNUSED_NAMES = (*CLIENT_NAMES, *SPLIT_NAMES, *PATH_NAMES, *KEY_NAMES)
"""Neither texts nor labels, unless they are named."""
SAVED_MARKS = ("dataset_dict.json", "state.json")
TABLE_SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".arrow", ".tar")
BUILDERS = {".tsv": "csv", ".jsonl": "json", ".tar": "webdataset"}
"""Suffixes whose reader in `datasets` has another name."""
HUB_NAME = re.compile(r"([\w.-]+(?:/[\w.-]+)?)(?::([^:@]+))?(?:@([\w./-]+))?")
"""NAME[:CONFIG][@REVISION]"""
HUB_SECONDS = 5.0


def is_table_name(name: str) -> bool:
    return _suffix(name) in TABLE_SUFFIXES


def load(name: str, options: DataOptions) -> Splits:
    """`hf:NAME[:CONFIG][@REV]` of the hub."""
    import datasets

    source = f"hf:{name}"
    match = HUB_NAME.fullmatch(name)
    if match is None:
        raise NotFoundError(f"A dataset of the hub is hf:NAME[:CONFIG][@REVISION]; found {source}.")
    hub_name, config, revision = match.groups()
    split = options.split if re.search(r"[\[+]", options.split or "") else None  # train[:1000]
    with _loading(source), _asked_once(hub_name, revision):
        tables = datasets.load_dataset(hub_name, name=config, revision=revision, split=split)
    return wrap({split: tables} if split else tables, source, options)


@contextmanager
def _loading(source: str) -> Iterator[None]:
    """No progress bars of `datasets`, and its errors as ours."""
    import datasets

    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    except Exception as error:
        raise _translate(source, error) from error
    finally:
        if shown:
            datasets.enable_progress_bars()


@contextmanager
def _asked_once(name: str, revision: str | None) -> Iterator[None]:
    """Ask the hub once, with a short timeout, before `datasets` does so with many retries.

    Where it cannot be reached, what was downloaded before is read, and nothing is tried again.
    """
    import datasets.config
    from huggingface_hub import HfApi, constants

    before = (datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE)
    try:
        if not any(before):
            HfApi().dataset_info(name, revision=revision, timeout=HUB_SECONDS)
    except Exception as error:
        if not isinstance(_translate(name, error), OfflineError):
            raise
        datasets.config.HF_HUB_OFFLINE = True
        constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def _translate(source: str, error: Exception) -> Exception:
    """Our error for one of the libraries'; a mistake of a program as it is."""
    import datasets

    translated = hub_error(error, source)
    library_errors = datasets.exceptions.DatasetsError | ValueError | OSError | RuntimeError
    if translated is None and isinstance(error, library_errors):
        text = " ".join(str(error.__cause__ or error).split())
        return InputError(f"{source} cannot be read as a dataset: {text}")
    return translated or error


def read(path: Path, source: str, options: DataOptions) -> Splits:
    """A file, a folder that `save_to_disk` wrote, or a folder of tables.

    Its splits `datasets` knows by the files' names or by a README.md.
    """
    import datasets

    with _loading(source):
        if path.is_file():
            suffix = _suffix(path.name)
            tables = datasets.load_dataset(
                BUILDERS.get(suffix, suffix[1:]),
                data_files=[str(path.absolute())],
                split="train",  # the library's word for rows of plain files
                **_csv_arguments([path.name]),
            )
        elif any((path / mark).is_file() for mark in SAVED_MARKS):
            tables = datasets.load_from_disk(str(path))
        else:
            arguments = _csv_arguments([entry.name for entry in path.iterdir()])
            tables = datasets.load_dataset(str(path.absolute()), **arguments)
    folder = path if path.is_dir() else path.parent
    return wrap(tables if isinstance(tables, Mapping) else {"": tables}, source, options, folder)


def _suffix(name: str) -> str:
    return Path(name.lower().removesuffix(".gz")).suffix


def _csv_arguments(names: Sequence[str]) -> dict[str, Any]:
    suffixes = {_suffix(name) for name in names if is_table_name(name)}
    if not suffixes or not suffixes <= {".csv", ".tsv"}:
        return {}
    separator = "\t" if ".tsv" in suffixes else ","
    return {"keep_default_na": False, "na_values": [""], "sep": separator}  # "NA" is a label


def has_columns(parts: Mapping[str, Any]) -> bool:
    """Whether a dictionary holds columns, not splits."""
    return any(name in (*LABEL_NAMES, *TEXT_NAMES, *IMAGE_NAMES) for name in parts)


def is_table(value: object) -> bool:
    return type(value).__module__.partition(".")[0] in ("datasets", "pandas")


def wrap(
    parts: Mapping[str, Any], source: str, options: DataOptions, folder: Path | None = None
) -> Splits:
    """The splits of `datasets.Dataset`s, pandas DataFrames or dictionaries of columns.

    folder: where relative paths of pictures start.
    """
    tables = {
        split: _read_table(_as_dataset(part, source), source, options, folder or Path())
        for split, part in parts.items()
    }
    return make_splits(source, tables, options)


def _as_dataset(part: Any, source: str) -> Any:
    import datasets
    import pyarrow

    try:
        if isinstance(part, Mapping):
            return datasets.Dataset.from_dict(dict(part))
        if hasattr(part, "dtypes"):
            categories = part.select_dtypes("category").columns
            frame = part.astype(dict.fromkeys(categories, object))
            return datasets.Dataset.from_pandas(frame, preserve_index=False)
    except (pyarrow.ArrowException, TypeError, ValueError) as error:
        raise InputError(
            f"{source}: {error}. Give paths or encoded bytes of pictures, or (pictures, labels)."
        ) from error
    if not isinstance(part, datasets.Dataset):
        raise InputError(
            f"{source}: found {type(part).__name__}; load a datasets.Dataset, not a stream."
        )
    if part.format["type"] == "custom":
        raise InputError(f"{source} has a transform, which would be lost: apply it with map.")
    return part.with_format(None)


def _read_table(table: Any, source: str, options: DataOptions, folder: Path) -> Table:
    check_columns(table.column_names, options.requested_columns, source)
    columns = {name: table[name] for name in table.column_names}  # read when asked for
    free = {n: f for n, f in table.features.items() if n not in options.requested_columns}
    usual = [n for n, f in free.items() if n.lower() in LABEL_NAMES and _type(f) != "Image"]
    labels = [name for name in free if _type(free[name]) == "ClassLabel"] or usual
    contents = [name for name in free if name not in labels]
    kind, content = _choose_content(table, contents, options, source)
    unused = [name for name in contents if name != content]
    label = _choose_label(labels, unused, options, source)
    rows = columns[content]
    keys = columns["__key__"][:] if "__key__" in columns else []
    if kind == "image":
        rows, paths = _encoded_pictures(table, content, folder)
        keys = keys or [str(path).removeprefix(f"{folder.absolute()}/") for path in paths if path]
    class_names = tuple(getattr(table.features.get(label), "names", ()))
    has_keys = len(set(keys)) == len(table)
    return Table(rows, kind, columns, label, class_names, keys if has_keys else None)


def _encoded_pictures(table: Any, column: str, folder: Path) -> tuple[Any, list[str | None]]:
    """The pictures as they are encoded, or their paths below a folder, and the paths as written.

    Pictures are decoded one by one, so that a broken one harms no other.
    """
    import datasets
    from pyarrow.compute import struct_field

    table = table.select_columns([column]).cast_column(column, datasets.Image(decode=False))
    cells = table.data.column(column)
    written = struct_field(cells, "path")
    if table._indices is not None:
        written = written.take(table._indices.column(0))
    paths = written.to_pylist()
    if struct_field(cells, "bytes").null_count < len(cells):
        return table[column], paths
    return [folder / path if path else None for path in paths], paths


def _choose_content(
    table: Any, free: Sequence[str], options: DataOptions, source: str
) -> tuple[str, str]:
    """The kind and the column of the contents: as named, else by type, then by name."""
    features = table.features
    kind = "text" if options.text_column else "image"
    column = options.text_column or options.image_column
    if column is not None:
        feature = features[column]
        if not (_is_text(feature) or (kind == "image" and _may_be_image(feature))):
            raise InputError(
                f"{source}: the column {column!r} must hold {kind}s; found {feature}. Choose "
                f"another of {list_names(features)} (--{kind}-column)."
            )
        return kind, column
    texts = [name for name in free if _is_text(features[name])]
    first = (table.with_format("arrow")[:1].to_pylist() or [{}])[0]
    images = (
        [name for name in free if _type(features[name]) == "Image"]
        or [name for name in free if name.lower() in IMAGE_NAMES and _may_be_image(features[name])]
        or [name for name in texts if is_picture_name(first.get(name) or "")]
    )
    if images:
        return "image", _single(images, (*IMAGE_NAMES, *PATH_NAMES), "--image-column", source)
    texts = [name for name in texts if name.lower() not in UNUSED_NAMES]
    if texts:
        return "text", _single(texts, TEXT_NAMES, "--text-column", source)
    raise InputError(
        f"{source} has no column known to hold pictures or texts; found {list_names(features)}. "
        "Name one with --image-column or --text-column."
    )


def _choose_label(
    candidates: Sequence[str], free: Sequence[str], options: DataOptions, source: str
) -> str | None:
    """The column of the labels as named, or the only candidate; None where there are no labels."""
    if options.label_column or options.target_columns:
        return options.label_column
    if candidates:
        return _single(candidates, LABEL_NAMES, "--label-column", source)
    if all(name.lower() in UNUSED_NAMES for name in free):
        return None
    raise InputError(
        f"{source} has no column known to be the label; found {list_names(free)}. Name it with "
        f"label_column (--label-column); --label-column {NO_LABELS} reads rows without."
    )


def _single(candidates: Sequence[str], usual: Sequence[str], flag: str, source: str) -> str:
    """The only candidate, or the only one with a usual name."""
    typical = [name for name in candidates if name.lower() in usual]
    for names in (candidates, typical):
        if len(names) == 1:
            return names[0]
    raise InputError(
        f"{source} could be read from the columns {list_names(candidates)}. Choose with {flag}."
    )


def _type(feature: Any) -> str:
    return type(feature).__name__


def _is_text(feature: Any) -> bool:
    return _type(feature) == "Value" and "string" in feature.dtype


def _may_be_image(feature: Any) -> bool:
    """A picture, or what `datasets` can take for one: paths, encoded bytes, or both."""
    if isinstance(feature, dict):
        return feature.keys() == {"bytes", "path"}
    is_binary = _type(feature) == "Value" and "binary" in feature.dtype
    return _type(feature) == "Image" or _is_text(feature) or is_binary
