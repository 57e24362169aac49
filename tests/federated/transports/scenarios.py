"""What every transport must carry without changing a bit: training, and removal after it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probekit.errors import InputError
from probekit.federated.client import ClientData
from probekit.federated.federation import Federation, InProcess, Transport
from probekit.federated.local import LocalPlan
from probekit.federated.queries import Arrays, Shapes
from probekit.federated.state import Trainer
from probekit.federated.training.cg import ConjugateGradients
from probekit.federated.training.closed_form import ClosedForm
from probekit.federated.training.fedavg import FedAvg
from probekit.linear.model import LinearModel
from probekit.networks.architectures import Mlp
from probekit.networks.network import Network
from probekit.networks.pretraining import network_model
from probekit.objective import CrossEntropy, Model, Squares
from probekit.records import dump, record
from probekit.registry import configured
from probekit.unlearning.removal import Removal, Request, unlearn
from tests.federated.examples import divided

CLIENTS = divided()
SERVER = divided((20,), seed=9)
MODEL = LinearModel(6, 3)
FORGOTTEN = "b"


def mlp(*, linearize: bool) -> Network:
    loss = Squares() if linearize else CrossEntropy()
    return network_model(
        Mlp((6, 4, 3)), sample_shape=(6,), classes=3, loss=loss, linearize=linearize
    )


FEDAVG = FedAvg(3, LocalPlan(0.02, steps=3))
LINEARIZED = mlp(linearize=True)
SCENARIOS: dict[str, tuple[Model, Trainer, str]] = {
    "closed form, exact": (MODEL, ClosedForm(), "exact"),
    "closed form, fedremoval-pcg:3": (MODEL, ClosedForm(keep=frozenset()), "fedremoval-pcg:3"),
    "fedavg, retrain": (MODEL, FEDAVG, "retrain"),
    "linearized, cg, fedremoval-pcg:3": (
        LINEARIZED,
        ConjugateGradients(tolerance=0.1),
        "fedremoval-pcg:3",
    ),
    "linearized, fedavg, cf": (LINEARIZED, FEDAVG, "cf:rounds=2"),
    "conventional, fedavg, retrain": (mlp(linearize=False), FEDAVG, "retrain"),
}


def states(transport: Transport) -> dict[str, tuple[bytes, bytes]]:
    """The states of every scenario, trained and after removal."""
    found = {}
    for name, (model, trainer, method) in SCENARIOS.items():
        federation = Federation.of(transport, model)
        server = Federation.of(InProcess({"server": SERVER["a"]}), model)
        state = trainer.train(federation, ridge=0.1)
        request = Request(clients=frozenset({FORGOTTEN}))
        removal = Removal.of(state, request, federation, server=server)
        found[name] = (dump(state), dump(unlearn(configured(method), removal)))
    return found


@record("query/misbehaving")
@dataclass(frozen=True)
class Misbehaving:
    """One client answers with nonsense, raises or dies; the others say 1."""

    client: str
    how: str

    def answer(self, client: ClientData) -> Arrays:
        value = 1.0
        if client.name == self.client:
            value = misbehave(client, self.how)
        return {"value": np.array([value]), "weight": np.array([client.weight])}

    def shapes(self, model: Model, rows: int) -> Shapes:
        return {"value": (1,), "weight": (1,)}


def misbehave(client: ClientData, how: str) -> float:
    import os
    import time

    if how == "raise":
        raise ArithmeticError("of this client's making")
    if how == "refuse":
        raise InputError("Not this. Found a question. Ask another.")
    if how == "die":
        os._exit(1)
    if how == "late":
        time.sleep(120)
    return float(how)
