"""Tables of probes: controls, sets of the cache, what fails."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from probekit.cache import DiskStore
from probekit.errors import InputError
from probekit.evaluation.metrics import share
from probekit.evaluation.probe_options import ProbeOptions
from probekit.evaluation.probe_table import RANDOM, SHUFFLED, beats, control_cells, probe_table
from probekit.values import EmbeddingSet


def test_controls_stay_at_chance() -> None:
    drawn = np.random.default_rng(0)
    labels = drawn.integers(0, 2, 600)
    rows = drawn.normal(size=(600, 3)) + labels[:, None]
    train, test = (EmbeddingSet.from_numpy(rows[part], labels[part]) for part in (slice(0, 300), slice(300, 600)))
    shuffled, random = control_cells("made", train, test, ProbeOptions(), sure=0.9995)
    assert (shuffled.backbone, random.backbone) == (SHUFFLED, RANDOM)
    assert not shuffled.suspicious
    assert not random.suspicious


def test_a_control_is_suspicious_where_it_surely_beats_chance() -> None:
    hits = share(np.arange(1000) < 150)
    assert beats(hits, 0.1, sure=0.9995)
    assert not beats(hits, 0.12, sure=0.9995)
    assert beats(hits, 0.12, sure=0.95)
    # over a whole table of honest controls nobody cries wolf: 2,000 draws of chance itself
    drawn = np.random.default_rng(1).binomial(1000, 0.1, 2000)
    assert sum(beats(share(np.arange(1000) < one), 0.1, sure=1 - 1e-3 / 12) for one in drawn) == 0


def test_a_set_of_the_cache_keeps_its_backbone_and_test_belongs_to_one(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "cache")
    probe_table(["packaged:digits"], ["pixels:8"], store=store, controls=False)
    found = probe_table(["digits-train-8"], ["ignored"], test="digits-test-8", store=store, controls=False)
    assert [(cell.backbone, cell.error) for cell in found.cells] == [("pixels:8", "")]
    alone = probe_table(["digits-train-8"], ["ignored"], store=store, controls=False, shots=(1,))
    assert "test split" in alone.cells[0].error
    assert alone.cells[0].probe is not None
    with pytest.raises(InputError, match="one data set"):
        probe_table(["a", "b"], ["pixels:8"], test="c", store=store)
    with pytest.raises(InputError, match="a data set and a backbone"):
        probe_table([], ["pixels:8"], store=store)
