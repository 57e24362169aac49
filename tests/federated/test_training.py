"""Training in one process: the closed form against scikit-learn, what is kept, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import Ridge

from probekit.errors import InputError, MismatchError, NotFoundError
from probekit.federated import training
from probekit.federated.in_process import InProcess
from probekit.federated.message import Answer, Ask
from probekit.federated.methods.closed_form import ClosedForm
from probekit.federated.methods.fedavg import FedAvg
from probekit.federated.partition import partition
from probekit.federated.rows import design_for, head_problem
from probekit.federated.spill import LazyStats
from probekit.federated.trained import Trained
from probekit.federated.training import train
from probekit.unlearning.choice import can_unlearn
from probekit.unlearning.method import NOTHING, Material
from probekit.values import EmbeddingSet

MakeSet = Callable[..., EmbeddingSet]


def scikit_learn(data: EmbeddingSet, rows: NDArray[np.int64], *, alpha: float, intercept: str) -> NDArray[np.float64]:
    X = np.asarray(data.embeddings)[rows].astype(np.float64)
    Y = np.eye(len(data.class_names))[data.labels[rows]]
    if intercept == "penalised":
        X = np.hstack([X, np.ones((len(X), 1))])
    fitted = Ridge(alpha=alpha, fit_intercept=intercept == "free", solver="cholesky").fit(X, Y)
    if intercept == "penalised":
        return np.asarray(fitted.coef_.T)
    bias = fitted.intercept_[None] if intercept == "free" else np.zeros((1, Y.shape[1]))
    return np.vstack([fitted.coef_.T, bias])


@pytest.mark.parametrize("intercept", ["penalised", "free", "none"])
@pytest.mark.parametrize("scheme", ["iid", "dirichlet:0.1", "classes"])
@pytest.mark.parametrize("scaling", ["mean", "sum"])
def test_the_closed_form_over_clients_is_ridge_on_all_their_rows(
    make_set: MakeSet, intercept: str, scheme: str, scaling: str
) -> None:
    data = make_set(rows=400, dimension=20, classes=5, dtype="float32")
    clients = None if scheme == "classes" else 8
    split = partition(data.labels, scheme, clients=clients, server_share=0.1, seed=1)
    trained = train(data, split, ridge=0.03, scaling=scaling, design=design_for(data, intercept=intercept))
    held = np.concatenate(list(split.clients.values()))
    alpha = 0.03 * (len(held) if scaling == "mean" else 1)
    wanted = scikit_learn(data, held, alpha=alpha, intercept=intercept)
    assert np.linalg.norm(trained.head.params - wanted) <= 1e-8 * np.linalg.norm(wanted)
    assert trained.head.classes == data.class_names
    assert trained.head.spec_digest == data.spec.digest
    assert sum(trained.counts.values()) == len(held)


@pytest.mark.parametrize("scaling", ["mean", "sum"])
def test_fedavg_of_one_step_settles_at_the_closed_form(make_set: MakeSet, scaling: str) -> None:
    data = make_set()
    split = partition(data.labels, "dirichlet:0.5", clients=4, seed=1)
    options = FedAvg(rounds=5000, local_steps=1, tolerance=1e-16)
    ridge = 0.1 if scaling == "mean" else 12.0
    rounds = train(data, split, ridge=ridge, scaling=scaling, method=options)
    at_once = train(data, split, ridge=ridge, scaling=scaling)
    np.testing.assert_allclose(rounds.head.params, at_once.head.params, rtol=0, atol=1e-10)
    assert rounds.solution.residual < 1e-10
    assert rounds.rounds < 5000


def test_what_is_kept_says_what_can_be_unlearned(make_set: MakeSet) -> None:
    data = make_set()
    split = partition(data.labels, "iid", clients=3, server_share=0.2)
    by_keep = {keep: train(data, split, ridge=0.1, keep=keep) for keep in ("statistics", "gradients", "nothing")}
    able = {keep: possible(one) for keep, one in by_keep.items()}
    removal = {"fedremoval", "fedremoval-line", "fedremoval-pcg"}
    assert able["statistics"] == {"exact"} | removal
    assert able["gradients"] == {"fedremoval"}
    assert able["nothing"] == set()
    online = Material(data, split)
    assert {keep: possible(one, online) for keep, one in by_keep.items()} == {
        "statistics": {"exact", "retrain"} | removal,
        "gradients": {"retrain"} | removal,
        "nothing": {"retrain"} | removal,
    }
    assert by_keep["nothing"].head.digest == by_keep["statistics"].head.digest
    assert "retained clients online" in can_unlearn(by_keep["gradients"])["fedremoval-pcg"]
    alone = train(data, partition(data.labels, "iid", clients=3), ridge=0.1)
    assert alone.server is None
    assert "server share" in can_unlearn(alone)["fedremoval"]
    options = FedAvg(rounds=3, keep_history=True)
    rounds = train(data, split, ridge=0.1, method=options)
    history = {"fedaccum", "federaser", "fedrecover", "fedrecovery"}
    assert possible(rounds, replace(online, options=options)) == removal | history | {"retrain", "retrain-fedavg"}


KEPT_METHODS = {
    *("exact", "fedremoval", "fedremoval-line", "fedremoval-pcg", "retrain", "retrain-fedavg"),
    *("fedaccum", "federaser", "fedrecover", "fedrecovery", "knot", "sifu", "fedau", "guo"),
}


def possible(trained: Trained, material: Material = NOTHING) -> set[str]:
    """The methods by which a client can be forgotten, of those that stand on something kept."""
    return {name for name, why in can_unlearn(trained, material).items() if not why and name in KEPT_METHODS}


def test_the_kept_gradients_of_a_closed_form_add_up_to_nothing(make_set: MakeSet) -> None:
    data = make_set()
    split = partition(data.labels, "dirichlet:0.3", clients=4)
    trained = train(data, split, ridge=0.1, keep="gradients")
    assert trained.gradients is not None
    total = sum(trained.weights[name] * one for name, one in trained.gradients.aggregate.items())
    assert np.abs(total).max() < 1e-13
    assert max(np.abs(one).max() for one in trained.gradients.aggregate.values()) > 1e-3


def test_kept_statistics_are_those_of_the_rows(make_set: MakeSet) -> None:
    data = make_set()
    split = partition(data.labels, "dirichlet:0.3", clients=4, server_share=0.2)
    for method in ("closed-form", FedAvg(rounds=2), FedAvg(rounds=2, batch_size=8)):
        trained = train(data, split, ridge=0.1, keep="statistics", method=method)
        assert trained.statistics is not None
        assert trained.server is not None
        assert trained.server.statistics is not None
        parts = {**trained.statistics, "server": trained.server.statistics}
        for name, rows in {**split.clients, "server": trained.server.rows}.items():
            X = np.hstack([np.asarray(data.embeddings)[rows], np.ones((len(rows), 1))])
            np.testing.assert_allclose(parts[name].gram, X.T @ X, rtol=1e-12)
            np.testing.assert_allclose(parts[name].moment, X.T @ np.eye(3)[data.labels[rows]], atol=1e-12)
        assert np.array_equal(trained.server.rows, split.server)


class Recording(InProcess):
    """Clients whose messages are written down as they travel: (kind, bytes up, bytes down)."""

    def reply(self, ask: Ask, name: str) -> Answer:
        found = super().reply(ask, name)
        vars(self).setdefault("messages", []).append((ask.kind, len(found.encode(ask.digest)), len(ask.encoded)))
        return found

    def bytes_of(self, kind: str) -> tuple[int, int]:
        """How many bytes of this kind went up and down."""
        found = [one[1:] for one in vars(self)["messages"] if one[0] == kind]
        return sum(up for up, _ in found), sum(down for _, down in found)


@pytest.mark.parametrize("clients", [3, 60])
def test_statistics_of_many_clients_lie_in_a_file(
    make_set: MakeSet, monkeypatch: pytest.MonkeyPatch, clients: int
) -> None:
    data = make_set(120)
    divided = partition(data.labels, "iid", clients=clients)
    usual = train(data, divided, ridge=0.1)
    monkeypatch.setattr(training, "MANY", clients)
    filed = train(data, divided, ridge=0.1)
    assert usual.statistics is not None
    assert filed.statistics is not None
    assert {type(one) for one in filed.statistics.values()} == {LazyStats}
    assert filed.head.digest == usual.head.digest
    for name, one in usual.statistics.items():
        assert filed.statistics[name].digest == filed.statistics[name].loaded.digest == one.digest
        assert filed.statistics[name].count == one.count


def test_bytes_are_counted_by_purpose(make_set: MakeSet) -> None:
    data = make_set()
    split = partition(data.labels, "iid", clients=4)
    block, statistics = 7 * 3 * 8, (7 * 8 // 2 + 7 * 3 + 3) * 8
    problem, header = head_problem(data, design_for(data)), 500

    def trained(method: Any, **options: Any) -> tuple[Trained, Recording]:
        clients = Recording.of(problem, data, split.clients)
        assert isinstance(clients, Recording)
        return train(data, split, ridge=0.1, method=method, federation=clients, **options), clients

    at_once, clients = trained("closed-form")
    assert set(at_once.traffic) == {"statistics"}
    sent = at_once.traffic["statistics"]
    assert ((sent.up, sent.down), sent.rounds) == (clients.bytes_of("statistics"), 1)
    assert 4 * statistics < sent.up < 4 * (statistics + header)
    rounds, clients = trained(FedAvg(rounds=10, participation=0.5))
    found = {purpose: (one.up, one.down) for purpose, one in rounds.traffic.items()}
    assert {purpose: one.rounds for purpose, one in rounds.traffic.items()} == {
        "scales": 1,
        "rounds": 10,
        "residual": 2,
        "gradients at the head": 1,
        "gradients at local weights": 2,
    }
    assert (found["rounds"], found["scales"]) == (clients.bytes_of("fit"), clients.bytes_of("scales"))
    assert 20 * block < min(found["rounds"]) <= max(found["rounds"]) < 20 * (block + header)
    for purpose, many in (("residual", 8), ("gradients at the head", 4), ("gradients at local weights", 2)):
        assert many * block < min(found.pop(purpose)) < many * (block + header)
    messages = vars(clients)["messages"]
    total = rounds.total_traffic
    assert (total.up, total.down) == (sum(up for _, up, _ in messages), sum(down for *_, down in messages))
    kept, clients = trained(FedAvg(rounds=1), keep="statistics")
    assert (kept.traffic["statistics"].up, kept.traffic["statistics"].down) == clients.bytes_of("statistics")


def test_options_of_the_fit_reach_it(make_set: MakeSet) -> None:
    data = make_set()
    split = partition(data.labels, "iid", clients=3, server_share=0.1)
    plain = train(data, split, ridge=0.1)
    balanced = train(data, split, ridge=0.1, method=ClosedForm(class_weight=[1.0, 5.0, 1.0]))
    assert balanced.problem.design.per_class
    assert balanced.head.digest != plain.head.digest
    standardised = train(data, split, ridge=0.1, method=ClosedForm(standardise="standardise"))
    assert standardised.head.recipe["fit_view"] == "standardise"
    for trained in (
        balanced,
        standardised,
        train(data, split, ridge=0.1, method=ClosedForm(normalise_classes=True)),
    ):
        assert "without feature scaling" in can_unlearn(trained)["fedremoval"]
        assert not can_unlearn(trained)["exact"]
    with pytest.raises(InputError, match="feature scaling"):
        train(data, split, ridge=0.1, method=ClosedForm(standardise="standardise"), keep="gradients")


def test_a_row_that_is_not_finite_is_named_by_its_sample(make_set: MakeSet) -> None:
    data = make_set()
    spoiled = np.array(data.embeddings)
    spoiled[17, 2] = np.nan
    data = replace(data, embeddings=spoiled)
    split = partition(data.labels, "iid", clients=3)
    for method in ("closed-form", "fedavg"):
        with pytest.raises(InputError, match=f"{data.ids[17]} .row 17"):
            train(data, split, ridge=0.1, method=method)


def test_rows_without_label_or_embedding_are_named(make_set: MakeSet) -> None:
    data = make_set()
    split = partition(data.labels, "iid", clients=3)
    labels = np.array(data.labels)
    labels[5] = -1
    with pytest.raises(InputError, match=data.ids[5]):
        train(replace(data, labels=labels), split, ridge=0.1)
    masked = np.zeros(len(data), bool)
    masked[6] = True
    with pytest.raises(InputError, match=data.ids[6]):
        train(replace(data, masked=masked), split, ridge=0.1)


def test_classes_that_nobody_has_and_a_single_class_are_refused(make_set: MakeSet) -> None:
    data = make_set()
    split = partition(data.labels, "iid", clients=3)
    with pytest.raises(InputError, match="of class extra"):
        train(replace(data, class_names=(*data.class_names, "extra")), split, ridge=0.1)
    alone = replace(data, labels=np.zeros(len(data), np.int64))
    with pytest.raises(InputError, match="only class 0"):
        train(alone, split, ridge=0.1)
    with pytest.raises(InputError, match="at least two classes"):
        train(replace(alone, class_names=("one",)), split, ridge=0.1)
    by_class = partition(data.labels, "classes")
    rest = {name: rows for name, rows in by_class.clients.items() if name != "2"}
    trained = train(data, replace(by_class, clients=rest, server=by_class.clients["2"]), ridge=0.1)
    assert trained.head.params[:, 2].tolist() == [0.0] * 7


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"ridge": None}, InputError, "one ridge"),
        ({"ridge": -1.0}, InputError, "-1.0"),
        ({"ridge": 0.5, "method": "fedavg:f2l2"}, InputError, "0.5, and 0.0"),
        ({"scaling": "total"}, InputError, "'total'"),
        ({"keep": "everything"}, InputError, "'everything'"),
        ({"method": "closed"}, NotFoundError, "closed-form"),
        ({"method": "fedavg:f2l"}, InputError, "'f2l'"),
    ],
)
def test_options_that_cannot_be_are_refused(
    make_set: MakeSet, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    data = make_set()
    with pytest.raises(error, match=words):
        train(data, partition(data.labels, "iid", clients=3), **{"ridge": 0.1, **options})


def test_parts_that_do_not_belong_together_are_refused(make_set: MakeSet) -> None:
    data, other = make_set(), make_set(rows=90)
    split = partition(data.labels, "iid", clients=3)
    with pytest.raises(MismatchError, match="120 rows, the embedding set has 90"):
        train(other, split, ridge=0.1)
    with pytest.raises(MismatchError, match="design_for"):
        train(data, split, ridge=0.1, design=replace(design_for(data), dimension=5))
    empty = replace(split, clients={**split.clients, "3": np.empty(0, np.int64)})
    with pytest.raises(InputError, match="client 3 has none"):
        train(data, empty, ridge=0.1)
