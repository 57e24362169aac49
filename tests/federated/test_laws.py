"""Laws of every trainer: where clients are and in what order they are given changes no bit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from probekit.errors import MissingClients
from probekit.federated.client import ClientData
from probekit.federated.federation import InProcess
from probekit.federated.held_out import FittedGradients, HeldOut, HeldOutLosses
from probekit.federated.local import Adam, LocalPlan, TrainingLoss
from probekit.federated.queries import (
    Arrays,
    Copies,
    Curvature,
    Evaluate,
    Gradient,
    LocalFit,
    Product,
    Query,
    Restricted,
    Statistics,
    Weight,
)
from probekit.federated.state import (
    History,
    KeptGradients,
    KeptStatistics,
    State,
    Trainer,
)
from probekit.federated.training.closed_form import ClosedForm
from probekit.federated.training.fedavg import FedAvg
from probekit.federated.training.lbfgs import LbfgsRounds
from probekit.federated.transports import loopback
from probekit.federated.transports.loopback import Loopback
from probekit.linear.ridge import Gcv, InverseC, RidgeRule
from probekit.records import dump, parse
from tests.federated.examples import Meddling, divided, federation

CLIENTS = divided((40, 25, 3, 35))
EVERYTHING = frozenset({"statistics", "gradients", "history"})
EPOCHS = LocalPlan(epochs=2, batch_size=8, seed=3)
TRAININGS: dict[str, tuple[Trainer, float | RidgeRule, bool]] = {
    "closed form": (ClosedForm(), 0.1, False),
    "closed form, gcv": (ClosedForm(), Gcv(), False),
    "closed form, sums only": (ClosedForm(keep=frozenset()), Gcv(), False),
    "closed form, gradients": (ClosedForm(keep=frozenset({"gradients"})), 0.1, False),
    "fedavg": (FedAvg(4, LocalPlan(0.02, steps=3)), 0.1, False),
    "fedavg, own rate and ridge": (FedAvg(3, LocalPlan(steps=2)), Gcv(), False),
    "fedavg, some clients": (FedAvg(4, EPOCHS, participation=0.5, keep=EVERYTHING), 0.1, False),
    "fedavg, gcv": (FedAvg(2, EPOCHS, keep=frozenset({"statistics"})), Gcv(), False),
    "fedavg, adam": (
        FedAvg(3, replace(EPOCHS, rate=0.01, optimizer=Adam()), uniform=True, start="random"),
        0.0,
        False,
    ),
    "fedavg, logistic": (FedAvg(3, EPOCHS, keep=EVERYTHING), InverseC(1.0), True),
    "lbfgs": (LbfgsRounds(), 0.05, True),
    "lbfgs, C": (LbfgsRounds(keep=frozenset({"gradients"})), InverseC(1.0), True),
    "lbfgs, held-out C": (LbfgsRounds(), HeldOut((0.1, 1.0)), True),
    "fedavg, held-out C": (FedAvg(2, EPOCHS), HeldOut((0.1, 1.0)), True),
    "lbfgs, no Gram": (LbfgsRounds(whiten=False, keep=frozenset()), InverseC(1.0), True),
}
PARAMS = np.random.default_rng(0).standard_normal((7, 3))
IDS = frozenset(row.tobytes().hex() for row in CLIENTS["a"].ids[:5])
QUERIES: list[Query] = [
    Statistics(),
    Gradient(PARAMS),
    Product(PARAMS, PARAMS[::-1]),
    LocalFit(PARAMS, replace(EPOCHS, rate=0.01), TrainingLoss(0.1)),
    FittedGradients(np.stack([PARAMS, -PARAMS])),
    HeldOutLosses(np.stack([PARAMS, -PARAMS])),
    Weight(),
    Curvature(),
    Curvature(of_rows=True),
    Evaluate(PARAMS),
    Copies(IDS),
    Restricted(Gradient(PARAMS), IDS, keep=True),
    Restricted(Statistics(), IDS, keep=False),
]

trainings = pytest.mark.parametrize("name", TRAININGS)


def trained(name: str, **options: object) -> State:
    trainer, ridge, logistic = TRAININGS[name]
    clients = options.pop("clients", CLIENTS)
    asked = federation(clients, logistic=logistic, **options)  # type: ignore[arg-type]
    return trainer.train(asked, ridge=ridge)


@trainings
def test_bytes_change_no_bit(name: str) -> None:
    assert dump(trained(name)) == dump(trained(name, transport=Loopback))


@trainings
def test_the_order_of_clients_changes_no_bit(name: str) -> None:
    shuffled = {client: CLIENTS[client] for client in ("c", "a", "d", "b")}
    assert dump(trained(name)) == dump(trained(name, clients=shuffled))


@trainings
def test_training_again_gives_the_same_bits(name: str) -> None:
    state = trained(name)
    asked = federation(CLIENTS, logistic=TRAININGS[name][2])
    again = state.trainer.train(asked, ridge=state.ridge_choice.setting)
    assert dump(again) == dump(state)


@trainings
def test_a_state_comes_back_from_its_bytes(name: str) -> None:
    state = trained(name)
    read = parse(dump(state), State, max_bytes=1 << 24)
    assert dump(read) == dump(state)
    assert read.trainer == state.trainer
    assert read.clients == {"a": 40, "b": 25, "c": 3, "d": 35}


@trainings
def test_a_state_keeps_what_was_asked_for(name: str) -> None:
    kinds = {"statistics": KeptStatistics, "gradients": KeptGradients, "history": History}
    trainer = TRAININGS[name][0]
    kept = {kind for kind, cls in kinds.items() if trained(name).get(cls) is not None}
    assert kept == trainer.keep  # type: ignore[attr-defined]


@trainings
def test_traffic_is_what_passed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of all float64 tensors in the messages, read from their headers."""
    passed = {"sent": 0, "received": 0}
    answer = loopback.respond

    def respond(data: bytes, *rest: object) -> bytes:
        reply = answer(data, *rest)  # type: ignore[arg-type]
        passed["sent"] += float_bytes(data)
        passed["received"] += float_bytes(reply)
        return reply

    monkeypatch.setattr(loopback, "respond", respond)
    trainer, ridge, logistic = TRAININGS[name]
    asked = federation(CLIENTS, logistic=logistic, transport=Loopback)
    trainer.train(asked, ridge=ridge)
    assert (asked.traffic.sent, asked.traffic.received) == (passed["sent"], passed["received"])
    assert asked.traffic.received > 0


def float_bytes(data: bytes) -> int:
    size = int.from_bytes(data[:8], "little")
    header: Mapping[str, dict[str, object]] = json.loads(data[8 : 8 + size])
    return sum(
        8 * int(np.prod(tensor["shape"]))  # type: ignore[arg-type]
        for name, tensor in header.items()
        if name != "__metadata__" and tensor["dtype"] == "F64"
    )


@trainings
def test_no_client_is_asked_twice_for_its_sums(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    answer = Statistics.answer

    def counted(query: Statistics, client: ClientData) -> Arrays:
        asked.append(client.name)
        return answer(query, client)

    monkeypatch.setattr(Statistics, "answer", counted)
    trained(name)
    assert len(asked) == len(set(asked))


@trainings
def test_a_missing_client_is_named(name: str) -> None:
    trainer, ridge, logistic = TRAININGS[name]
    asked = federation(
        CLIENTS, logistic=logistic, transport=lambda data: Meddling(InProcess(data), {"b": None})
    )
    with pytest.raises(MissingClients) as caught:
        trainer.train(asked, ridge=ridge)
    assert caught.value.reasons.keys() == {"b"}


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: type(query).__name__)
@pytest.mark.parametrize("logistic", [False, True])
def test_every_answer_has_the_same_bits_over_bytes(query: Query, logistic: bool) -> None:
    here = list(federation(CLIENTS, logistic=logistic).ask(query, ["a"]))
    there = list(federation(CLIENTS, logistic=logistic, transport=Loopback).ask(query, ["a"]))
    for left, right in zip(here, there, strict=True):
        assert left.arrays.keys() == right.arrays.keys()
        for key, array in left.arrays.items():
            assert array.tobytes() == right.arrays[key].tobytes()
            assert array.flags.c_contiguous
