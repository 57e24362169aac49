"""Runs across machines of their own, by signed files: the heads of runs on the same rows in one cache, by digest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit import Run
from probekit.cache import DiskStore
from probekit.errors import Pending
from probekit.federated.files import FilesCarrier
from probekit.federated.parties import RemoteParty
from probekit.values import EmbeddingSet
from tests.nodes import Machines
from tests.runs.test_elsewhere import COLUMN, NAMES
from tests.runs.test_elsewhere import elsewhere as elsewhere
from tests.runs.test_elsewhere import rows as rows
from tests.shelves import shelve as shelve


@pytest.fixture
def machines(rows: EmbeddingSet, tmp_path: Path) -> Machines:
    """Four machines."""
    owners = np.asarray(rows.clients)
    return Machines(tmp_path / "machines", rows, {name: np.flatnonzero(owners == name) for name in NAMES})


def answering(machines: Machines, *names: str) -> RemoteParty:
    """The party of these machines, of which those named answer while they are looked for."""
    found = RemoteParty(machines.folder)

    def pause(_: float) -> None:
        machines.serve(*names)

    vars(found)["carrier"] = FilesCarrier(machines.exchange, wait=60.0, pause=pause)
    return found


@pytest.mark.parametrize("options", [{}, {"method": "fedavg", "rounds": 5, "ridge": 0.01}], ids=["auto", "fedavg"])
def test_files_give_the_same_heads_and_forget_the_same(
    options: dict[str, Any], machines: Machines, store: DiskStore, elsewhere: DiskStore, tmp_path: Path
) -> None:
    here = Run.train(tmp_path / "here", "rows", partition=COLUMN, store=store, **options)
    party = answering(machines)
    there = Run.train(tmp_path / "there", federation=party, store=elsewhere, **options)
    assert there.head().digest == here.head().digest
    leaves = there.folder.at().commitments()
    assert leaves is not None
    assert {name: leaf.key for name, leaf in leaves.leaves.items()} == machines.keys
    sample = f"c/{machines.nodes['c'].rows().ids[3]}"
    requests: tuple[dict[str, Any], ...] = ({"client": "b"}, {"samples": [sample]})
    for request in requests:
        here.unlearn(**request)
        there.unlearn(federation=party, **request)
        assert there.head().digest == here.head().digest
        assert there.verify().intact
    assert not list(machines.exchange.glob("*/*.question"))


def test_a_machine_that_is_off_is_left_out_after_its_time(
    machines: Machines, store: DiskStore, elsewhere: DiskStore, tmp_path: Path
) -> None:
    party = answering(machines, "a", "b", "c")
    how: dict[str, Any] = {"ridge": 0.01, "store": elsewhere}
    run = Run.train(tmp_path / "run", federation=party, at_least=3, timeout=0.5, **how)
    assert run.training is not None
    assert {name: one.reason for name, one in run.training.missing.items()} == {"d": "late"}
    assert set(run.trained().counts) == {"a", "b", "c"}
    local = Run.train(tmp_path / "local", "rows", partition=COLUMN, ridge=0.01, store=store)
    local.unlearn("d")
    assert local.head().digest == run.head().digest


def test_another_command_goes_on_where_nobody_waits(
    machines: Machines, elsewhere: DiskStore, store: DiskStore, tmp_path: Path
) -> None:
    def train() -> Run:
        return Run.train(tmp_path / "run", federation=str(machines.folder.path), ridge=0.01, store=elsewhere)

    for _ in _pending(train):
        assert machines.serve() == 4
    run = Run.open(tmp_path / "run", store=elsewhere)
    for _ in _pending(lambda: run.unlearn("b", method="retrain")):
        assert machines.serve("a", "c", "d") == 3
    local = Run.train(tmp_path / "local", "rows", partition=COLUMN, ridge=0.01, store=store)
    local.unlearn("b")
    assert run.head().digest == local.head().digest


def _pending(work: Any) -> Iterator[int]:
    """The numbers of attempts that had to wait."""
    for number in range(10):
        try:
            work()
        except Pending:
            yield number
        else:
            assert number >= 1
            return
    raise AssertionError("It waits for ever.")
