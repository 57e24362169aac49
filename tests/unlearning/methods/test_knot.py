"""KNOT: clusters of equal size, and removal that is clustered training without the client."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from probekit.errors import InputError
from probekit.federated.local import LocalPlan
from probekit.federated.state import KeptStatistics, State
from probekit.federated.training.fedavg import FedAvg
from probekit.federated.training.knot import Clusters, KnotTraining, balanced_clusters
from probekit.linear.ridge import Gcv
from tests.oracles import Array, relative_error
from tests.unlearning.maps import RATE, RIDGE, ROUNDS, STEPS, Maps
from tests.unlearning.problems import federation, forget, same, sample_ids, some_clients, trained

CLIENTS = some_clients((40, 25, 30, 35, 20, 15))
ASKED = federation(CLIENTS, intercept="penalized")
MAPS = Maps(CLIENTS)
FEDAVG = FedAvg(ROUNDS, LocalPlan(RATE, steps=STEPS))
KNOT = KnotTraining(2, FEDAVG)


def groups(state: State) -> list[tuple[str, ...]]:
    return [part.members for part in state.get(Clusters).parts]


def clustered(maps: Maps, members: list[tuple[str, ...]]) -> Array:
    """The mean of clusters that trained alone, by rows."""
    shares = maps.shares([name for group in members for name in group])
    return sum(
        sum(shares[name] for name in group) * maps.path(group)[-1] for group in members if group
    )


def test_the_head_is_the_mean_of_clusters_that_trained_alone() -> None:
    state = trained(ASKED, KNOT, RIDGE)
    assert sorted(map(len, groups(state))) == [3, 3]
    assert sorted(name for group in groups(state) for name in group) == [*"012345"]
    assert relative_error(state.params, clustered(MAPS, groups(state))) < 1e-12


@pytest.mark.parametrize("leavers", [{"1"}, {"1", "4"}, {"0", "2", "5"}])
def test_removal_is_clustered_training_without_the_clients(leavers: set[str]) -> None:
    state = trained(ASKED, KNOT, RIDGE)
    after = forget(state, ASKED, "knot", clients=leavers)
    members = [tuple(name for name in group if name not in leavers) for group in groups(state)]
    assert relative_error(after.params, clustered(MAPS, members)) < 1e-12
    assert groups(after) == [group for group in members if group]


def test_untouched_clusters_are_not_asked() -> None:
    state = trained(ASKED, KNOT, RIDGE)
    mine = next(group for group in groups(state) if "1" in group)
    sent = ASKED.traffic.received
    after = forget(state, ASKED, "knot", clients={"1"})
    fits = ROUNDS * (len(mine) - 1) * (7 * 3 + 1)
    assert ASKED.traffic.received - sent == 8 * (fits + 5 * 3)  # and which classes remain
    untouched = [part for part in after.get(Clusters).parts if part in state.get(Clusters).parts]
    assert [part.members for part in untouched] == [g for g in groups(state) if g != mine]


def test_one_removal_after_the_other_is_both_at_once() -> None:
    state = trained(ASKED, replace(KNOT, fedavg=replace(FEDAVG, participation=0.5)), RIDGE)
    first = forget(state, ASKED, "knot", clients={"1"})
    second = forget(first, ASKED.without({"1"}), "knot", clients={"4"})
    both = forget(state, ASKED, "knot", clients={"1", "4"})
    assert np.array_equal(second.params, both.params)


def test_samples_are_forgotten_in_their_cluster() -> None:
    state = trained(ASKED, KNOT, RIDGE)
    ids = sample_ids(CLIENTS["1"], [0, 3])
    after = forget(state, ASKED, "knot", samples={"1": ids})
    maps = Maps({**CLIENTS, "1": CLIENTS["1"].without(ids)})
    assert relative_error(after.params, clustered(maps, groups(state))) < 1e-12


def test_a_ridge_that_a_rule_chose_stays_and_the_rate_is_the_runs() -> None:
    free = KnotTraining(2, FedAvg(3, LocalPlan(steps=2)), frozenset({"statistics"}))
    state = trained(ASKED, free, Gcv())
    assert state.get(KeptStatistics).parts.keys() == CLIENTS.keys()
    assert state.trainer.fedavg.plan.rate is not None
    after = forget(state, ASKED, "knot", clients={"1"})
    assert after.ridge == state.ridge
    assert after.ridge_choice.stale
    again = state.trainer.train(ASKED, ridge=state.ridge_choice.setting)
    assert same(again, state)


def test_another_run_has_no_clusters() -> None:
    with pytest.raises(InputError, match="clusters"):
        forget(trained(ASKED, FEDAVG, RIDGE), ASKED, "knot", clients={"1"})
    with pytest.raises(InputError, match="clusters"):
        trained(ASKED, KnotTraining(9, FEDAVG), RIDGE)


def test_erased_clusters_are_gone() -> None:
    clusters = trained(ASKED, KNOT, RIDGE).get(Clusters)
    first = clusters.parts[0]
    assert clusters.without(first.members[:1]).parts == clusters.parts[1:]
    assert clusters.without({part.members[0] for part in clusters.parts}) is None


def test_the_assignment_is_the_best_of_equal_sizes() -> None:
    points = np.random.default_rng(3).normal(size=(6, 2))
    found = balanced_clusters(points, 3)
    assert sorted(np.bincount(found)) == [2, 2, 2]
    centers = np.stack([points[found == number].mean(axis=0) for number in range(3)])

    def cost(assignment: tuple[int, ...]) -> float:
        return float(np.linalg.norm(points - centers[np.array(assignment)], axis=1).sum())

    best = min(map(cost, set(permutations([0, 0, 1, 1, 2, 2]))))
    assert cost(tuple(found)) == pytest.approx(best)
    assert sorted(np.bincount(balanced_clusters(points[:5], 3))) == [1, 2, 2]
