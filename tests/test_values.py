"""Values of many numbers are printed in one line."""

from __future__ import annotations

import numpy as np
import pytest

from probekit.errors import InputError
from probekit.linear.design import Design
from probekit.linear.ridge import fit
from probekit.linear.statistics import statistics
from probekit.values import EmbeddingSet, Partition
from probekit.values.groups import group_numbers
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


def test_groups_mean_the_same_under_one_key_only() -> None:
    ids = [f"{row:064x}" for row in range(6)]
    values = ["anna", "bert", "anna", "", 3.0, None]
    here, there = (group_numbers(values, ids, key=key) for key in (b"a" * 32, b"b" * 32))
    again = group_numbers(["3", "bert", "anna"], ids[:3], key=b"a" * 32)
    assert again.tolist() == here[[4, 1, 0]].tolist()
    assert len(set(here.tolist())) == 5  # rows without a value belong to nobody else
    assert not set(here.tolist()) & set(there.tolist())
    with pytest.raises(InputError, match="6 rows needs one group; found 2"):
        group_numbers(["a", "b"], ids)
