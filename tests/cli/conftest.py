"""The command line as a function: what it prints and how it ends."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit.cache import DiskStore

with warnings.catch_warnings():
    # typer 0.20 imports what click 8.5 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from probekit.cli.main import run


@dataclass(frozen=True)
class Outcome:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def value(self) -> dict[str, Any]:
        """The one JSON object on stdout."""
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def message(self) -> str:
        """What stands on stderr, without frames and line breaks."""
        return " ".join(re.sub(r"[\u2500-\u257f]", " ", self.err).split())


Command = Callable[..., Outcome]
Probekit = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command line in this process and an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Outcome:
        code = run([*map(str, arguments)])
        said = capsys.readouterr()
        return Outcome(code, said.out, said.err)

    return call


BACKBONE = '''
"""The mean colour of a picture's cells, as an embedding."""
import hashlib

import numpy as np
from PIL import Image


class Cells:
    name, kind, view = "py:tiny_cells:Cells", "image", "cells"
    fingerprint = hashlib.sha256(b"cells").hexdigest()
    preprocessing = {"size": 4, "colour": "RGB"}
    encoded = 0

    def preprocess(self, picture):
        small = picture.convert("RGB").resize((4, 4), Image.Resampling.BOX)
        return np.asarray(small, dtype=np.float32).reshape(-1) / 255

    def encode(self, batch):
        Cells.encoded += len(batch)
        return np.stack(batch)


class Forgetful(Cells):
    """Gives other numbers each time it is asked."""
    fingerprint = hashlib.sha256(b"forgetful").hexdigest()
    name = "py:tiny_cells:Forgetful"

    def encode(self, batch):
        Cells.encoded += 1
        return np.stack(batch) + np.float32(Cells.encoded)


class Chatty(Cells):
    """Says hello whenever it is asked."""
    fingerprint = hashlib.sha256(b"chatty").hexdigest()

    def encode(self, batch):
        print("hello from encode")
        return super().encode(batch)


class Loud(Cells):
    """Writes to the descriptor itself, as libraries in C do."""
    fingerprint = hashlib.sha256(b"loud").hexdigest()

    def encode(self, batch):
        import os
        os.write(1, b"below Python")
        return super().encode(batch)


class Interrupted(Cells):
    """Somebody presses Ctrl-C while it encodes pictures of the data set, after the canary's eight."""
    fingerprint = hashlib.sha256(b"interrupted").hexdigest()

    def encode(self, batch):
        if Cells.encoded >= 8 + 10:
            raise KeyboardInterrupt
        return super().encode(batch)


class Broken(Cells):
    fingerprint = hashlib.sha256(b"broken").hexdigest()

    def encode(self, batch):
        raise RuntimeError("a bug of its own")
'''


@pytest.fixture
def backbone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The id of a backbone that costs nothing, in a module of its own."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "tiny_cells.py").write_text(BACKBONE)
    monkeypatch.syspath_prepend(folder)
    yield "py:tiny_cells:Cells"
    for name in ("tiny_cells", "tiny_nan", "tiny_words"):
        sys.modules.pop(name, None)


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    """Thirty pictures of three classes and five clients."""
    pixels = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), dtype=np.uint8)
    numbers = np.arange(30)
    clients = np.array([f"c{number % 5}" for number in numbers])
    np.savez(tmp_path / "set.npz", images=pixels, labels=numbers % 3, client_ids=clients)
    return f"npz:{tmp_path / 'set.npz'}"


@pytest.fixture
def extracted(command: Command, backbone: str, dataset: str) -> str:
    """The name of a set that is in the cache."""
    assert command("extract", dataset, "-b", backbone, "--name", "tiny", "-q").code == 0
    return "tiny"


@pytest.fixture
def probekit(store: DiskStore, command: Command, monkeypatch: pytest.MonkeyPatch) -> Probekit:
    """The command line with this cache and JSON: its exit code, its value, and its words on stderr."""
    monkeypatch.setenv("COLUMNS", "10000")  # rich breaks sentences where a terminal would end

    def call(*arguments: str) -> tuple[int, dict[str, Any], str]:
        outcome = command(*arguments, "--cache", str(store.root), "--json")
        return outcome.code, outcome.value, outcome.err

    return call
