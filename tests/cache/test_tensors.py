"""Files of tensors appear whole or not at all, and safetensors reads them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from probekit.arrays import canonical_json
from probekit.cache.tensors import map_tensors, write_tensors
from probekit.errors import CorruptError


def write(folder: Path, matrix: np.ndarray[Any, Any]) -> Path:
    name = write_tensors(folder, {"rows": matrix}, {"about": "test"})
    return folder / f"{name}.safetensors"


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int64", "uint8"])
@pytest.mark.parametrize("count", [0, 7])
def test_a_file_is_safetensors_named_by_its_sha256(tmp_path: Path, dtype: str, count: int) -> None:
    matrix = np.arange(3 * count).reshape(count, 3).astype(dtype)
    path = write(tmp_path, matrix)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == path.stem
    np.testing.assert_array_equal(load_file(path)["rows"], matrix)
    tensors, metadata = map_tensors(path)
    np.testing.assert_array_equal(tensors["rows"], matrix)
    assert tensors["rows"].dtype == matrix.dtype
    assert metadata == {"about": "test"}


def test_the_bytes_are_those_of_the_safetensors_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probekit.cache.tensors.BLOCK_BYTES", 40)
    generator = np.random.default_rng(0)
    tensors = {
        "text:kéy": generator.integers(0, 255, 13).astype(np.uint8),
        "rows": generator.normal(size=(7, 3)).astype(np.float32),
        "half": generator.normal(size=(7, 3)).astype(np.float16),
        "weights": generator.normal(size=7),
        "labels": np.arange(7),
        "ids": generator.integers(0, 255, (7, 32)).astype(np.uint8),
        "none": np.zeros((0, 3), np.float32),
    }
    metadata = {"about": ['a "text"', 1]}
    name = write_tensors(tmp_path, tensors, metadata)
    expected = save(tensors, {"probekit": canonical_json(metadata)})
    assert (tmp_path / f"{name}.safetensors").read_bytes() == expected


def test_mapped_data_is_aligned_and_read_only(tmp_path: Path) -> None:
    tensors, _ = map_tensors(write(tmp_path, np.zeros((3, 5), np.float32)))
    assert tensors["rows"].flags.aligned
    assert not tensors["rows"].flags.writeable


@pytest.mark.parametrize("kept", [0, 5, 40, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, kept: int) -> None:
    path = write(tmp_path, np.ones((4, 4), np.float32))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CorruptError, match=path.stem):
        map_tensors(path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"shape":[4,4]', b'"shape":[-4,-4]'),
        (b'"shape":[4,4]', b'"shape":[4,5]'),
        (b'"data_offsets":[0,64]', b'"data_offsets":[64,128]'),
        (b'"F32"', b'"F99"'),
        (b'{"__metadata__"', b'{"__netadata__"'),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, old: bytes, new: bytes) -> None:
    path = write(tmp_path, np.ones((4, 4), np.float32))
    content = path.read_bytes()
    assert old in content
    size = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + size].replace(old, new)
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + size :])
    with pytest.raises(CorruptError, match=path.stem):
        map_tensors(path)


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(CorruptError):
        map_tensors(tmp_path / "pipe.safetensors")
