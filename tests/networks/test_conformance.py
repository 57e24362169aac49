"""Every method on networks: it does what a method must, or says what it lacks and asks nobody."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from probekit.errors import InputError
from probekit.federated.federation import Federation, InProcess
from probekit.federated.local import Adam, LocalPlan, Sgd
from probekit.federated.state import Trainer
from probekit.federated.training.cg import ConjugateGradients
from probekit.federated.training.fedavg import FedAvg
from probekit.federated.training.knot import KnotTraining
from probekit.objective import CrossEntropy, Squares
from probekit.registry import METHODS, configured
from probekit.testing import check_method
from probekit.testing.methods import LEAVER, ExampleRun, example_requests
from probekit.unlearning.choice import choose, plan
from probekit.unlearning.removal import missing, unlearn
from tests.networks.modules import model_of, samples_of

ROWS = {"north": 13, LEAVER: 11, "west": 17}
FULL = LocalPlan(0.05, steps=2)
BATCHES = LocalPlan(0.05, epochs=1, batch_size=8, optimizer=Sgd(0.5))
ADAM = LocalPlan(0.01, steps=2, batch_size=4, optimizer=Adam())
EVERYTHING = frozenset({"history", "gradients"})
RUNS: dict[str, tuple[Trainer, dict[str, Any]]] = {
    "linearized, fedavg": (FedAvg(3, FULL, keep=EVERYTHING), {"loss": Squares()}),
    "linearized, cg": (ConjugateGradients(keep=frozenset({"gradients"})), {"loss": CrossEntropy()}),
    "conventional, fedavg of some": (
        FedAvg(3, BATCHES, participation=0.75, keep=EVERYTHING),
        {"loss": CrossEntropy(), "linearize": False, "precision": "float32"},
    ),
    "conventional, clusters by adam": (
        KnotTraining(2, FedAvg(2, ADAM)),
        {"loss": Squares(), "linearize": False, "precision": "float32"},
    ),
}
OPTIONS = {
    "cf": "cf:rounds=2",
    "ew-sga": "ew-sga:steps=3",
    "fedremoval-pcg": "fedremoval-pcg:rounds=2",
    "ferrari": "ferrari:columns=0:2,steps=2,draws=2",
    "flipping": "flipping:rounds=1,post=1",
    "fused": "fused:rounds=2",
    "pga": "pga:steps=2,post=1",
    "rounds": "rounds:distance=1e-3",
    "starfish": "starfish:warmup=1,correction=2,tuning=1",
}
"""Short ones."""
LOCAL = {"cf", "flipping", "fused", "retrain", "sga"}
ANYWHERE = {"ew-sga", "ferrari", "retrain"}
HISTORY = {"federaser", "fedrecovery", "pga", "starfish"}
CONVEX = {"exact", "rounds"}
SERVER = {"fedremoval", "fedremoval-line", "fedremoval-pcg"}
POSSIBLE = {
    "linearized, fedavg": LOCAL | ANYWHERE | HISTORY | CONVEX | SERVER,
    "linearized, cg": ANYWHERE | CONVEX,
    "conventional, fedavg of some": LOCAL | ANYWHERE | HISTORY,
    "conventional, clusters by adam": LOCAL | ANYWHERE | {"knot"},
}


@cache
def example(name: str) -> ExampleRun:
    trainer, options = RUNS[name]
    model = model_of("mlp:5-4", **options)
    clients = {
        client: samples_of(model, count, seed=seed)
        for seed, (client, count) in enumerate(ROWS.items())
    }
    state = trainer.train(Federation.of(InProcess(clients), model), ridge=1.0)
    server = Federation.of(InProcess({"server": samples_of(model, 20, seed=9)}), model)
    return ExampleRun(name, clients, server, state)


def methods() -> list[str]:
    return [OPTIONS.get(name, name) for name in METHODS.names()]


LONGER = {"linearized, cg", "conventional, clusters by adam"}


@pytest.mark.parametrize("method", methods())
@pytest.mark.parametrize(
    "run",
    [pytest.param(run, marks=pytest.mark.slow if run in LONGER else ()) for run in RUNS],
)
def test_every_method_works_or_refuses_before_it_asks(run: str, method: str) -> None:
    """Bits, bytes, plans, needs and what is kept are checked where it works, on two requests."""
    removals = [
        example(run).removal(request) for request in example_requests(example(run)).values()
    ]
    lacking = [removal for removal in removals if missing(configured(method), removal)]
    assert (len(lacking) < 2) == (method.partition(":")[0] in POSSIBLE[run])
    for removal in lacking:
        rounds = removal.retained.traffic.rounds
        with pytest.raises(InputError, match=r"^[\w-]+ needs .*\. Provide it, or use another"):
            unlearn(configured(method), removal)
        assert removal.retained.traffic.rounds == rounds
    if len(lacking) < 2:
        coverage = check_method(method, [example(run)])
        assert len(coverage.tried) == 2 - len(lacking)


@pytest.mark.parametrize(
    "method",
    [
        *("fused:rounds=1,rank=2", "ew-sga:steps=2,importance=server", "federaser:lengths=mean"),
        *(
            "fedremoval:cg",
            "fedremoval:sgd,rate=0.1,steps=5",
            "fedremoval:adam,steps=5,batch_size=8",
        ),
        *("fedremoval-line:sgd,rate=0.1,steps=5", "fedrecovery:weights=sum", "pga:steps=2,post=0"),
    ],
)
def test_their_options_too(method: str) -> None:
    assert check_method(method, [example("linearized, fedavg")]).tried


@pytest.mark.parametrize("run", RUNS)
def test_plans_and_the_usual_choice(run: str) -> None:
    """All methods can be planned; exact is chosen where the loss is convex, else retraining."""
    for request in example_requests(example(run)).values():
        removal = example(run).removal(request)
        assert [entry.name for entry in plan(removal)] == METHODS.names()
        expected = "exact" if run.startswith("linearized") else "retrain"
        assert choose(removal).name == expected
