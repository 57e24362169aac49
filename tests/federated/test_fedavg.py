"""FedAvg against closed forms and slow loops that are written here from the formulas."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from mmap import mmap
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.errors import InputError, MissingClientsError, NotFoundError, SolverError, StorageError
from probekit.federated.in_process import InProcess
from probekit.federated.message import Answer, Ask
from probekit.federated.methods.fedavg import FedAvg
from probekit.federated.partition import partition
from probekit.federated.rows import design_for, head_problem
from probekit.federated.trained import RoundState, Trained
from probekit.federated.training import train
from probekit.linear.squares import StatsSquares
from probekit.models.fitting import FitPlan
from probekit.models.linear_holding import RowHolding
from probekit.models.linear_problem import HeadProblem
from probekit.models.optimiser import Optimiser
from probekit.protocols import Progress
from probekit.values import EmbeddingSet, Partition

Array = NDArray[np.float64]
MakeSet = Callable[..., EmbeddingSet]
RIDGE = 0.1


def problem(data: EmbeddingSet, rows: NDArray[np.int64], intercept: str) -> tuple[Array, Array, Array]:
    """X, Y and the diagonal penalty of some rows, straight from the definition."""
    X = np.asarray(data.embeddings)[rows].astype(float)
    if intercept != "none":
        X = np.hstack([X, np.ones((len(X), 1))])
    penalty = np.full(X.shape[1], RIDGE)
    if intercept == "free":
        penalty[-1] = 0
    return X, np.eye(len(data.class_names))[data.labels[rows]], penalty


def gradient(data: EmbeddingSet, rows: NDArray[np.int64], W: Array, intercept: str = "penalised") -> Array:
    X, Y, penalty = problem(data, rows, intercept)
    result: Array = X.T @ (X @ W - Y) / len(X) + penalty[:, None] * W
    return result


def fixed_point(data: EmbeddingSet, split: Partition, intercept: str, *, weights: Array, rate: float, M: int) -> Array:
    """W_FA = (sum p Q)^-1 sum p Q W*, Q = I - (I - rate H)^M."""
    left: Array | float = 0.0
    right: Array | float = 0.0
    for p, rows in zip(weights, split.clients.values(), strict=True):
        X, Y, penalty = problem(data, rows, intercept)
        H = X.T @ X / len(X) + np.diag(penalty)
        best = np.linalg.solve(H, X.T @ Y / len(X))
        Q = np.eye(len(H)) - np.linalg.matrix_power(np.eye(len(H)) - rate * H, M)
        left, right = left + p * Q, right + p * Q @ best
    solved: Array = np.linalg.solve(np.asarray(left), np.asarray(right))
    return solved


@pytest.mark.parametrize("intercept", ["penalised", "free", "none"])
@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_full_batches_reach_the_fixed_point(make_set: MakeSet, intercept: str, weights: str) -> None:
    data = make_set(rows=150)
    split = partition(data.labels, "dirichlet:0.3", clients=4, seed=1)
    counts = np.array([len(rows) for rows in split.clients.values()])
    shares = counts / counts.sum() if weights == "size" else np.full(4, 0.25)
    options = FedAvg(rounds=2000, local_steps=5, weights=weights, tolerance=1e-16)
    trained = train(data, split, ridge=RIDGE, method=options, design=design_for(data, intercept=intercept))
    assert trained.learning_rate is not None
    wanted = fixed_point(data, split, intercept, weights=shares, rate=trained.learning_rate, M=5)
    assert np.linalg.norm(trained.params - wanted) <= 1e-10 * np.linalg.norm(wanted)
    centralised = np.linalg.solve(*_normal(data, split, intercept))
    assert np.linalg.norm(centralised - wanted) > 1e-3 * np.linalg.norm(wanted)


def _normal(data: EmbeddingSet, split: Partition, intercept: str) -> tuple[Array, Array]:
    X, Y, penalty = problem(data, np.concatenate(list(split.clients.values())), intercept)
    return X.T @ X / len(X) + np.diag(penalty), X.T @ Y / len(X)


def test_one_local_step_is_gradient_descent_on_all_rows(make_set: MakeSet) -> None:
    data = make_set()
    split = partition(data.labels, "dirichlet:0.5", clients=5, seed=2, server_share=0.1)
    trained = train(data, split, ridge=RIDGE, method=FedAvg(rounds=30, local_steps=1, learning_rate=0.05))
    W = np.zeros((7, 3))
    for _ in range(30):
        W = W - 0.05 * gradient(data, np.concatenate(list(split.clients.values())), W)
    np.testing.assert_allclose(trained.params, W, rtol=0, atol=1e-12)


def test_the_default_rate_is_one_over_the_largest_curvature_of_any_client(make_set: MakeSet) -> None:
    for dimension in (6, 90):
        data = make_set(dimension=dimension)
        split = partition(data.labels, "iid", clients=3)
        trained = train(data, split, ridge=RIDGE, method=FedAvg(rounds=1))
        tops = []
        for rows in split.clients.values():
            X, _, penalty = problem(data, rows, "penalised")
            tops.append(np.linalg.eigvalsh(X.T @ X / len(X) + np.diag(penalty))[-1])
        assert trained.learning_rate == pytest.approx(1 / max(tops), rel=1e-8)


def test_minibatches_default_to_one_over_the_largest_curvature_of_a_row(make_set: MakeSet) -> None:
    data = make_set()
    split = partition(data.labels, "iid", clients=3)
    trained = train(data, split, ridge=RIDGE, method=FedAvg(rounds=1, batch_size=8))
    longest = (np.asarray(data.embeddings) ** 2).sum(axis=1).max() + 1
    assert trained.learning_rate == pytest.approx(1 / (longest + RIDGE))


def batches_of(rows: NDArray[np.int64], order: np.random.Generator, options: FedAvg) -> list[NDArray[np.int64]]:
    """The batches of one client in one round, in the documented order."""
    assert options.batch_size
    found: list[NDArray[np.int64]] = []
    epoch = 0
    while len(found) < options.local_steps if options.local_steps else epoch < (options.local_epochs or 0):
        shuffled = rows[order.permutation(len(rows))]
        for start in range(0, len(rows), options.batch_size):
            batch = shuffled[start : start + options.batch_size]
            if len(batch) == options.batch_size or not options.drop_last:
                found.append(batch)
        epoch += 1
    return found[: options.local_steps]


def slow_minibatches(data: EmbeddingSet, split: Partition, options: FedAvg) -> Array:
    """One client after the other, one batch after the other."""
    assert options.learning_rate
    total = sum(len(rows) for rows in split.clients.values())
    W = np.zeros((data.dimension + 1, len(data.class_names)))
    for number in range(options.rounds):
        average = np.zeros_like(W)
        for name, rows in split.clients.items():
            key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
            order = np.random.Generator(np.random.PCG64([options.seed, 22, number, key]))
            own, velocity = W, np.zeros_like(W)
            for batch in batches_of(rows, order, options):
                slope = gradient(data, batch, own)
                velocity = options.optimiser.momentum * velocity + slope
                own = own - options.learning_rate * (velocity if options.optimiser.name == "momentum" else slope)
            average += len(rows) / total * own
        W = average
    return W


@pytest.mark.parametrize("optimiser", ["sgd", "momentum"])
@pytest.mark.parametrize(
    "lengths",
    [
        {"local_steps": 7},
        {"local_steps": None, "local_epochs": 1},
        {"local_steps": None, "local_epochs": 2},
        {"local_steps": None, "local_epochs": 2, "drop_last": True},
    ],
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_stacked_minibatches_equal_one_client_after_the_other(
    make_set: MakeSet, optimiser: str, lengths: dict[str, int], dtype: str
) -> None:
    data = make_set(dtype=dtype)
    split = partition(data.labels, "dirichlet:0.5", clients=4, seed=3)
    smallest = min(len(rows) for rows in split.clients.values())
    options = replace(
        FedAvg(rounds=3, batch_size=min(8, smallest), learning_rate=0.02, seed=5, optimiser=Optimiser(optimiser)),
        **lengths,  # type: ignore[arg-type]
    )
    trained = train(data, split, ridge=RIDGE, method=options)
    np.testing.assert_allclose(trained.params, slow_minibatches(data, split, options), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dimension", [5, 80])
def test_full_batches_from_rows_equal_those_from_statistics(
    make_set: MakeSet, monkeypatch: pytest.MonkeyPatch, dimension: int
) -> None:
    data = make_set(dimension=dimension)
    split = partition(data.labels, "dirichlet:0.5", clients=6, seed=3)
    options = FedAvg(rounds=10, local_steps=4)
    design = design_for(data, view="l2", intercept="free")
    monkeypatch.setattr(RowHolding, "quick", property(lambda holding: StatsSquares(holding.statistics)))
    stacked = train(data, split, ridge=RIDGE, method=options, design=design)
    monkeypatch.setattr(RowHolding, "quick", property(lambda holding: holding.squares()))
    from_rows = train(data, split, ridge=RIDGE, method=options, design=design)
    np.testing.assert_allclose(from_rows.params, stacked.params, rtol=0, atol=1e-12)
    assert from_rows.learning_rate == pytest.approx(stacked.learning_rate, rel=1e-8)
    assert from_rows.gradients is not None
    assert stacked.gradients is not None
    for name in split.clients:
        np.testing.assert_allclose(
            from_rows.gradients.aggregate[name], stacked.gradients.aggregate[name], rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("batch_size", [None, 16])
def test_the_gradients_are_those_of_the_whole_client_at_both_places(make_set: MakeSet, batch_size: int | None) -> None:
    data = make_set()
    split = partition(data.labels, "dirichlet:0.5", clients=4, seed=3)
    options = FedAvg(rounds=4, local_steps=3, batch_size=batch_size, keep_history=True)
    trained = train(data, split, ridge=RIDGE, method=options)
    assert trained.gradients is not None
    assert trained.history is not None
    last = trained.history.rounds[-1]
    for place, (name, rows) in enumerate(split.clients.items()):
        at_head, at_own = gradient(data, rows, trained.params), gradient(data, rows, last.uploads[place])
        np.testing.assert_allclose(trained.gradients.aggregate[name], at_head, rtol=0, atol=1e-12)
        np.testing.assert_allclose(trained.gradients.local[name], at_own, rtol=0, atol=1e-12)
        assert np.abs(at_head - at_own).max() > 1e-4


def test_the_history_replays_the_run_and_knows_its_size(make_set: MakeSet) -> None:
    data = make_set()
    split = partition(data.labels, "dirichlet:0.5", clients=4, seed=3)
    options = FedAvg(rounds=5, local_steps=2, participation=0.5, server_learning_rate=0.7, keep_history=True)
    trained = train(data, split, ridge=RIDGE, method=options)
    history = trained.history
    assert history is not None
    starts = [one.start for one in history.rounds[1:]] + [history.end]
    for one, following in zip(history.rounds, starts, strict=True):
        assert len(one.participants) == 2
        change = sum(p * one.update(name) for p, name in zip(one.weights, one.participants, strict=True))
        np.testing.assert_allclose(one.start + 0.7 * 4 / 2 * change, following, rtol=0, atol=1e-13)
    assert np.array_equal(history.end, trained.params)
    assert history.size == (5 * (1 + 2) + 1) * 7 * 3 * 8
    assert len({id(mapped(array)) for one in history.rounds for array in (one.start, one.uploads)}) == 1


@dataclass(frozen=True, eq=False)
class Buffered(HeadProblem):
    """The bias in the place of a buffer: a client counts its rows there."""

    averaged: ClassVar[tuple[str, ...]] = ("bias",)

    def fit(self, holding: Any, name: str, plan: FitPlan, arrays: Mapping[str, Array]) -> Array:
        found = np.array(super().fit(holding, name, plan, arrays))
        found[self.blocks["bias"]] = holding.count / 1000
        return found


def test_buffers_are_averaged_and_never_penalised(make_set: MakeSet) -> None:
    data = make_set()
    split = partition(data.labels, "dirichlet:0.5", clients=4, seed=3)
    options = FedAvg(rounds=5, local_steps=2, participation=0.5, server_learning_rate=0.7, keep_history=True)
    own = Buffered(design_for(data, intercept="free"), data.class_names, data.spec.digest)
    trained = train(data, split, ridge=RIDGE, method=options, problem=own)
    assert trained.history is not None
    last = trained.history.rounds[-1]
    change = sum(p * last.update(name) for p, name in zip(last.weights, last.participants, strict=True))
    np.testing.assert_allclose(trained.params[:-1], (last.start + 0.7 * 4 / 2 * change)[:-1], rtol=0, atol=1e-13)
    counted = [trained.counts[name] / 1000 for name in last.participants]
    np.testing.assert_allclose(trained.params[-1], np.average(counted, weights=last.weights), rtol=0, atol=1e-13)
    assert counted[0] != counted[1]
    assert own.penalty(RIDGE)[own.blocks["bias"]].tolist() == [[0.0]]


def mapped(array: Array) -> object:
    """What an array of a history lies in: one map for all, as each takes a file descriptor."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    assert isinstance(array.base, mmap)
    return array.base


def test_a_run_is_reproduced_by_its_seed_and_changed_by_another(make_set: MakeSet) -> None:
    data = make_set()
    split = partition(data.labels, "iid", clients=6)

    def run(seed: int) -> Trained:
        options = FedAvg(rounds=6, participation=0.5, batch_size=8, init="random", seed=seed)
        return train(data, split, ridge=RIDGE, method=options)

    assert run(1).head.digest == run(1).head.digest
    assert run(1).head.digest != run(2).head.digest


def test_a_client_steps_alike_whoever_else_is_there(make_set: MakeSet) -> None:
    data = make_set()
    everyone = partition(data.labels, "iid", clients=3)
    fewer = replace(everyone, clients={c: everyone.clients[c] for c in ("1", "2")}, server=everyone.clients["0"])
    options = FedAvg(rounds=1, batch_size=8, local_steps=5, keep_history=True)
    one, other = (train(data, split, ridge=RIDGE, method=options).history for split in (everyone, fewer))
    assert one is not None
    assert other is not None
    # the rate differs with the rows that set it, so compare the direction of a single client's change
    for name in ("1", "2"):
        mine, theirs = one.rounds[0].update(name), other.rounds[0].update(name)
        cosine = np.sum(mine * theirs) / np.linalg.norm(mine) / np.linalg.norm(theirs)
        assert cosine > 0.999999


def test_divergence_is_refused_and_the_stable_rate_named_is_stable(make_set: MakeSet) -> None:
    data = make_set()
    split = partition(data.labels, "iid", clients=1)
    X, _, penalty = problem(data, split.clients["0"], "penalised")
    stable = 2 / np.linalg.eigvalsh(X.T @ X / len(X) + np.diag(penalty))[-1]
    with pytest.raises(SolverError, match=f"below {stable:.6g} are stable") as caught:
        train(data, split, ridge=RIDGE, method=FedAvg(rounds=400, local_steps=1, learning_rate=stable * 1.02))
    assert np.isfinite(getattr(caught.value.best, "value")).all()  # noqa: B009
    trained = train(data, split, ridge=RIDGE, method=FedAvg(rounds=400, local_steps=1, learning_rate=stable * 0.98))
    assert trained.losses[-1] < trained.losses[0]
    momentum = Optimiser("momentum", momentum=0.5)
    with pytest.raises(SolverError, match=f"below {1.5 * stable:.6g} are stable"):
        train(data, split, ridge=RIDGE, method=FedAvg(rounds=3, learning_rate=1e3, optimiser=momentum))
    adam = FedAvg(rounds=3, learning_rate=10.0, optimiser=Optimiser("adam"))
    with pytest.raises(SolverError, match="try 1"):
        train(data, split, ridge=RIDGE, method=adam)


def test_rounds_resumed_near_their_end_are_not_taken_for_divergence(make_set: MakeSet) -> None:
    data = make_set()
    split = partition(data.labels, "iid", clients=3)
    options = FedAvg(rounds=40, batch_size=8, local_steps=4, learning_rate=0.05, seed=1)
    states: list[RoundState] = []
    straight = train(data, split, ridge=RIDGE, method=options, save=states.append)
    pairs = itertools.pairwise(straight.losses[1:])
    rising = [number for number, (before, after) in enumerate(pairs, 1) if after > before]
    assert rising
    ended = replace(options, rounds=rising[-1] + 1)
    resumed = train(data, split, ridge=RIDGE, method=ended, resume=states[rising[-1] - 1])
    assert resumed.losses == straight.losses[rising[-1] : rising[-1] + 2]
    assert resumed.losses[1] > resumed.losses[0]


def test_a_client_that_is_gone_is_named_and_not_taken_for_divergence(make_set: MakeSet) -> None:
    data = make_set()
    split = partition(data.labels, "iid", clients=3)
    clients = InProcess.of(head_problem(data, design_for(data)), data, split.clients)

    def reply(ask: Ask, name: str) -> Answer:
        if ask.kind == "fit" and name == "1":
            raise StorageError("its disk is full.")
        return InProcess.reply(clients, ask, name)

    clients.reply = reply  # type: ignore[method-assign]
    with pytest.raises(MissingClientsError, match="Client 1: gone, its disk is full"):
        train(data, split, ridge=RIDGE, method=FedAvg(rounds=2), federation=clients)


def test_an_overflow_is_refused_without_a_warning(make_set: MakeSet) -> None:
    data = make_set()
    split = partition(data.labels, "iid", clients=2)
    with pytest.raises(SolverError, match="learning rate 1e\\+200"):
        train(data, split, ridge=RIDGE, method=FedAvg(rounds=3, learning_rate=1e200))


def test_progress_is_told_every_round_with_the_common_loss(make_set: MakeSet) -> None:
    data = make_set()
    split = partition(data.labels, "iid", clients=2)
    told: list[Progress] = []
    trained = train(data, split, ridge=RIDGE, method=FedAvg(rounds=4), progress=told.append)
    assert [(one.done, one.total) for one in told] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    X, Y, penalty = problem(data, np.arange(len(data)), "penalised")
    loss = ((X @ trained.params - Y) ** 2).sum() / 2 / len(X) + (penalty[:, None] * trained.params**2).sum() / 2
    assert trained.losses[-1] == pytest.approx(float(loss), rel=1e-12)
    assert told[0].loss == 0.5
    assert trained.losses == (*[one.loss for one in told], trained.losses[-1])


def test_the_preset_of_the_paper_code(make_set: MakeSet) -> None:
    preset = FedAvg.preset("f2l2")
    assert (preset.optimiser.name, preset.learning_rate, preset.batch_size) == ("adam", 1e-4, 32)
    assert (preset.local_epochs, preset.weights, preset.init, preset.ridge) == (1, "uniform", "random", 0.0)
    data = make_set(rows=210)
    split = partition(data.labels, "iid", clients=2)
    trained = train(data, split, method=replace(preset, rounds=5))
    assert trained.ridge == 0
    assert trained.losses[-1] < trained.losses[0]
    with pytest.raises(NotFoundError, match="f2l2"):
        FedAvg.preset("f2l")
    with pytest.raises(InputError, match="full batch of 32; client 0 has 30"):
        train(make_set(rows=60), partition(make_set(rows=60).labels, "iid", clients=2), method=preset)


def test_a_history_too_large_is_refused_before_it_is_made(make_set: MakeSet) -> None:
    data = make_set()
    split = partition(data.labels, "iid", clients=2)
    with pytest.raises(InputError, match="GiB"):
        train(data, split, ridge=RIDGE, method=FedAvg(rounds=20_000_000, keep_history=True))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rounds": 0}, "rounds"),
        ({"local_steps": None}, "one of them"),
        ({"local_epochs": 1}, "one of them"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"participation": 1.5}, "1.5"),
        ({"weights": "equal"}, "'equal'"),
        ({"init": "ones"}, "'ones'"),
        ({"optimiser": Optimiser("adam")}, "1e-4"),
        ({"seed": -1}, "-1"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        FedAvg(**options)  # type: ignore[arg-type]
