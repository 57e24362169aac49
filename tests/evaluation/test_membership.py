"""Membership inference: it finds members of an overfitted head, and no trace of rows removed exactly."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.evaluation.membership import Shadows, judge, likelihood_scores, loss_scores
from probekit.federated.training import train
from probekit.linear.design import ClientStats, Design
from probekit.linear.statistics import statistics
from probekit.unlearning.methods.exact import Exact
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import UnlearnRequest
from probekit.values import EmbeddingSet, Partition
from tests.oracles import columns, least_squares, one_hot
from tests.unlearning.conftest import embedding_set


def stats_of(every: EmbeddingSet, rows: NDArray[np.int64], design: Design) -> ClientStats:
    return statistics(every.to_numpy()[rows], every.labels[rows], design)


def test_the_area_is_the_share_of_pairs_in_the_right_order() -> None:
    random = np.random.default_rng(0)
    members = random.integers(2, 14, 40).astype(np.float64)
    others = random.integers(0, 12, 70).astype(np.float64)
    right = (members[:, None] > others).mean() + (members[:, None] == others).mean() / 2
    found = judge(members, others)
    assert found.auc == pytest.approx(right)
    assert found.low < right < found.high
    rate, share = found.found[-1]
    threshold = np.sort(others)[::-1][int(rate * 70)]
    assert share.hits == int((members > threshold).sum())
    assert (others > threshold).mean() <= rate
    assert judge(np.ones(3), np.zeros(4)).auc == 1
    with pytest.raises(InputError, match="members and others"):
        judge(np.ones(0), np.ones(3))


def test_the_interval_of_chance_covers_one_half() -> None:
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(300):
        found = judge(random.normal(size=60), random.normal(size=60), rates=())
        covered += found.low <= 0.5 <= found.high
    assert 0.91 < covered / 300 < 0.985


@pytest.mark.parametrize("intercept", ["penalised", "free", "none"])
@pytest.mark.parametrize("held", [True, False])
def test_closed_form_shadows_are_heads_trained_with_and_without_the_row(intercept: str, held: bool) -> None:
    from probekit.evaluation.membership import _with_and_without

    random = np.random.default_rng(2)
    rows, labels = random.normal(size=(50, 6)), random.integers(0, 3, 50)
    design = Design(6, 3, intercept=intercept)
    parts = [statistics(rows[i : i + 10], labels[i : i + 10], design) for i in range(0, 50, 10)]
    shadows = Shadows(parts, 4.0, "sum")
    chosen: NDArray[np.int64] = np.array([0, 2, 3])
    inside = np.r_[0:10, 20:40]
    X, Y = columns(rows, intercept=intercept), one_hot(labels, 3)
    row = 25 if held else 45
    found = _with_and_without(shadows, chosen, X[[row]], Y[[row]], np.array([held]))
    free = intercept == "free"
    both = (np.union1d(inside, [row]), np.setdiff1d(inside, [row]))
    for value, rest in zip(found, both, strict=True):
        wanted = X[row] @ least_squares(X[rest], Y[rest], penalty=4.0, free=free) - Y[row]
        assert value[0] == pytest.approx(wanted, rel=1e-9)


def test_members_of_an_overfitted_head_are_found_and_forgotten_rows_are_not() -> None:
    every = embedding_set(1240, 60, 4, seed=3)
    forgotten, kept = np.arange(0, 120), np.arange(120, 240)
    unseen, pool = np.arange(240, 440), np.arange(440, 1240)
    training = Partition({"a": kept, "b": forgotten}, np.arange(240, 1240), 1240, "iid", 0)
    trained = train(every, training, ridge=1e-3)
    after = Exact().unlearn(Removal(trained, UnlearnRequest.of(["b"]))).trained_after
    blocks = np.array_split(pool, 40)
    parts = [stats_of(every, block, trained.problem.design) for block in blocks]
    shadows = Shadows(parts, 1e-3, count=48, share=0.25)

    def attack(head: str, rows: NDArray[np.int64], how: str) -> NDArray[np.float64]:
        chosen = trained.head if head == "before" else after.head
        found, labels = every.to_numpy()[rows], every.labels[rows]
        if how == "loss":
            return loss_scores(chosen, found, labels)
        return likelihood_scores(chosen, found, labels, shadows=shadows)

    powers: list[float] = []
    for how in ("loss", "ratio"):
        outside = attack("before", unseen, how)
        before = judge(attack("before", forgotten, how), outside)
        gone = judge(attack("after", forgotten, how), attack("after", unseen, how))
        still = judge(attack("after", kept, how), attack("after", unseen, how))
        assert before.low > 0.5
        powers.append(before.auc)
        assert still.low > 0.5
        assert gone.low <= 0.5 <= gone.high
    assert 0.6 < powers[0] < powers[1]


def test_rows_of_the_shadows_own_parts_are_taken_out() -> None:
    every = embedding_set(300, 20, 3, seed=5)
    blocks = np.array_split(np.arange(300), 10)
    design = Design(20, 3)
    parts = [stats_of(every, block, design) for block in blocks]
    shadows = Shadows(parts, 0.01)
    training = Partition({"a": np.arange(150)}, np.arange(150, 300), 300, "iid", 0)
    head = train(every, training, ridge=0.01, design=design).head
    part_of = np.repeat(np.arange(10), 30)
    found = likelihood_scores(head, every.to_numpy(), every.labels, shadows=shadows, part_of=part_of)
    assert judge(found[:150], found[150:]).low > 0.5


def test_too_few_parts_are_refused() -> None:
    every = embedding_set(40)
    parts = [stats_of(every, np.arange(40), Design(7, 3))]
    with pytest.raises(InputError, match="at least 4 parts"):
        Shadows(parts, 0.1)
