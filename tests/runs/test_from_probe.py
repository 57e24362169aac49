"""A plain probe that becomes a federation: the same head, now to be unlearned from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probekit
from probekit import Run
from probekit.cache import DiskStore
from probekit.errors import InputError
from probekit.evaluation.probe_values import Probe
from probekit.values import EmbeddingSet


def rows_of(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 4, count)
    return (generator.standard_normal((count, 8)) + 2 * np.eye(8)[labels]).astype(np.float32), labels


@pytest.fixture
def probed() -> Probe:
    """A probe of arrays."""
    found: Probe = probekit.probe(rows_of(400, 0), test=rows_of(200, 1))
    return found


@pytest.mark.parametrize(
    "options", [{}, {"normalise": "l2"}, {"standardise": "standardise"}, {"class_weight": "balanced"}]
)
def test_the_head_across_clients_is_the_probe_s(tmp_path: Path, store: DiskStore, options: dict[str, Any]) -> None:
    probed = probekit.probe(rows_of(400, 0), test=rows_of(200, 1), **options)
    run = Run.from_probe(tmp_path / "run", probed, clients=5, store=store)
    assert len(run.trained().counts) == 5
    assert sum(run.trained().counts.values()) == 400  # no share of the server
    np.testing.assert_allclose(run.head().params, probed.head.params, rtol=1e-9, atol=1e-11)


def test_a_client_of_it_is_forgotten_as_if_it_had_never_been(tmp_path: Path, store: DiskStore, probed: Probe) -> None:
    run = Run.from_probe(tmp_path / "run", probed, clients=5, partition="dirichlet:1", store=store)
    held = run.folder.partition().clients["2"]
    done = run.unlearn("2")
    rest = np.setdiff1d(np.arange(400), held)
    rows, labels = rows_of(400, 0)
    again = probekit.probe((rows[rest], labels[rest]), test=rows_of(200, 1), ridge=probed.head.ridge)
    np.testing.assert_allclose(run.head().params, again.head.params, rtol=1e-8, atol=1e-10)
    assert done.certificate.bounds.weights is not None


def test_the_rows_get_a_name_and_nothing_is_stored_twice(tmp_path: Path, store: DiskStore, probed: Probe) -> None:
    Run.from_probe(tmp_path / "one", probed, name="mine", clients=2, store=store)
    assert isinstance(store.open("mine"), EmbeddingSet)
    before = sum(path.stat().st_size for path in store.root.rglob("*.safetensors"))
    Run.from_probe(tmp_path / "two", probed, name="mine", clients=3, ridge=1.0, store=store)
    assert sum(path.stat().st_size for path in store.root.rglob("*.safetensors")) == before
    assert Run.open(tmp_path / "two", store=store).head().ridge == 1.0


def test_a_run_that_stands_there_is_kept(tmp_path: Path, store: DiskStore, probed: Probe) -> None:
    Run.from_probe(tmp_path / "one", probed, clients=2, store=store)
    with pytest.raises(InputError, match="force"):
        Run.from_probe(tmp_path / "one", probed, clients=3, store=store)
