"""FedAU: the auxiliary heads and the mixture in closed form, and what its labels and its alpha do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from probekit.errors import InputError
from probekit.federated.methods.fedau import AUXILIARY, FedAu
from probekit.federated.training import train
from probekit.models.fitting import FitPlan
from probekit.models.problem import backend_named
from probekit.testing.planted_runs import RIDGE, PlantedRun, SmallNetwork, _rows
from probekit.unlearning.choice import can_unlearn, carried_out, unlearn
from probekit.unlearning.method import Material
from probekit.unlearning.request import UnlearnRequest


@pytest.fixture(scope="module")
def run() -> PlantedRun:
    data, split = _rows()
    options = FedAu(rounds=6, local_steps=3)
    return PlantedRun("FedAU", data, split, train(data, split, ridge=RIDGE, method=options, keep="nothing"), options)


def test_auxiliary_head_and_mixture_agree_with_their_closed_forms(run: PlantedRun) -> None:
    trained, rows = run.trained, run.partition.clients[run.leaver]
    columns = np.hstack([run.embeddings.to_numpy()[rows], np.ones((len(rows), 1))])
    classes = len(run.embeddings.class_names)
    drawn = FitPlan(targets="false").drawn(run.embeddings.labels[rows], classes, run.leaver, lambda: np.empty(0))
    assert drawn is not None
    targets = drawn(np.arange(len(rows)))
    curvature = columns.T @ columns / len(rows) + RIDGE * np.eye(columns.shape[1])
    best = np.linalg.solve(curvature, columns.T @ targets / len(rows))
    assert trained.learning_rate is not None
    steps = np.linalg.matrix_power(np.eye(len(curvature)) - 0.5 * trained.learning_rate * curvature, 6 * 3)
    auxiliary = best - steps @ best
    assert np.abs(trained.kept[AUXILIARY].parts[run.leaver]["params"] - auxiliary).max() < 1e-12
    for alpha in (0.5, 0.9):
        found = carried_out(run.removal(), f"fedau:alpha={alpha}").trained_after.params
        assert np.abs(found - (1 - alpha) * trained.params - alpha * auxiliary).max() < 1e-12


def test_several_leavers_are_mixed_in_their_mean(run: PlantedRun) -> None:
    material = Material(run.embeddings, run.partition)
    done = unlearn(run.trained, UnlearnRequest.of(["0", "1"]), method="fedau", material=material)
    parts = run.trained.kept[AUXILIARY].parts
    mean = (parts["0"]["params"] + parts["1"]["params"]) / 2
    assert done.trained_after.params == pytest.approx((run.trained.params + mean) / 2)
    assert set(done.trained_after.kept[AUXILIARY].parts) == set(run.trained.counts) - {"0", "1"}
    assert (done.cost.up, done.cost.down, done.cost.rounds) == (0, 0, 0)


def test_the_main_head_is_fedavgs_and_uniform_labels_teach_some_truth(run: PlantedRun) -> None:
    """The public code draws labels of which one in k is the row's own: its auxiliary head unlearns less."""
    data, split = run.embeddings, run.partition
    uniform = train(data, split, ridge=RIDGE, method=replace(run.options, labels="random"), keep="nothing")
    plain = train(data, split, ridge=RIDGE, method="fedavg:rounds=6,local_steps=3", keep="nothing")
    assert uniform.params == pytest.approx(plain.params, abs=1e-14)
    assert run.trained.params == pytest.approx(plain.params, abs=1e-14)

    def own_score(trained: object) -> float:
        """How much the auxiliary heads give to the rows' own classes, above the others."""
        found = []
        for name, rows in split.clients.items():
            params = trained.kept[AUXILIARY].parts[name]["params"]  # type: ignore[attr-defined]
            scores = np.hstack([data.to_numpy()[rows], np.ones((len(rows), 1))]) @ params
            found.append(scores[np.arange(len(rows)), data.labels[rows]] - scores.mean(axis=1))
        return float(np.concatenate(found).mean())

    assert own_score(run.trained) < own_score(uniform) - 0.05
    assert own_score(run.trained) < 0


def test_of_a_network_the_last_layer_alone_is_mixed() -> None:
    data, split = _rows()
    problem = backend_named("jvp").prepare(data, split, SmallNetwork(subset=None))
    options = FedAu(rounds=2, local_steps=2, auxiliary_steps=3)
    trained = train(data, split, problem=problem, ridge=RIDGE, method=options, keep="nothing")
    done = unlearn(trained, UnlearnRequest.of(["1"]), method="fedau", material=Material(data, split, options=options))
    changed = np.abs(done.trained_after.params - trained.params)[:, 0] > 0
    names = [name for name, where in problem.blocks.items() if changed[where].any()]
    assert names == list(problem.blocks)[-2:]
    assert len(problem.blocks) > 2


def test_its_trainer_is_needed_and_whole_clients(run: PlantedRun) -> None:
    material = Material(run.embeddings, run.partition)
    assert can_unlearn(run.trained)["fedau"] == ""
    assert "method=fedau" in can_unlearn(replace(run.trained, kept={}), material)["fedau"]
    sample = run.embeddings.ids[int(run.partition.clients["1"][0])]
    with pytest.raises(InputError, match="whole clients"):
        unlearn(run.trained, UnlearnRequest.of(samples=[sample]), method="fedau", material=material)
    with pytest.raises(InputError, match="alpha"):
        carried_out(run.removal(), "fedau:alpha=0")
    with pytest.raises(InputError, match="gamma"):
        FedAu(gamma=0.0)
