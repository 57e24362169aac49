"""Every attack on a run by whoever owns its files, with the exit code that must come of it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from probekit import Cache, Run
from probekit.errors import InputError, NotFoundError
from probekit.linear.ridge import RidgeChoice
from probekit.runs import layout
from probekit.runs.layout import Cost, Erased, Unlearned
from probekit.runs.rows import TEST, TRAINING, fingerprint_of
from tests.runs.conftest import Story
from tests.runs.examples import make_run
from tests.runs.forging import Forgery, options_changed, swap

Copy = Callable[[str], Story]
Attack = Callable[[Forgery], Forgery]
KINDS = ("ridge", "auto", "logistic")
DATE = "2026-01-01T00:00:00+00:00"


def old(forgery: Forgery) -> Forgery:
    """The state before the request."""
    run = Run(forgery.folder, cache=forgery.cache)
    before = replace(run.newest, number=1)
    return replace(
        forgery, state=before.state, certificate=before.certificate, events=before.events
    )


def north(forgery: Forgery) -> np.ndarray:
    return forgery.rows.held_by(["north"])


def first(forgery: Forgery, client: str) -> int:
    """The number of a client's first training row."""
    rows = forgery.rows
    return int(np.flatnonzero(rows.held_by([client]) & (rows.roles == TRAINING))[0])


# Attacks on the state that stands.


def nothing_done_old_certificate(forgery: Forgery) -> Forgery:
    before = old(forgery)
    return replace(forgery, state=before.state, certificate=before.certificate)


def old_head_swapped_back(forgery: Forgery) -> Forgery:
    return forgery.with_params(old(forgery).state.params)


def old_head_true_certificate(forgery: Forgery) -> Forgery:
    return forgery.with_params(old(forgery).state.params).certified()


def one_sample_left(forgery: Forgery) -> Forgery:
    """In sums, head and certificate, which count it as another's."""
    numbers = np.flatnonzero(north(forgery))[:1]
    mask = ~north(forgery)
    mask[numbers] = True
    holders = forgery.rows.holders.copy()
    holders[numbers] = forgery.rows.clients.index("east")
    rows = replace(forgery.rows, holders=holders, leaves=forgery.rows.leaves)
    order = np.lexsort((np.arange(len(rows)), rows.holders, rows.roles))
    forged = forgery.trained(rows.take(order[mask[order]]))
    return replace(forged, state=replace(forged.state, clients=forgery.state.clients)).claiming(
        rows=sum(forgery.state.clients.values())
    )


def one_sample_left_in_kept_sums(forgery: Forgery) -> Forgery:
    return replace(forgery, state=replace(forgery.state, kept=one_sample_left(forgery).state.kept))


def another_ridge(forgery: Forgery) -> Forgery:
    forged = forgery.trained(ridge=forgery.state.ridge * 3)
    choice = replace(forgery.state.ridge_choice, value=forgery.state.ridge * 3)
    return replace(forged, state=replace(forged.state, ridge_choice=choice))


def ridge_by_hand(forgery: Forgery) -> Forgery:
    return forgery.trained(ridge=forgery.state.ridge * 3)


def ridge_not_chosen_again(forgery: Forgery) -> Forgery:
    ridge = old(forgery).state.ridge
    assert ridge != forgery.state.ridge
    forged = forgery.trained(ridge=ridge)
    choice = replace(forgery.state.ridge_choice, value=ridge)
    return replace(forged, state=replace(forged.state, ridge_choice=choice))


def claims_nearer(forgery: Forgery) -> Forgery:
    params = forgery.state.params.copy()
    params[0, 0] += 0.01
    return forgery.with_params(params)


def head_columns_exchanged(forgery: Forgery) -> Forgery:
    return forgery.with_params(np.ascontiguousarray(forgery.state.params[:, [1, 0, 2]]))


def kept_exchanged(forgery: Forgery) -> Forgery:
    kept = forgery.state.kept[0]
    parts = dict(kept.parts)
    parts["east"], parts["west"] = parts["west"], parts["east"]
    return replace(forgery, state=replace(forgery.state, kept=(replace(kept, parts=parts),)))


def row_counted_twice(forgery: Forgery) -> Forgery:
    clients = {**forgery.state.clients, "east": forgery.state.clients["east"] + 1}
    forged = replace(forgery, state=replace(forgery.state, clients=clients))
    return forged.claiming(rows=sum(clients.values()))


def more_rows_certified(forgery: Forgery) -> Forgery:
    return forgery.claiming(test_rows=41, certified_rows=41)


def certificate_of_another_state(forgery: Forgery) -> Forgery:
    return replace(forgery, certificate=old(forgery).certificate)


def stale_ridge_denied(forgery: Forgery) -> Forgery:
    return replace(
        forgery,
        state=replace(
            forgery.state, ridge_choice=replace(forgery.state.ridge_choice, stale=True)
        ),
    )


# Attacks on rows and history.


def rows_moved(forgery: Forgery) -> Forgery:
    """A row of north's is now east's, and was never asked for."""
    return exchanged(forgery, first(forgery, "north"), first(forgery, "east"))


def exchanged(forgery: Forgery, *pair: int) -> Forgery:
    """Two rows under each other's client and role."""
    names = ("ids", "labels", "salts", "leaves")
    columns = {name: swap(getattr(forgery.rows, name), *pair) for name in names}
    return forgery.with_rows(**columns)


def forgotten_row_under_a_retained_id(forgery: Forgery) -> Forgery:
    pair = (first(forgery, "north"), first(forgery, "east"))
    return forgery.with_rows(ids=swap(forgery.rows.ids, *pair))


def names_exchanged(forgery: Forgery) -> Forgery:
    """North's rows are west's and the other way round."""
    names = list(forgery.rows.clients)
    numbers = np.arange(len(names))
    pair = [names.index("north"), names.index("west")]
    numbers[pair] = pair[::-1]
    holders = numbers[forgery.rows.holders]
    return forgery.in_order(np.lexsort((holders, forgery.rows.roles)), holders=holders)


def labels_changed(forgery: Forgery) -> Forgery:
    labels = forgery.rows.labels
    assert labels is not None
    changed = labels.copy()
    changed[first(forgery, "east")] = (changed[first(forgery, "east")] + 1) % 3
    return forgery.with_rows(labels=changed)


def trained_on_a_test_row(forgery: Forgery) -> Forgery:
    test = int(np.flatnonzero(forgery.rows.roles == TEST)[0])
    return exchanged(forgery, test, first(forgery, "east"))


def salts_exchanged(forgery: Forgery) -> Forgery:
    pair = (first(forgery, "south"), first(forgery, "east"))
    return forgery.with_rows(salts=swap(forgery.rows.salts, *pair))


def leaf_opened_twice(forgery: Forgery) -> Forgery:
    """A row of east's counts twice, and its leaf is there twice."""
    rows = forgery.rows
    row = first(forgery, "east")
    place = rows.leaves[row]
    leaves = rows.leaves + (rows.leaves > place)
    order = np.insert(np.arange(len(rows)), row, row)
    places = leaves[order]
    places[row] = place + 1
    doubled = replace(forgery, leaves=np.insert(forgery.leaves, place, forgery.leaves[place], 0))
    fingerprint = fingerprint_of(forgery.description.dump(), doubled.leaves)
    doubled = doubled.in_order(order, places=places).with_event(0, fingerprint=fingerprint)
    return doubled.trained()


def line_deleted(forgery: Forgery) -> Forgery:
    return replace(forgery, events=forgery.events[:1])


def line_invented(forgery: Forgery) -> Forgery:
    event = Unlearned(DATE, ("west",), (), 40, "exact", Cost())
    return replace(forgery, events=(*forgery.events, event), number=3)


def void_line(forgery: Forgery) -> Forgery:
    event = Unlearned(DATE, (), (), 0, "exact", Cost())
    return replace(forgery, events=(*forgery.events, event), number=3)


def void_erasure(forgery: Forgery) -> Forgery:
    return replace(forgery, events=(*forgery.events, Erased(DATE, 0, "0")), number=3)


def erasure_claimed(forgery: Forgery) -> Forgery:
    """All of north's leaves are closed now, and the head is the old one."""
    before = old(forgery)
    forged = replace(before, number=3).without_rows(north(forgery))
    event = Unlearned(DATE, (), (), 0, "exact", Cost())
    erased = Erased(DATE, int(north(forgery).sum()), "0")
    state = replace(before.state, clients=forgery.state.clients, kept=forgery.state.kept)
    return replace(forged, events=(*before.events, event, erased), state=state)


def dates_changed(forgery: Forgery) -> Forgery:
    return forgery.with_event(0, date=DATE).with_event(1, date=DATE)


def rolled_back(forgery: Forgery) -> Forgery:
    before = old(forgery)
    shutil.rmtree(layout.state_folder(forgery.folder, 2))
    return replace(before, number=1)


def another_client_forgotten(forgery: Forgery) -> Forgery:
    rows = int(forgery.rows.held_by(["west"]).sum())
    return forgery.with_event(1, clients=("west",), rows=rows).trained()


def one_row_more_forgotten(forgery: Forgery) -> Forgery:
    sample = forgery.rows.ids[first(forgery, "east")].tobytes().hex()
    event = Unlearned(DATE, (), (sample,), 1, "exact", Cost())
    return replace(forgery, events=(*forgery.events, event), number=3).trained()


ATTACKS: list[tuple[Attack, tuple[int, int, int]]] = [
    (lambda forgery: forgery, (0, 0, 0)),
    (nothing_done_old_certificate, (6, 6, 6)),
    (old_head_swapped_back, (6, 6, 6)),
    (old_head_true_certificate, (7, 7, 7)),
    (one_sample_left, (6, 6, 6)),
    (another_ridge, (6, 6, 6)),
    (claims_nearer, (6, 6, 6)),
    (head_columns_exchanged, (6, 6, 6)),
    (row_counted_twice, (6, 6, 6)),
    (more_rows_certified, (6, 6, 6)),
    (certificate_of_another_state, (6, 6, 6)),
    (rows_moved, (6, 6, 6)),
    (forgotten_row_under_a_retained_id, (6, 6, 6)),
    (names_exchanged, (6, 6, 6)),
    (labels_changed, (6, 6, 6)),
    (trained_on_a_test_row, (6, 6, 6)),
    (salts_exchanged, (6, 6, 6)),
    (line_deleted, (6, 6, 6)),
    (line_invented, (6, 6, 6)),
    (void_line, (6, 6, 6)),
    (void_erasure, (6, 6, 6)),
    (erasure_claimed, (6, 6, 6)),
    (dates_changed, (0, 0, 0)),
    (rolled_back, (6, 0, 6)),
    (another_client_forgotten, (6, 0, 6)),
    (one_row_more_forgotten, (6, 0, 6)),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("attack", "codes"), ATTACKS, ids=lambda value: getattr(value, "__name__", ""))
def test_attacks(story: Copy, kind: str, attack: Attack, codes: tuple[int, int, int]) -> None:
    told = story(kind)
    attack(told.forgery()).write()
    assert told.codes() == codes


SUMS: list[tuple[str, Attack, int]] = [
    ("ridge", one_sample_left_in_kept_sums, 6),
    ("auto", one_sample_left_in_kept_sums, 6),
    ("ridge", kept_exchanged, 6),
    ("auto", ridge_not_chosen_again, 6),
    ("auto", ridge_by_hand, 6),
    ("ridge", ridge_by_hand, 6),
    ("ridge", stale_ridge_denied, 6),
    ("ridge", leaf_opened_twice, 6),
]


@pytest.mark.parametrize(("kind", "attack", "code"), SUMS)
def test_attacks_on_some_runs(story: Copy, kind: str, attack: Attack, code: int) -> None:
    told = story(kind)
    forged = attack(told.forgery())
    forged.write()
    assert told.codes() == (code, code, code)
