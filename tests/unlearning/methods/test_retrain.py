"""Retraining repeats the run's own procedure: its trainer, its rate, its ridge rule."""

from __future__ import annotations

import numpy as np
import pytest

from probekit.federated.local import LocalPlan
from probekit.federated.state import Trainer
from probekit.federated.training.closed_form import ClosedForm
from probekit.federated.training.fedavg import FedAvg
from probekit.linear.ridge import Gcv
from tests.unlearning.problems import federation, forget, same, some_clients, trained

TRAINERS = {
    "closed form": ClosedForm(),
    "fedavg": FedAvg(5, LocalPlan(0.01, steps=3)),
    "fedavg by batches": FedAvg(3, LocalPlan(0.01, epochs=1, batch_size=8), participation=0.5),
    "fedavg that keeps": FedAvg(3, LocalPlan(0.01, steps=2), keep=frozenset({"history"})),
}


@pytest.mark.parametrize("name", TRAINERS)
def test_retraining_is_training_without_the_forgotten(name: str) -> None:
    clients = some_clients()
    trainer: Trainer = TRAINERS[name]
    asked = federation(clients, intercept="penalized")
    after = forget(trained(asked, trainer, Gcv()), asked, "retrain", clients={"2", "4"})
    retained = {key: clients[key] for key in "013"}
    assert same(after, trained(federation(retained, intercept="penalized"), trainer, Gcv()))


def test_the_rate_is_the_runs_own() -> None:
    """Derived anew from the retained clients, a rate would tell of the forgotten one."""
    clients = some_clients()
    asked = federation(clients)
    before = trained(asked, FedAvg(4, LocalPlan(steps=2)), 0.1)
    after = forget(before, asked, "retrain", clients={"1"})
    assert after.trainer.plan.rate == before.trainer.plan.rate
    assert np.array_equal(after.params, trained(asked.without({"1"}), before.trainer).params)
