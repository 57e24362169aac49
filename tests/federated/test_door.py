"""The door under fire: clients that die, come late or lie while something is trained, and a server that asks nobody."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from probekit.errors import InputError, MissingClientsError
from probekit.federated.in_process import InProcess
from probekit.federated.message import Answer, Ask
from probekit.federated.partition import partition
from probekit.federated.rows import design_for, head_problem
from probekit.federated.training import train
from probekit.unlearning.choice import can_unlearn, unlearn
from probekit.unlearning.method import Material
from probekit.unlearning.request import UnlearnRequest
from probekit.values import EmbeddingSet, Partition

MakeSet = Callable[..., EmbeddingSet]


class Shaky(InProcess):
    """Clients of whom one fails from its third question on."""

    failure: Any = None
    asked = 0

    def reply(self, ask: Ask, name: str) -> Answer:
        found = super().reply(ask, name)
        self.asked += name == "2"
        if name != "2" or self.asked < 3:
            return found
        if isinstance(self.failure, Exception):
            raise self.failure
        return Answer(found.client, found.count, {one: np.nan * array for one, array in found.arrays.items()})


@pytest.fixture
def rows(make_set: MakeSet) -> tuple[EmbeddingSet, Partition]:
    data = make_set(90)
    return data, partition(data.labels, "iid", clients=4, server_share=0.2)


@pytest.mark.parametrize("method", ["fedavg:rounds=5", "cg"])
@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (OSError("power cut"), "Client 2: gone, OSError: power cut"),
        (TimeoutError("an hour"), "Client 2: late, TimeoutError: an hour"),
        ("garbage", "Client 2: garbage, .* (does not say loss|holds NaN)"),
    ],
)
def test_a_client_that_fails_in_mid_round_is_named(
    rows: tuple[EmbeddingSet, Partition], method: str, failure: Any, words: str
) -> None:
    data, split = rows
    problem = head_problem(data, design_for(data))
    federation = Shaky(problem, InProcess.of(problem, data, split.clients).holdings)
    federation.failure = failure
    with pytest.raises(MissingClientsError, match=words.replace(".* ", ".*")):
        train(data, split, ridge=0.1, method=method, problem=problem, federation=federation)


class Deaf(InProcess):
    """Clients that must not be asked."""

    def ask(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("somebody was asked")


@pytest.mark.parametrize("keep", ["statistics", "gradients", "nothing"])
def test_a_server_that_may_not_ask_asks_nobody(rows: tuple[EmbeddingSet, Partition], keep: str) -> None:
    data, split = rows
    trained = train(data, split, ridge=0.1, method="closed-form", keep=keep)
    left = {name: own for name, own in split.clients.items() if name != "1"}
    online = Deaf(trained.problem, InProcess.of(trained.problem, data, left).holdings)
    target = Deaf(trained.problem, InProcess.of(trained.problem, data, {"1": split.clients["1"]}).holdings)
    material = Material(data, split, online, target, server_only=True)
    able = {name for name, why in can_unlearn(trained, Material(data, split, server_only=True)).items() if not why}
    expected = {
        "statistics": {"exact", "fedremoval", "fedremoval-line", "fedremoval-pcg"},
        "gradients": {"fedremoval"},
        "nothing": set[str](),
    }
    assert able == expected[keep]
    for name in ("exact", "fedremoval", "fedremoval-line", "fedremoval-pcg", "retrain", "retrain-fedavg"):
        if name in able:
            found = unlearn(trained, UnlearnRequest(("1",)), method=name, material=material)
            assert (found.cost.up, found.cost.down, found.cost.rounds) == (0, 0, 0)
        else:
            with pytest.raises(InputError, match="needs what this run does not have"):
                unlearn(trained, UnlearnRequest(("1",)), method=name, material=material)


WITHOUT_TORCH = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("torch cannot be imported here")

sys.meta_path.insert(0, Blocked())
import numpy as np
from probekit.federated.client import QUESTIONS, answer
from probekit.federated.message import Answer, Ask
from probekit.linear.design import Design
from probekit.models.problem import backend_named
from probekit.models.linear_problem import HeadProblem
from probekit.values import EmbeddingSet, EncodingSpec

generator = np.random.default_rng(0)
ids = [f"{row:064x}" for row in range(30)]
data = EmbeddingSet(EncodingSpec("t", "0" * 64, {}, "p"), generator.normal(size=(30, 4)), np.arange(30) % 3, ids)
sent = HeadProblem(Design(4, 3))
problem = backend_named("embeddings").from_plain(sent.plain, sent.arrays)
holding = problem.hold(data, np.arange(30))
point = {"params": generator.normal(size=(5, 3))}
plans = {"fit": {"epochs": 1, "batch": 4, "rate": 0.1}, "scales": {"ridge": 0.1}}
for kind in sorted(set(QUESTIONS) - {"leave-out", "curvature"}):
    ask = Ask.decode(Ask(kind, point, plans.get(kind, {}), problem=sent.digest).encoded)
    found, memory = answer(ask, holding, {}, name="a")
    assert Answer.decode(found.encode(ask.digest))[0].count == 30 and memory == {}
    print(kind)
"""


def test_a_client_of_a_head_answers_where_torch_cannot_be_imported() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "evaluate",
        "fit",
        "form",
        "gradient",
        "importance",
        "product",
        "scales",
        "statistics",
    ]
