"""The page of machines: a federation by signed files from its beginning to a certificate, by commands alone."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from probekit import Run, TrainOptions
from probekit.cache import DiskStore
from probekit.values import EmbeddingSet
from tests.cli.conftest import Command
from tests.cli.conftest import command as command
from tests.pages import ROOT, blocks

PAGE = ROOT / "docs" / "machines.md"
PENDING = 3


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskStore:
    """A cache with rows of two clients, apart and together."""
    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path / "cache"))
    generator = np.random.default_rng(0)
    labels = np.arange(120) % 3
    rows = generator.normal(size=(120, 6)) + 2 * np.eye(6)[labels]
    ids = [f"sample-{number}" for number in range(120)]
    owner = np.where(np.arange(120) < 70, "north", "south")
    store, names = DiskStore(tmp_path / "cache"), ["x", "y", "z"]
    both = EmbeddingSet.from_numpy(rows, labels, ids=ids, clients=owner.tolist(), class_names=names)
    store.adopt(both, "both")
    for name in ("north", "south"):
        store.adopt(both.select(np.flatnonzero(owner == name)), f"{name}-rows")
    monkeypatch.chdir(tmp_path)
    return store


def test_the_page_of_machines_by_its_own_commands(shelf: DiskStore, command: Command, tmp_path: Path) -> None:
    """Every command on the page, in its order, with what a reader does in between."""
    lines = [
        line for block in blocks(PAGE) if block.mark == "elsewhere: tests/test_machines_page.py" for line in block.lines
    ]
    begin, join, add, train, look, answer, answer_south, log, again, mail, status, unlearn, verify = lines
    assert again == train

    def run(line: str, code: int = 0) -> str:
        found = command(*shlex.split(line)[1:])
        assert found.code == code, (line, found.out, found.err)
        return found.out if "--json" in line else found.message + " ".join(found.out.split())

    run(begin)
    run(join)
    run(join.replace("north", "south"))
    run(add)
    for number in range(2):  # what is trained, then the statistics
        assert "Still awaited: north, south" in run(train, PENDING)
        looked = json.loads(run(f"{look} --json"))["answers"][0]
        assert looked["outcome"] == "answered"
        run(answer)
        assert json.loads(run(f"{log} --json"))["lines"][number]["answered"]["digest"] == looked["digest"]
        assert "Still awaited: south. Their" in run(train, PENDING)
        if number == 0:
            run(answer_south)
    [question] = _open("south")
    Path("south.question").write_bytes(question.read_bytes())
    run("probekit federate files south south.question")
    Path("north.answer").write_bytes(next(Path("trial/exchange").glob("north-*/*.answer")).read_bytes())
    assert "client north: its question was answered or closed already. 1 others were taken in" in run(mail, 6)
    run(again)
    assert "awaited" not in run(status)
    run(unlearn)
    run(verify, 7)
    asked = f"{verify} --rows --require residual,weights,head"
    assert "Still awaited: north" in run(asked, PENDING)
    for _ in range(2):
        run(answer)
        ended = command(*shlex.split(asked)[1:])
    assert ended.code == 0, ended.message
    assert not list(Path("trial/exchange").glob("*/*.*"))  # nothing of a job stays when it is done
    local = Run.train("runs/local", "both", TrainOptions(partition="column:client_id", ridge=0.001), store=shelf)
    local.unlearn("south")
    found = Run.open("runs/trial", store=shelf)
    assert found.head().params.tobytes() == local.head().params.tobytes()
    assert found.head().digest == local.head().digest


def _open(name: str) -> list[Path]:
    found = Path("trial/exchange").glob(f"{name}-*/*.question")
    return [path for path in found if not path.with_suffix(".answer").exists()]
