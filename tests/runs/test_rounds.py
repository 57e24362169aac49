"""A killed FedAvg training goes on with the rounds that it did; nothing of it stays behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit import Run, train
from probekit.cache import Cache
from probekit.files import ASIDE
from probekit.progress import Step
from probekit.runs import rounds
from tests.runs.examples import embeddings

ROUNDS = 6
METHOD = f"fedavg:rounds={ROUNDS},epochs=1,batch_size=8,rate=0.05"


class Kill(BaseException):
    """What no code handles."""


class Watch:
    """Counts the rounds of a training, and kills it after some."""

    def __init__(self, last: int = ROUNDS + 1) -> None:
        self.last = last
        self.count = 0

    def __call__(self, step: Step) -> None:
        if step.stage == "rounds":
            if self.count == self.last:
                raise Kill
            self.count += 1


@pytest.fixture(autouse=True)
def _every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "SECONDS", 0.0)


def train_run(root: Path, watch: Watch, **options: Any) -> Run:
    options = {"ridge": 0.1, "method": METHOD, "keep": "nothing", **options}
    cache = root / "cache"
    Cache(cache).save("rows", embeddings(40))
    folder = root / "runs" / "a"
    return train("rows", run=folder, clients="hospital", cache=cache, progress=watch, **options)


def leftovers(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.name.startswith(ASIDE)]


def killed(root: Path, after: int, **options: Any) -> None:
    with pytest.raises(Kill):
        train_run(root, Watch(after), **options)
    assert len(leftovers(root)) == 1


def test_a_killed_training_goes_on_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole = train_run(tmp_path / "whole", Watch())
    root = tmp_path / "killed"
    killed(root, 4)
    root = root.rename(tmp_path / "moved")
    watch = Watch()
    run = train_run(root, watch)
    assert watch.count == ROUNDS - 4
    assert np.array_equal(run.head.params, whole.head.params)
    assert run.newest.state.rounds == ROUNDS
    assert not leftovers(root)


@pytest.mark.parametrize("options", [{"seed": 1}, {"ridge": 0.2}, {"normalize": "l2"}])
def test_another_training_begins_anew(tmp_path: Path, options: dict[str, Any]) -> None:
    killed(tmp_path, 4)
    watch = Watch()
    run = train_run(tmp_path, watch, **options)
    whole = train_run(tmp_path / "whole", Watch(), **options)
    assert watch.count == ROUNDS
    assert np.array_equal(run.head.params, whole.head.params)
    assert not leftovers(tmp_path)


def test_a_damaged_file_of_rounds_is_not_used(tmp_path: Path) -> None:
    killed(tmp_path, 4)
    (path,) = leftovers(tmp_path)
    path.write_bytes(path.read_bytes()[:-9])
    watch = Watch()
    train_run(tmp_path, watch)
    assert watch.count == ROUNDS


def test_erasing_removes_the_rounds_of_a_killed_training(tmp_path: Path) -> None:
    run = train_run(tmp_path, Watch(), keep="statistics")
    elsewhere = tmp_path / "elsewhere"
    with pytest.raises(Kill):
        train(
            "rows",
            run=elsewhere / "b",
            clients="hospital",
            cache=tmp_path / "cache",
            progress=Watch(3),
            ridge=0.1,
            method=METHOD,
        )
    assert leftovers(elsewhere)
    run.erase(client="north")
    assert not leftovers(tmp_path)
