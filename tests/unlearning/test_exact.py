"""Exact removal against training anew by least squares on the explicit rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from probekit.errors import CorruptError, InputError, MismatchError
from probekit.federated.methods.closed_form import ClosedForm
from probekit.federated.training import train
from probekit.linear.design import INTERCEPTS, SCALINGS, ClientStats
from probekit.unlearning.choice import carried_out
from probekit.unlearning.method import Material
from probekit.unlearning.methods.exact import Exact
from probekit.unlearning.methods.retrain import Retrain
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import Relabelled, SampleRef, UnlearnRequest
from probekit.unlearning.rows import remaining_rows
from tests.oracles import relative
from tests.unlearning.conftest import Run, make_run


@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_without_clients_it_is_the_head_of_the_other_rows(intercept: str, scaling: str) -> None:
    run = make_run(design={"intercept": intercept}, scaling=scaling, ridge=0.1 if scaling == "mean" else 5.0)
    found = Exact().unlearn(Removal(run.trained, UnlearnRequest.of(["1", "3"])))
    after = found.trained_after
    wanted = run.oracle(run.rows_without("1", "3"))
    assert relative(after.params, wanted) < 1e-9
    assert relative(run.trained.params, wanted) > 1e-3
    assert set(after.counts) == {"0", "2", "4"} == set(after.statistics or {})
    assert sum(after.weights.values()) == pytest.approx(1)
    assert after.history is None
    assert after.head.classes == run.trained.head.classes
    assert after.head.spec_digest == run.trained.head.spec_digest
    assert found.cost.up == found.cost.rounds == 0
    assert found.cost.flops > 0


def test_in_exact_arithmetic_the_digest_is_that_of_training_anew() -> None:
    run = make_run(design={"arithmetic": "exact", "view": "l2"})
    for request in (
        UnlearnRequest.of(["2"]),
        UnlearnRequest.of(samples=[run.embeddings.ids[int(run.partition.clients["0"][3])]]),
    ):
        found = Exact().unlearn(Removal(run.trained, request, run.material)).trained_after.head
        rest = remaining_rows(run.trained, request, run.embeddings, run.partition)
        anew = train(rest.embeddings, rest.partition, ridge=0.1, design=run.trained.problem.design)
        assert found.digest == anew.head.digest
        assert found.digest != run.trained.head.digest
        assert Retrain().unlearn(Removal(run.trained, request, run.material)).trained_after.head.digest == found.digest


def test_samples_and_labels() -> None:
    run = make_run(seed=3)
    held = run.partition.clients["2"]
    gone, wrong = int(held[0]), int(held[1])
    request = UnlearnRequest(
        ("4",),
        (SampleRef(run.embeddings.ids[gone], "2"),),
        (Relabelled(run.embeddings.ids[wrong], 0 if run.embeddings.labels[wrong] else 1),),
    )
    found = Exact().unlearn(Removal(run.trained, request, run.material))
    rows = np.setdiff1d(run.rows_without("4"), [gone])
    labels = run.embeddings.labels[rows].copy()
    labels[rows == wrong] = 0 if run.embeddings.labels[wrong] else 1
    assert relative(found.trained_after.params, run.oracle(rows, labels)) < 1e-9
    assert found.trained_after.counts["2"] == len(held) - 1
    kept = found.trained_after.statistics
    assert kept is not None
    assert run.trained.statistics is not None
    assert kept["0"] is run.trained.statistics["0"]


def test_a_sample_that_the_server_holds_too_leaves_it(run: Run) -> None:
    ids = list(run.embeddings.ids)
    of_client, of_server = int(run.partition.clients["0"][0]), int(run.partition.server[0])
    ids[of_server] = ids[of_client]
    material = replace(run.material, embeddings=replace(run.embeddings, ids=ids))
    everywhere = Exact().unlearn(Removal(run.trained, UnlearnRequest.of(samples=[ids[of_client]]), material))
    server, before = everywhere.trained_after.server, run.trained.server
    assert server is not None
    assert server.statistics is not None
    assert before is not None
    assert before.statistics is not None
    assert server.statistics.count == before.statistics.count - 1
    there = UnlearnRequest(samples=(SampleRef(ids[of_client], "0"),))
    kept = Exact().unlearn(Removal(run.trained, there, material)).trained_after.server
    assert kept is not None
    assert kept.statistics is not None
    assert kept.statistics.digest == before.statistics.digest


def test_a_client_whose_last_sample_goes_is_gone() -> None:
    run = make_run(data={"rows": 24}, clients=12, server=0.0)
    rows = run.partition.clients["3"]
    request = UnlearnRequest.of(samples=[run.embeddings.ids[int(row)] for row in rows])
    found = Exact().unlearn(Removal(run.trained, request, run.material)).trained_after
    assert "3" not in found.counts
    assert relative(found.params, run.oracle(run.rows_without("3"))) < 1e-9


def test_a_client_that_returns_undoes_its_removal(run: Run) -> None:
    gone = Exact().unlearn(Removal(run.trained, UnlearnRequest.of(["1"]))).trained_after
    statistics = run.trained.statistics
    assert statistics is not None
    by_statistics = Material(arriving={"1": statistics["1"]})
    for material in (by_statistics, run.material):
        back = Exact().unlearn(Removal(gone, UnlearnRequest(added=("1",)), material)).trained_after
        assert relative(back.params, run.trained.params) < 1e-12
        assert dict(back.counts) == dict(run.trained.counts)
    with pytest.raises(InputError, match="Cannot add client 9"):
        Exact().unlearn(Removal(gone, UnlearnRequest(added=("9",)), run.material))
    with pytest.raises(InputError, match="Cannot add client 1: it needs its statistics"):
        Exact().unlearn(Removal(gone, UnlearnRequest(added=("1",))))


def test_statistics_that_no_rows_have_are_refused(run: Run) -> None:
    gone = Exact().unlearn(Removal(run.trained, UnlearnRequest.of(["1"]))).trained_after
    statistics = run.trained.statistics
    assert statistics is not None
    honest = statistics["1"]
    size = len(honest.gram)
    lopsided = honest.gram + np.triu(np.ones((size, size)), 1)
    lies = {
        "not symmetric": replace(honest, gram=lopsided),
        "NaN": replace(honest, gram=honest.gram * np.nan),
        "not positive": replace(honest, gram=honest.gram - np.diag([*[0.0] * (size - 2), 1e4, 0.0])),
        "larger than": replace(honest, moment=np.vstack([honest.moment[:-1] * 1e3, honest.moment[-1:]])),
        "count of rows is another": replace(honest, class_counts=honest.class_counts + 1),
    }
    for words, lie in lies.items():
        with pytest.raises(CorruptError, match=words):
            Exact().unlearn(Removal(gone, UnlearnRequest(added=("1",)), Material(arriving={"1": lie})))
    other = replace(run.trained.problem.design, intercept="free")
    foreign = ClientStats(other, honest.gram, honest.moment, honest.class_counts)
    with pytest.raises(MismatchError, match="another design"):
        Exact().unlearn(Removal(gone, UnlearnRequest(added=("1",)), Material(arriving={"1": foreign})))


@pytest.mark.parametrize("view", ["centre", "standardise"])
@pytest.mark.parametrize("weight", [None, "balanced"])
def test_heads_with_views_and_class_weights(view: str, weight: str | None) -> None:
    method = ClosedForm(standardise=view, class_weight=weight, normalise_classes=True)
    run = make_run(method=method, design={"per_class": weight is not None})
    found = Exact().unlearn(Removal(run.trained, UnlearnRequest.of(["0"]))).trained_after
    rest = remaining_rows(run.trained, UnlearnRequest.of(["0"]), run.embeddings, run.partition)
    anew = train(rest.embeddings, rest.partition, ridge=0.1, method=method, design=run.trained.problem.design)
    assert relative(found.head.params, anew.head.params) < 1e-10


def test_unknown_samples_foreign_rows_and_missing_material(run: Run) -> None:
    with pytest.raises(InputError, match="nobody in this run holds it"):
        Exact().unlearn(Removal(run.trained, UnlearnRequest.of(samples=["ff" * 32]), run.material))
    sample = run.embeddings.ids[int(run.partition.clients["0"][0])]
    with pytest.raises(InputError, match="client 1 does not hold it"):
        Exact().unlearn(Removal(run.trained, UnlearnRequest(samples=(SampleRef(sample, "1"),)), run.material))
    with pytest.raises(InputError, match="cannot get label 9"):
        Exact().unlearn(Removal(run.trained, UnlearnRequest(relabelled=(Relabelled(sample, 9),)), run.material))
    with pytest.raises(InputError, match="embedding set and the partition"):
        Exact().unlearn(Removal(run.trained, UnlearnRequest.of(samples=[sample])))
    with pytest.raises(InputError, match='keep="statistics"'):
        carried_out(Removal(replace(run.trained, statistics=None), UnlearnRequest.of(["1"])), Exact())
    half = np.arange(100)
    foreign = replace(run.material, embeddings=run.embeddings.select(half))
    with pytest.raises(MismatchError, match="divides 240 rows"):
        Exact().unlearn(Removal(run.trained, UnlearnRequest.of(samples=[sample]), foreign))


def test_two_thousand_requests_do_not_drift() -> None:
    run = make_run(clients=16, server=0.0, data={"rows": 320, "spread": 1e-2}, ridge=1e-4)
    random = np.random.default_rng(5)
    trained = run.trained
    statistics = run.trained.statistics
    assert statistics is not None
    errors = []
    for number in range(2000):
        gone = sorted(set(statistics) - set(trained.counts))
        if gone and (len(trained.counts) < 4 or random.random() < 0.5):
            name = str(random.choice(gone))
            request = UnlearnRequest(added=(name,))
        else:
            name = str(random.choice(list(trained.counts)))
            request = UnlearnRequest.of([name])
        found = Exact().unlearn(Removal(trained, request, Material(arriving=statistics)))
        trained = found.trained_after
        if number % 40 == 39:
            wanted = run.oracle(np.concatenate([run.partition.clients[client] for client in trained.counts]))
            errors.append(relative(trained.params, wanted))
    assert max(errors) < 1e-9
    assert np.mean(errors[-25:]) < 4 * np.mean(errors[:25]) + 1e-14
