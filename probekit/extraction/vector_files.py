"""Files of vectors and labels as arrays by name; nothing that needs pickle is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.data.arrays import WRITE_AGAIN, decoded, load_npz
from probekit.embeddings import as_numpy
from probekit.errors import InputError, NotFoundError

Columns = dict[str, NDArray[Any]]


def is_readable(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in SUFFIXES


def read_columns(path: Path, array_name: str, *, text_columns: Iterable[str] = ()) -> Columns:
    """The arrays of a file by name; a file that is a single array calls it `array_name`.

    text_columns: columns of a csv file that are texts even where they look like numbers (007).
    """
    if not path.exists():
        raise NotFoundError(f"Not found: {path}. Give the path of the file of {array_name}.")
    if not is_readable(path):
        raise InputError(
            f"Expected a file {', '.join(SUFFIXES)}, or a folder that clip-retrieval wrote; found "
            f"{path}. Write arrays with np.save or np.savez."
        )
    suffix = path.suffix.lower()
    try:
        if suffix in TABLES:
            columns = arrow_columns(_read_arrow(path, suffix, text_columns))
        else:
            columns = READERS[suffix](path)
    except InputError:
        raise
    except Exception as error:  # whatever a parser does on a damaged file
        reason = str(error).partition("\n")[0]
        raise InputError(f"{path} cannot be read ({reason}). {WRITE_AGAIN}") from error
    arrays = {name or array_name: decoded(column) for name, column in columns.items()}
    arrays = {name: column for name, column in arrays.items() if column.ndim}
    if not any(map(len, arrays.values())):
        raise InputError(f"{path} must hold at least one row; it is empty. Write it again.")
    return arrays


def _read_npy(path: Path) -> Columns:
    return {"": np.load(path, mmap_mode="r", allow_pickle=False)}


def _read_safetensors(path: Path) -> Columns:
    from safetensors.torch import load_file  # its NumPy twin has no bfloat16

    return {name: as_numpy(tensor) for name, tensor in load_file(path).items()}


def _read_h5(path: Path) -> Columns:
    import h5py

    columns: Columns = {}

    def read(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            is_text = h5py.check_string_dtype(item.dtype) is not None
            columns[name] = np.asarray(item.asstr()[()] if is_text else item[()])

    with h5py.File(path, "r") as file:
        file.visititems(read)
    return columns


def _read_torch(path: Path) -> Columns:
    import torch

    content = torch.load(path, map_location="cpu", weights_only=True)
    values = content if isinstance(content, Mapping) else {"": content}
    return {
        str(name): as_numpy(value)
        for name, value in values.items()
        if isinstance(value, torch.Tensor | list | tuple)
    }


READERS: dict[str, Callable[[Path], Columns]] = {
    ".npy": _read_npy,
    ".npz": load_npz,
    **dict.fromkeys((".h5", ".hdf5"), _read_h5),
    ".safetensors": _read_safetensors,
    **dict.fromkeys((".pt", ".pth"), _read_torch),
}
TABLES = (".parquet", ".jsonl", ".csv", ".tsv")
SUFFIXES = (*READERS, *TABLES)


def _read_arrow(path: Path, suffix: str, text_columns: Iterable[str]) -> Any:
    import pyarrow as pa
    from pyarrow import csv, parquet
    from pyarrow import json as jsonl

    if suffix == ".parquet":
        return parquet.read_table(path)
    if suffix == ".jsonl":
        return jsonl.read_json(path)
    delimiter = "\t" if suffix == ".tsv" else ","
    parsing = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    types = csv.ConvertOptions(column_types=dict.fromkeys(text_columns, pa.string()))
    return csv.read_csv(path, parse_options=parsing, convert_options=types)


def arrow_columns(table: Any) -> Columns:
    """Numbers, texts, and lists of one length as matrices; other types are left out."""
    import pyarrow as pa

    columns = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        if isinstance(column, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
            matrix = _arrow_matrix(column)
            if matrix is not None:
                columns[name] = matrix
        elif not pa.types.is_nested(column.type) and not pa.types.is_binary(column.type):
            columns[name] = _arrow_values(column)
    return columns


def _arrow_matrix(column: Any) -> NDArray[Any] | None:
    """Lists as rows, NaN where there is none; None where they differ in length."""
    import pyarrow.compute as pc

    lengths = pc.unique(pc.list_value_length(column.drop_null())).to_pylist()
    values = column.flatten().to_numpy(zero_copy_only=False)
    if len(lengths) != 1 or values.dtype.kind not in "fiub":
        return None
    rows: NDArray[Any] = values.reshape(-1, lengths[0])
    if not column.null_count:
        return rows
    matrix = np.full((len(column), lengths[0]), np.nan, np.result_type(rows, np.float16))
    matrix[column.is_valid().to_numpy(zero_copy_only=False)] = rows
    return matrix


def _arrow_values(column: Any) -> NDArray[Any]:
    if column.null_count and column.type not in ("float", "double", "halffloat"):
        return np.array(column.to_pylist(), object)
    values = np.asarray(column.to_numpy(zero_copy_only=False))
    if len(values) and str(values[0]).startswith("["):  # lists in csv, as pandas writes them
        return as_numpy([json.loads(value) for value in values])
    return values


def find_parts(folder: Path, kind: str, suffix: str) -> dict[int, Path]:
    """clip-retrieval's files of a kind by number: img_emb_0.npy or img_emb/img_emb_0.npy, ..."""
    paths = [*folder.glob(f"{kind}_*{suffix}"), *folder.glob(f"{kind}/{kind}_*{suffix}")]
    numbers = {path: path.stem.rpartition("_")[2] for path in paths}
    return {int(number): path for path, number in numbers.items() if number.isdecimal()}


def read_folder(folder: Path, kind: str) -> Columns:
    """The vectors of a kind and the metadata beside them, matched by number."""
    vectors = find_parts(folder, kind, ".npy")
    metadata = find_parts(folder, "metadata", ".parquet")
    if not vectors or vectors.keys() != metadata.keys():
        raise NotFoundError(
            f"{folder} must hold {kind}_0.npy, ... and metadata_0.parquet, ... of equal numbers, "
            f"as clip-retrieval writes them; found {len(vectors)} and {len(metadata)}. Copy it "
            "again, or choose img_emb or text_emb with vector_column (--vector-column)."
        )
    parts = []
    for number, path in sorted(vectors.items()):
        columns = read_columns(metadata[number], kind) | read_columns(path, kind)
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise InputError(
                f"Part {number} of {folder} must have a row of metadata for each vector; found "
                f"{lengths}. Copy it again."
            )
        parts.append(columns)
    try:
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    except (KeyError, ValueError) as error:
        raise InputError(f"The parts of {folder} differ in width or columns ({error}).") from error
