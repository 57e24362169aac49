"""SIFU: how much each client moved the model, where a removal goes back to, and its noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from probekit.errors import InputError
from probekit.federated.methods.fedavg import FedAvg
from probekit.federated.methods.sifu import SifuTraining
from probekit.federated.training import train
from probekit.unlearning.choice import carried_out
from probekit.unlearning.method import Material, method, missing
from probekit.unlearning.methods.sifu import Sifu
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import UnlearnRequest
from tests.oracles import relative
from tests.unlearning.conftest import Array, Run, make_run
from tests.unlearning.rounds_oracle import FORGET, RATE, RIDGE, ROUNDS, STEPS, Maps, removal

SIFU = SifuTraining(rounds=ROUNDS, local_steps=STEPS, learning_rate=RATE, share=0.1)
ALL = "01234"


def sifu_run(options: SifuTraining = SIFU, **more: Any) -> Run:
    return make_run(scheme="dirichlet:1", method=options, **more)


@pytest.fixture(scope="module")
def run() -> Run:
    return sifu_run()


def psi_of(run: Run, client: str = "1") -> Array:
    return np.asarray(run.trained.kept["sifu"].parts[client]["psi"])


def recursion(maps: Maps, client: str, *, fade: float) -> list[float]:
    """By the paper's formula, along training with everybody."""
    way, p = maps.trained(ALL), maps.shares(ALL)[client]
    found = [0.0]
    for t in range(ROUNDS):
        apart = float(np.linalg.norm(maps.local(client, way[t]) - way[t + 1]))
        found.append(fade * found[-1] + p / (1 - p) * apart)
    return found


def distances(maps: Maps, client: str) -> list[float]:
    without = maps.trained([name for name in ALL if name != client])
    return [float(np.linalg.norm(a - b)) for a, b in zip(maps.trained(ALL), without, strict=True)]


def test_it_trains_as_fedavg_does_and_follows_every_client(run: Run) -> None:
    maps = Maps.of(run)
    assert relative(run.trained.params, maps.trained(ALL)[-1]) < 1e-12
    for client in ALL:
        wanted = recursion(maps, client, fade=(1 - RATE * RIDGE) ** STEPS)
        np.testing.assert_allclose(psi_of(run, client), wanted, rtol=1e-10)
        assert (psi_of(run, client) >= np.array(distances(maps, client)) - 1e-12).all()


def test_the_true_distance_is_much_smaller() -> None:
    run = sifu_run(replace(SIFU, psi="exact"))
    maps = Maps.of(run)
    np.testing.assert_allclose(psi_of(run), distances(maps, "1"), rtol=1e-10)
    bound = recursion(maps, "1", fade=(1 - RATE * RIDGE) ** STEPS)
    assert psi_of(run)[-1] < bound[-1] / 1.3


def rollback(run: Run, client: str = "1") -> int:
    found: Any = run.trained.kept["sifu"].plain
    return int(found[client])


WIDE = replace(SIFU, share=0.2)
THIRD = UnlearnRequest.of(["3"])


@pytest.fixture(scope="module")
def wide() -> Run:
    """With a limit that client 3 keeps for some rounds and not to the end."""
    return sifu_run(WIDE)


def test_a_removal_goes_back_to_the_last_model_within_the_limit(wide: Run) -> None:
    maps = Maps.of(wide)
    way, psi = maps.trained(ALL), recursion(maps, "3", fade=(1 - RATE * RIDGE) ** STEPS)
    last = max(t for t in range(ROUNDS + 1) if psi[t] <= 0.2 * np.linalg.norm(way[t]))
    assert 0 < rollback(wide, "3") == last < ROUNDS
    found = carried_out(removal(wide, WIDE, request=THIRD), "sifu:epsilon=none")
    start = maps.trained(ALL)[last]
    assert f"round {last}," in found.note
    assert found.cost.rounds == ROUNDS - last
    assert relative(found.trained_after.params, maps.trained("0124", ROUNDS - last, start)[-1]) < 1e-12
    longer = carried_out(removal(wide, WIDE, request=THIRD), "sifu:epsilon=none,rounds=20")
    assert relative(longer.trained_after.params, maps.trained("0124", 20, start)[-1]) < 1e-12


def test_noise_is_that_of_the_limit_and_fades_in_the_rounds(wide: Run) -> None:
    last, maps = rollback(wide, "3"), Maps.of(wide)
    model = maps.trained(ALL)[last]
    sigma = 0.2 * np.linalg.norm(model) * np.sqrt(2 * np.log(1.25e5)) / 10
    found, again = (carried_out(removal(wide, WIDE, request=THIRD), "sifu:rounds=0") for _ in range(2))
    assert f"sigma {sigma:.6g}" in found.note
    noise = found.trained_after.params - model
    assert 0.6 < noise.std() / sigma < 1.4
    assert found.trained_after.params.tobytes() == again.trained_after.params.tobytes()
    moved = carried_out(removal(wide, WIDE, request=THIRD), "sifu:rounds=50").trained_after.params
    wanted = maps.trained("0124", 50, found.trained_after.params)[-1]
    assert relative(moved, wanted) < 1e-12
    assert np.linalg.norm(moved - maps.trained("0124", 50)[-1]) < np.linalg.norm(noise) / 5


def test_as_published_the_limit_knows_nothing_of_the_model(wide: Run) -> None:
    """Its 0.26 for five clients is above all that anybody did to a small head, and below round 5 of a larger one."""
    options = replace(SIFU, reference=True)
    run = sifu_run(options)
    kept = run.trained.kept["sifu"]
    np.testing.assert_allclose(kept.arrays["limits"], 10 * 0.05 / np.sqrt(2 * np.log(1.25 * 5)))
    np.testing.assert_allclose(psi_of(run), recursion(Maps.of(run), "1", fade=1.0), rtol=1e-10)
    assert np.linalg.norm(run.trained.params) < 0.5
    assert {rollback(run, name) for name in ALL} == {ROUNDS}
    with pytest.raises(InputError, match="old head"):  # nothing would be forgotten
        carried_out(removal(run, options, request=THIRD), "sifu:epsilon=none")
    assert {rollback(wide, name) for name in ALL} == {1, 2, 3, 5, ROUNDS}
    long = replace(options, rounds=40, local_steps=5, learning_rate=None)
    larger = sifu_run(long, ridge=1e-4, data={"spread": 0.1})
    assert np.linalg.norm(larger.trained.params) > 1
    assert rollback(larger, "0") == 4


def test_one_removal_after_the_other(wide: Run) -> None:
    first = carried_out(removal(wide, WIDE, request=THIRD), "sifu:epsilon=none").trained_after
    kept = first.kept["sifu"]
    assert kept.about == frozenset("0124") == kept.parts.keys()
    assert {len(one["psi"]) for one in kept.parts.values()} == {ROUNDS + 1}
    for name in ("0", "1"):  # whose models are from before and from after the branch
        request = UnlearnRequest.of([name])
        second = carried_out(removal(wide, WIDE, request=request, before=first), "sifu:epsilon=none,rounds=3")
        left = [one for one in "0124" if one != name]
        wanted = Maps.of(wide).trained(left, 3, kept.parts[name]["model"])[-1]
        assert relative(second.trained_after.params, wanted) < 1e-12
    noisy = carried_out(removal(wide, WIDE, request=THIRD), "sifu").trained_after.kept["sifu"]
    assert not np.allclose(noisy.parts["0"]["model"], kept.parts["0"]["model"])  # it knew client 3


def test_several_clients_leave_together(wide: Run) -> None:
    both = UnlearnRequest.of(["1", "3"])
    found = carried_out(removal(wide, WIDE, request=both), "sifu:epsilon=none")
    owed = psi_of(wide, "1") + psi_of(wide, "3")
    limits = wide.trained.kept["sifu"].arrays["limits"]
    known: Any = wide.trained.kept["sifu"].plain
    number = max(t for t in {0, *known.values()} if owed[t] <= limits[t])
    assert f"round {number}," in found.note


def test_what_is_needed_is_asked_for(run: Run) -> None:
    other = make_run(method=FedAvg(rounds=2))
    assert not missing(Sifu(), removal(run, SIFU))
    assert "method=sifu" in missing(Sifu(), removal(other))
    assert "method=sifu" in missing(Sifu(), removal(run, SIFU, before=replace(run.trained, kept={})))
    assert "cached rows" in missing(Sifu(), Removal(run.trained, FORGET, Material(options=SIFU)))
    assert np.prod([len(values) for values in Sifu.tunable.values()]) >= 6


@pytest.mark.parametrize("text", ["sifu:psi=no", "sifu:share=-1", "sifu:participation=0.5", "sifu:keep_history=true"])
def test_options_are_refused(text: str) -> None:
    run = make_run()
    with pytest.raises(InputError, match="sifu"):
        train(run.embeddings, run.partition, ridge=0.1, method=text)
    for wrong in ("epsilon=0", "delta=1", "rounds=-1"):
        with pytest.raises(InputError, match="sifu takes"):
            method(f"sifu:{wrong}")
