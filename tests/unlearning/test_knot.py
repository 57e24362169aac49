"""KNOT: clusters of equal size, and removal that is clustered training without the client, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from probekit.errors import InputError
from probekit.federated.in_process import InProcess
from probekit.federated.methods.fedavg import FedAvg
from probekit.federated.methods.knot import KnotTraining, balanced, clusters_in
from probekit.federated.training import train
from probekit.protocols import unwatched
from probekit.unlearning.choice import carried_out
from probekit.unlearning.method import Material, method, missing
from probekit.unlearning.methods.knot import Knot
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import SampleRef, UnlearnRequest
from tests.oracles import relative
from tests.unlearning.conftest import Array, Run, make_run
from tests.unlearning.rounds_oracle import FORGET, RATE, RIDGE, ROUNDS, STEPS, Maps, removal

KNOT = KnotTraining(rounds=ROUNDS, local_steps=STEPS, learning_rate=RATE, clusters=2)


def knot_run(options: KnotTraining = KNOT, **more: Any) -> Run:
    return make_run(scheme="dirichlet:1", method=options, clients=6, **more)


def clusters_of(run: Run) -> list[tuple[str, ...]]:
    return [one.members for one in clusters_in(run.trained.kept["knot"])]


def test_the_head_is_the_mean_of_clusters_that_trained_alone() -> None:
    run = knot_run()
    maps, groups = Maps.of(run), clusters_of(run)
    assert sorted(map(len, groups)) == [3, 3]
    assert sorted(name for one in groups for name in one) == [*"012345"]
    everybody = maps.shares("012345")
    wanted = sum(sum(everybody[name] for name in one) * maps.trained(one)[-1] for one in groups)
    assert relative(run.trained.params, np.asarray(wanted)) < 1e-12


def clustered_without(run: Run, options: KnotTraining, request: UnlearnRequest) -> Array:
    """Clustered training of those who stay, from the start, with the clusters that were."""
    asked = removal(run, options, request=request)
    left = [tuple(name for name in one if name in asked.counts) for one in clusters_of(run)]
    given: Any = {"ridge": RIDGE, "scaling": run.trained.scaling, "watch": unwatched}
    found = [options.rounds_of(asked.online, asked.problem, one, **given) for one in left if one]
    return options.combined(found, asked.online, asked.problem)


@pytest.mark.parametrize(
    "options",
    [
        KNOT,
        replace(KNOT, learning_rate=None),
        replace(KNOT, participation=0.4, batch_size=8),
        replace(KNOT, participation=0.3, weights="uniform", clusters=3, server_learning_rate=0.5),
    ],
)
@pytest.mark.parametrize("scaling", ["mean", "sum"])
def test_removal_is_clustered_training_without_the_client(options: KnotTraining, scaling: str) -> None:
    run = knot_run(options, scaling=scaling, ridge=RIDGE)
    for request in (FORGET, UnlearnRequest.of(["1", "4"])):
        found = carried_out(removal(run, options, request=request), "knot").trained_after
        assert found.params.tobytes() == clustered_without(run, options, request).tobytes()
        assert not np.allclose(found.params, run.trained.params)


def test_a_cluster_goes_back_to_before_the_first_round_only() -> None:
    options = replace(KNOT, participation=0.3, rounds=12)
    run = knot_run(options)
    late = max(run.trained.counts, key=options.first_round)
    assert options.first_round(late) > 0
    own = next(one for one in clusters_of(run) if late in one)
    request = UnlearnRequest.of([late])
    found = carried_out(removal(run, options, request=request), "knot")
    played = [
        number
        for number in range(options.first_round(late), 12)
        if any(options.takes_part(name, number) for name in own if name != late)
    ]
    assert found.cost.rounds == len(played) < 12
    assert f"{12 - options.first_round(late)} rounds in all" in found.note


def test_one_removal_after_the_other_is_both_at_once() -> None:
    options = replace(KNOT, participation=0.5)
    run = knot_run(options)
    first = carried_out(removal(run, options), "knot").trained_after
    assert "1" not in first.kept["knot"].about
    second = carried_out(removal(run, options, request=UnlearnRequest.of(["4"]), before=first), "knot").trained_after
    both = UnlearnRequest.of(["1", "4"])
    assert second.params.tobytes() == clustered_without(run, options, both).tobytes()


def test_samples_of_a_client_are_forgotten_in_its_cluster_alone() -> None:
    run = knot_run()
    held = run.partition.clients["1"]
    request = UnlearnRequest(samples=(SampleRef(run.embeddings.ids[held[0]], "1"),))
    found = carried_out(removal(run, KNOT, request=request), "knot")
    rest = Run(
        run.embeddings,
        replace(
            run.partition,
            clients={**run.partition.clients, "1": held[1:]},
            server=np.sort(np.append(run.partition.server, held[0])),
        ),
        run.trained,
    )
    maps, groups = Maps.of(rest), clusters_of(run)
    everybody = maps.shares("012345")
    wanted = sum(sum(everybody[name] for name in one) * maps.trained(one)[-1] for one in groups)
    assert relative(found.trained_after.params, np.asarray(wanted)) < 1e-12
    assert found.cost.rounds == ROUNDS


def test_a_cluster_of_one_vanishes_with_its_client() -> None:
    options = replace(KNOT, clusters=6)
    run = knot_run(options)
    found = carried_out(removal(run, options), "knot")
    assert found.cost.rounds == 0
    maps = Maps.of(run)
    wanted = sum(share * maps.trained([name])[-1] for name, share in maps.shares("02345").items())
    assert relative(found.trained_after.params, np.asarray(wanted)) < 1e-12


def test_as_published_one_cluster_is_the_answer() -> None:
    """Half of the clients then had no say in the head."""
    run = knot_run(replace(KNOT, result="best"))
    models = [one.params for one in clusters_in(run.trained.kept["knot"])]
    assert any(np.array_equal(run.trained.params, one) for one in models)
    described, maps = knot_run(), Maps.of(run)
    retrained = maps.trained("02345")[-1]
    average, best = (
        relative(carried_out(removal(described, KNOT), name).trained_after.params, retrained)
        for name in ("knot", "knot:result=best")
    )
    assert average < best / 1.5


def test_the_assignment_is_the_best_of_equal_sizes() -> None:
    points = np.random.default_rng(3).normal(size=(6, 2))
    place = balanced(points, 3)
    assert sorted(np.bincount(place)) == [2, 2, 2]
    centres = np.stack([points[place == number].mean(axis=0) for number in range(3)])

    def cost(some: Any) -> float:
        return float(np.linalg.norm(points - centres[np.asarray(some)], axis=1).sum())

    best = min(map(cost, set(permutations([0, 0, 1, 1, 2, 2]))))
    assert cost(place) == pytest.approx(best)
    assert sorted(np.bincount(balanced(points[:5], 3))) == [1, 2, 2]


def test_as_published_the_distances_are_maximised() -> None:
    """With 15 clients in 5 clusters, clients of the public code's clusters differ by a quarter more on average."""

    def spread(*, farthest: bool) -> float:
        found = 0.0
        for seed in range(30):
            points = np.random.default_rng(seed).normal(size=(15, 2))
            place = balanced(points, 5, farthest=farthest)
            found += sum(float(points[place == number].var(axis=0).sum()) for number in range(5))
        return found

    assert spread(farthest=True) == pytest.approx(1.24 * spread(farthest=False), rel=0.05)
    run = knot_run(replace(KNOT, assign="reference"))
    assert sorted(map(len, clusters_of(run))) == [3, 3]


def test_random_clusters_follow_from_the_seed() -> None:
    options = replace(KNOT, assign="random")
    assert clusters_of(knot_run(options)) == clusters_of(knot_run(options))
    drawn = {tuple(map(frozenset, clusters_of(knot_run(replace(options, seed=seed))))) for seed in range(4)}
    assert len(drawn) > 1


def test_what_is_needed_is_asked_for() -> None:
    run, other = knot_run(), make_run(method=FedAvg(rounds=2))
    assert not missing(Knot(), removal(run, KNOT))
    assert "method=knot" in missing(Knot(), removal(other))
    assert "method=knot" in missing(Knot(), removal(run, KNOT, before=replace(run.trained, kept={})))
    assert "cached rows" in missing(Knot(), Removal(run.trained, FORGET, Material(options=KNOT)))
    joining = UnlearnRequest(added=("9",))
    material = Material(clients=InProcess.of(run.trained.problem, run.embeddings, {**run.held(), "9": np.arange(3)}))
    assert "nobody joins" in missing(Knot(), Removal(run.trained, joining, replace(material, options=KNOT)))


@pytest.mark.parametrize("text", ["knot:clusters=0", "knot:assign=no", "knot:result=no", "knot:keep_history=true"])
def test_options_are_refused(text: str) -> None:
    run = make_run()
    with pytest.raises(InputError, match="knot"):
        train(run.embeddings, run.partition, ridge=0.1, method=text)
    with pytest.raises(InputError, match="9 clusters and 5 clients"):
        train(run.embeddings, run.partition, ridge=0.1, method="knot:clusters=9")
    with pytest.raises(InputError, match="result of knot"):
        method("knot:result=no")


def test_many_points_are_placed_as_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.random.default_rng(0).random((61, 2))
    few = [balanced(points, 4, farthest=farthest) for farthest in (False, True)]
    monkeypatch.setattr("probekit.federated.methods.knot.MOST_PAIRED", 0)
    many = [balanced(points, 4, farthest=farthest) for farthest in (False, True)]
    assert np.array_equal(few, many)
