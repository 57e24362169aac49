"""Heads and sets out of the hub's own cache, made on the spot as its client lays it out; no network."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants

import probekit
from probekit.backbones.snapshots import copied, snapshot
from probekit.cache import DiskStore
from probekit.cache.transfer import export
from probekit.cli.main import run
from probekit.errors import InputError, NotFoundError, OfflineError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache of this test."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def shared(hub: Path, folder: Path, name: str, *, kind: str = "models") -> Path:
    """A folder as if its repository had been downloaded: blobs, links to them, and what `main` means."""
    repository = hub / f"{kind}--{name.replace('/', '--')}"
    for number, path in enumerate(sorted(one for one in folder.rglob("*") if one.is_file())):
        blob, link = (
            repository / "blobs" / f"{number:040x}",
            repository / "snapshots" / COMMIT / path.relative_to(folder),
        )
        for place in (blob, link):
            place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, blob)
        link.symlink_to(Path(*[".."] * (len(path.relative_to(folder).parts) + 1), "blobs", blob.name))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    return repository / "snapshots" / COMMIT


@pytest.fixture
def found() -> probekit.Probe:
    """A probe of two classes."""
    rows = np.random.default_rng(0).standard_normal((30, 4))
    return probekit.probe((rows, (rows[:, 0] > 0).astype(int)))


def test_a_head_comes_back_from_the_hub(hub: Path, tmp_path: Path, found: probekit.Probe) -> None:
    shared(hub, found.save(tmp_path / "head"), "someone/a-head")
    for text in ("hf:someone/a-head", "hf:someone/a-head@main", f"hf:someone/a-head@{COMMIT}"):
        assert probekit.load_head(text).digest == found.head.digest


def test_a_set_comes_back_from_the_hub(hub: Path, tmp_path: Path, store: DiskStore) -> None:
    sealed = store.adopt(probekit.EmbeddingSet.from_numpy(np.eye(3), [0, 1, 0]), "mine")
    for form in ("folder", "dataset"):
        export(store, "mine", tmp_path / form, form=form)
        shared(hub, tmp_path / form, f"someone/{form}", kind="datasets")
        other = ["--cache", str(tmp_path / f"other-{form}")]
        assert run(["cache", "import", f"hf:someone/{form}", "--name", "theirs", "-q", *other]) == 0
        assert DiskStore(other[1]).open("theirs").digest == sealed.digest


def test_what_is_not_there_is_said(hub: Path, tmp_path: Path, found: probekit.Probe) -> None:
    with pytest.raises(OfflineError, match=r"hf:someone/nothing.*cannot be reached"):
        probekit.load_head("hf:someone/nothing")
    for text in ("hf:alone", "hf:a/b/c", "hf:", "hf:a/b@"):
        with pytest.raises(InputError, match="hf:OWNER/NAME"):
            probekit.load_head(text)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    shared(hub, tmp_path / "other", "someone/other")
    with pytest.raises(NotFoundError, match=r"model\.safetensors is missing"):
        probekit.load_head("hf:someone/other")
    assert run(["cache", "import", "hf:someone/nothing", "-q"]) == 3


def test_links_that_leave_the_hubs_cache_are_refused(hub: Path, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.txt").write_text("a")
    place = shared(hub, tmp_path / "set", "someone/set", kind="datasets")
    with copied("hf:someone/set") as folder:
        assert not (folder / "a.txt").is_symlink()
        assert (folder / "a.txt").read_text() == "a"
    assert not folder.exists()
    (place / "b.txt").symlink_to(tmp_path / "set" / "a.txt")
    with pytest.raises(InputError, match="leads out"), copied("hf:someone/set"):
        pass
    assert snapshot("hf:someone/set", kind="dataset") == place
