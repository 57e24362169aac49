"""Kills before every change of the disk, power cuts, moved folders: the same call finishes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probekit import Run, train
from probekit.cache import Cache
from probekit.cache.runs import noted_runs
from probekit.files import ASIDE
from probekit.runs import rounds
from probekit.runs.rows import TRAINING
from tests.power import Disk, killed_at
from tests.runs.examples import embeddings, make_run, without

FEDAVG = "fedavg:rounds=4,epochs=1,batch_size=16,optimizer=adam,rate=1e-2"
KINDS: dict[str, dict[str, Any]] = {
    "ridge": {},
    "logistic": {"head": "logistic", "C": 1.0},
    "linearized": {"network": "mlp:2", "ridge": 1.0, "keep": "gradients"},
    "conventional": {"network": "mlp:2", "linearize": False, "method": FEDAVG},
}
DEFAULT = [("ridge", 7), ("linearized", 11), ("conventional", 17)]
SLOW = [pytest.param(kind, 1, marks=pytest.mark.slow) for kind in KINDS]
MAX_STEPS = 400


def train_run(root: Path, source: object = "rows", **options: Any) -> Run:
    cache = root / "cache"
    return train(source, run=root / "runs" / "a", clients="hospital", cache=cache, **options)


def with_rows(root: Path) -> Path:
    """A folder with a cache that has the rows: how they are kept is tested elsewhere."""
    Cache(root / "cache").save("rows", embeddings(40))
    return root


def retrained_run(folder: Path, **options: Any) -> Run:
    rows = without(embeddings(40), "hospital", "north")
    return make_run(folder / "retrained", rows, test=None, **options)


def unlearn_north(root: Path) -> Run:
    run = Run(root / "runs" / "a", cache=root / "cache")
    run.unlearn(client="north")
    return run


def leftovers(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.name.startswith((ASIDE, ".old-"))]


def moved(root: Path, step: int) -> Path:
    """The folder, for every second step under another name."""
    return root.rename(root.with_name(f"{root.name}-moved")) if step % 2 else root


def check_trained(root: Path, head: str) -> None:
    run = Run(root / "runs" / "a", cache=root / "cache")
    assert run.head.digest == head
    assert run.newest.number == 1
    assert run.rows_of(TRAINING) is not None
    noted = noted_runs(Cache(root / "cache"))
    assert [entry.done for entry in noted.values()] == [True]
    assert noted[run.newest.description.id].folder(run.cache) == run.folder
    assert leftovers(root) == []


def kill_and_finish(
    folder: Path,
    job: Callable[[Path], Run],
    check: Callable[[Path], None],
    *,
    steps: range,
    template: Path,
) -> int:
    """Kill before each of these steps, finish with the same call; returns how many were hit."""
    for hits, step in enumerate(steps):
        root = folder / str(step)
        shutil.copytree(template, root)
        if not killed_at(lambda root=root: job(root), step):  # type: ignore[misc]
            return hits
        root = moved(root, hits)
        job(root)
        check(root)
        shutil.rmtree(root)
    raise AssertionError(f"the job has more than {MAX_STEPS} steps")


@pytest.mark.parametrize(("kind", "every"), [*DEFAULT, *SLOW])
def test_killed_trainings_are_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, every: int
) -> None:
    monkeypatch.setattr(rounds, "SECONDS", 0.0)  # those of FedAvg are kept, every one
    options = KINDS[kind]
    head = train_run(with_rows(tmp_path / "undisturbed"), **options).head.digest
    hits = kill_and_finish(
        tmp_path,
        lambda root: train_run(root, **options),
        lambda root: check_trained(root, head),
        steps=range(0, MAX_STEPS, every),
        template=with_rows(tmp_path / "template"),
    )
    assert hits * every > 30


@pytest.mark.parametrize(("kind", "every"), [*DEFAULT, *SLOW])
def test_killed_removals_are_finished(tmp_path: Path, kind: str, every: int) -> None:
    options = KINDS[kind]
    retrained = retrained_run(tmp_path, **options)
    template = with_rows(tmp_path / "template")
    trained = train_run(template, **options)

    def check(root: Path) -> None:
        run = Run(root / "runs" / "a", cache=root / "cache")
        assert run.head.digest == retrained.head.digest
        assert run.fingerprint == trained.fingerprint
        assert run.newest.number == 2
        assert not run.unlearn(client="north").changed
        assert leftovers(root) == []

    steps = range(0, MAX_STEPS, every)
    hits = kill_and_finish(tmp_path, unlearn_north, check, steps=steps, template=template)
    assert hits * every > 15


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_joins_are_finished(tmp_path: Path, every: int) -> None:
    template = with_rows(tmp_path / "template")
    Cache(template / "cache").save("early", without(embeddings(40), "hospital", "north"))
    train_run(template, source="early")
    together = train_run(with_rows(tmp_path / "together"))

    def join_north(root: Path) -> Run:
        late = without(embeddings(40), "hospital", "east", "south", "west")
        return train_run(root, source=late, add=True)

    def check(root: Path) -> None:
        run = Run(root / "runs" / "a", cache=root / "cache")
        assert run.head.digest == together.head.digest
        assert run.newest.number == 2
        assert leftovers(root) == []

    steps = range(0, MAX_STEPS, every)
    hits = kill_and_finish(tmp_path, join_north, check, steps=steps, template=template)
    assert hits * every > 30


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_power_cuts_leave_the_old_state_or_the_new(
    tmp_path: Path, *, ahead: bool, every: int
) -> None:
    """`ahead`: the disk kept every new name, but only the bytes that were synced."""
    root = with_rows(tmp_path / "root")
    head = train_run(root).head.digest
    retrained = retrained_run(tmp_path)
    disk = Disk(root)
    with disk.watching():
        unlearn_north(root)
    states = len(disk.ahead if ahead else disk.states)
    for state in range(0, states, every):
        disk.cut(state, ahead=ahead)
        run = Run(root / "runs" / "a", cache=root / "cache")
        heads = {1: head, 2: retrained.head.digest}
        assert run.head.digest == heads[run.newest.number]
        assert unlearn_north(root).head.digest == retrained.head.digest
    disk.close()


def test_power_cuts_during_training_lose_nothing_that_was_said(tmp_path: Path) -> None:
    root = with_rows(tmp_path / "root")
    disk = Disk(root)
    with disk.watching():
        head = train_run(root).head.digest
    for state in range(0, len(disk.states), 3):
        disk.cut(state)
        assert train_run(root).head.digest == head
        check_trained(root, head)
    disk.close()
