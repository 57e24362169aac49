"""Files of matrices appear whole or not at all, and are read by others as what they are."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from probekit.cache.matrices import map_tensors, write_tensors
from probekit.errors import CorruptError, StorageError


def _write(folder: Path, rows: Any) -> Path:
    name = write_tensors(folder, {"rows": (rows.shape, rows.dtype, [rows[:2], rows[2:]])}, {"schema": 1})
    return folder / f"{name}.safetensors"


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int64", "uint8"])
def test_a_file_is_valid_safetensors_named_by_its_hash(tmp_path: Path, dtype: str) -> None:
    rows = np.arange(21).reshape(7, 3).astype(dtype)
    path = _write(tmp_path, rows)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == path.stem
    np.testing.assert_array_equal(load_file(path)["rows"], rows)
    mapped, note = map_tensors(path)
    np.testing.assert_array_equal(mapped["rows"], rows)
    assert note == {"schema": 1}
    assert not mapped["rows"].flags.writeable


def test_data_begins_aligned(tmp_path: Path) -> None:
    mapped, _ = map_tensors(_write(tmp_path, np.zeros((3, 5), np.float32)))
    assert mapped["rows"].ctypes.data % 64 == 0


@pytest.mark.parametrize("keep", [0, 5, 40, -1])
def test_a_truncated_file_is_named(tmp_path: Path, keep: int) -> None:
    path = _write(tmp_path, np.ones((4, 4), np.float32))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CorruptError, match=path.stem):
        map_tensors(path)


def test_nothing_is_left_when_writing_fails(tmp_path: Path) -> None:
    def rows() -> Any:
        yield np.zeros((1, 3), np.float32)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(StorageError, match="disk is full"):
        write_tensors(tmp_path, {"rows": ((2, 3), np.dtype("float32"), rows())}, {})
    assert list(tmp_path.iterdir()) == []
