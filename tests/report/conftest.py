"""A run's numbers, from heads that are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from probekit.evaluation.unlearning import UnlearningRows, evaluate_unlearning
from probekit.heads import Head
from probekit.report.tables import ReportData
from probekit.runs.layout import Cost
from tests.oracles import one_hot, random_set, ridge_by_lstsq

CERTIFICATE = {
    "distance": 0.0123456,
    "excess_loss": 0.00031,
    "test_rows": 400,
    "certified_rows": 388,
    "statements": ["Computed from 200 retained rows of 2 clients."],
}


@pytest.fixture(scope="session")
def data() -> ReportData:
    """A client with wrong labels, forgotten with another ridge than that of retraining."""
    rows = random_set(700, 30, 3, seed=1, signal=0.4)
    assert rows.labels is not None
    forgotten = np.arange(300) >= 200
    labels = np.where(forgotten, 0, rows.labels[:300])
    training = replace(rows.take(np.arange(300)), labels=labels)
    heads = {}
    for name, count, ridge in (
        ("before", 300, 1e-3),
        ("after", 200, 2e-3),
        ("retrained", 200, 1e-3),
        ("minimum", 200, 1e-3),
    ):
        params = ridge_by_lstsq(
            np.asarray(training.rows)[:count], one_hot(labels[:count], 3), ridge
        )
        heads[name] = Head.from_params(params, training)
    test = rows.take(np.arange(300, 700))
    clients = {
        "north": np.arange(100),
        "<script>$x$": np.arange(100, 200),
        "south": np.arange(200, 300),
    }
    evaluation = evaluate_unlearning(
        heads, UnlearningRows(training, clients, forgotten, test, test, "class 0")
    )
    costs = (("trained", Cost(1, 1200, 12_345_678, 0.1234)), ("unlearned", Cost(2)))
    summary = ("Client south was forgotten.",)
    return ReportData("runs/a", evaluation, summary, CERTIFICATE, 2.5, costs, {"seed": "0"})
