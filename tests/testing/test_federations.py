"""The kit for federations passes ours and catches each way of being a bad one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probekit.federated.federation import Answers, Traffic
from probekit.federated.in_process import InProcess
from probekit.federated.message import OWN, Answer, Ask
from probekit.federated.remote import RemoteFederation
from probekit.testing import check_federation
from tests.nodes import Machines


def through_files(problem: Any, data: Any, rows: Any) -> RemoteFederation:
    """Clients on machines of their own that answer through a folder, whenever they are looked for answers."""
    return Machines(Path(tempfile.mkdtemp()), data, rows).answering(problem)


def failures(make: Any) -> dict[str, str]:
    return {check.name: check.detail for check in check_federation(make) if not check.passed}


@pytest.mark.parametrize("make", [InProcess.of, through_files])
def test_ours_pass(make: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert failures(make) == {}


class GivenOrder(InProcess):
    """Adds in the order in which clients were given."""

    def ask(self, *arguments: Any, **options: Any) -> Answers:
        answers = super().ask(*arguments, **options)
        answers.total = lambda: self._total(answers)  # type: ignore[method-assign]
        return answers

    def _total(self, answers: Answers) -> Answer:
        found = {one.client: one for one in answers.each()}
        first, *others = (found[name] for name in self.holdings if name in found)
        arrays, values = dict(first.arrays), dict(first.values)
        for one in others:
            arrays = {name: array + one.arrays[name] for name, array in arrays.items()}
            values = {name: value + one.values[name] for name, value in values.items()}
        return Answer("", sum(one.count for one in found.values()), arrays, values)


class Shuffled(InProcess):
    """Gives answers as they come."""

    def stream(self, *arguments: Any) -> Iterator[Answer]:
        return reversed(list(super().stream(*arguments)))


class Boastful(InProcess):
    def offers(self, kind: str, how: str = "each") -> bool:
        return True


class Silent(InProcess):
    """Leaves out who is not there, and says nothing."""

    def ask(self, *arguments: Any, **options: Any) -> Answers:
        answers = super().ask(*arguments, **options)
        found = list(Answers(answers.stream, 1, {}, None, at_least=0).each())
        return Answers(found, answers.columns, {}, None)


class Trusting(InProcess):
    """Takes every answer for good."""

    def stream(self, ask: Ask, names: Any, missing: Any) -> Iterator[Answer]:
        return iter([self.reply(ask, name) for name in sorted(names, key=lambda name: list(self.holdings).index(name))])


class Forgetful(InProcess):
    """Answers for all rows, whichever are asked for."""

    def reply(self, ask: Ask, name: str) -> Answer:
        return super().reply(Ask(ask.kind, ask.arrays, ask.plan, rows=OWN), name)


class Uncounted(InProcess):
    @property
    def traffic(self) -> Traffic:
        return Traffic()


class Alone(InProcess):
    """Forgets a client."""

    @property
    def clients(self) -> tuple[str, ...]:
        return super().clients[1:]


class Rounded(InProcess):
    """Sends arrays in coarser numbers."""

    def reply(self, ask: Ask, name: str) -> Answer:
        found = super().reply(ask, name)
        arrays = {one: array.astype("float32").astype(array.dtype) for one, array in found.arrays.items()}
        return Answer(found.client, found.count, arrays, found.values, found.symmetric)


@pytest.mark.parametrize(
    ("bad", "caught"),
    [
        (GivenOrder, "sums"),
        (Shuffled, "each"),
        (Boastful, "offers"),
        (Silent, "cannot"),
        (Silent, "unknown client"),
        (Silent, "garbage"),
        (Trusting, "garbage"),
        (Forgetful, "rows"),
        (Uncounted, "traffic"),
        (Alone, "clients"),
        (Rounded, "sums"),
    ],
)
def test_each_fault_is_caught(bad: Any, caught: str) -> None:
    assert caught in failures(bad.of)
