"""The one door to clients: a federation passes questions on, says who is missing and why, and counts the bytes.

In one process, from what a server kept, through files, on an engine: small implementations of one protocol. Trainers
and unlearning methods see a `Federation` and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from probekit.errors import (
    CorruptError,
    InputError,
    MismatchError,
    MissingClientsError,
    ProbekitError,
    RefusedError,
)
from probekit.federated.message import Answer, Arrays, Ask
from probekit.federated.summation import fold, least_rows, order, trie
from probekit.federated.sums import Sum
from probekit.linear.design import ClientStats
from probekit.linear.target_client import ROWS, fault_of

REASONS: dict[str, tuple[type[Exception], ...]] = {
    "refused": (RefusedError,),
    "cannot": (MissingClientsError, InputError, MismatchError),
    "garbage": (CorruptError,),
    "late": (TimeoutError,),
    "gone": (Exception,),
}
"""Why clients are missing, each with the errors of theirs that it stands for."""


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


@dataclass(eq=False)
class Answers:
    """The answers to one question, read once; `missing` fills while they are read."""

    stream: Iterable[Answer] = field(repr=False)
    columns: int
    missing: dict[str, Missing]
    counts: Mapping[str, int] | None
    at_least: int | None = None
    stats: Callable[[Arrays], ClientStats] | None = None
    """What makes statistics of arrays, where the problem has such."""

    def each(self) -> Iterator[Answer]:
        """Every answer, in the order in which they are added."""
        found = 0
        for one in self.stream:
            found += 1
            yield one
        self.require(found)

    def require(self, found: int) -> None:
        """Refuse if so few answers are not enough."""
        wanted = found + len(self.missing) if self.at_least is None else self.at_least
        if found < wanted:
            first = "".join(f" Client {name}: {one.reason}, {one.why}" for name, one in [*self.missing.items()][:1])
            more = f" {len(self.missing) - 1} more are missing." if len(self.missing) > 1 else ""
            raise MissingClientsError(
                f"{wanted} clients had to answer, {found} did.{first}{more} Ask again when they can, or ask for fewer "
                "(`at_least`)."
            )

    def total(self) -> Answer:
        """The sum of all answers, in the one order that depends on the clients present alone."""
        stream, counts = self.each(), self.counts
        if counts is None or self.missing or self.at_least is not None:
            present = {one.client: one for one in stream}
            counts = {name: one.count for name, one in present.items()}
            stream = iter([present[name] for name in order(counts)])
        if not counts:
            raise MissingClientsError("There is nothing to add up: no client answered. Ask at least one that does.")

        def get(name: str) -> Sum:
            one = next(stream, None)
            if one is None or one.client != name or one.count != counts[name]:
                list(stream)  # whoever is missing is named at the end
                raise MissingClientsError(f"Client {name} was expected to answer for {counts[name]} rows. Ask again.")
            return as_sum(one, self.stats)

        found = fold(trie(counts), least_rows(self.columns), get)
        next(stream, None)
        return as_answer(found)


def as_sum(answer: Answer, stats: Callable[[Arrays], ClientStats] | None) -> Sum:
    """An answer as what others are added to."""
    if stats is not None and ("root" in answer.arrays or ROWS in answer.arrays):
        return Sum.of(stats(answer.arrays))
    return Sum(answer.arrays, answer.values, answer.count)


def as_answer(found: Sum) -> Answer:
    """The sum of answers as nobody's answer."""
    arrays = found.settle().arrays
    return Answer("", found.count, arrays, found.values, ("gram",) if "gram" in arrays else ())


class Federation(Protocol):
    """Clients that can be asked. `counts` are their rows, where these are known; `traffic` what passed so far."""

    @property
    def clients(self) -> tuple[str, ...]: ...
    @property
    def counts(self) -> Mapping[str, int]: ...
    @property
    def traffic(self) -> Traffic: ...
    def offers(self, kind: str, how: str = "each") -> bool: ...
    def ask(self, kind: str, *arguments: Any, **options: Any) -> Answers:
        """The answers to a question; `in_process.Asked` lists arguments and options."""


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


ARRAYS = {
    "statistics": ("class_counts", "gram", "moment"),
    "gradient": ("gradient",),
    "product": ("product",),
    "curvature": ("product",),
    "form": (),
    "scales": (),
    "importance": ("importance",),
    "fit": ("params",),
    "leave-out": ("squared", "wrong"),
    "evaluate": ("confusion",),
}
"""What the answer to each of our own questions consists of; a plugin's questions are its own matter."""


ROOT = ("class_counts", "root")
"""What the statistics of few rows may consist of instead."""


def checked(answer: Answer, ask: Ask, shape: tuple[int, int], *, targets: bool = False) -> str:
    """What is wrong with an answer, in itself; empty where nothing is. `shape` is that of the parameters.

    targets: whether the problem has real targets, so that statistics come by pattern of known ones.
    """
    if answer.count < 0:
        return f"it speaks of {answer.count} rows."
    if not all(np.isfinite(value) for value in answer.values.values()):
        return "a value is NaN or infinite."
    if ask.kind == "statistics" and targets:
        wild = [name for name, array in answer.arrays.items() if not np.isfinite(array).all()]
        return f"{wild[0]} holds NaN or infinity." if wild else fault_of(answer.arrays, answer.count, *shape)
    rooted = ask.kind == "statistics" and "folds" not in ask.plan and tuple(sorted(answer.arrays)) == ROOT
    if ask.kind in ARRAYS and tuple(sorted(answer.arrays)) != ARRAYS[ask.kind] and not rooted:
        return f"it holds {', '.join(answer.arrays) or 'nothing'}; wanted {', '.join(ARRAYS[ask.kind]) or 'no arrays'}."
    lacking = [name for name in _values(ask) if name not in answer.values]
    if lacking:
        return f"it does not say {lacking[0]}."
    faults = (_fault(name, array, ask, answer.count, shape) for name, array in sorted(answer.arrays.items()))
    fault = next(filter(None, faults), "")
    return _root_fault(answer, shape[0]) if rooted and not fault else fault


def _values(ask: Ask) -> tuple[str, ...]:
    """The numbers that a question asks for."""
    if ask.kind == "form":
        return ("form",)
    if ask.kind == "scales":
        return ("energy", "target_energy", *(("curvature",) if "ridge" in ask.plan else ()))
    told = {"evaluate": True, "fit": ask.plan.get("tells_loss", True), "gradient": ask.plan.get("loss")}
    return ("loss",) if told.get(ask.kind) else ()


def _fault(name: str, array: NDArray[Any], ask: Ask, rows: int, shape: tuple[int, int]) -> str:
    """What is wrong with one array of an answer."""
    if not np.isfinite(array).all():
        return f"{name} holds NaN or infinity."
    if ask.kind not in ARRAYS:
        return ""
    columns, outputs = shape
    if name == "root":
        return "" if array.dtype == np.float64 else f"root has type {array.dtype}."
    whole = name in ("class_counts", "confusion")
    if array.dtype != (np.int64 if whole else np.float64):
        return f"{name} has type {array.dtype}."
    folds: Any = ask.plan.get("folds", 1)
    lead = (folds,) if ask.kind == "statistics" and folds > 1 else ()
    wanted = {
        "gram": ((*lead, columns, columns), (*lead, outputs, columns, columns)),
        "moment": ((*lead, columns, outputs),),
        "class_counts": ((*lead, outputs),),
        "confusion": ((len(array),) * 2,),
    }.get(name, (next((ask.arrays[one].shape for one in ("ridges", "adapter") if one in ask.arrays), shape),))
    if array.shape not in wanted:
        return f"{name} has shape {array.shape}; wanted {wanted[0]}."
    if name == "gram" and not np.array_equal(array, array.swapaxes(-1, -2)):
        return "gram is not symmetric."
    if name == "importance" and (array < 0).any():
        return "importance holds numbers below 0."
    if whole and ((array < 0).any() or array.sum() != rows):
        return f"{name} adds up to {array.sum()} rows, it speaks of {rows}."
    return ""


def _root_fault(answer: Answer, columns: int) -> str:
    """What is wrong with the shape of a root; one per class has a single target."""
    root, classes = answer.arrays["root"], np.count_nonzero(answer.arrays["class_counts"])
    wanted = [(answer.count, columns + many) for many in (int(classes), 1)]
    return "" if root.shape in wanted else f"root has shape {root.shape}; wanted {wanted[0]}."


def absence(error: Exception) -> Missing:
    """Why a client whose answering failed like this is missing."""
    reason = next(reason for reason, kinds in REASONS.items() if isinstance(error, kinds))
    return Missing(reason, str(error) if isinstance(error, ProbekitError) else f"{type(error).__name__}: {error}")
