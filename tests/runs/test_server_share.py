"""C8: rows that the server's share was drawn from follow their client out of it, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit import Run
from probekit.cache import DiskStore
from probekit.errors import InputError
from probekit.federated.server_share import server_rows
from probekit.linear.statistics import statistics
from probekit.runs.folder import RunFolder
from probekit.runs.rows import rows_at
from probekit.unlearning.method import Material
from probekit.unlearning.methods.fedremoval import FedRemoval
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import UnlearnRequest
from tests.runs.conftest import Opened
from tests.shelves import Shelve
from tests.shelves import shelve as shelve
from tests.unlearning.conftest import make_run

CLIENTS = tuple("abcd"[number % 4] for number in range(160))
FORGET = UnlearnRequest.of(["b"])


@pytest.fixture
def run(shelve: Shelve, tmp_path: Path, store: DiskStore) -> Path:
    shelve("rows", rows=160, clients=CLIENTS)
    path = tmp_path / "run"
    Run.train(str(path), "rows", partition="column:client_id", server_share=0.3, ridge=0.01, store=store)
    return path


def owners(run: Path, store: DiskStore, state: int | None = None) -> list[str]:
    """The clients that the server's rows of a state were drawn from."""
    embeddings, partition = rows_at(RunFolder.open(run), store, state)
    assert embeddings.clients is not None
    return [embeddings.clients[row] for row in partition.server.tolist()]


@pytest.mark.parametrize("method", ["auto", "fedremoval", "fedremoval-line", "retrain"])
def test_a_forgotten_clients_rows_leave_the_servers_share(
    run: Path, opened: Opened, store: DiskStore, method: str
) -> None:
    assert "b" in owners(run, store)
    before = RunFolder.open(run).trained().server
    opened(run).unlearn("b", method=method)
    left = owners(run, store)
    assert left
    assert "b" not in left
    folder = RunFolder.open(run)
    after, (embeddings, partition) = folder.trained().server, rows_at(folder, store)
    assert before is not None
    assert after is not None
    assert len(after.rows) == len(left) < len(before.rows)
    rows = embeddings.to_numpy()[partition.server].astype(np.float64)
    assert after.statistics is not None
    wanted = statistics(rows, embeddings.labels[partition.server], design=folder.trained().problem.design)
    np.testing.assert_allclose(after.statistics.gram, wanted.gram, rtol=1e-12)
    assert "b" in owners(run, store, 1)


def test_a_client_that_comes_back_brings_its_rows(run: Path, opened: Opened, store: DiskStore) -> None:
    first, whole = RunFolder.open(run).trained().server, owners(run, store)
    opened(run).unlearn("b")
    opened(run).unlearn(add=["b"])
    last = RunFolder.open(run).trained().server
    assert first is not None
    assert last is not None
    assert owners(run, store) == whole
    np.testing.assert_array_equal(last.rows, first.rows)


def test_purge_erases_the_servers_rows_of_the_forgotten(run: Path, opened: Opened, store: DiskStore) -> None:
    embeddings, partition = rows_at(RunFolder.open(run), store)
    assert embeddings.clients is not None
    gone = [embeddings.ids[row] for row, name in enumerate(embeddings.clients) if name == "b"]
    assert any(embeddings.clients[row] == "b" for row in partition.server.tolist())
    opened(run).unlearn("b")
    opened(run).purge(rows=True)
    left, _ = rows_at(RunFolder.open(run), store)
    assert not {*left.ids} & {*gone}
    assert len(left) == len(embeddings) - len(gone)
    assert opened(run).evaluate().plain


def test_a_sample_of_a_client_is_found_in_the_servers_share(run: Path, opened: Opened, store: DiskStore) -> None:
    embeddings, partition = rows_at(RunFolder.open(run), store)
    assert embeddings.clients is not None
    row = next(row for row in partition.server.tolist() if embeddings.clients[row] == "c")
    with pytest.raises(InputError, match="client a does not hold it"):
        opened(run).unlearn(samples=[f"a/{embeddings.ids[row]}"])
    opened(run).unlearn(samples=[f"c/{embeddings.ids[row]}"])
    assert embeddings.ids[row] not in rows_at(RunFolder.open(run), store).embeddings.ids


def test_without_the_rows_the_share_is_dropped_whole(run: Path, opened: Opened, tmp_path: Path) -> None:
    """Nobody can tell which of its sums are the forgotten client's."""
    empty = DiskStore(tmp_path / "empty")
    done = Run.open(run, store=empty).unlearn("b")
    assert done.certificate.method == "exact"
    assert RunFolder.open(run).trained().server is None
    assert RunFolder.open(run).trained(1).server is not None


def options(scheme: str) -> dict[str, Any]:
    return {"keep": "gradients", "scheme": scheme, "clients": None if scheme == "classes" else 4}


def test_the_curvature_of_a_step_does_not_know_the_forgotten() -> None:
    run = make_run(**options("classes"))
    gone = UnlearnRequest.of(["1"])
    removal = Removal(run.trained, gone, run.material)
    rows = server_rows(run.embeddings, run.partition, ["0", "2"])
    assert 0 < len(rows) < len(run.partition.server)
    assert 1 not in run.embeddings.labels[rows]
    assert removal.server.squares().count == len(rows)
    FedRemoval().unlearn(removal)
    kept = Removal(run.trained, gone, Material(partition=run.partition))
    assert not kept.available("server", "rows")


def test_rows_that_were_nobodys_stay() -> None:
    run = make_run(**options("iid"))
    removal = Removal(run.trained, UnlearnRequest.of(["1"]), run.material)
    assert removal.server_set is run.trained.server
