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
from probekit.federated.training.closed_form import ClosedForm
from probekit.federated.training.fedavg import FedAvg
from probekit.linear.model import LinearModel
from probekit.objective import Model
from probekit.records import dump, record
from probekit.registry import configured
from probekit.unlearning.removal import Removal, Request, unlearn
from tests.federated.examples import divided

CLIENTS = divided()
SERVER = divided((20,), seed=9)
MODEL = LinearModel(6, 3)
FORGOTTEN = "b"
SCENARIOS: dict[str, tuple[Trainer, str]] = {
    "closed form, exact": (ClosedForm(), "exact"),
    "closed form, fedremoval-pcg:3": (ClosedForm(keep=frozenset()), "fedremoval-pcg:3"),
    "fedavg, retrain": (FedAvg(3, LocalPlan(0.02, steps=3)), "retrain"),
}


def states(transport: Transport) -> dict[str, tuple[bytes, bytes]]:
    """The states of every scenario, trained and after removal."""
    federation = Federation.of(transport, MODEL)
    server = Federation.of(InProcess({"server": SERVER["a"]}), MODEL)
    found = {}
    for name, (trainer, method) in SCENARIOS.items():
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
