"""Methods that stand on kept rounds, against affine maps computed from the rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from probekit.errors import InputError
from probekit.federated.trained import Trained
from probekit.unlearning.choice import carried_out
from probekit.unlearning.method import Material, method, missing
from probekit.unlearning.methods.fedaccum import FedAccum
from probekit.unlearning.methods.federaser import FedEraser
from probekit.unlearning.methods.fedrecover import FedRecover, Secant
from probekit.unlearning.methods.fedrecovery import FedRecovery
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import SampleRef, UnlearnRequest
from tests.oracles import relative
from tests.unlearning.conftest import Array, Run
from tests.unlearning.rounds_oracle import FORGET, OPTIONS, ROUNDS, Maps, fedavg_run, removal

NAMES = ("fedaccum", "federaser", "fedrecover", "fedrecovery")
LEFT = ("0", "2", "3", "4")
ALL = ("0", "1", "2", "3", "4")


@pytest.fixture(scope="module")
def run() -> Run:
    return fedavg_run()


@pytest.fixture(scope="module")
def maps(run: Run) -> Maps:
    return Maps.of(run)


def after(run: Run, name: str) -> Array:
    return carried_out(removal(run), name).trained_after.params


def accumulated(maps: Maps, *, every: int = 1) -> Array:
    """The start and the retained clients' updates along the run with everybody."""
    way, shares = maps.trained(ALL), maps.shares(LEFT)
    steps = [
        share * (maps.local(name, way[t]) - way[t]) for t in range(0, ROUNDS, every) for name, share in shares.items()
    ]
    return np.asarray(sum(steps))


def test_fedaccum_adds_up_what_the_others_sent(run: Run, maps: Maps) -> None:
    assert relative(after(run, "fedaccum"), accumulated(maps)) < 1e-12
    assert relative(after(run, "fedaccum:every=3"), accumulated(maps, every=3)) < 1e-12
    assert relative(after(run, "fedaccum:scale=0.5"), accumulated(maps) / 2) < 1e-12


def calibrated(maps: Maps, *, steps: int, every: int = 1, reference: bool = False) -> Array:
    """FedEraser by the book: lengths of the run's updates, directions from the new model, weight and bias apart."""
    way, shares = maps.trained(ALL), maps.shares(LEFT)
    tensors = (slice(0, 7), slice(7, 8))
    now = np.asarray(sum(share * maps.local(name, way[0]) for name, share in shares.items()))
    for t in range(every, ROUNDS, every):
        made = {name: maps.local(name, now, steps=steps) - now for name in shares}
        kept = {name: maps.local(name, way[t]) - way[t] for name in shares}
        if reference:
            mean = np.asarray(sum(share * made[name] for name, share in shares.items()))
            sent = np.asarray(sum(share * maps.local(name, way[t]) for name, share in shares.items()))
            made, kept = dict.fromkeys(shares, mean), dict.fromkeys(shares, sent - way[t + 1])
        step = np.zeros_like(now)
        for name, share in shares.items():
            for rows in tensors:
                length = np.linalg.norm(kept[name][rows]) / np.linalg.norm(made[name][rows])
                step[rows] += share * length * made[name][rows]
        now = now + step
    return now


def test_federaser_keeps_lengths_and_turns_directions(run: Run, maps: Maps) -> None:
    assert relative(after(run, "federaser"), calibrated(maps, steps=2)) < 1e-12  # half of 3, rounded up
    assert relative(after(run, "federaser:ratio=1,every=3"), calibrated(maps, steps=3, every=3)) < 1e-12


def test_federaser_as_published_is_off_by_one(run: Run, maps: Maps) -> None:
    """Its steps are as long as the pull of the forgotten client: it goes a fraction of the way."""
    found, described = after(run, "federaser:reference=true"), after(run, "federaser")
    assert relative(found, calibrated(maps, steps=2, reference=True)) < 1e-12
    retrained = maps.trained(LEFT)[-1]
    assert relative(described, retrained) < 0.05
    assert relative(found, retrained) > 3 * relative(described, retrained)


def test_rescaled_steps_go_the_whole_way(run: Run, maps: Maps) -> None:
    retrained = maps.trained(LEFT)[-1]
    short, whole = (relative(after(run, f"federaser:every=4{more}"), retrained) for more in ("", ",rescale=true"))
    assert whole < short / 2
    trained_on = after(run, "federaser:post=2")
    now = calibrated(maps, steps=2)
    assert relative(trained_on, maps.trained(LEFT, 2, now)[-1]) < 1e-12


def test_fedrecover_with_the_true_matrices_is_retraining(maps: Maps) -> None:
    run = fedavg_run(keep="statistics")
    found = carried_out(removal(run), "fedrecover:matrices=exact")
    assert relative(found.trained_after.params, maps.trained(LEFT)[-1]) < 1e-12
    assert found.cost.rounds == 0
    with pytest.raises(InputError, match="statistics"):
        after(fedavg_run(), "fedrecover:matrices=exact")


def test_fedrecover_trains_some_rounds_and_estimates_the_others() -> None:
    options = replace(OPTIONS, rounds=40)
    run = fedavg_run(method=options)
    maps = Maps.of(run)
    retrained = maps.trained(LEFT, 40)[-1]
    found = carried_out(removal(run, options), "fedrecover")
    assert found.cost.rounds == 10 + 2 + 5  # warm-up, corrections after 20 and 30, tuning
    nothing = relative(run.trained.params, retrained)
    assert relative(found.trained_after.params, retrained) < nothing / 10
    everywhere = carried_out(removal(run, options), "fedrecover:warmup=40")
    assert relative(everywhere.trained_after.params, retrained) < 1e-12


def test_a_secant_matrix_holds_for_its_last_pair_and_is_symmetric() -> None:
    generator = np.random.default_rng(0)
    root = generator.normal(size=(6, 6))
    curvature = root @ root.T
    secant = Secant(2)
    assert not secant.product(np.ones((6, 1))).any()
    pairs = generator.normal(size=(3, 6, 1))
    for one in pairs:
        secant.add(one, curvature @ one)
    secant.add(pairs[0], -pairs[0])  # no curvature: not taken
    assert relative(secant.product(pairs[2]), curvature @ pairs[2]) < 1e-10
    matrix = np.hstack([secant.product(column[:, None]) for column in np.eye(6)])
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-10)
    assert np.linalg.eigvalsh(matrix).min() > 0


def recovered(maps: Maps, *, quirk: bool = False) -> Array:
    way, shares, everybody = maps.trained(ALL), maps.shares(LEFT), maps.shares(ALL)
    whole = [way[t + 1] - way[t] for t in range(ROUNDS)]
    squares = np.array([np.square(one).sum() for one in whole])
    taken = np.zeros_like(way[0])
    for t, weight in enumerate(squares / squares.sum()):
        gone = maps.local("1", way[t]) - way[t]
        residual = (everybody["1"] / (1 - everybody["1"])) * (gone - whole[t])
        if quirk:
            residual = (whole[t] - gone / 5) / 4
        taken += weight * residual
    assert np.isclose(sum(shares.values()), 1)
    return np.asarray(way[-1] - taken)


def test_fedrecovery_takes_one_average_residual_off(run: Run, maps: Maps) -> None:
    assert relative(after(run, "fedrecovery"), recovered(maps)) < 1e-12


def test_fedrecovery_in_full_is_fedaccum(run: Run) -> None:
    assert relative(after(run, "fedrecovery:weights=sum"), after(run, "fedaccum")) < 1e-12


def test_fedrecovery_as_in_fedaus_code_takes_the_others_off(run: Run, maps: Maps) -> None:
    found = after(run, "fedrecovery:residual=fedau")
    assert relative(found, recovered(maps, quirk=True)) < 1e-12
    retrained, described = maps.trained(LEFT)[-1], after(run, "fedrecovery")
    assert relative(described, retrained) < relative(run.trained.params, retrained) < relative(found, retrained)


def test_noise_follows_from_the_certified_distance_and_the_seed(run: Run) -> None:
    clean = after(run, "fedrecovery")
    found = carried_out(removal(run), "fedrecovery:epsilon=1")
    again = carried_out(removal(run), "fedrecovery:epsilon=1")
    other = carried_out(removal(run), "fedrecovery:epsilon=1,seed=1")
    noise = found.trained_after.params - clean
    assert found.trained_after.params.tobytes() == again.trained_after.params.tobytes()
    assert not np.allclose(noise, other.trained_after.params - clean)
    rows = run.rows_without("1")
    X = np.hstack([run.embeddings.to_numpy()[rows], np.ones((len(rows), 1))])
    gradient = X.T @ (X @ clean - np.eye(3)[run.embeddings.labels[rows]]) / len(X) + 0.1 * clean
    distance = np.linalg.norm(gradient) / 0.1
    assert distance > np.linalg.norm(clean - run.oracle(rows))
    sigma = distance / np.sqrt(2) / (np.sqrt(np.log(1e5) + 1) - np.sqrt(np.log(1e5)))
    assert f"sigma {sigma:.6g}" in found.note
    assert f"certified distance {distance:.6g}" in found.note
    assert 0.5 < noise.std() / sigma < 1.5
    asked = carried_out(removal(run), "fedrecovery:sigma=0.5")
    np.testing.assert_allclose((asked.trained_after.params - clean) / 0.5, noise / sigma)
    bare = replace(run.trained, gradients=None)
    with pytest.raises(InputError, match="Give sigma"):
        carried_out(Removal(bare, FORGET), "fedrecovery:epsilon=1")


@pytest.mark.parametrize("name", NAMES)
def test_what_is_needed_is_asked_for(run: Run, name: str) -> None:
    unlearner, whole = method(name), removal(run)
    assert not missing(unlearner, whole)
    assert "keep_history" in missing(unlearner, removal(run, before=replace(run.trained, history=None)))
    online = {"fedaccum": False, "federaser": True, "fedrecover": True, "fedrecovery": False}[name]
    alone = Removal(run.trained, FORGET, Material(options=OPTIONS))
    assert ("retained clients" in missing(unlearner, alone)) == online
    sample = UnlearnRequest(samples=(SampleRef(run.embeddings.ids[run.partition.clients["1"][0]], "1"),))
    assert "whole clients" in missing(unlearner, removal(run, request=sample))


@pytest.mark.parametrize("name", ["fedaccum", "federaser", "fedrecover"])
def test_two_removals_one_after_the_other(run: Run, name: str) -> None:
    """The renewed history carries a second one, and knows nobody who left."""
    first: Trained = carried_out(removal(run), name).trained_after
    assert first.history is not None
    assert first.history.about == frozenset(LEFT)
    assert first.history.end.tobytes() == first.params.tobytes()
    second = carried_out(removal(run, request=UnlearnRequest.of(["3"]), before=first), name).trained_after
    both = carried_out(removal(run, request=UnlearnRequest.of(["1", "3"])), name).trained_after
    assert set(second.counts) == {"0", "2", "4"}
    close = 1e-12 if name != "federaser" else 0.05  # whose lengths are those of the run before
    assert relative(second.params, both.params) < close


def test_rounds_that_only_the_forgotten_took_part_in() -> None:
    options = replace(OPTIONS, participation=0.2)
    run = fedavg_run(method=options)
    assert run.trained.history is not None
    alone = [one.participants == ("1",) for one in run.trained.history.rounds]
    assert any(alone)
    assert not all(alone)
    found = carried_out(removal(run, options), "fedaccum").trained_after
    assert found.history is not None
    assert len(found.history.rounds) == alone.count(False)
    full = carried_out(removal(run, options), "fedrecovery:weights=sum").trained_after
    assert relative(full.params, found.params) < 1e-12


@pytest.mark.parametrize(
    "text",
    [
        "fedaccum:every=0",
        "fedaccum:scale=0",
        "federaser:ratio=0",
        "federaser:post=-1",
        "fedrecover:buffer=0",
        "fedrecover:matrices=guess",
        "fedrecovery:weights=all",
        "fedrecovery:sigma=1,epsilon=1",
        "fedrecovery:delta=2",
    ],
)
def test_options_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="takes"):
        method(text)


def test_each_can_be_tuned_and_names_its_source() -> None:
    for one in (FedAccum, FedEraser, FedRecover, FedRecovery):
        assert np.prod([len(values) for values in one.tunable.values()]) >= 6
        assert one.source
