"""What a federation must do: the bits of sums, who is missing and why, the bytes that pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import MissingClientsError
from probekit.federated.federation import Federation
from probekit.federated.in_process import InProcess
from probekit.federated.message import Answer, Ask, Selection
from probekit.federated.rows import design_for, head_problem
from probekit.federated.summation import order
from probekit.testing.check import KitCheck, checked
from probekit.testing.planted import planted_set
from probekit.values import EmbeddingSet

Rows = Mapping[str, NDArray[np.int64]]
Make = Callable[[Any, EmbeddingSet, Rows], Federation]

HEAD = 200
"""Bytes that a question may take for its job and its number."""
FAR = 1e100
"""How far a client's rows lie whose gradient is beyond all numbers where others' is not."""


def check_federation(make: Make) -> list[KitCheck]:
    """What was checked of a federation.

    make: gives the federation for a problem, an embedding set and the numbers of each client's rows in it. Its clients
    must answer while it is asked; each call begins anew.
    """
    return [checked(name, lambda check=check: check(make)) for name, check in CHECKS.items()]  # type: ignore[misc]


DATA = planted_set()
PROBLEM = head_problem(DATA, design_for(DATA))
ROWS: Rows = {
    name: np.arange(start, stop)
    for name, start, stop in (("a", 0, 31), ("b", 31, 36), ("Zo\u00eb/9 ..", 36, 70), ("0", 70, 90))
}
POINT = np.random.default_rng(1).normal(size=PROBLEM.shape)
QUESTIONS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("statistics", {}, {}),
    ("statistics", {}, {"folds": 3, "seed": 1}),
    ("gradient", {"params": POINT}, {"loss": True}),
    ("gradient", {"params": np.asfortranarray(POINT)}, {}),
    ("product", {"params": POINT}, {}),
    ("form", {"params": POINT}, {}),
    ("scales", {}, {"ridge": 0.1}),
    ("importance", {"params": POINT}, {}),
    ("fit", {"params": POINT}, {"steps": 3, "rate": 0.01}),
    ("fit", {"params": POINT}, {"epochs": 2, "batch": 4, "rate": 0.01, "ridge": 0.1, "seed": 3, "round": 2}),
    ("evaluate", {"params": POINT}, {}),
)


def _clients(make: Make) -> tuple[bool, str]:
    found = make(PROBLEM, DATA, ROWS)
    wanted = {name: len(own) for name, own in ROWS.items()}
    right = dict(found.counts) == wanted and set(found.clients) == set(wanted)
    return right, f"{dict(found.counts)}, wanted {wanted}"


def _sums(make: Make) -> tuple[bool, str]:
    """Bit for bit those of clients in this process, in whatever order clients were given."""
    orders = [ROWS, dict(reversed(list(ROWS.items())))]
    federations = [make(PROBLEM, DATA, rows) for rows in orders]
    wrong = []
    for kind, arrays, plan in QUESTIONS:
        wanted = _reference().ask(kind, arrays, plan).total()
        if not all(same(one.ask(kind, arrays, plan).total(), wanted) for one in federations):
            wrong.append(kind)
    return not wrong, f"other bits for {', '.join(wrong) or 'none'} of {len(QUESTIONS)} questions"


def _each(make: Make) -> tuple[bool, str]:
    """One answer per client, in the order in which they are added, with the bits of one in this process."""
    found, wrong = make(PROBLEM, DATA, ROWS), []
    for kind, arrays, plan in QUESTIONS:
        answers, wanted = list(found.ask(kind, arrays, plan).each()), _reference().ask(kind, arrays, plan).each()
        ordered = [one.client for one in answers] == order(dict.fromkeys(ROWS, 0))
        if not (ordered and all(map(same, answers, wanted))):
            wrong.append(kind)
    return not wrong, f"other answers or another order for {', '.join(wrong) or 'none'}"


def _offers(make: Make) -> tuple[bool, str]:
    found = make(PROBLEM, DATA, ROWS)
    lacking = [kind for kind, _, _ in QUESTIONS if not found.offers(kind)]
    surplus = found.offers("no such question")
    return not lacking and not surplus, f"does not offer {lacking}; offers what nobody knows: {surplus}"


def _cannot(make: Make) -> tuple[bool, str]:
    answers = make(PROBLEM, DATA, ROWS).ask("no such question", at_least=0)
    found = list(answers.each())
    reasons = {one.reason for one in answers.missing.values()}
    right = not found and set(answers.missing) == set(ROWS) and reasons == {"cannot"}
    return right, f"{len(found)} answers, missing for {reasons}, wanted all to be missing because they cannot"


def _unknown(make: Make) -> tuple[bool, str]:
    federation = make(PROBLEM, DATA, ROWS)
    answers = federation.ask("statistics", clients=("a", "nobody"), at_least=1)
    found, gone = answers.total(), answers.missing
    right = same(found, _reference().ask("statistics", clients=("a",)).total(), named=False)
    right &= set(gone) == {"nobody"} and gone["nobody"].reason == "gone"
    return right and _raises(federation, clients=("a", "nobody")), f"missing: {gone}, wanted nobody to be gone"


def _garbage(make: Make) -> tuple[bool, str]:
    """Numbers that are not finite are no answer, and a sum depends on who is present alone."""
    rows = np.array(DATA.embeddings)
    rows[ROWS["b"]] *= FAR
    far = EmbeddingSet(DATA.spec, rows, DATA.labels, DATA.ids, DATA.class_names)
    federation, point = make(PROBLEM, far, ROWS), {"params": np.full(PROBLEM.shape, FAR**1.5)}
    with np.errstate(all="ignore"):
        answers = federation.ask("gradient", point, at_least=3)
        found, gone = answers.total(), answers.missing
        rest = {name: own for name, own in ROWS.items() if name != "b"}
        wanted = InProcess.of(PROBLEM, far, rest).ask("gradient", point).total()
        refused = _raises(federation, kind="gradient", arrays=point) and _raises(
            federation, kind="gradient", arrays=point, at_least=4
        )
    right = same(found, wanted) and set(gone) == {"b"} and gone["b"].reason == "garbage"
    return right and refused, f"missing: {gone}, wanted b as garbage, and the sum of the others"


def _rows(make: Make) -> tuple[bool, str]:
    federation, some = make(PROBLEM, DATA, ROWS), frozenset([*DATA.ids[:3], *DATA.ids[80:], "no such sample"])
    for kind in ("only", "all-but"):
        chosen = Selection(kind, some)
        found, wanted = (one.ask("statistics", rows=chosen).total() for one in (federation, _reference()))
        count = 13 if kind == "only" else len(DATA) - 13
        if found.count != count or not same(found, wanted):
            return False, f"{found.count} rows for {kind} {len(some)} samples, wanted {count} with the same bits"
    return True, "only some rows, and all but these"


def _traffic(make: Make) -> tuple[bool, str]:
    federation, names = make(PROBLEM, DATA, ROWS), ("a", "b")
    wrong = []
    for kind, arrays, plan in QUESTIONS:
        before = federation.traffic
        up = sum(one.size for one in federation.ask(kind, arrays, plan, clients=names).each())
        now = federation.traffic
        least = 2 * Ask(kind, arrays, plan, problem=PROBLEM.digest).size
        down = now.down - before.down
        if now.up - before.up != up or not least <= down <= least + 2 * HEAD or now.rounds - before.rounds != 1:
            wrong.append(kind)
    return not wrong, f"bytes that are not the encoded length, or no round, for {', '.join(wrong) or 'none'}"


def same(one: Answer, other: Answer, *, named: bool = True) -> bool:
    """Whether two answers have the same bits."""
    return (
        (one.client == other.client or not named)
        and one.count == other.count
        and dict(one.values) == dict(other.values)
        and one.arrays.keys() == other.arrays.keys()
        and all(one.arrays[name].tobytes() == other.arrays[name].tobytes() for name in one.arrays)
    )


def _reference() -> InProcess:
    return InProcess.of(PROBLEM, DATA, ROWS)


def _raises(federation: Federation, kind: str = "statistics", **options: Any) -> bool:
    try:
        federation.ask(kind, **options).total()
    except MissingClientsError:
        return True
    return False


CHECKS: dict[str, Callable[[Make], tuple[bool, str]]] = {
    "clients": _clients,
    "offers": _offers,
    "sums": _sums,
    "each": _each,
    "cannot": _cannot,
    "unknown client": _unknown,
    "garbage": _garbage,
    "rows": _rows,
    "traffic": _traffic,
}
