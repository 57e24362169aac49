"""Values of many numbers are printed in one line."""

from __future__ import annotations

import numpy as np

from probekit.linear.design import Design
from probekit.linear.ridge import fit
from probekit.linear.statistics import statistics
from probekit.values import EmbeddingSet, Partition
from tests.conftest import spec


def test_large_values_have_a_repr_of_one_line() -> None:
    rows, labels = np.random.default_rng(0).normal(size=(500, 30)), np.arange(500) % 3
    embeddings = EmbeddingSet(spec(), rows, labels, [f"{row:064x}" for row in range(500)], ("a", "b", "c"), source="s")
    stats = statistics(rows, labels, Design(30, 3))
    partition = Partition({str(client): np.arange(client, 500, 5) for client in range(5)}, np.arange(0), 500, "iid", 0)
    for value in (embeddings, partition, stats, fit(stats, 0.1)):
        assert "\n" not in repr(value)
        assert len(repr(value)) < 500
    shown = "embeddings=float64[500, 30], labels=int64[500], ids=500 entries, class_names=3 entries, source='s')"
    assert repr(embeddings).endswith(shown)
    assert "gram=float64[31, 31]" in repr(stats)
    assert repr(partition) == "Partition(clients=5 entries, server=int64[0], rows=500, scheme='iid', seed=0)"
