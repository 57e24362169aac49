"""Bytes that are no question end no client; bytes that are no reply are their client's failure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probekit.errors import Failure, MissingClients
from probekit.federated.client import Holding, Limits
from probekit.federated.federation import Ask, Outcome
from probekit.federated.local import LocalPlan, TrainingLoss
from probekit.federated.queries import Gradient, LocalFit, Restricted, Statistics
from probekit.federated.training.closed_form import ClosedForm
from probekit.federated.transports.loopback import Loopback
from probekit.federated.transports.messages import Question, Reply, read_reply, respond
from probekit.linear.model import LinearModel
from probekit.objective import Model
from probekit.records import dump
from tests.federated.examples import arrived, divided, federation

CLIENTS = divided()
MODEL = LinearModel(6, 3)
GRADIENT = Gradient(np.zeros((7, 3)))
SHAPES = GRADIENT.shapes(MODEL, 40)
IDS = frozenset(row.tobytes().hex() for row in CLIENTS["a"].ids[:5])


def answered(question: bytes, limits: Limits | None = None) -> object:
    return read_reply(respond(question, "a", CLIENTS["a"], limits), SHAPES)


@dataclass
class Corrupted:
    """Loopback, but the replies of some clients are changed on the way."""

    inner: Loopback
    replies: Mapping[str, bytes]

    def describe(self) -> Mapping[str, Holding]:
        return self.inner.describe()

    def carries(self, model: Model, ask: Ask) -> bool:
        return True

    def exchange(self, model: Model, asks: Iterable[Ask]) -> Iterator[Outcome]:
        for ask, outcome in self.inner.exchange(model, asks):
            reply = self.replies.get(ask.client)
            yield ask, outcome if reply is None else read_reply(reply, ask.shapes)


def reply_of(change: float) -> bytes:
    gradient = np.full((7, 3), change)
    return dump(Reply({"gradient": gradient, "value": np.ones(1), "weight": np.ones(1)}))


GARBAGE = {
    "64 zeros": bytes(64),
    "64 random bytes": np.random.default_rng(0).bytes(64),
    "nothing": b"",
    "a huge header": (1 << 62).to_bytes(8, "little") + bytes(56),
    "another record": dump(MODEL),
    "cut": reply_of(0.0)[:-1],
    "NaN": reply_of(0.0).replace(bytes(8), np.array([np.nan]).tobytes(), 1),
    "1e300": reply_of(1e300),
    "other shapes": dump(Reply({"gradient": np.zeros((3, 7))})),
    "too large": dump(Reply({"gradient": np.zeros((700, 300))})),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_a_bad_reply_is_the_failure_of_its_client(name: str) -> None:
    asked = federation(
        CLIENTS, transport=lambda data: Corrupted(Loopback(data), {"b": GARBAGE[name]})
    )
    assert arrived(asked.ask(GRADIENT)) == (["a", "c", "d"], {"b": "garbage"})


def test_nothing_larger_than_asked_for_is_read() -> None:
    assert isinstance(read_reply(reply_of(0.0), SHAPES), dict)
    assert isinstance(read_reply(GARBAGE["too large"], SHAPES), Failure)


@given(st.binary(max_size=300))
def test_a_client_survives_any_bytes(data: bytes) -> None:
    outcome = answered(data)
    assert isinstance(outcome, Failure)
    assert outcome.reason == "refused"


@pytest.mark.parametrize("count", [1_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_both_sides_survive_any_change_of_a_message(count: int) -> None:
    questions = [
        dump(Question(MODEL, Restricted(GRADIENT, IDS, keep=True))),
        dump(Question(MODEL, Statistics())),
        dump(
            Question(MODEL, LocalFit(GRADIENT.params, LocalPlan(0.1, steps=2), TrainingLoss(0.1)))
        ),
    ]
    replies = [reply_of(1.0), reply_of(-1e9)]
    generator = np.random.default_rng(0)
    refused = 0
    for number in range(count):
        originals = (questions, replies)[number % 2]
        message = bytearray(originals[generator.integers(len(originals))])
        for _ in range(generator.integers(1, 5)):
            message[generator.integers(len(message))] = generator.integers(256)
        content = bytes(message[: generator.integers(8, len(message)) if number % 5 == 0 else None])
        outcome = read_reply(content, SHAPES) if number % 2 else answered(content)
        assert isinstance(outcome, dict | Failure)
        refused += isinstance(outcome, Failure)
    assert refused > count / 2


@pytest.mark.parametrize(
    "question",
    [
        Question(LinearModel(10**12, 3), Statistics()),
        Question(MODEL, Gradient(np.zeros((2, 2)))),
        Question(MODEL, replace(GRADIENT, params=np.zeros(5))),
        Question(
            MODEL,
            LocalFit(np.zeros((7, 3)), LocalPlan(0.1, steps=10**15), TrainingLoss(0.1)),
        ),
        Question(MODEL, Restricted(Statistics(), frozenset({"zz"}), keep=True)),
    ],
    ids=["a huge model", "a small point", "a flat point", "too much work", "no id"],
)
def test_questions_that_do_not_fit_are_refused(question: Question) -> None:
    outcome = answered(dump(question))
    assert isinstance(outcome, Failure)
    assert outcome.reason == "refused"


def test_an_allow_list_sees_inside_a_query() -> None:
    limits = Limits(allowed=frozenset({"query/restricted", "query/statistics"}))
    inside = answered(dump(Question(MODEL, Restricted(GRADIENT, IDS, keep=False))), limits)
    assert isinstance(inside, Failure)
    allowed = answered(dump(Question(MODEL, Restricted(Statistics(), IDS, keep=False))), limits)
    assert isinstance(allowed, dict)


def test_limits_hold_over_bytes() -> None:
    asked = federation(CLIENTS, transport=lambda data: Loopback(data, Limits(min_rows=30)))
    with pytest.raises(MissingClients) as caught:
        ClosedForm().train(asked, ridge=0.1)
    assert caught.value.reasons.keys() == {"b"}
    assert caught.value.reasons["b"].reason == "refused"
