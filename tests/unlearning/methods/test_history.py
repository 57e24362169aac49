"""Methods that stand on kept rounds, against affine maps computed from the rows."""

from __future__ import annotations

import numpy as np
import pytest

from probekit.errors import InputError
from probekit.federated.state import History
from probekit.unlearning.methods.starfish import Secant
from tests.oracles import Array, relative_error
from tests.unlearning.maps import LEAVER, ROUNDS, Maps, Problem, make_problem
from tests.unlearning.problems import forget, sample_ids

REPLAYS = ("federaser", "starfish", "fedrecovery")
TENSORS = (slice(0, 6), slice(6, 7))


@pytest.fixture(scope="module")
def problem() -> Problem:
    return make_problem()


def calibrated(maps: Maps, *, steps: int, published: bool = False) -> Array:
    """FedEraser; or with one direction for all, and lengths from after the round."""
    path, shares = maps.path(maps.clients), maps.shares(maps.retained)
    now = maps.round(maps.retained, path[0])
    for t in range(1, ROUNDS):
        made = {name: maps.local(name, now, steps=steps) - now for name in shares}
        kept = {name: maps.local(name, path[t]) - path[t] for name in shares}
        if published:
            mean = sum(share * made[name] for name, share in shares.items())
            pull = maps.round(maps.retained, path[t]) - path[t + 1]
            made, kept = dict.fromkeys(shares, mean), dict.fromkeys(shares, pull)
        step = np.zeros_like(now)
        for name, share in shares.items():
            for rows in TENSORS:
                length = np.linalg.norm(kept[name][rows]) / np.linalg.norm(made[name][rows])
                step[rows] += share * length * made[name][rows]
        now = now + step
    return now


def test_federaser_keeps_lengths_and_turns_directions(problem: Problem) -> None:
    maps = problem.maps
    half = problem.after("federaser").params  # of 3 steps, rounded up
    assert relative_error(half, calibrated(maps, steps=2)) < 1e-12
    whole = problem.after("federaser:ratio=1").params
    assert relative_error(whole, calibrated(maps, steps=3)) < 1e-12
    retrained = maps.path(maps.retained)[-1]
    assert relative_error(half, retrained) < relative_error(problem.start, retrained) / 2


def test_federaser_as_published_goes_a_fraction_of_the_way(problem: Problem) -> None:
    """Its steps are as long as the pull of the forgotten client."""
    published = problem.after("federaser:lengths=mean").params
    expected = calibrated(problem.maps, steps=2, published=True)
    assert relative_error(published, expected) < 1e-12
    retrained = problem.maps.path(problem.maps.retained)[-1]
    ours = problem.after("federaser").params
    assert relative_error(published, retrained) > 3 * relative_error(ours, retrained)


def recovered(maps: Maps, *, total: bool = False) -> Array:
    path = maps.path(maps.clients)
    share = maps.shares(maps.clients)[LEAVER]
    squares = np.array([np.square(path[t + 1] - path[t]).sum() for t in range(ROUNDS)])
    weights = np.ones(ROUNDS) if total else squares / squares.sum()
    taken = np.zeros_like(path[0])
    for t, weight in enumerate(weights):
        update = maps.local(LEAVER, path[t]) - path[t]
        taken += weight * share / (1 - share) * (update - (path[t + 1] - path[t]))
    return path[-1] - taken


def test_fedrecovery_takes_one_average_residual_off(problem: Problem) -> None:
    rounds = problem.asked.traffic.rounds
    after = problem.after("fedrecovery").params
    assert problem.asked.traffic.rounds == rounds
    assert relative_error(after, recovered(problem.maps)) < 1e-12
    half = problem.after("fedrecovery:scale=0.5").params
    assert relative_error(half, (problem.start + after) / 2) < 1e-12


def test_its_sum_is_what_the_others_sent(problem: Problem) -> None:
    """FedAccum: the start and the retained clients' updates along the run with everybody."""
    maps = problem.maps
    after = problem.after("fedrecovery:weights=sum").params
    assert relative_error(after, recovered(maps, total=True)) < 1e-12
    path = maps.path(maps.clients)
    sent = sum(maps.round(maps.retained, path[t]) - path[t] for t in range(ROUNDS))
    assert relative_error(after, sent) < 1e-12


def test_starfish_trained_in_every_round_is_retraining(problem: Problem) -> None:
    retrained = problem.maps.path(problem.maps.retained)[-1]
    everywhere = problem.after(f"starfish:warmup={ROUNDS}").params
    assert relative_error(everywhere, retrained) < 1e-12
    assert np.array_equal(everywhere, problem.after("retrain").params)


def test_starfish_trains_some_rounds_and_estimates_the_others() -> None:
    problem = make_problem(40)
    maps = problem.maps
    retrained = maps.path(maps.retained, 40)[-1]
    traffic = problem.asked.traffic
    before = traffic.rounds
    after = problem.after("starfish").params
    assert traffic.rounds - before == 1 + 10 + 2 + 5  # classes, warm-up, corrections, tuning
    nothing = relative_error(problem.start, retrained)
    assert relative_error(after, retrained) < nothing / 5


def test_one_estimated_round_by_hand() -> None:
    """u_t - B (M - w_t), with the B that holds for the one pair of the round before."""
    problem = make_problem(3)
    maps = problem.maps
    path, shares = maps.path(maps.clients, 3), maps.shares(maps.retained)
    M = maps.path(maps.retained, 2)
    expected = np.zeros_like(M[0])
    for name, share in shares.items():
        moved = (M[1] - path[1]).ravel()
        kept = maps.local(name, path[1]) - path[1]
        changed = (kept - (maps.local(name, M[1]) - M[1])).ravel()
        scale = moved @ changed / (moved @ moved)
        B = scale * (np.eye(len(moved)) - np.outer(moved, moved) / (moved @ moved))
        B += np.outer(changed, changed) / (changed @ moved)
        estimate = M[2] + maps.local(name, path[2]) - path[2]
        expected += share * (estimate - (B @ (M[2] - path[2]).ravel()).reshape(M[2].shape))
    after = problem.after("starfish:warmup=2,tuning=0,buffer=1").params
    assert relative_error(after, expected) < 1e-10


def test_a_secant_matrix_holds_for_its_last_pair_and_is_symmetric() -> None:
    generator = np.random.default_rng(0)
    root = generator.normal(size=(6, 6))
    curvature = root @ root.T
    secant = Secant(2)
    assert not secant.product(np.ones((6, 1))).any()
    pairs = generator.normal(size=(3, 6, 1))
    for moved in pairs:
        secant.add(moved, curvature @ moved)
    secant.add(pairs[0], -pairs[0])  # no curvature: not taken
    assert relative_error(secant.product(pairs[2]), curvature @ pairs[2]) < 1e-10
    matrix = np.hstack([secant.product(column[:, None]) for column in np.eye(6)])
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-10)
    assert np.linalg.eigvalsh(matrix).min() > 0


@pytest.mark.parametrize("method", ["federaser", "starfish"])
def test_two_removals_one_after_the_other(problem: Problem, method: str) -> None:
    """The renewed history carries a second one, and knows nobody who left."""
    first = problem.after(method)
    history = first.get(History)
    assert all(LEAVER not in kept.uploads for kept in history.rounds)
    assert np.array_equal(history.end, first.params)
    second = forget(first, problem.asked.without({LEAVER}), method, clients={"3"})
    both = problem.after(method, clients={LEAVER, "3"})
    assert list(second.clients) == ["0", "2", "4"]
    near = 1e-12 if method == "starfish" else 0.05  # whose lengths are those of the run before
    assert relative_error(second.params, both.params) < near


def test_after_fedrecovery_there_is_no_history(problem: Problem) -> None:
    assert problem.after("fedrecovery").kept == ()


@pytest.mark.parametrize("uniform", [False, True])
def test_rounds_before_the_client_came_stay(uniform: bool) -> None:
    """Training is rolled back to its first round; rounds of a sample keep their scale."""
    problem = make_problem(participation=0.4, uniform=uniform)
    rounds = problem.state.get(History).rounds
    late = max(
        problem.state.clients,
        key=lambda name: next((i for i, kept in enumerate(rounds) if name in kept.uploads), 99),
    )
    first = next(i for i, kept in enumerate(rounds) if late in kept.uploads)
    assert first > 0
    after = problem.after("starfish:warmup=99", clients={late})
    renewed = after.get(History).rounds
    for number in range(first):
        assert np.array_equal(renewed[number].start, rounds[number].start)
    retained = [name for name in problem.state.clients if name != late]
    rows = {name: 1 if uniform else problem.state.clients[name] for name in retained}
    W = rounds[first].start
    for kept in rounds[first:]:
        drawn = [name for name in kept.uploads if name != late]
        if drawn:
            moved = sum(rows[name] * (problem.maps.local(name, W) - W) for name in drawn)
            W = W + len(retained) / len(drawn) * moved / sum(rows.values())
    assert relative_error(after.params, W) < 1e-12


def test_a_client_that_was_never_drawn_leaves_nothing_to_repeat() -> None:
    problem = make_problem(2, participation=0.2)
    drawn = {name for kept in problem.state.get(History).rounds for name in kept.uploads}
    absent = next(name for name in problem.state.clients if name not in drawn)
    for method in REPLAYS:
        after = problem.after(method, clients={absent})
        assert np.array_equal(after.params, problem.start)


@pytest.mark.parametrize("method", [*REPLAYS, "pga"])
def test_what_is_needed_is_asked_for(problem: Problem, method: str) -> None:
    bare = make_problem(keep="gradients")
    with pytest.raises(InputError, match="history"):
        bare.after(method)
    ids = sample_ids(problem.maps.clients["2"], [0])
    with pytest.raises(InputError, match="whole clients"):
        problem.after(method, samples={"2": ids})
    offline = problem.asked.only({LEAVER})
    if method == "fedrecovery":
        alone = forget(problem.state, offline, method, clients={LEAVER})
        assert np.array_equal(alone.params, problem.after(method).params)
    else:
        with pytest.raises(InputError, match="retained clients"):
            forget(problem.state, offline, method, clients={LEAVER})
