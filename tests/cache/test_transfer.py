"""An exported set arrives as it was, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from probekit.cache import DiskStore
from probekit.cache.transfer import bring, export
from probekit.errors import CorruptError, InputError, NotFoundError
from probekit.values import EmbeddingSet
from tests.cache.test_disk import made, rows
from tests.conftest import spec


@pytest.fixture
def given(store: DiskStore) -> EmbeddingSet:
    """A named set with everything a set can have."""
    found = made(store, [1, 5, 1, 3], class_names=("a", "b", "c"), clients=["x", "y", "y", "x"], names=list("nmlk"))
    store.keep_canary(spec(), np.ones((8, 4), np.float32))
    sealed = store.seal(found)
    store.sets.give_name("given", sealed.digest)
    return sealed


@pytest.mark.parametrize("form", ["folder", "dataset"])
def test_there_and_back(store: DiskStore, given: EmbeddingSet, tmp_path: Path, form: str) -> None:
    export(store, "given", tmp_path / "out", form=form)
    other = DiskStore(tmp_path / "other")
    assert bring(other, tmp_path / "out") == "given"
    found = other.open("given")
    assert found.digest == given.digest
    np.testing.assert_array_equal(found.to_numpy(), rows(1, 5, 1, 3))
    assert (other.canary(spec()) is not None) == (form == "folder")


@pytest.mark.parametrize("form", ["folder", "dataset"])
def test_a_changed_byte_is_refused(store: DiskStore, given: EmbeddingSet, tmp_path: Path, form: str) -> None:
    export(store, "given", tmp_path / "out", form=form)
    suffix = ".safetensors" if form == "folder" else ".arrow"
    path = next(path for path in sorted((tmp_path / "out").rglob(f"*{suffix}")))
    data = bytearray(path.read_bytes())
    at = data.index(rows(5)[0].tobytes())
    data[at] ^= 1
    path.write_bytes(data)
    other = DiskStore(tmp_path / "other")
    with pytest.raises(CorruptError):
        bring(other, tmp_path / "out")
    assert other.sets.digests() == []


def test_paths_that_leave_the_folder_are_refused(store: DiskStore, given: EmbeddingSet, tmp_path: Path) -> None:
    export(store, "given", tmp_path / "out")
    (tmp_path / "secret").write_text("x")
    (tmp_path / "out" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match="leads out"):
        bring(DiskStore(tmp_path / "other"), tmp_path / "out")


def test_a_note_cannot_name_another_place(store: DiskStore, given: EmbeddingSet, tmp_path: Path) -> None:
    export(store, "given", tmp_path / "out")
    note = tmp_path / "out" / "probekit-set.json"
    note.write_text(json.dumps({**json.loads(note.read_text()), "name": "../../evil"}))
    with pytest.raises(InputError, match="cannot name"):
        bring(DiskStore(tmp_path / "other"), tmp_path / "out")
    assert not (tmp_path / "evil.json").exists()


def test_bad_targets_and_sources(store: DiskStore, given: EmbeddingSet, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not empty"):
        export(store, "given", store.root)
    with pytest.raises(InputError, match="choose one of"):
        export(store, "given", tmp_path / "x", form="zip")
    with pytest.raises(NotFoundError, match="no exported set"):
        bring(store, tmp_path / "nowhere")
