"""A hub that nobody reaches, in an empty folder."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants

Publish = Callable[..., str]


@pytest.fixture(autouse=True)
def offline_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the hub's cache; all requests are refused at once."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    return cache


@pytest.fixture
def publish(offline_hub: Path) -> Publish:
    """Lays a folder into the hub's cache as if it had been downloaded."""

    def lay(folder: Path, repository: str, *, revision: str = "main") -> str:
        commit = format(abs(hash((repository, revision))) % 16**40, "040x")
        home = offline_hub / f"models--{repository.replace('/', '--')}"
        (home / "refs").mkdir(parents=True, exist_ok=True)
        (home / "refs" / revision).write_text(commit)
        shutil.copytree(folder, home / "snapshots" / commit)
        return commit

    return lay


@pytest.fixture
def edit_json() -> Callable[..., None]:
    """Changes entries of a JSON file."""

    def edit(file: Path, **entries: object) -> None:
        file.write_text(json.dumps({**json.loads(file.read_text()), **entries}))

    return edit
