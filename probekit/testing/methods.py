"""What an unlearning method must do: forget, ask only for what it declares, and leave the run before as it was."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from probekit.federated.trained import Trained
from probekit.testing.check import KitCheck, checked
from probekit.testing.planted_runs import KEPT, NETWORKS, USUAL, PlantedRun, WatchedRemoval, paired
from probekit.unlearning.choice import carried_out
from probekit.unlearning.method import Unlearned, method, missing

LEAST_MOVE = 1e-6
"""A head that exact removal moves further than this has to move."""


def check_method(unlearner: Any, *, network: bool = True) -> list[KitCheck]:
    """What was checked of an unlearning method, on every planted run that has what it needs.

    unlearner: the method, or its name with its options.
    network: whether to check on a small network too, which takes torch.
    """
    if isinstance(unlearner, str):
        unlearner = method(unlearner)
    declared = checked("declaration", lambda: _declaration(unlearner))
    if not declared.passed:
        return [declared]
    found = [declared]
    lacking = {}
    pairs = paired({what for party, what in _declared(unlearner) if party == "kept"}, network=network)
    for make in (*USUAL, *(NETWORKS if network else ()), *pairs):
        run = make()
        why = missing(unlearner, run.removal())
        if why:
            lacking[run.name] = why
        else:
            found += _checks(unlearner, run)
    return [*found, KitCheck("applies", len(found) > 1, f"nothing for it in {lacking}" if lacking else "to every run")]


def _declaration(unlearner: Any) -> tuple[bool, str]:
    lacking = [name for name in ("name", "needs", "keeps", "traits", "unlearn") if not hasattr(unlearner, name)]
    if lacking:
        return False, f"it has no {', '.join(lacking)}"
    odd = [pair for pair in _declared(unlearner) if len(pair) != 2 or not all(isinstance(one, str) for one in pair)]
    return not odd, f"needs that are no pairs of party and what: {odd}"


def _checks(unlearner: Any, run: PlantedRun) -> Iterator[KitCheck]:
    removal, before = run.removal(), _fingerprint(run.trained)
    try:
        done: Unlearned = carried_out(removal, unlearner)
        after = np.asarray(done.trained_after.params)
    except Exception as error:
        yield KitCheck(f"{run.name}: runs", False, f"{type(error).__name__}: {error}")
        return
    moves: dict[str, Callable[[], tuple[bool, str]]] = {
        "finite": lambda: (bool(np.isfinite(after).all()), f"{int((~np.isfinite(after)).sum())} bad parameters"),
        "shape": lambda: (after.shape == run.trained.params.shape, f"{after.shape}, was {run.trained.params.shape}"),
        "moves": lambda: _moves(run, after),
        "declared questions": lambda: _asked(unlearner, removal),
        "declared material": lambda: _enough(unlearner, run),
        "before": lambda: (_fingerprint(run.trained) == before, "the run before must stay as it was"),
        "forgotten": lambda: _forgotten(run, done.trained_after),
        "again": lambda: _again(unlearner, run, after),
    }
    for name, check in moves.items():
        yield checked(f"{run.name}: {name}", check)


def _moves(run: PlantedRun, after: Any) -> tuple[bool, str]:
    """Not the old head, where exact removal, or training anew where there is none, gives another."""
    known = method("retrain" if {"quadratic", "trainer"} & run.trained.problem.traits else "retrain-fedavg")
    wanted = known.unlearn(run.removal()).trained_after.params - run.trained.params
    exact, own = float(np.linalg.norm(wanted)), float(np.linalg.norm(after - run.trained.params))
    return exact <= LEAST_MOVE or own > LEAST_MOVE, f"by {own:.2e}, exact removal by {exact:.2e}"


def _asked(unlearner: Any, removal: WatchedRemoval) -> tuple[bool, str]:
    """Clients were asked nothing that was not declared; what is declared of retained ones may be asked online."""
    declared = set(_declared(unlearner))
    declared |= {("online", what) for party, what in declared if party == "retained"}
    surplus = sorted(set(removal.asked) - declared)
    return not surplus, f"asked without being declared: {surplus}"


def _enough(unlearner: Any, run: PlantedRun) -> tuple[bool, str]:
    """It runs with the kept things that it declares alone."""
    kept = {what for party, what in _declared(unlearner) if party == "kept"}
    bare: dict[str, Any] = {name: None for name in KEPT if name not in kept}
    others = {name: one for name, one in run.trained.kept.items() if name in kept}
    carried_out(run.removal(replace(run.trained, kept=others, **bare)), unlearner)
    return True, f"of what was kept: {', '.join(sorted(kept)) or 'nothing'}"


def _forgotten(run: PlantedRun, after: Trained) -> tuple[bool, str]:
    """Nothing that was kept knows the client that left."""
    gradients = after.gradients
    known: dict[str, Any] = {
        "counts": after.counts,
        "weights": after.weights,
        "statistics": after.statistics or (),
        "gradients": () if gradients is None else {*gradients.aggregate, *gradients.local},
        "history": () if after.history is None else after.history.about,
        **{name: {*one.about, *one.parts} for name, one in after.kept.items()},
    }
    knowing = [name for name, clients in known.items() if run.leaver in clients]
    return not knowing, f"still in {', '.join(knowing) or 'nothing'}"


def _again(unlearner: Any, run: PlantedRun, after: Any) -> tuple[bool, str]:
    """The same once more, bit for bit."""
    found = carried_out(run.removal(), unlearner).trained_after.params
    return found.tobytes() == after.tobytes(), f"largest change {np.abs(found - after).max(initial=0.0):.2e}, wanted 0"


def _declared(unlearner: Any) -> list[tuple[str, str]]:
    """All pairs of party and what, those to choose from included."""
    needs = [one for need in unlearner.needs for one in (need if isinstance(need[0], tuple) else (need,))]
    return [tuple(one[:2]) for one in needs]


def _fingerprint(trained: Trained) -> str:
    """The sha256 of all numbers of a run."""
    hasher = hashlib.sha256()
    for part in _parts(replace(trained, problem=None)):
        hasher.update(part)
    return hasher.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, np.ndarray):
        yield value.tobytes()
    elif isinstance(value, Mapping):
        for name in value:
            yield str(name).encode()
            yield from _parts(value[name])
    elif is_dataclass(value):
        for one in fields(value):
            yield from _parts(getattr(value, one.name))
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _parts(one)
    else:
        yield repr(value).encode()
