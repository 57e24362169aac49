"""The references: training anew, in closed form and by FedAvg."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from probekit.errors import InputError
from probekit.federated.methods.fedavg import FedAvg
from probekit.federated.summation import StatisticsTree
from probekit.unlearning.choice import carried_out
from probekit.unlearning.method import method
from probekit.unlearning.methods.retrain import Retrain, RetrainFedAvg
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import UnlearnRequest
from tests.oracles import relative
from tests.unlearning.conftest import make_run

FORGET = UnlearnRequest.of(["1"])


def test_closed_form() -> None:
    run = make_run(keep="gradients")
    found = Retrain().unlearn(Removal(run.trained, FORGET, run.material))
    assert relative(found.trained_after.params, run.oracle(run.rows_without("1"))) < 1e-9
    assert found.trained_after.statistics is None
    assert found.cost.rounds == 1
    with pytest.raises(InputError, match="cached rows"):
        carried_out(Removal(run.trained, FORGET), Retrain())


def test_what_is_kept_of_clients_that_stay_is_not_rounded_anew() -> None:
    run = make_run()
    assert run.trained.statistics is not None
    rounded = {
        name: replace(one, moment=np.nextafter(one.moment, np.inf), fingerprint="")
        for name, one in run.trained.statistics.items()
    }
    before = replace(run.trained, statistics=StatisticsTree.of(rounded, keep_sums=True))
    found = Retrain().unlearn(Removal(before, FORGET, run.material))
    after = found.trained_after.statistics
    assert after is not None
    assert {name: one.digest for name, one in after.items()} == {
        name: one.digest for name, one in rounded.items() if name != "1"
    }
    assert relative(found.trained_after.params, run.oracle(run.rows_without("1"))) < 1e-9


def test_fedavg_starts_again_without_the_client() -> None:
    options = FedAvg(rounds=30, local_steps=3)
    run = make_run(method=options)
    material = replace(run.material, options=options)
    found = RetrainFedAvg().unlearn(Removal(run.trained, FORGET, material))
    after = found.trained_after
    assert set(after.counts) == {"0", "2", "3", "4"}
    assert after.gradients is not None
    # the affine map of methods.md: W -> W_c* + (I - rate H_c)^M (W - W_c*), averaged by size
    params = np.zeros_like(after.params)
    rate = after.learning_rate
    assert rate is not None
    rows = run.rows_without("1")
    for _ in range(30):
        uploads = np.zeros_like(params)
        for name in after.counts:
            held = run.partition.clients[name]
            X = np.hstack([run.embeddings.to_numpy()[held], np.ones((len(held), 1))])
            Y = np.eye(3)[run.embeddings.labels[held]]
            local = params.copy()
            for _ in range(3):
                local -= rate * (X.T @ (X @ local - Y) / len(X) + 0.1 * local)
            uploads += len(held) / len(rows) * local
        params = uploads
    assert relative(after.params, params) < 1e-9
    with pytest.raises(InputError, match="FedAvg options"):
        carried_out(Removal(run.trained, FORGET, run.material), RetrainFedAvg())


def test_arguments_are_refused() -> None:
    for name in ("retrain", "retrain-fedavg"):
        with pytest.raises(InputError, match=f"{name} has no option 'x'. It takes none"):
            method(f"{name}:x")
