"""The door to clients: who is missing and why, what is no answer, and sums that hang on who is present alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from probekit.errors import (
    Cancelled,
    CorruptError,
    InputError,
    MissingClientsError,
    Pending,
    RefusedError,
    SolverError,
)
from probekit.federated.federation import Missing, Nobody, checked
from probekit.federated.in_process import FirstOf, InProcess, KeptGradients
from probekit.federated.message import Answer, Ask, Selection
from probekit.federated.rows import design_for, head_problem
from probekit.values import EmbeddingSet

MakeSet = Callable[..., EmbeddingSet]
NAMES = ("a", "b", "c", "d")
POINT = np.full((7, 3), 0.1)


class Failing(InProcess):
    """Clients in this process, of whom one fails in a way of its own."""

    bad = "b"
    failure: Any = None

    def reply(self, ask: Ask, name: str) -> Answer:
        found = super().reply(ask, name)
        if name != self.bad:
            return found
        if isinstance(self.failure, Exception):
            raise self.failure
        changed: Answer = self.failure(found)
        return changed


@pytest.fixture
def clients(make_set: MakeSet) -> Failing:
    data = make_set(60)
    problem = head_problem(data, design_for(data))
    parts = np.split(np.arange(60), [20, 25, 45])
    return Failing(problem, Failing.of(problem, data, dict(zip(NAMES, parts, strict=True))).holdings)


@pytest.mark.parametrize(
    ("error", "reason", "words"),
    [
        (RuntimeError("disk on fire"), "gone", "RuntimeError: disk on fire"),
        (ConnectionResetError("reset"), "gone", "reset"),
        (SolverError("no answer."), "gone", "no answer."),
        (TimeoutError("slow"), "late", "slow"),
        (CorruptError("not a message."), "garbage", "not a message."),
        (MissingClientsError("it has no rows."), "cannot", "it has no rows."),
        (RefusedError("it is asleep."), "refused", "it is asleep."),
    ],
)
def test_a_client_that_fails_is_missing_with_a_reason(
    clients: Failing, error: Exception, reason: str, words: str
) -> None:
    clients.failure = error
    answers = clients.ask("gradient", {"params": POINT}, at_least=3)
    assert [one.client for one in answers.each()] == [name for name in clients_in_order() if name != "b"]
    assert answers.missing["b"].reason == reason
    assert words in answers.missing["b"].why
    with pytest.raises(MissingClientsError, match=f"4 clients had to answer, 3 did. Client b: {reason}"):
        clients.ask("gradient", {"params": POINT}).total()
    with pytest.raises(MissingClientsError, match="4 clients had to answer"):
        list(clients.ask("gradient", {"params": POINT}).each())


@pytest.mark.parametrize("error", [InputError("NaN in row 3."), Cancelled("stop"), Pending("wait", ("b",))])
def test_mistakes_of_the_asker_and_what_stops_the_work_come_through(clients: Failing, error: Exception) -> None:
    clients.failure = error
    with pytest.raises(type(error), match=str(error)):
        clients.ask("gradient", {"params": POINT}, at_least=0).total()


def altered(**changes: Any) -> Callable[[Answer], Answer]:
    """A client that sends other arrays, values or counts than it has."""

    def change(answer: Answer) -> Answer:
        fields = {**vars(answer), **changes}
        arrays = {**answer.arrays, **changes.get("arrays", {})}
        return Answer(fields["client"], fields["count"], arrays, fields["values"])

    return change


STATISTICS: dict[str, Any] = {"kind": "statistics"}
GRADIENT: dict[str, Any] = {"kind": "gradient", "arrays": {"params": POINT}, "plan": {"loss": True}}
FIT: dict[str, Any] = {"kind": "fit", "arrays": {"params": POINT}, "plan": {"steps": 1, "rate": 0.1}}


@pytest.mark.parametrize(
    ("question", "failure", "words"),
    [
        (STATISTICS, altered(arrays={"gram": np.triu(np.ones((7, 7)))}), "not symmetric"),
        (STATISTICS, altered(arrays={"gram": np.full((7, 7), np.nan)}), "gram holds NaN"),
        (STATISTICS, altered(arrays={"gram": np.eye(8)}), r"shape \(8, 8\); wanted \(7, 7\)"),
        (STATISTICS, altered(arrays={"moment": np.ones((3, 7))}), "moment has shape"),
        (STATISTICS, altered(arrays={"class_counts": np.array([1, 1, 1])}), "adds up to 3 rows, it speaks of 5"),
        (STATISTICS, altered(arrays={"class_counts": np.array([-1, 3, 3])}), "class_counts"),
        (STATISTICS, altered(arrays={"class_counts": np.array([2.0, 2.0, 1.0])}), "type float64"),
        (STATISTICS, altered(count=6), "speaks of 6"),
        (STATISTICS, altered(count=-5), "-5 rows"),
        (STATISTICS, altered(arrays={"more": np.ones(1)}), "it holds gram, moment, class_counts, more; wanted"),
        (STATISTICS, lambda one: Answer(one.client, one.count), "it holds nothing"),
        (GRADIENT, altered(arrays={"gradient": np.ones((7, 2))}), "shape"),
        (GRADIENT, altered(arrays={"gradient": np.full((7, 3), np.inf)}), "infinity"),
        (GRADIENT, altered(arrays={"gradient": np.ones((7, 3), np.float32)}), "float32"),
        (GRADIENT, altered(values={}), "does not say loss"),
        (GRADIENT, altered(values={"loss": np.nan}), "NaN"),
        (FIT, altered(arrays={"params": np.ones((1, 7, 3))}), "shape"),
        ({"kind": "product", "arrays": {"params": POINT}}, altered(arrays={"product": np.ones(21)}), "shape"),
        ({"kind": "form", "arrays": {"params": POINT}}, altered(values={}), "does not say form"),
        (
            {"kind": "scales", "plan": {"ridge": 0.1}},
            altered(values={"energy": 1.0, "target_energy": 1.0}),
            "curvature",
        ),
        ({"kind": "evaluate", "arrays": {"params": POINT}}, altered(count=3), "confusion adds up to 5"),
    ],
)
def test_what_is_no_answer_is_garbage(clients: Failing, question: Any, failure: Any, words: str) -> None:
    clients.failure = failure
    answers = clients.ask(**question, at_least=3)
    assert answers.total().count == 55
    assert answers.missing.keys() == {"b"}
    assert answers.missing["b"].reason == "garbage"
    with pytest.raises(MissingClientsError, match=words):
        clients.ask(**question).total()


def test_a_plugins_question_has_whatever_arrays_it_likes() -> None:
    assert checked(Answer("a", 1, {"anything": np.ones(3, np.int64)}), Ask("own"), (7, 3)) == ""
    assert "NaN" in checked(Answer("a", 1, {"anything": np.array([np.nan])}), Ask("own"), (7, 3))


def test_a_count_that_contradicts_what_is_known_is_refused(clients: Failing) -> None:
    clients.failure = altered(count=4)
    with pytest.raises(MissingClientsError, match="Client b was expected to answer for 5 rows"):
        clients.ask("gradient", {"params": POINT}).total()


@pytest.mark.parametrize("question", [STATISTICS, GRADIENT, FIT])
def test_a_sum_hangs_on_who_is_present_alone(clients: Failing, question: Any) -> None:
    clients.failure = RuntimeError("dead")
    found = clients.ask(**question, at_least=2).total()
    rest = [name for name in NAMES if name != "b"]
    for asked in (rest, rest[::-1]):
        wanted = clients.ask(**question, clients=asked).total()
        assert found.count == wanted.count == 55
        assert dict(found.values) == dict(wanted.values)
        for name, array in found.arrays.items():
            assert array.tobytes() == wanted.arrays[name].tobytes()


def test_more_than_were_asked_cannot_answer(clients: Failing) -> None:
    clients.bad = ""
    with pytest.raises(MissingClientsError, match=r"5 clients had to answer, 4 did\. Ask again"):
        clients.ask("statistics", at_least=5).total()
    with pytest.raises(MissingClientsError, match="nothing to add up"):
        clients.ask("statistics", clients=()).total()


def test_nobody_is_asked_in_vain() -> None:
    assert not Nobody().offers("gradient")
    with pytest.raises(MissingClientsError, match="Nobody is there"):
        Nobody().ask("gradient")


def test_questions_are_numbered_and_name_problem_and_job(clients: Failing) -> None:
    seen: list[Ask] = []

    class Seeing(Failing):
        def reply(self, ask: Ask, name: str) -> Answer:
            seen.append(ask)
            return InProcess.reply(self, ask, name)

    federation = Seeing(clients.problem, clients.holdings, job="forget 3")
    for _ in range(2):
        federation.ask("gradient", {"params": POINT}).total()
    assert [(one.job, one.number, one.problem) for one in seen[::4]] == [
        ("forget 3", number, clients.problem.digest) for number in (1, 2)
    ]
    assert federation.traffic.down == 4 * (seen[0].size + seen[4].size)


def test_a_question_about_another_problem_is_not_answered(clients: Failing, make_set: MakeSet) -> None:
    data = make_set(60)
    other = head_problem(data, design_for(data, intercept="none"))
    answers = InProcess(other, clients.holdings).ask("gradient", {"params": POINT[:6]}, at_least=0)
    assert list(answers.each()) == []
    assert {one.reason for one in answers.missing.values()} == {"cannot"}


def clients_in_order() -> list[str]:
    from probekit.federated.summation import order

    return order(dict.fromkeys(NAMES, 0))


class Counting(InProcess):
    """Notes who was asked at once."""

    batches: list[tuple[str, ...]]

    def post(self, ask: Ask, names: Any, *, timeout: float | None) -> None:
        self.batches = [*getattr(self, "batches", []), tuple(names)]


def first_of(clients: Failing, kept: tuple[str, ...]) -> tuple[FirstOf, Counting]:
    online = Counting(clients.problem, clients.holdings)
    own = {one.client: one.arrays["gradient"] / one.count for one in online.ask("gradient", {"params": POINT}).each()}
    sizes = dict(online.counts)
    source = KeptGradients(
        clients.problem, POINT, {name: own[name] for name in kept}, {name: sizes[name] for name in kept}
    )
    online.batches = []
    return FirstOf(clients.problem, [source, online], sizes), online


def test_each_client_answers_from_the_first_source_that_can_and_a_source_is_asked_once(clients: Failing) -> None:
    found, online = first_of(clients, ("c", "a"))
    total = found.ask("gradient", {"params": POINT}).total()
    assert [set(names) for names in online.batches] == [{"b", "d"}]
    np.testing.assert_allclose(
        total.arrays["gradient"], online.ask("gradient", {"params": POINT}).total().arrays["gradient"], rtol=1e-12
    )
    online.batches = []
    before = found.traffic
    found.ask("gradient", {"params": 2 * POINT}).total()  # kept gradients are of another point
    found.ask("gradient", {"params": POINT}, {"loss": True}).total()  # and do not know the loss
    found.ask("statistics", rows=Selection("only", frozenset())).total()
    assert [set(names) for names in online.batches] == [set(NAMES)] * 3
    assert found.traffic.rounds - before.rounds == 3


def test_who_is_missing_in_a_source_is_missing(clients: Failing) -> None:
    clients.failure = RuntimeError("dead")
    found = FirstOf(clients.problem, [clients], dict(clients.counts) | {"e": 9})
    answers = found.ask("gradient", {"params": POINT}, at_least=3)
    assert answers.total().count == 55
    assert dict(answers.missing) == {
        "b": Missing("gone", "RuntimeError: dead"),
        "e": Missing("cannot", "nobody answers for it."),
    }


def test_sums_of_statistics_do_not_know_single_rows(clients: Failing) -> None:
    clients.bad = ""
    kept = {one.client: clients.problem.stats(one.arrays) for one in clients.ask("statistics").each()}
    holdings = {name: clients.problem.hold_statistics(one) for name, one in kept.items()}
    answers = InProcess(clients.problem, holdings).ask(
        "gradient", {"params": POINT}, rows=Selection("all-but"), at_least=0
    )
    assert list(answers.each()) == []
    assert answers.missing["a"].why == "it knows sums of its rows, not which rows they are of."
