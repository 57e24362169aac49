"""The one door to clients: a federation passes questions on, says who is missing and why, and counts the bytes.

In one process, from what a server kept, through files, on an engine: small implementations of one protocol. Trainers
and unlearning methods see a `Federation` and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError, MissingClientsError, ProbekitError
from probekit.federated.message import OWN, Answer, Ask, Selection
from probekit.federated.summation import Sum, fold, least_rows, order, trie
from probekit.values import Json

REASONS = ("gone", "late", "garbage", "cannot", "refused")


@dataclass(frozen=True)
class Missing:
    """Why a client's answer is not there: gone, late, garbage, cannot or refused; and a sentence."""

    reason: str
    why: str


@dataclass(frozen=True)
class Traffic:
    """Bytes sent to the server (up) and from it (down), as they were encoded, and rounds of questions."""

    up: int = 0
    down: int = 0
    rounds: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.up + other.up, self.down + other.down, self.rounds + other.rounds)

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(self.up - other.up, self.down - other.down, self.rounds - other.rounds)


class Answers:
    """The answers to one question, read once; `missing` fills while they are read."""

    def __init__(
        self,
        stream: Iterable[Answer],
        *,
        columns: int,
        missing: dict[str, Missing] | None = None,
        counts: Mapping[str, int] | None = None,
        at_least: int | None = None,
    ) -> None:
        self._stream, self.columns, self.counts, self.at_least = iter(stream), columns, counts, at_least
        self.missing: dict[str, Missing] = {} if missing is None else missing

    def each(self) -> Iterator[Answer]:
        """Every answer, in the order in which they are added."""
        found = 0
        for one in self._stream:
            found += 1
            yield one
        self._refuse_few(found)

    def total(self) -> Answer:
        """The sum of all answers, in the one order that depends on the clients present alone."""
        present: dict[str, Answer] = {}
        if self.counts is None or self.missing or self.at_least is not None:
            present = {one.client: one for one in self.each()}
            counts: Mapping[str, int] = {name: one.count for name, one in present.items()}
        else:
            counts = self.counts
        if not counts:
            raise MissingClientsError("There is nothing to add up: no client answered. Ask at least one that does.")
        stream = iter([present[name] for name in order(counts)] if present else self.each())
        seen: list[Answer] = []

        def get(name: str) -> Sum:
            one = next(stream, None)
            if one is None or one.client != name or one.count != counts[name]:
                list(stream)  # whoever is missing is named at the end
                raise MissingClientsError(f"Client {name} was expected to answer for {counts[name]} rows. Ask again.")
            seen[:] = [one]
            return Sum(one.arrays, one.values, one.count)

        found = fold(trie(counts), least_rows(self.columns), get)
        next(stream, None)
        return Answer("", found.count, found.arrays, found.values, seen[0].symmetric)

    def _refuse_few(self, found: int) -> None:
        wanted = found + len(self.missing) if self.at_least is None else self.at_least
        if found < wanted:
            name, why = next(iter(self.missing.items()))
            more = f" and {len(self.missing) - 1} more" if len(self.missing) > 1 else ""
            raise MissingClientsError(
                f"{wanted} clients had to answer, {found} did. Client {name}{more}: {why.reason}, {why.why} "
                "Ask again when they can, or ask for fewer (at_least)."
            )


class Federation(Protocol):
    """Clients that can be asked. `counts` are their rows, where these are known; `traffic` what passed so far."""

    @property
    def clients(self) -> tuple[str, ...]: ...
    @property
    def counts(self) -> Mapping[str, int]: ...
    @property
    def traffic(self) -> Traffic: ...
    def offers(self, kind: str, how: str = "each") -> bool: ...
    def ask(
        self,
        kind: str,
        arrays: Mapping[str, NDArray[Any]] | None = None,
        plan: Mapping[str, Json] | None = None,
        *,
        clients: Collection[str] | None = None,
        rows: Selection = OWN,
        precision: str = "float64",
        at_least: int | None = None,
        timeout: float | None = None,
    ) -> Answers: ...


class Nobody:
    """A federation without clients: whoever is asked is not there."""

    clients: tuple[str, ...] = ()
    counts: Mapping[str, int] = {}
    traffic = Traffic()

    def offers(self, kind: str, how: str = "each") -> bool:
        """Nothing."""
        return False

    def ask(self, kind: str, *_: Any, **__: Any) -> Answers:
        """Refused."""
        raise MissingClientsError(f"Nobody is there to answer {kind!r}. Give clients, their rows or what was kept.")


def checked(answer: Answer, ask: Ask) -> str:
    """What is wrong with an answer, in itself; empty where nothing is."""
    if answer.count < 0:
        return f"it speaks of {answer.count} rows."
    for name, array in answer.arrays.items():
        if not np.isfinite(array).all():
            return f"{name} holds NaN or infinity."
        like = ask.arrays.get("params")
        if name in ("params", "gradient", "product") and like is not None and array.shape != like.shape:
            return f"{name} has shape {array.shape}, the question {like.shape}."
    if not all(np.isfinite(value) for value in answer.values.values()):
        return "a value is NaN or infinite."
    return ""


Reply = Callable[[Ask, str], Answer]


def collect(
    ask: Ask, names: Sequence[str], reply: Reply, missing: dict[str, Missing], *, record: Callable[[int, int], None]
) -> Iterator[Answer]:
    """Ask clients one after the other, in the order of sums; who fails is missing with a reason."""
    down = ask.size
    for name in order(dict.fromkeys(names, 0)):
        try:
            found = reply(ask, name)
        except InputError:
            raise
        except MissingClientsError as error:
            missing[name] = Missing("cannot", str(error))
            continue
        except ProbekitError as error:
            missing[name] = Missing("gone", str(error))
            continue
        fault = checked(found, ask)
        if fault:
            missing[name] = Missing("garbage", fault)
            continue
        record(found.size, down)
        yield found
