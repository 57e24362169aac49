"""The door to the clients, seen from a run: nobody is asked who must not be, and a stop changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from probekit import Run
from probekit.cache import DiskStore
from probekit.errors import Cancelled, MissingClientsError
from probekit.federated.in_process import InProcess
from probekit.protocols import Progress
from tests.conftest import tree
from tests.shelves import Shelve
from tests.shelves import shelve as shelve


@pytest.fixture
def run(store: DiskStore, shelve: Shelve, tmp_path: Path) -> Run:
    """A run by FedAvg that kept gradients, and a server with rows of its own."""
    shelve("rows", rows=160, dimension=8)
    options: dict[str, Any] = {"method": "fedavg", "rounds": 5, "server_share": 0.3, "ridge": 0.05}
    return Run.train(tmp_path / "run", "rows", clients=4, store=store, **options)


def test_server_only_asks_nobody(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise AssertionError("a client was asked")

    monkeypatch.setattr(InProcess, "reply", refuse)
    done = run.unlearn("2", method="fedremoval", server_only=True)
    assert (done.state, done.certificate.residual, done.certificate.bounds.weights) == (2, None, None)
    with pytest.raises(MissingClientsError, match="a client was asked"):
        run.unlearn("1", method="fedremoval-line")


def test_cancelled_between_two_questions_the_folder_is_unchanged(run: Run) -> None:
    def cancel(stage: str) -> Callable[[Progress], None]:
        def look(now: Progress) -> None:
            if now.done == 2:
                raise Cancelled("Somebody pressed stop.")

        return look

    before = tree(run.path)
    with pytest.raises(Cancelled):
        run.unlearn("2", method="fedremoval-pcg:6", watch=cancel)
    assert tree(run.path) == before
    assert run.unlearn("2", method="fedremoval-pcg:6").state == 2
