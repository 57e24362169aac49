"""What every unlearning method takes and gives, from what it declares and from what a small run was seen to use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np

from probekit.errors import ProbekitError
from probekit.federated.trained import Kept
from probekit.registry import methods
from probekit.testing.planted_runs import USUAL, PlantedRun, paired
from probekit.unlearning.choice import carried_out
from probekit.unlearning.method import choices_of, method, missing, needs_in_words
from probekit.values import Json

YES, NO, UNLESS = "yes", "no", "unless kept"
CLIENTS = {"online", "retained"}
ANSWERED = ("gradient", "form", "product", "statistics", "scales")
"""What kept statistics or gradients may answer in the clients' place."""
NO_MODELS = {"statistics", "gradients", "objective", "pairs", "removal-budget"}
"""Kept things that are no models of earlier rounds or of clients."""
COLUMNS = ("communication", "target", "retained", "history", "certificate")

PAPER: Mapping[str, tuple[str, str, str, str, str]] = {
    "retrain": (YES, NO, YES, NO, "n/a"),
    "cf": (YES, YES, YES, NO, NO),
    "flipping": (YES, YES, NO, NO, NO),
    "sga": (YES, YES, NO, NO, NO),
    "ew-sga": (YES, YES, NO, NO, NO),
    "pga": (YES, YES, YES, NO, NO),
    "knot": (YES, NO, YES, YES, NO),
    "federaser": (YES, NO, YES, YES, NO),
    "fedrecover": (YES, NO, YES, YES, YES),
    "fused": (YES, NO, YES, NO, NO),
    "fedrecovery": (NO, NO, NO, YES, NO),
    "ferrari": (YES, YES, NO, YES, YES),
    "fedremoval": (NO, NO, NO, NO, YES),
}
"""The paper's table of methods (F2L2), by our names (PGD: pga, Starfish: fedrecover): what is needed, what given."""

WRONG: Mapping[tuple[str, str], str] = {
    ("cf", "target"): "continued training asks the retained clients only; the paper's own text says so",
    ("flipping", "retained"): "the reference implementation trains with the retained clients in the same rounds",
    ("fedrecovery", "certificate"): "its noise gives an (epsilon, delta) statement",
    ("ferrari", "history"): "it stores nothing but the model",
    ("ferrari", "certificate"): "a bound on sensitivity says nothing about removal",
    ("fedremoval", "communication"): "its theorem needs gradients at the aggregate: a round, unless they were kept",
    ("fedremoval", "retained"): "the same round asks the retained clients",
}
"""Where the paper's table is wrong, and why."""
OURS: Mapping[tuple[str, str], str] = {
    ("ew-sga", "retained"): "it protects what matters to them; fisher=target, as in a public code, asks nobody else",
    ("fedrecover", "certificate"): "Starfish's bound belongs to its two-server protocol, which is not here",
}
"""Where ours is another method than the paper's, and why."""


@dataclass(frozen=True)
class Seen:
    """What one removal of a client used: who was asked, how often, and the bytes that passed."""

    run: str
    target: bool
    retained: bool
    rounds: int
    up: int
    down: int


@dataclass(frozen=True)
class MethodFacts:
    """What a method takes and gives; `differs` says where the paper's table says otherwise, and why."""

    name: str
    what: str = ""
    source: str = ""
    needs: tuple[str, ...] = ()
    communication: str = ""
    target: str = ""
    retained: str = ""
    history: str = ""
    certificate: str = ""
    options: Mapping[str, Json] = field(default_factory=dict)
    settings: int = 0
    differs: Mapping[str, str] = field(default_factory=dict)
    seen: Seen | None = None
    error: str = ""

    @property
    def plain(self) -> dict[str, Json]:
        """For JSON."""
        return {
            **asdict(self),
            "paper": dict(zip(COLUMNS, PAPER[self.name], strict=True)) if self.name in PAPER else None,
        }


def method_table(*, seen: bool = False) -> tuple[MethodFacts, ...]:
    """Every registered method; with `seen`, each forgets a client of a small run and is watched."""
    runs = [_with_pairs(make()) for make in (*USUAL[::-1], *paired(network=False))] if seen else []
    return tuple(_facts(name, runs) for name in methods.names())


def _facts(name: str, runs: list[PlantedRun]) -> MethodFacts:
    try:
        found = method(name)
    except ProbekitError as error:  # a plugin that cannot be imported
        return MethodFacts(name, error=str(error))
    values = declared(found)
    said = dict(zip(COLUMNS, PAPER.get(name, ("",) * len(COLUMNS)), strict=True))
    differs = {one: _why(name, one) for one in COLUMNS if name in PAPER and not _agree(said[one], values[one])}
    return MethodFacts(
        name,
        " ".join((type(found).__doc__ or "").split()).partition(". ")[0],
        getattr(found, "source", ""),
        needs_in_words(found),
        **values,
        options={one.name: getattr(found, one.name) for one in fields(found)} if is_dataclass(found) else {},
        settings=int(np.prod([len(one) for one in getattr(found, "tunable", {}).values()], dtype=int)),
        differs=differs,
        seen=next(filter(None, (_seen(found, run) for run in runs)), None),
    )


def declared(unlearner: Any) -> dict[str, str]:
    """The five columns, by what a method says of itself."""
    needs = [[tuple(one[:2]) for one in choices_of(need)] for need in unlearner.needs]
    clients = [need for need in needs if all(party in CLIENTS for party, _ in need)]
    sure = [need for need in clients if not any(party == "retained" and what in ANSWERED for party, what in need)]
    retained = YES if sure else UNLESS if clients else NO
    target = YES if any(all(party == "target" for party, _ in need) for need in needs) else NO
    stored = {need[0][1] for need in needs if all(party == "kept" for party, _ in need)} - NO_MODELS
    communication = YES if YES in (retained, target) else retained
    kind = dict(zip(COLUMNS, (communication, target, retained, YES if stored else NO), strict=False))
    return {**kind, "certificate": _certificate(unlearner, needs)}


def _certificate(unlearner: Any, needs: list[list[tuple[Any, ...]]]) -> str:
    traits = unlearner.traits
    if "minimum" in traits:
        return "exact"
    if "epsilon_delta" in traits:
        return "(epsilon, delta)"
    return "distance" if [("problem", "quadratic")] in needs else NO


def _agree(paper: str, here: str) -> bool:
    """Whether the paper says the same; any kind of certificate is one."""
    return paper == "n/a" or (paper == YES) == (here != NO)


def _why(name: str, column: str) -> str:
    if (name, column) in WRONG:
        return f"the paper's table is wrong: {WRONG[name, column]}"
    return f"differs from the paper's: {OURS.get((name, column), 'not explained')}"


def _with_pairs(run: PlantedRun) -> PlantedRun:
    """The run with pairs of rows, with and without a feature."""
    rows = run.embeddings.to_numpy()[:8]
    pairs = Kept({"with": rows + np.eye(rows.shape[1])[0], "without": rows})
    return replace(run, trained=replace(run.trained, kept={**run.trained.kept, "pairs": pairs}))


def _seen(unlearner: Any, run: PlantedRun) -> Seen | None:
    """What a method was seen to ask in a run; None: the run has not what it needs."""
    removal = run.removal()
    if missing(unlearner, removal):
        return None
    cost = carried_out(removal, unlearner).cost
    asked = {party for party, _ in removal.asked}
    return Seen(run.name, "target" in asked, "online" in asked, cost.rounds, cost.up, cost.down)


def disagreements(table: tuple[MethodFacts, ...]) -> Iterator[str]:
    """Where what was seen contradicts what was declared: nobody is asked who was not named."""
    for one in table:
        if one.seen is not None:
            if one.seen.target and one.target == NO:
                yield f"{one.name} asked the target"
            if one.seen.retained and one.retained == NO:
                yield f"{one.name} asked retained clients"


def as_markdown(table: tuple[MethodFacts, ...]) -> str:
    """The table, its notes, and a paragraph for each method, as docs/methods.md has them."""
    lines = [f"| method | {' | '.join(COLUMNS)} | source |", "|---" * (len(COLUMNS) + 2) + "|"]
    for one in table:
        cells = [getattr(one, name) + "\\*" * (name in one.differs) for name in COLUMNS]
        lines.append(f"| `{one.name}` | {' | '.join(cells)} | {one.source or 'here'} |")
    notes = [f"- `{one.name}`, {name}: {why}." for one in table for name, why in one.differs.items()]
    each = []
    for one in table:
        set_here = {key: value for key, value in one.options.items() if value not in (None, "")}
        needs, options = ", ".join(one.needs) or "nothing", " ".join(f"{key}={set_here[key]}" for key in set_here)
        each.append(f"- **`{one.name}`**: {one.what.rstrip('.')}. *Needs* {needs}. *Defaults* {options or 'none'}.")
    return "\n".join([*lines, "", *notes, "", *each])
