"""Methods by rounds against their closed forms: squared loss, full batches, no momentum, no clipping."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from probekit.models.fitting import FitPlan
from probekit.testing.methods import check_method
from probekit.unlearning.choice import carried_out
from probekit.unlearning.joint import random_params
from probekit.unlearning.method import Material, method, missing
from probekit.unlearning.methods.ew_sga import smallest_weight
from probekit.unlearning.methods.fedosd import OrthogonalDescent
from probekit.unlearning.methods.pga import farthest, reference_model
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import UnlearnRequest
from probekit.unlearning.rounds import local_plan
from tests.unlearning.conftest import Run, make_run
from tests.unlearning.methods.conftest import LEAVER, RATE, STEPS, Algebra, Array

NAMES = ("cf", "flipping", "sga", "ew-sga", "pga", "neggrad", "not", "puf", "mode", "fedosd")
TARGET = {"flipping", "sga", "ew-sga", "pga", "neggrad", "puf", "mode", "fedosd"}
RETAINED = {"cf", "flipping", "ew-sga", "pga", "neggrad", "not", "puf", "mode", "fedosd"}


def close(found: Array, wanted: Array, tolerance: float = 1e-10) -> bool:
    """Whether they agree, relative to the wanted."""
    return bool(np.linalg.norm(found - wanted) <= tolerance * np.linalg.norm(wanted))


@pytest.mark.parametrize("name", NAMES)
def test_the_kit_finds_no_fault(name: str) -> None:
    found = check_method(name)
    assert [one for one in found if not one.passed] == []
    assert found[-1].detail == "to every run"  # all have what it needs, conventional networks too


@pytest.mark.parametrize("name", NAMES)
def test_it_says_where_it_is_from_and_what_can_be_tuned(name: str) -> None:
    found = method(name)
    assert found.source
    settings = 1
    for option, values in found.tunable.items():
        assert hasattr(found, option)
        for value in values:
            method(f"{name}:{option}={value}")
        settings *= len(values)
    assert settings >= 6


@pytest.mark.parametrize("name", NAMES)
def test_each_need_is_missed_where_its_material_is_taken_away(algebra: Algebra, name: str) -> None:
    run, request = algebra.run, UnlearnRequest.of([LEAVER])
    both = algebra.removal()
    target = "the forgotten client online"

    def lacking(**given: Any) -> str:
        return missing(method(name), Removal(run.trained, request, Material(options=algebra.options, **given)))

    assert lacking(clients=both.online, target=both.target) == ""
    assert (target in lacking(clients=both.online)) == (name in TARGET)
    assert ("retained" in lacking(target=both.target)) == (name in RETAINED)
    assert f"Unlearning by {name} needs" in lacking()
    assert "server_only" in lacking(embeddings=run.embeddings, partition=run.partition, server_only=True)


def test_options_bring_needs_of_their_own(algebra: Algebra) -> None:
    """An empty server set, nobody to train on afterwards, a loss without a closed form."""
    run, both = make_run(server=0.0), algebra.removal()

    def lacking(name: str, removal: Removal) -> str:
        return missing(method(name), removal)

    empty = Removal(run.trained, UnlearnRequest.of([LEAVER]), run.material)
    assert "rows of the server's own" in lacking("ew-sga:fisher=server", empty)
    assert lacking("ew-sga", empty) == lacking("ew-sga:fisher=server", both) == ""
    alone = algebra.removal(embeddings=None, partition=None, target=both.target)
    assert lacking("sga", alone) == lacking("ew-sga:fisher=target", alone) == ""
    assert "the retained clients online" in lacking("sga:post=1", alone)
    assert "a head on embeddings" in check_method("pga:exact=true")[-1].detail  # networks have none


@pytest.mark.parametrize("name", NAMES)
def test_single_samples_are_forgotten_too(algebra: Algebra, name: str) -> None:
    run = algebra.run
    rows = run.partition.clients[LEAVER][:5].tolist()
    request = UnlearnRequest.of(samples=[run.embeddings.ids[row] for row in rows])
    removal = Removal(run.trained, request, Material(run.embeddings, run.partition, options=algebra.options))
    after = carried_out(removal, name).trained_after
    assert after.counts[LEAVER] == run.trained.counts[LEAVER] - 5
    assert not np.array_equal(after.params, run.trained.params)


def test_continued_training_is_affine(algebra: Algebra) -> None:
    """W_R + Phi^t (W - W_R), Phi = sum p_c (I - rate H_c)^M, to 1e-10."""
    size, shares = len(algebra.start), algebra.shares(algebra.stay)
    powers = {name: np.linalg.matrix_power(np.eye(size) - RATE * algebra.curvature(name), STEPS) for name in shares}
    q = {name: share * (np.eye(size) - powers[name]) for name, share in shares.items()}
    best = {name: np.linalg.solve(algebra.curvature(name), algebra.moment(name)) for name in shares}
    fixed = np.linalg.solve(sum(q.values()), sum(q[name] @ best[name] for name in shares))
    phi: Any = sum(share * powers[name] for name, share in shares.items())
    wanted = fixed + np.linalg.matrix_power(phi, 7) @ (algebra.start - fixed)
    assert close(algebra.after("cf:rounds=7"), wanted)


def test_flipping_is_a_round_with_other_moments(algebra: Algebra) -> None:
    """Given the drawn labels, X^T Y~ stands for X^T Y of the forgotten client, to 1e-10."""
    run, params = algebra.run, algebra.start
    shares = algebra.shares(tuple(run.partition.clients))
    labels, first = run.embeddings.labels[run.partition.clients[LEAVER]], run.trained.rounds
    for number in range(2):
        plan = FitPlan(steps=STEPS, targets="random", round=first + number)
        drawn = plan.drawn(labels, 3, LEAVER, lambda: np.empty(0))
        assert drawn is not None
        moment = algebra.moment(LEAVER, drawn(np.arange(len(labels))))
        found = {name: algebra.local(name, params) for name in algebra.stay}
        found[LEAVER] = algebra.local(LEAVER, params, moment=moment)
        params = np.asarray(sum(share * found[name] for name, share in shares.items()))
    assert close(algebra.after("flipping:rounds=2,post=1"), algebra.round(params))


def test_random_labels_are_uniform_in_expectation(algebra: Algebra) -> None:
    """E[X^T Y~] = X^T 1 1^T / k: four standard errors of 2,000 draws; the optimum itself is far noisier."""
    matrix, own = algebra.rows(LEAVER)
    k, rows, many = own.shape[1], np.arange(len(own)), 2000
    total = np.zeros((matrix.shape[1], k))
    for seed in range(many):
        drawn = FitPlan(steps=1, targets="random", seed=seed).drawn(own.argmax(axis=1), k, LEAVER, lambda: own)
        assert drawn is not None
        total += matrix.T @ drawn(rows) / many
    error = np.sqrt(np.square(matrix).sum(axis=0)[:, None] * (1 / k) * (1 - 1 / k) / many)
    assert (np.abs(total - matrix.T @ np.full_like(own, 1 / k)) <= 4.5 * error).all()


def test_ascent_grows_by_its_curvature(algebra: Algebra) -> None:
    """W_u + (I + rate H_u)^t (W - W_u), to 1e-10."""
    curvature = algebra.curvature(LEAVER)
    best = np.linalg.solve(curvature, algebra.moment(LEAVER))
    grown = np.linalg.matrix_power(np.eye(len(best)) + RATE * curvature, 6) @ (algebra.start - best)
    assert close(algebra.after("sga:steps=6,rate_scale=1,max_norm=none"), best + grown)


def test_ascent_ends_where_it_is_told(algebra: Algebra) -> None:
    norm = float(np.linalg.norm(algebra.start))
    far = algebra.after("sga:steps=60,rate_scale=1,max_norm=0.2")
    assert np.linalg.norm(far - algebra.start) == pytest.approx(0.2 * norm)
    wild = algebra.after("sga:steps=60,rate_scale=1,max_norm=none")
    assert np.linalg.norm(wild) > 1e3 * norm
    matrix, own = algebra.rows(LEAVER)

    def right(params: Array) -> float:
        return float(((matrix @ params).argmax(axis=1) == own.argmax(axis=1)).mean())

    stopped = algebra.after("sga:steps=60,rate_scale=1,max_norm=none,until=0.5")
    assert right(stopped) <= 0.5 < right(algebra.start)
    assert np.linalg.norm(stopped) < np.linalg.norm(wild) / 100
    later = algebra.after("sga:steps=60,rate_scale=1,max_norm=none,until=0.5,post=5")
    assert right(later) > right(stopped)


@pytest.mark.parametrize("fisher", ["retained", "server", "target"])
def test_elastic_ascent_follows_its_formula(algebra: Algebra, fisher: str) -> None:
    """Delta_t = A^-1 (I - (I - rate A)^t) g_u, A = weight D - H_u, to 1e-9."""
    run, weight, rate = algebra.run, 4.0, 0.02
    names = {"retained": algebra.stay, "target": (LEAVER,)}.get(fisher, ())
    matrices = [algebra.rows(name)[0] for name in names]
    if fisher == "server":
        rows = run.embeddings.to_numpy()[run.partition.server]
        matrices = [np.hstack([rows, np.ones((len(rows), 1))])]
    diagonal = np.square(np.vstack(matrices)).mean(axis=0)
    diagonal = np.maximum(diagonal, 0.05 * diagonal.mean())
    curvature = algebra.curvature(LEAVER)
    a = weight * np.diag(diagonal) - curvature
    slope = curvature @ algebra.start - algebra.moment(LEAVER)
    power = np.linalg.matrix_power(np.eye(len(a)) - rate * a, 40)
    wanted = np.linalg.solve(a, (np.eye(len(a)) - power) @ slope)
    found = algebra.after(f"ew-sga:steps=40,weight={weight},rate={rate},fisher={fisher},max_norm=none")
    assert close(found - algebra.start, wanted, 1e-9)


def test_the_usual_weight_of_elastic_ascent_bounds_it(algebra: Algebra) -> None:
    """lambda_max(D^-1/2 H_u D^-1/2) by 20 products, to 1 %; with 1.2 times that, A is positive definite."""
    removal = algebra.removal()
    fisher = method("ew-sga").importance(removal)
    root = np.sqrt(fisher[:, 0])
    curvature = algebra.curvature(LEAVER)
    wanted = np.linalg.eigvalsh(curvature / root[:, None] / root)[-1]
    found = smallest_weight(removal, fisher)
    assert found == pytest.approx(wanted, rel=0.01)
    assert np.linalg.eigvalsh(1.2 * found * np.diag(fisher[:, 0]) - curvature)[0] > 0
    ends = [algebra.after(f"ew-sga:steps={steps},max_norm=none") for steps in (4000, 8000)]
    assert np.linalg.norm(ends[1] - ends[0]) < 0.05 * np.linalg.norm(ends[0] - algebra.start)


def test_projected_ascent_ends_at_the_secular_equations_point(algebra: Algebra) -> None:
    """(nu I - H_u) Delta = g_u(w_ref) with |Delta| the radius, to 1e-9; 3,000 steps of ascent agree to 1e-6."""
    run = algebra.run
    assert run.trained.history is not None
    last = run.trained.history.rounds[-1]
    share = algebra.shares(tuple(run.partition.clients))[LEAVER]
    reference = (algebra.start - share * last.uploads[last.participants.index(LEAVER)]) / (1 - share)
    others = algebra.shares(algebra.stay)
    mean = sum(part * last.uploads[last.participants.index(name)] for name, part in others.items())
    assert close(reference, np.asarray(mean))
    exact = algebra.after("pga:exact=true,post=0,radius=0.1") - reference
    assert np.linalg.norm(exact) == pytest.approx(0.1 * np.linalg.norm(reference), rel=1e-9)
    curvature = algebra.curvature(LEAVER)
    slope = curvature @ reference - algebra.moment(LEAVER)
    pushed = slope + curvature @ exact
    nu = float((pushed * exact).sum() / np.square(exact).sum())
    assert nu > np.linalg.eigvalsh(curvature)[-1]
    assert close(pushed, nu * exact, 1e-9)
    climbed = algebra.after("pga:steps=3000,post=0,radius=0.1") - reference
    assert close(climbed, exact, 1e-6)
    assert close(algebra.after("pga:exact=true,post=2,radius=0.1"), algebra.round(algebra.round(reference + exact)))


def test_the_farthest_point_exists_where_the_slope_misses_the_top_direction() -> None:
    found = farthest(np.diag([1.0, 2.0, 5.0]), np.array([[1.0], [0.5], [0.0]]), 3.0)
    assert np.linalg.norm(found) == pytest.approx(3.0)
    assert found[:2, 0] == pytest.approx([1 / 4, 0.5 / 3])


def test_without_a_history_the_last_upload_is_trained_now(algebra: Algebra) -> None:
    run = algebra.run
    removal = Removal(replace(run.trained, history=None), UnlearnRequest.of([LEAVER]), algebra.removal().material)
    share = algebra.shares(tuple(run.partition.clients))[LEAVER]
    found, last = reference_model(removal, local_plan(removal))
    assert close(last, algebra.local(LEAVER, algebra.start))
    assert close(found, (algebra.start - share * last) / (1 - share))


def test_neggrad_takes_gradient_steps_on_the_difference_and_ends_at_its_optimum(algebra: Algebra) -> None:
    """Iterates to 1e-10, the optimum of 600 rounds to 1e-6."""
    beta, shares = 0.97, algebra.shares(algebra.stay)
    curvature: Any = sum(share * algebra.curvature(name) for name, share in shares.items())
    moment: Any = sum(share * algebra.moment(name) for name, share in shares.items())
    a = beta * curvature - (1 - beta) * algebra.curvature(LEAVER)
    b = beta * moment - (1 - beta) * algebra.moment(LEAVER)
    assert np.linalg.eigvalsh(a)[0] > 0
    params = algebra.start
    for _ in range(5):
        params = params - RATE * (a @ params - b)
    assert close(algebra.after(f"neggrad:beta={beta},rounds=5,steps=1,max_norm=none"), params)
    ended = algebra.after(f"neggrad:beta={beta},rounds=600,steps=1,rate=0.25,max_norm=none")
    assert close(ended, np.linalg.solve(a, b), 1e-6)


@pytest.mark.parametrize("tensors", [1, 2])
def test_negation_is_continued_training_from_the_other_side(algebra: Algebra, tensors: int) -> None:
    """To 1e-10; the first tensor of a head are its weights, the second its bias."""
    params = algebra.start.copy()
    params[: len(params) - (tensors == 1)] *= -1
    for _ in range(4):
        params = algebra.round(params)
    assert close(algebra.after(f"not:rounds=4,tensors={tensors}"), params)


def test_a_negated_update_is_affine(algebra: Algebra) -> None:
    """W + sum_R p_c (W_c - W) - gamma p_u (W_u - W), then rounds, to 1e-10."""
    start, shares = algebra.start, algebra.shares(tuple(algebra.run.partition.clients))
    signs = {name: -0.7 if name == LEAVER else 1.0 for name in shares}
    moves = [signs[name] * share * (algebra.local(name, start) - start) for name, share in shares.items()]
    params = start + np.sum(moves, axis=0)
    assert close(algebra.after("puf:gamma=0.7,post=2"), algebra.round(algebra.round(params)))


def test_degradation_and_guidance_are_affine(algebra: Algebra) -> None:
    """Convex combinations, then rounds with X^T of the fresh model's outputs for the forgotten client, to 1e-10."""
    params, fresh = algebra.start, random_params(algebra.run.trained.problem, 0, scale=0.1)
    for _ in range(3):
        fresh = algebra.round(fresh)
        params = 0.9 * params + 0.1 * fresh
    moment = algebra.moment(LEAVER, algebra.rows(LEAVER)[0] @ fresh)
    shares = algebra.shares(tuple(algebra.run.partition.clients))
    for _ in range(2):
        found = {name: algebra.local(name, params) for name in algebra.stay}
        found[LEAVER] = algebra.local(LEAVER, params, moment=moment)
        params = np.asarray(sum(share * found[name] for name, share in shares.items()))
    assert close(algebra.after("mode:degrade=3,momentum=0.9,rounds=2"), params)


def test_orthogonal_descent_leaves_every_retained_loss_flat(algebra: Algebra) -> None:
    """The direction is orthogonal to every retained gradient to 1e-10, as long as the unlearning gradient."""
    removal, start = algebra.removal(), algebra.start
    found = OrthogonalDescent().direction(removal, start, local_plan(removal))
    for name in algebra.stay:
        slope = algebra.curvature(name) @ start - algebra.moment(name)
        assert abs((found * slope).sum()) <= 1e-10 * np.linalg.norm(found) * np.linalg.norm(slope)
    matrix, own = algebra.rows(LEAVER)
    uniform = algebra.curvature(LEAVER) @ start - matrix.T @ np.full_like(own, 1 / 3) / len(own)
    assert np.linalg.norm(found) == pytest.approx(np.linalg.norm(uniform), rel=1e-10)
    assert (found * uniform).sum() > 0
    stepped = algebra.after("fedosd:rounds=1,post=0,rate_scale=0.5")
    assert close(stepped, start - 0.5 * RATE * found)


def test_after_orthogonal_descent_nobody_walks_back(algebra: Algebra) -> None:
    away = algebra.after("fedosd:rounds=5,post=0,rate_scale=1")
    way = away - algebra.start
    later = algebra.after("fedosd:rounds=5,post=1,rate_scale=1")
    assert ((later - away) * way).sum() >= -1e-12 * np.square(way).sum()
    back = algebra.round(away) - away
    assert (back * way).sum() < 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("flipping:labels=all", "one of row, false, batch"),
        ("ew-sga:fisher=all", "one of retained, server, target"),
        ("pga:ball=all", "one of norm, random"),
        ("fedosd:project=all", "one of back, always"),
        ("fedosd:weights=all", "one of run, uniform"),
        ("cf:rounds=0", "rounds must be above 0"),
        ("sga:max_norm=-1", "max_norm must be above 0"),
        ("neggrad:beta=1", "between 0 and 1"),
        ("mode:momentum=1", r"in \[0, 1\)"),
    ],
)
def test_options_that_make_no_sense_are_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        method(text)


def test_a_free_run_is_as_good_as_one_by_fedavg(run: Run) -> None:
    """Without options a method finds a rate of its own."""
    for name in NAMES:
        after = carried_out(Removal(run.trained, UnlearnRequest.of([LEAVER]), run.material), name).trained_after
        assert np.linalg.norm(after.params - run.trained.params) < 3 * np.linalg.norm(run.trained.params)
