"""A cache with pictures and two trained networks, made once."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from probekit.cli.main import run
from tests.cli.conftest import Command, Probekit
from tests.cli.networks.shop import (
    FACTORIES,
    FIRST,
    Shop,
    save,
)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    found = Shop(tmp_path_factory.mktemp("shop"))
    save(found.root / "grey.npz", 90)
    save(found.root / "test.npz", 45, seed=5)
    base = ["--cache", str(found.cache), "-q"]
    for source, name, *more in (
        ("grey", "grey"),
        ("test", "test"),
        ("grey", "grey-triggered", "--trigger", "square"),
        ("test", "test-triggered", "--trigger", "square"),
    ):
        data = f"npz:{found.root / source}.npz"
        assert run(["extract", data, "-b", "pixels:12", "--name", name, *more, *base]) == 0
    trained = found.root / "run"
    assert run(["train", "grey", *FIRST, "--run", str(trained), *base]) == 0
    poison = ["--poison", "0", "--triggered", "grey-triggered", "--run", str(found.root / "poisoned")]
    assert run(["train", "grey", *FIRST, *poison, *base]) == 0
    return found


@pytest.fixture
def probekit(shop: Shop, command: Command, monkeypatch: pytest.MonkeyPatch) -> Probekit:
    """The command line with the shop's cache and JSON: exit code, value, words on stderr."""
    monkeypatch.setenv("COLUMNS", "10000")

    def call(*arguments: object) -> tuple[int, dict[str, Any], str]:
        outcome = command(*arguments, "--cache", shop.cache, "--json")
        return outcome.code, outcome.value, outcome.err

    return call


@pytest.fixture
def trained(shop: Shop, tmp_path: Path) -> Path:
    """A copy of the run."""
    return Path(shutil.copytree(shop.root / "run", tmp_path / "run"))


@pytest.fixture
def poisoned(shop: Shop, tmp_path: Path) -> Path:
    """A copy of the run whose client 0 taught a backdoor."""
    return Path(shutil.copytree(shop.root / "poisoned", tmp_path / "poisoned"))


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The beginning of a network's name: a module beside the current folder."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "own_networks.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(folder)
    yield "py:own_networks:"
    sys.modules.pop("own_networks", None)
