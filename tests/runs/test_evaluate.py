"""Evaluations of runs: the minimum beside the certificate, samples, classes that are gone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from probekit.cache import Cache
from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError, NotFoundError
from probekit.runs.evaluate import evaluate_run, run_heads
from probekit.runs.run import Run
from probekit.runs.train import train
from tests.oracles import random_rows
from tests.runs.examples import make_run


def make_rows(count: int = 120, classes: int = 3) -> EmbeddingSet:
    vectors, labels = random_rows(count, 6, classes, seed=4, signal=1.0)
    return EmbeddingSet.from_numpy(vectors, labels, class_names=list("abc")[:classes])


def test_the_minimum_of_a_logistic_head_is_more_exact_than_the_head(tmp_path: Path) -> None:
    rows = make_rows()
    run = train(rows, run=tmp_path / "run", clients=3, head="logistic", ridge=0.01, tolerance=1e-6)
    run.unlearn(client="1")
    minimum = run_heads(run, [])["minimum"]
    retained = run.newest.rows.ids
    places = [rows.ids.tolist().index(row) for row in retained.tolist()]
    X = np.asarray(rows.rows, np.float64)[places]
    ones = np.ones((len(X), 1))
    sklearn = LogisticRegression(
        C=1 / (0.01 * len(X)), fit_intercept=False, solver="newton-cholesky", tol=1e-12
    )
    assert rows.labels is not None
    sklearn.fit(np.hstack([X, ones]), rows.labels[places])
    ours = np.vstack([minimum.weights, minimum.intercept])
    assert np.abs(ours.T - sklearn.coef_).max() < 1e-10
    certificate = run.certificate
    assert certificate is not None
    measured = evaluate_run(run).unlearning.distances["minimum"]["after"]
    assert 0 < measured <= certificate.distance


def test_forgotten_samples_belong_to_clients_that_stay(tmp_path: Path) -> None:
    rows = make_rows()
    run = train(rows, run=tmp_path / "run", clients=3)
    samples = [row.tobytes().hex() for row in run.newest.rows.ids[:5]]
    run.unlearn(sample=samples)
    evaluation = evaluate_run(run, rows.take(np.arange(20)))
    after = evaluation.unlearning.heads["after"]
    assert (after["forgotten"].count, after["retained"].count) == (5, 115)
    assert "membership_auc" in after
    assert [client.is_forgotten for client in evaluation.unlearning.clients] == [False] * 3
    assert evaluation.test_rows == 20


def test_a_class_that_left_with_its_client(tmp_path: Path) -> None:
    vectors, labels = random_rows(90, 6, 3, seed=4, signal=1.0)
    names = np.array(["a", "b", "c"])[labels]
    site = ["west" if name == "c" else "north" for name in names]
    rows = EmbeddingSet.from_numpy(vectors, names, columns={"site": site})
    run = train(rows, run=tmp_path / "run", clients="site")
    run.unlearn(client="west")
    evaluation = evaluate_run(run).unlearning
    assert evaluation.heads["before"]["forgotten"].value > 0.7
    assert evaluation.heads["after"]["forgotten"].value == 0
    assert evaluation.distances["minimum"] == {"after": 0.0, "retrained": 0.0}


def test_several_requests_are_compared_with_the_first_state(tmp_path: Path) -> None:
    run = train(make_rows(), run=tmp_path / "run", clients=4)
    first = run.head
    run.unlearn(client="1")
    run.unlearn(client="2")
    heads = run_heads(run, [])
    assert heads["before"].digest == first.digest
    assert heads["after"].weights.tolist() == heads["retrained"].weights.tolist()


def test_real_targets_are_evaluated_by_r2(tmp_path: Path) -> None:
    vectors, _ = random_rows(60, 6, 2, seed=4)
    targets = vectors @ np.arange(6.0)
    run = train((vectors, targets + 0.5), run=tmp_path / "run", clients=3, ridge=1e-6)
    run.unlearn(client="1")
    evaluation = evaluate_run(run, (vectors, targets + 0.5))
    test = evaluation.unlearning.heads["after"]["test"]
    assert test.value > 0.99
    assert test.decimal


def test_without_all_retained_rows_there_is_no_reference(tmp_path: Path) -> None:
    rows = make_rows()
    run = train(rows, run=tmp_path / "run", clients=3)
    run.unlearn(client="1")
    other = Cache(tmp_path / "other")
    with pytest.raises(NotFoundError):
        evaluate_run(Run(run.folder, cache=other))
    held = {row.tobytes() for row in run.newest.rows.ids[:40]}
    places = [place for place, row in enumerate(rows.ids) if row.tobytes() in held]
    other.save("one-client", rows.take(np.array(places)))
    evaluation = evaluate_run(Run(run.folder, cache=other))
    assert list(evaluation.unlearning.heads) == ["before", "after"]
    assert [client.client for client in evaluation.unlearning.clients] == ["0"]
    assert any("cache" in note for note in evaluation.notes)


def test_a_run_evaluates_itself_and_draws_its_page(tmp_path: Path) -> None:
    rows = make_rows()
    run = train(rows, run=tmp_path / "run", clients=3)
    run.unlearn(client="1")
    test = rows.take(np.arange(30, 60))
    assert run.evaluate(test).to_dict() == evaluate_run(run, test).to_dict()
    page = run.report(tmp_path / "page.html", data=test)
    assert "retrained" in page.read_text()
    with pytest.raises(InputError, match="nosuch"):
        run.evaluate(test, nosuch=1)


def test_the_retrained_head_is_trained_at_the_runs_own_rate(tmp_path: Path) -> None:
    """A rate derived anew from who stays would make another reference than `retrain` ends at."""
    run = make_run(tmp_path / "run", method="fedavg:rounds=5,steps=2", ridge=0.1)
    run.unlearn(client="north", method="retrain")
    heads = run_heads(run, [])
    np.testing.assert_array_equal(heads["after"].weights, heads["retrained"].weights)
