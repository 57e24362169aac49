"""Who is in a run whose clients are elsewhere: who fails is left out by name, and the same command goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit import Run
from probekit.cache import DiskStore
from probekit.errors import CorruptError, InputError, MissingClientsError, Pending
from probekit.federated.federation import Missing
from probekit.federated.message import Answer
from probekit.federated.rows import design_for, head_problem
from probekit.values import EmbeddingSet
from tests.runs.parties import PlayedParty
from tests.runs.test_elsewhere import elsewhere as elsewhere
from tests.runs.test_elsewhere import party as party
from tests.runs.test_elsewhere import rows as rows
from tests.shelves import shelve as shelve

GONE = Missing("gone", "its node was killed.")
LATE = TimeoutError("it did not answer in time")


def alone(rows: EmbeddingSet, *names: str) -> PlayedParty:
    """The same clients without some."""
    return PlayedParty(rows.select(np.flatnonzero(~np.isin(np.asarray(rows.clients), names))))


def statistics(party: PlayedParty, name: str, **changes: Any) -> Answer:
    """A client's statistics, changed."""
    problem = head_problem(party.embeddings, design_for(party.embeddings))
    [found] = PlayedParty(party.embeddings).clients(problem, job="", names=[name]).ask("statistics").each()
    problem_stats = problem.stats(found.arrays).dense
    arrays = {field: np.array(getattr(problem_stats, field)) for field in ("gram", "moment", "class_counts")}
    for field, change in changes.items():
        if field in arrays:
            arrays[field] = change(arrays[field])
    return Answer(name, changes.get("count", found.count), arrays, {}, ("gram",))


def doubled_count(gram: Any) -> Any:
    """A Gram whose count of rows is another."""
    return gram + np.pad([[float(gram[-1, -1])]], ((len(gram) - 1, 0), (len(gram) - 1, 0)))


FAULTS: dict[str, Callable[[PlayedParty], Missing | Answer | Exception]] = {
    "gone": lambda party: GONE,
    "late": lambda party: LATE,
    "refused": lambda party: Missing("refused", "its owner allows no statistics."),
    "nan": lambda party: statistics(party, "b", moment=lambda moment: moment * np.nan),
    "asymmetric": lambda party: replace(
        statistics(party, "b", gram=lambda gram: gram + np.triu(np.ones_like(gram), 1)), symmetric=()
    ),
    "another count": lambda party: statistics(party, "b", class_counts=lambda counts: 2 * counts, count=2 * 46),
    "contradiction": lambda party: statistics(party, "b", gram=doubled_count),
}


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("keep", ["statistics", "nothing"])
def test_who_fails_in_the_one_round_is_left_out_by_name(
    kind: str, keep: str, rows: EmbeddingSet, party: PlayedParty, elsewhere: DiskStore, tmp_path: Path
) -> None:
    party.faults[("b", 1)] = FAULTS[kind](party)
    run = Run.train(tmp_path / "run", federation=party, ridge=0.01, keep=keep, at_least=3, store=elsewhere)
    others = Run.train(tmp_path / "others", federation=alone(rows, "b"), ridge=0.01, keep=keep, store=elsewhere)
    assert run.head().digest == others.head().digest
    assert run.training is not None
    assert set(run.training.missing) == {"b"}
    reason = run.training.missing["b"].reason
    assert reason == (kind if kind in ("gone", "late", "refused") else "garbage")
    assert [number for _, number, _, _ in party.log if number > 1] == []
    missing: Any = run.folder.entries()[-1].details["missing"]
    assert missing["b"]["reason"] == reason
    assert "b" not in run.folder.partition().clients
    leaves = run.folder.at().commitments()
    assert leaves is not None
    assert set(leaves.leaves) == {"a", "c", "d"}


def test_without_at_least_everybody_must_answer(party: PlayedParty, elsewhere: DiskStore, tmp_path: Path) -> None:
    party.faults[("b", 1)] = GONE
    with pytest.raises(MissingClientsError, match=r"4 clients had to answer, 3 did\. Client b: gone, its node was"):
        Run.train(tmp_path / "run", federation=party, ridge=0.01, store=elsewhere)
    party.faults[("b", 1)] = FAULTS["contradiction"](party)
    with pytest.raises(CorruptError, match="No rows have the statistics of client b"):
        Run.train(tmp_path / "run", federation=party, ridge=0.01, store=elsewhere)
    assert not (tmp_path / "run").exists()


def test_too_few_is_refused_and_says_who(party: PlayedParty, elsewhere: DiskStore, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"At least 5 clients are asked for \(`at_least`\); 4 are there to ask"):
        Run.train(tmp_path / "run", federation=party, ridge=0.01, at_least=5, store=elsewhere)
    party.faults |= {("b", 1): GONE, ("c", 1): LATE}
    with pytest.raises(
        MissingClientsError, match=r"3 clients had to answer, 2 did\. .*Client c: late, .*Client b: gone"
    ):
        Run.train(tmp_path / "run", federation=party, ridge=0.01, at_least=3, store=elsewhere)
    assert not (tmp_path / "run").exists()


def test_a_client_that_never_came_is_named_too(
    rows: EmbeddingSet, party: PlayedParty, elsewhere: DiskStore, tmp_path: Path
) -> None:
    party.absent = {"d": Missing("gone", "no node of that name is there.")}
    run = Run.train(tmp_path / "run", federation=party, ridge=0.01, at_least=2, store=elsewhere)
    others = Run.train(tmp_path / "others", federation=alone(rows, "d"), ridge=0.01, store=elsewhere)
    assert run.head().digest == others.head().digest
    assert run.training is not None
    assert run.training.plain["missing"] == {"d": {"reason": "gone", "why": "no node of that name is there."}}


@pytest.mark.parametrize("number", [2, 3])
def test_a_ridge_is_chosen_anew_without_who_left(
    number: int, rows: EmbeddingSet, party: PlayedParty, elsewhere: DiskStore, tmp_path: Path
) -> None:
    party.faults[("b", number)] = GONE
    run = Run.train(tmp_path / "run", federation=party, at_least=3, store=elsewhere)
    others = Run.train(tmp_path / "others", federation=alone(rows, "b"), store=elsewhere)
    assert set(run.trained().counts) == {"a", "c", "d"}
    assert run.trained().ridge == others.trained().ridge
    assert run.head().digest == others.head().digest


@pytest.mark.parametrize("method", ["fedavg", "cg", "logistic"])
def test_who_misses_a_round_is_out_from_then_on(
    method: str, rows: EmbeddingSet, party: PlayedParty, elsewhere: DiskStore, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"method": method}
    if method != "logistic":
        options |= {"ridge": 0.01, "rounds": 30}
    party.faults[("b", 6)] = GONE
    run = Run.train(tmp_path / "run", federation=party, at_least=3, store=elsewhere, **options)
    assert set(run.trained().counts) == {"a", "c", "d"}
    asked = [number for _, number, _, name in party.log if name == "b"]
    assert max(asked) == 6
    note = run.trained().solution.note
    assert ("Client b: gone, its node was killed. It was in the first" in note) == (method != "logistic")
    if method == "fedavg":
        assert "in the first 3 rounds." in note
        assert run.trained().rounds == 30
    others = Run.train(tmp_path / "others", federation=alone(rows, "b"), store=elsewhere, **options)
    apart = np.linalg.norm(run.head().params - others.head().params)
    assert apart < 0.02 * np.linalg.norm(others.head().params)


def test_what_is_awaited_is_asked_again_by_the_same_command(
    party: PlayedParty, elsewhere: DiskStore, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"method": "fedavg", "rounds": 4, "ridge": 0.01, "store": elsewhere}
    ready = PlayedParty(party.embeddings)
    whole = Run.train(tmp_path / "whole", federation=ready, **options)
    for number in (1, 3, 5):
        party.awaited = number
        with pytest.raises(Pending, match=f"Question {number} waits for b"):
            Run.train(tmp_path / "run", federation=party, **options)
        assert not (tmp_path / "run").exists()
        assert (tmp_path / ".run.job").exists()
    party.awaited, asked = None, len(party.log)
    run = Run.train(tmp_path / "run", federation=party, **options)
    assert run.head().digest == whole.head().digest
    assert {job for job, *_ in party.log} == {*party.finished}
    assert [one[1:] for one in party.log[asked:]] == [one[1:] for one in ready.log]
    assert not (tmp_path / ".run.job").exists()
    again = Run.train(tmp_path / "again", federation=party, **options)
    assert again.head().digest == whole.head().digest
    assert len({job for job, *_ in party.log}) == 2


def test_a_request_goes_on_when_clients_have_answered(party: PlayedParty, elsewhere: DiskStore, tmp_path: Path) -> None:
    run = Run.train(tmp_path / "run", federation=party, keep="gradients", ridge=0.01, store=elsewhere)
    party.log.clear()
    party.awaited = 1
    with pytest.raises(Pending):
        run.unlearn("b", federation=party)
    assert run.state == 1
    party.awaited = None
    assert run.unlearn("b", federation=party).state == 2
    assert {job for job, *_ in party.log} == {party.finished[-1]}
    assert not (tmp_path / ".run.job").exists()


def test_a_request_that_others_do_not_answer_forgets_them_too_where_that_is_allowed(
    party: PlayedParty, elsewhere: DiskStore, tmp_path: Path
) -> None:
    run = Run.train(tmp_path / "run", federation=party, keep="gradients", ridge=0.01, store=elsewhere)
    party.faults[("c", 1)] = LATE
    with pytest.raises(MissingClientsError, match="Client c: late"):
        run.unlearn("b", federation=party)
    assert run.state == 1
    done = run.unlearn("b", federation=party, at_least=2)
    assert (done.request.clients, set(done.missing)) == (("b", "c"), {"c"})
    assert set(run.trained().counts) == {"a", "d"}
    entry = run.folder.entries()[-1]
    missing: Any = entry.details["missing"]
    assert missing["c"]["reason"] == "late"
    assert run.verify().intact
    assert run.unlearn("b", federation=party).already_done
