"""Questions about networks: what a client refuses, and bytes that are no network."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit.errors import Failure, ProbekitError, WireError
from probekit.federated.client import Limits, RowClient
from probekit.federated.local import Adam, LocalPlan, TrainingLoss
from probekit.federated.queries import Evaluate, Gradient, LocalFit, Product, Query, Weight
from probekit.federated.transports.messages import Question, read_reply, respond
from probekit.networks.architectures import Cnn, Mlp, Own
from probekit.networks.network import LinearizedNetwork, Network
from probekit.objective import Model
from probekit.records import dump, parse
from tests.networks.modules import model_of, samples_of
from tests.runs.test_mutations import mutated, with_header

LIMIT = 1 << 20
MODEL = model_of("mlp:5-4")
ROWS = samples_of(MODEL, 8)
ROOM = 100_000_000
"""Bytes that a test's process may grow by, whatever is asked."""


def question(query: Query, model: Model = MODEL) -> bytes:
    return dump(Question(model, query))


def answered(data: bytes, limits: Limits | None = None) -> object:
    """What a client says, checked as an answer about any of its queries."""
    shapes = {**Product(MODEL.weights, MODEL.weights).shapes(MODEL, len(ROWS)), "all": (LIMIT,)}
    return read_reply(respond(data, "a", ROWS, limits), shapes)


def refusal(data: bytes, limits: Limits | None = None) -> str:
    outcome = answered(data, limits)
    assert isinstance(outcome, Failure)
    assert outcome.reason == "refused"
    return outcome.detail


def peak(*, anew: bool = False) -> int:
    """The most bytes that this process had, or has from now on."""
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    sizes = dict(line.partition(":")[::2] for line in lines)
    return 1024 * int(sizes["VmHWM"].split()[0])


@pytest.mark.parametrize(
    "query",
    [
        Gradient(MODEL.weights),
        Product(MODEL.weights, MODEL.weights),
        Evaluate(MODEL.weights),
        LocalFit(MODEL.weights, LocalPlan(0.1, steps=2, batch_size=3), TrainingLoss(0.1)),
    ],
    ids=lambda query: type(query).__name__,
)
def test_clients_answer_over_bytes_as_they_do_here(query: Query) -> None:
    expected = query.answer(RowClient("a", MODEL, ROWS))
    outcome = answered(question(query))
    assert isinstance(outcome, dict)
    assert outcome.keys() == expected.keys()
    assert all(np.array_equal(outcome[name], expected[name]) for name in expected)


def changed(**fields: Any) -> dict[str, Any]:
    """The record's fields with some changed, whatever they are."""
    return {**{name: getattr(MODEL, name) for name in MODEL.__dataclass_fields__}, **fields}


class Unchecked(LinearizedNetwork):
    """As somebody else's program may send it."""

    def __post_init__(self) -> None:
        pass


def unchecked(**fields: Any) -> bytes:
    """The question of a model that no check has seen."""
    model = Unchecked(**changed(**fields))
    object.__setattr__(model, "__class__", LinearizedNetwork)
    return question(Gradient(MODEL.weights), model)


def sized(*sizes: int) -> Mlp:
    network = Mlp((1, 1))
    object.__setattr__(network, "sizes", sizes)
    return network


HUGE: dict[str, dict[str, Any]] = {
    "an input of 10^12": {"architecture": sized(10**12, 3)},
    "layers of 10^12": {"architecture": sized(9, 10**12, 10**12, 3)},
    "layers of 2^62": {"architecture": sized(9, 2**62, 2**62, 3)},
    "100,000 layers": {"architecture": sized(9, *[1] * 100_000, 3)},
    "a picture of 10^6 x 10^6": {"architecture": Cnn(3, 10**6, 3)},
    "10^12 channels": {"architecture": Cnn(10**12, 16, 3)},
    "2^62 channels": {"architecture": Cnn(2**62, 16, 3), "sample_shape": (2**62, 16, 16)},
    "samples of 10^12": {"sample_shape": (10**12,)},
    "samples of 2^63": {"sample_shape": (2**62, 2)},
    "somebody's code": {"architecture": Own("py:os:abort", 3)},
    "a column 10^6 times": {"columns": np.zeros(10**6, np.int64)},
    "weights of two axes": {"weights": np.zeros((9, 9))},
}


@pytest.mark.parametrize("name", HUGE)
def test_a_server_cannot_ask_for_a_huge_network(name: str) -> None:
    data = unchecked(**HUGE[name])
    before = peak(anew=True)
    started = time.process_time()
    assert refusal(data)
    assert time.process_time() - started < 2
    assert peak() - before < ROOM + 8 * len(data)


@pytest.mark.parametrize(
    "plan",
    [
        LocalPlan(0.1, steps=10**9),
        LocalPlan(0.1, steps=10**9, batch_size=1, optimizer=Adam()),
        LocalPlan(0.1, epochs=2**62, batch_size=3),
    ],
)
def test_a_server_cannot_ask_for_work_without_end(plan: LocalPlan) -> None:
    fit = LocalFit(MODEL.weights, plan, TrainingLoss(0.1))
    assert "Lower the steps" in refusal(question(fit), Limits(work=1e9))


def test_work_counts_the_parameters_of_a_network() -> None:
    plan = LocalPlan(0.1, steps=3, batch_size=4)
    fit = question(LocalFit(MODEL.weights, plan, TrainingLoss(0.1)))
    work = 3 * 4 * len(MODEL.weights)
    assert isinstance(answered(fit, Limits(work=work)), dict)
    assert "Lower the steps" in refusal(fit, Limits(work=work - 1))


def test_a_client_answers_about_no_few_rows_of_samples() -> None:
    limits = Limits(min_rows=5)
    plan = LocalPlan(0.1, steps=1, batch_size=4)
    fit = question(LocalFit(MODEL.weights, plan, TrainingLoss(0.1)))
    assert "5 rows or more" in refusal(fit, limits)
    assert "9 rows or more" in refusal(question(Weight()), Limits(min_rows=9))


@pytest.mark.parametrize("change", [{"sample_shape": (3, 3)}, {"sample_shape": (9, 1)}])
def test_samples_may_have_another_shape_of_as_many_numbers(change: dict[str, Any]) -> None:
    assert isinstance(answered(unchecked(**change)), dict)


def test_points_of_another_size_are_refused() -> None:
    for params in (np.zeros(3), np.zeros(0), np.zeros((1, len(MODEL.weights))), np.zeros(10**5)):
        assert refusal(question(Gradient(params)))
        assert refusal(question(Product(MODEL.weights, params)))


def tree_mutations(data: bytes) -> Iterator[bytes]:
    """A record whose tree has a value replaced, left out or added."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    for _, tree in mutated(json.loads(header["__metadata__"]["record"])):
        document = {**header, "__metadata__": {"record": json.dumps(tree)}}
        yield with_header(document, data[8 + size :])


def byte_mutations(data: bytes, count: int) -> Iterator[bytes]:
    """Some bytes replaced, or the end cut off."""
    generator = np.random.default_rng(0)
    for number in range(count):
        message = bytearray(data)
        for _ in range(generator.integers(1, 5)):
            message[generator.integers(len(message))] = generator.integers(256)
        yield bytes(message[: generator.integers(8, len(message)) if number % 5 == 0 else None])


def use(data: bytes) -> bool:
    """Whether bytes are a network that computes; whatever else is one of our errors."""
    try:
        model = parse(data, Network, max_bytes=LIMIT)
    except WireError:
        return False
    try:
        scores = model.outputs(samples_of(model, 2)).at(model.start())[0]
    except ProbekitError:
        return False
    assert scores.shape == (2, model.classes)
    return True


@pytest.mark.parametrize("count", [1_500, pytest.param(30_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("linearize", [True, False])
def test_mutated_networks_are_refused_or_compute(count: int, *, linearize: bool) -> None:
    data = dump(model_of("mlp:5-4", linearize=linearize, precision="float32"))
    assert use(data)
    before = peak(anew=True)
    every = [*tree_mutations(data), *byte_mutations(data, count)]
    generator = np.random.default_rng(1)
    chosen = generator.permutation(len(every))[:count].tolist()
    used = sum(use(every[number]) for number in chosen)
    assert 0 < used < count / 2
    assert peak() - before < ROOM


@pytest.mark.parametrize("count", [1_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_a_client_survives_any_change_of_a_question_about_a_network(count: int) -> None:
    plan = LocalPlan(0.1, steps=2, batch_size=3)
    queries = [
        Gradient(MODEL.weights),
        Product(MODEL.weights, MODEL.weights),
        LocalFit(MODEL.weights, plan, TrainingLoss(0.1)),
    ]
    before = peak(anew=True)
    generator = np.random.default_rng(2)
    refused = 0
    for query in queries:
        data = question(query)
        every = [*tree_mutations(data), *byte_mutations(data, count)]
        for number in generator.permutation(len(every))[: count // len(queries)].tolist():
            outcome = answered(every[number], Limits(work=1e6))
            assert isinstance(outcome, dict | Failure)
            refused += isinstance(outcome, Failure)
    assert refused > count / 3
    assert peak() - before < ROOM


def test_a_network_with_another_digest_is_another_network() -> None:
    digests = {
        replace(MODEL, weights=MODEL.weights + 1e-300).digest,
        replace(MODEL, weights=np.nextafter(MODEL.weights, 1)).digest,
        replace(MODEL, sample_shape=(9,)).digest,
        MODEL.digest,
    }
    assert len(digests) == 3
