"""Files of vectors and labels as arrays by name; nothing that needs pickle is read.

What is large is mapped or read in pieces: an array that cannot be (compressed, a column of lists)
is copied once, to an unnamed file in the folder for temporary files (TMPDIR).
"""

from __future__ import annotations

import json
import pickle
import re
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Indices
from probekit.data.arrays import WRITE_AGAIN, decoded, load_npz
from probekit.embeddings import BLOCK, as_numpy
from probekit.errors import InputError, NotFoundError
from probekit.rows import LARGE_BYTES, LazyRows, Rows, StackedRows, as_slice

VECTOR_NAMES = (
    *("embedding", "embeddings", "vector", "vectors", "image_embedding", "features", "feats"),
    *("image_embeds", "emb", "x"),
)
SPARSE = 8
"""Of h5 files, all rows between the first and the last are read unless so few of them are asked."""

Columns = dict[str, NDArray[Any] | LazyRows]


def is_readable(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in SUFFIXES


def read_columns(path: Path, array_name: str, *, text_columns: Iterable[str] = ()) -> Columns:
    """The arrays of a file by name; a file that is a single array calls it `array_name`.

    text_columns: columns of a csv file that are texts even where they look like numbers (007).
    """
    if not path.exists():
        raise NotFoundError(f"Not found: {path}. It should hold {array_name.removesuffix('s')}s.")
    if not is_readable(path):
        raise InputError(
            f"Expected a file {', '.join(SUFFIXES)}, or a folder of h5 or pt files, with "
            f"manifest.csv, or of clip-retrieval; found {path}. Write arrays with np.save or "
            "np.savez."
        )
    suffix = path.suffix.lower()
    with _reading(path):
        if suffix in TABLES:
            columns = _read_table(path, suffix, text_columns)
        else:
            columns = READERS[suffix](path)
    arrays = {
        name or array_name: column if isinstance(column, LazyRows) else decoded(column)
        for name, column in columns.items()
        if column.ndim
    }
    if not any(map(len, arrays.values())):
        raise InputError(f"{path} must hold at least one row; it is empty. Write it again.")
    return arrays


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What readers raise as an InputError that names the file."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # whatever a parser does on a damaged file
        reason = str(error).partition("\n")[0]
        raise InputError(f"{path} cannot be read ({reason}). {WRITE_AGAIN}") from error


def new_matrix(count: int, width: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """A matrix to fill; a large one lies in an unnamed temporary file."""
    if count * width * dtype.itemsize <= LARGE_BYTES:
        return np.empty((count, width), dtype)
    with tempfile.TemporaryFile() as file:  # a mapping outlives its file
        return np.memmap(file, dtype, "w+", shape=(count, width))


def _read_npy(path: Path) -> Columns:
    return {"": np.load(path, mmap_mode="r", allow_pickle=False)}


def _read_npz(path: Path) -> Columns:
    if path.stat().st_size <= LARGE_BYTES:
        return {**load_npz(path)}
    mapped = {}
    with zipfile.ZipFile(path) as archive, np.load(path) as arrays:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            array = _map_member(path, member)
            mapped[name] = arrays[name] if array is None else array
    return mapped


def _map_member(path: Path, member: zipfile.ZipInfo) -> NDArray[Any] | None:
    """An array of numbers that a zip file holds as it is; None for all others."""
    if member.compress_type != zipfile.ZIP_STORED:
        return None
    with path.open("rb") as file:
        file.seek(member.header_offset + 26)
        lengths = np.frombuffer(file.read(4), "<u2")
        file.seek(member.header_offset + 30 + int(lengths.sum()))
        formats = np.lib.format
        is_first = formats.read_magic(file) == (1, 0)
        read = formats.read_array_header_1_0 if is_first else formats.read_array_header_2_0
        shape, is_fortran, dtype = read(file)
        offset = file.tell()
    if dtype.kind not in "fiub" or not np.prod(shape):
        return None
    return np.memmap(path, dtype, "r", offset, shape, "F" if is_fortran else "C")


def _read_safetensors(path: Path) -> Columns:
    from safetensors.torch import load_file  # its NumPy twin has no bfloat16

    return {name: as_numpy(tensor) for name, tensor in load_file(path).items()}


class H5Rows(LazyRows):
    """A dataset (n, d) or (1, n, d) of an h5 file, opened when some of its rows are asked for."""

    def __init__(self, path: Path, name: str, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        super().__init__(shape[-2], shape[-1], dtype.newbyteorder("="))
        self.path = path
        self.name = name
        self.bag = (0,) * (len(shape) - 2)

    def gather(self, indices: Indices) -> NDArray[Any]:
        import h5py

        if not len(indices):
            return np.zeros((0, self.shape[1]), self.dtype)
        with h5py.File(self.path, "r") as file:
            dataset = file[self.name]
            start = int(indices.min())
            stop = int(indices.max()) + 1
            if stop - start <= SPARSE * len(indices):
                block = dataset[(*self.bag, slice(start, stop))]
                return np.asarray(block[as_slice(indices - start)], self.dtype)
            present, positions = np.unique(indices, return_inverse=True)
            return np.asarray(dataset[(*self.bag, present)][positions], self.dtype)


def _read_h5(path: Path) -> Columns:
    import h5py

    columns: Columns = {}

    def read(name: str, item: Any) -> None:
        if not isinstance(item, h5py.Dataset):
            return
        if item.ndim == 2 and item.nbytes > LARGE_BYTES:
            columns[name] = H5Rows(path, name, item.shape, item.dtype)
            return
        is_text = h5py.check_string_dtype(item.dtype) is not None
        columns[name] = np.asarray(item.asstr()[()] if is_text else item[()])

    with h5py.File(path, "r") as file:
        file.visititems(read)
    return columns


def h5_rows(path: Path, name: str | None) -> H5Rows | NDArray[Any]:
    """The vectors of an h5 file; a file of a single vector is a row."""
    import h5py

    shapes: dict[str, tuple[int, ...]] = {}

    def describe(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.dtype.kind in "fiu" and item.ndim:
            shapes[name] = item.shape

    with h5py.File(path, "r") as file:
        file.visititems(describe)
        chosen = choose_array(shapes, name, path)
        dataset = file[chosen]
        if dataset.ndim == 1:
            return np.asarray(dataset[()])[None]
        if dataset.shape[:-2] not in ((), (1,)):
            raise InputError(
                f"{path} must hold vectors (n, d); {chosen} has shape {dataset.shape}. Choose an "
                "array with vector_column (--vector-column)."
            )
        return H5Rows(path, chosen, dataset.shape, dataset.dtype)


class TorchRows(LazyRows):
    """The vectors of a file of tensors, which is opened whenever some of them are asked for."""

    def __init__(self, path: Path, name: str | None) -> None:
        rows = _torch_matrix(path, name)
        super().__init__(rows.shape[0], rows.shape[1], rows.dtype)
        self.path = path
        self.name = name

    def gather(self, indices: Indices) -> NDArray[Any]:
        return np.asarray(_torch_matrix(self.path, self.name)[as_slice(indices)])


def _torch_matrix(path: Path, name: str | None) -> NDArray[Any]:
    """The vectors of a file of tensors: a matrix, a vector, a list of either, or one by name."""
    content = _load_torch(path)
    if isinstance(content, Mapping):
        shapes = {str(key): tuple(getattr(value, "shape", ())) for key, value in content.items()}
        content = content[choose_array({k: s for k, s in shapes.items() if s}, name, path)]
    values = content if isinstance(content, list | tuple) else [content]
    rows = [np.atleast_2d(as_numpy(value)) for value in values]
    matrix = rows[0] if len(rows) == 1 else np.concatenate(rows)
    if matrix.shape[:-2] == (1,):
        matrix = matrix[0]
    if matrix.ndim != 2:
        raise InputError(
            f"{path} must hold vectors (n, d); found shape {matrix.shape}. Choose a tensor with "
            "vector_column (--vector-column)."
        )
    return matrix


def _read_torch(path: Path) -> Columns:
    import torch

    content = _load_torch(path)
    if isinstance(content, list | tuple) and all(isinstance(v, torch.Tensor) for v in content):
        content = _torch_matrix(path, None)
    values = content if isinstance(content, Mapping) else {"": content}
    return {
        str(name): as_numpy(value)
        for name, value in values.items()
        if isinstance(value, torch.Tensor | list | tuple)
    }


def _load_torch(path: Path) -> Any:
    import torch

    is_mapped = zipfile.is_zipfile(path)  # what torch wrote before 1.6 is not
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_mapped)
    except pickle.UnpicklingError as error:  # whose text says how to run what is inside
        raise InputError(
            f"{path} must hold tensors; it is damaged, or holds Python objects, which could run "
            f"code and are not loaded. {WRITE_AGAIN}"
        ) from error


READERS: dict[str, Callable[[Path], Columns]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    **dict.fromkeys((".h5", ".hdf5"), _read_h5),
    ".safetensors": _read_safetensors,
    **dict.fromkeys((".pt", ".pth"), _read_torch),
}
TABLES = (".parquet", ".jsonl", ".csv", ".tsv")
SUFFIXES = (*READERS, *TABLES)


def open_rows(path: Path, name: str | None) -> Rows:
    """The vectors of a file of its own: an h5, pt or npy file of a slide, or of a sample."""
    suffix = path.suffix.lower()
    rows: Rows
    with _reading(path):
        if suffix in (".h5", ".hdf5"):
            rows = h5_rows(path, name)
        elif suffix in (".pt", ".pth"):
            rows = TorchRows(path, name)
        else:
            rows = np.atleast_2d(np.load(path, mmap_mode="r", allow_pickle=False))
    if len(rows.shape) != 2 or rows.dtype.kind not in "fiub":
        raise InputError(
            f"{path} must hold vectors (n, d); found {rows.dtype} of shape {tuple(rows.shape)}. "
            "Choose an array with vector_column (--vector-column)."
        )
    return rows


def choose_array(shapes: Mapping[str, Sequence[int]], name: str | None, path: Path) -> str:
    """The array of vectors in a file: by its name, a usual name, or as the only matrix."""
    if name is not None and name.strip("/") in shapes:
        return name.strip("/")
    matrices = [key for key, shape in shapes.items() if len(shape) == 2] or list(shapes)
    typical = usual_vectors(shapes)
    for candidates in (typical, matrices):
        if len(candidates) == 1 and name is None:
            return candidates[0]
    listed = ", ".join([f"{key} {tuple(shape)}" for key, shape in shapes.items()][:10]) or "none"
    raise InputError(
        f"{path} must have one array of vectors{f' {name!r}' if name else ''}; found {listed}. "
        "Choose one with vector_column (--vector-column)."
    )


def usual_vectors(names: Collection[str]) -> list[str]:
    """Those that are called as vectors are; of paths in h5 files the last part counts."""
    return [name for name in names if name.rpartition("/")[2].lower() in VECTOR_NAMES]


def stack_rows(parts: Mapping[str, Rows]) -> NDArray[Any] | LazyRows:
    """Rows of several sources, one below the other; copied where they are few, or few of each."""
    widths: dict[int, str] = {}
    for name, rows in parts.items():
        if len(rows):
            widths.setdefault(rows.shape[1], name)
    if len(widths) > 1:
        listed = ", ".join(f"{width} ({name})" for width, name in list(widths.items())[:3])
        raise InputError(
            f"Vectors must have one width; found {listed}. Choose another array "
            "(--vector-column), or import them one by one."
        )
    stacked = StackedRows([rows for rows in parts.values() if len(rows)])
    is_small = stacked.nbytes <= LARGE_BYTES
    if not is_small and len(stacked) >= SPARSE * len(parts):
        return stacked
    matrix = new_matrix(*stacked.shape, stacked.dtype)
    for start in range(0, len(matrix), BLOCK):
        matrix[start : start + BLOCK] = stacked[start : start + BLOCK]
    return matrix


def _read_table(path: Path, suffix: str, text_columns: Iterable[str]) -> Columns:
    import pyarrow as pa
    from pyarrow import csv
    from pyarrow import json as jsonl

    if suffix == ".parquet":
        return _read_parquet(path)
    if suffix == ".jsonl":
        return arrow_columns(jsonl.read_json(path))
    delimiter = "\t" if suffix == ".tsv" else ","
    parsing = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    types = csv.ConvertOptions(column_types=dict.fromkeys(text_columns, pa.string()))
    return arrow_columns(csv.read_csv(path, parse_options=parsing, convert_options=types))


def _read_parquet(path: Path) -> Columns:
    """Lists in batches of rows, as one batch of all would be in memory several times."""
    from pyarrow import parquet

    with parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
        if path.stat().st_size <= LARGE_BYTES:
            return arrow_columns(file.read())
        lists = [field.name for field in file.schema_arrow if _is_list(field.type)]
        others = [name for name in file.schema_arrow.names if name not in lists]
        columns = arrow_columns(file.read(columns=others))
        for name in lists:
            matrix = _read_lists(file, name)
            if matrix is not None:
                columns[name] = matrix
    return columns


def _read_lists(file: Any, name: str) -> NDArray[Any] | None:
    matrix = None
    start = 0
    missing = []
    for batch in file.iter_batches(batch_size=BLOCK, columns=[name]):
        column = batch.column(0)
        place = slice(start, start + len(column))
        start = place.stop
        if column.null_count == len(column):
            missing.append(place)
            continue
        rows = _arrow_matrix(column)
        if rows is None:
            return None
        if matrix is None:
            dtype = np.dtype(np.float64) if rows.dtype.kind in "iu" else rows.dtype
            matrix = new_matrix(file.metadata.num_rows, rows.shape[1], dtype)
        if rows.shape[1] != matrix.shape[1]:
            return None
        matrix[place] = rows
    if matrix is not None:
        for place in missing:
            matrix[place] = np.nan
    return matrix


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def arrow_columns(table: Any) -> Columns:
    """Numbers, texts, and lists of one length as matrices; other types are left out."""
    import pyarrow as pa

    columns: Columns = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        if _is_list(column.type):
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


def natural_order(name: str) -> list[tuple[int, str]]:
    """f2 before f10, in whatever order a file has them."""
    parts = re.findall(r"\d+|\D+", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
