"""Every attack on a run by whoever owns its files, with the exit code that must come of it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit import Cache, Run
from probekit.arrays import id_keys
from probekit.cache.tensors import write_tensors
from probekit.errors import InputError, NotFoundError
from probekit.runs import layout
from probekit.runs.layout import Cost, Erased, Unlearned
from probekit.runs.rows import TEST, TRAINING, fingerprint_of, leaves_of
from probekit.runs.verify import verify_run
from tests.runs.conftest import Story
from tests.runs.examples import embeddings, make_run
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
    order = np.lexsort((rows.holders, rows.roles))
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


def ridge_called_stale(forgery: Forgery) -> Forgery:
    """So that nobody asks how it was chosen."""
    choice = replace(forgery.state.ridge_choice, stale=True)
    forged = replace(forgery, state=replace(forgery.state, ridge_choice=choice))
    return forged.claiming(stale_ridge=True)


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


def untouched(forgery: Forgery) -> Forgery:
    return forgery


HEADS: list[tuple[Attack, tuple[int, int, int]]] = [
    (untouched, (0, 0, 0)),
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
]
ROWS: list[tuple[Attack, tuple[int, int, int]]] = [
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


def anew(attack: Attack) -> Attack:
    """The attack with everything committed, trained and certified anew."""

    def committed(forgery: Forgery) -> Forgery:
        forged = attack(forgery).anew()
        rows = int(layout.forgotten(forged.rows, forged.events).sum())
        return forged.with_event(1, rows=rows).trained()

    committed.__name__ = f"anew_{attack.__name__}"
    return committed


def other_options(**options: Any) -> Attack:
    def change(forgery: Forgery) -> Forgery:
        return options_changed(forgery, **options)

    change.__name__ = f"other_{next(iter(options))}"
    return change


def encoding_renamed(forgery: Forgery) -> Forgery:
    encoding = {**forgery.description.encoding, "backbone": "another"}
    return replace(forgery, description=replace(forgery.description, encoding=encoding))


COMMITTED = [
    rows_moved,
    names_exchanged,
    labels_changed,
    trained_on_a_test_row,
    salts_exchanged,
    encoding_renamed,
    other_options(ridge=0.5),
    other_options(head="logistic", C=2.0, ridge="auto"),
    other_options(tolerance=1.0),
]
"""Only who noted the fingerprint sees that all is another run's."""
ATTACKS = [
    *((kind, *row) for row in HEADS for kind in KINDS),
    *(("ridge", *row) for row in ROWS),
    *(("ridge", anew(attack), (6, 6, 0)) for attack in COMMITTED),
    ("ridge", one_sample_left_in_kept_sums, (6, 6, 6)),
    ("auto", one_sample_left_in_kept_sums, (6, 6, 6)),
    ("ridge", kept_exchanged, (6, 6, 6)),
    ("ridge", ridge_by_hand, (6, 6, 6)),
    ("auto", ridge_by_hand, (6, 6, 6)),
    ("auto", ridge_not_chosen_again, (6, 6, 6)),
    ("auto", ridge_called_stale, (7, 7, 7)),
    ("ridge", leaf_opened_twice, (6, 6, 6)),
]


@pytest.mark.parametrize(
    ("kind", "attack", "codes"), ATTACKS, ids=lambda value: getattr(value, "__name__", None)
)
def test_attacks(story: Copy, kind: str, attack: Attack, codes: tuple[int, int, int]) -> None:
    known = story(kind)
    attack(known.forgery()).write()
    assert known.codes() == codes


def test_a_run_whose_head_names_other_classes(story: Copy) -> None:
    known = story("ridge")
    head = known.run().head
    shutil.rmtree(known.folder / "states/0002/head")
    replace(head, names=("dog", "cat", "owl")).save(known.folder / "states/0002/head")
    assert known.codes() == (6, 6, 6)


def test_a_state_of_another_run(story: Copy, tmp_path: Path) -> None:
    known = story("ridge")
    other = make_run(known.root / "runs/b", embeddings(seed=5), cache=known.cache, ridge=0.1)
    other.unlearn(client="north")
    for name in ("states/0002", "states/0002/head"):
        for path in (other.folder / name).iterdir():
            if path.is_file():
                shutil.copy(path, known.folder / name / path.name)
    assert known.codes() == (6, 6, 6)


def test_the_fingerprint_of_a_state_sees_more(story: Copy) -> None:
    known = story("ridge")
    noted = known.run().state_fingerprint
    state = replace(known, fingerprint=noted)
    assert state.codes() == (0, 0, 0)
    forged = one_row_more_forgotten(known.forgery())
    forged.write()
    assert state.codes() == (6, 6, 6)
    shutil.rmtree(layout.state_folder(known.folder, 3))
    assert state.codes() == (0, 0, 0)
    rolled_back(known.forgery()).write()
    assert state.codes() == (6, 6, 6)


def test_a_request_nobody_could_have_made(story: Copy) -> None:
    known = replace(story("ridge"), request=("client=north", "client=nroth"))
    assert known.codes() == (6, 0, 6)


def test_a_sample_is_asked_for_by_its_first_digits(story: Copy) -> None:
    known = story("ridge")
    asked = [f"sample={row.tobytes().hex()[:12]}" for row in known.run().newest.all_rows.ids]
    forgotten = known.run().newest.forgotten
    samples = [text for text, gone in zip(asked, forgotten, strict=True) if gone]
    assert known.verify(forgot=samples).exit_code == 0
    assert known.verify(forgot=samples[1:]).exit_code == 6
    assert known.verify(forgot=[*samples, asked[0]]).exit_code == 6


def test_leaves_that_stay_closed_at_training_are_seen(story: Copy) -> None:
    """Whoever notes a fingerprint blind can be shown a copy of the forgotten rows later."""
    known = story("ridge")
    forgery = old(known.forgery())
    copies = forgery.rows.take(forgery.rows.held_by(["north"]))
    entry = forgery.cache.entry(forgery.description.read_encoding())
    names = list(forgery.rows.clients)
    planted = replace(copies, clients=("east",), salts=copies.salts + np.uint8(1))
    extra = leaves_of(planted, entry.rows(planted.ids, forgery.description.width))
    leaves = np.concatenate([forgery.leaves, extra])
    order = np.argsort(id_keys(leaves))
    places = np.empty(len(leaves), np.int64)
    places[order] = np.arange(len(leaves))
    forged = replace(forgery, leaves=leaves[order], number=1).with_rows(
        leaves=places[forgery.rows.leaves]
    )
    blind = fingerprint_of(forgery.description.dump(), forged.leaves)
    shutil.rmtree(layout.state_folder(known.folder, 2))
    forged = forged.with_event(0, fingerprint=blind)
    forged.write()
    assert known.verify(fingerprint=blind, asked=False).exit_code == 6
    later = [
        names.index("east") if names[holder] == "north" else int(holder)
        for holder in forgery.rows.holders
    ]
    is_north = forgery.rows.held_by(["north"])
    salts = forged.rows.salts + is_north[:, None].astype(np.uint8)
    opened = forged.rows.leaves.copy()
    opened[is_north] = places[len(forgery.leaves) :]
    order = np.lexsort((later, forged.rows.roles))
    taken = forged.with_rows(salts=salts).in_order(
        order, holders=np.array(later), places=opened[order]
    )
    event = Unlearned(DATE, (), (), 0, "exact", Cost())
    erased = Erased(DATE, int(is_north.sum()), "0")
    done = replace(taken, events=(*forged.events, event, erased), number=3)
    done = replace(done, rows=done.rows.take(np.arange(len(done.rows)))).trained()
    done.write()
    assert known.verify(fingerprint=blind).exit_code == 0


FILES = (
    "run.json",
    "commitment.safetensors",
    "partition.safetensors",
    "states/0002/head/config.json",
    "states/0002/head/model.safetensors",
    "states/0002/kept.safetensors",
    "states/0002/certificate.json",
    "states/0002/history.jsonl",
)


def as_fifo(path: Path) -> None:
    os.mkfifo(path)


def as_link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def as_folder(path: Path) -> None:
    path.mkdir()


def as_oversized(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate((1 << 36) + 1)


def as_nothing(path: Path) -> None:
    pass


@pytest.mark.parametrize("damage", [as_fifo, as_link, as_folder, as_oversized, as_nothing])
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_file_of_a_run(story: Copy, name: str, damage: Callable[[Path], None]) -> None:
    known = story("ridge")
    path = known.folder / name
    path.unlink()
    damage(path)
    assert known.verify().exit_code == 6


def test_states_that_are_no_folder(story: Copy) -> None:
    known = story("ridge")
    shutil.rmtree(known.folder / "states")
    (known.folder / "states").write_text("")
    assert known.verify().exit_code == 6


def test_rows_that_are_gone_are_not_shown(story: Copy) -> None:
    known = story("ridge")
    shutil.rmtree(known.cache / "encodings")
    assert known.codes() == (7, 7, 7)


def test_rows_that_were_changed_are_false(story: Copy) -> None:
    """The cache is the owner's too."""
    known = story("ridge")
    (entry,) = Cache(known.cache).entries()
    shard = entry.shards()[0]
    content = shard.path.read_bytes()
    row = shard.rows()[0].tobytes()
    shard.path.write_bytes(content.replace(row, np.zeros_like(shard.rows()[0]).tobytes()))
    assert known.verify().exit_code == 6


def test_one_sample_with_two_embeddings_is_false(story: Copy) -> None:
    """Leaves are opened and heads are checked by the same bytes: those that are found first."""
    known = story("ridge")
    forgery = known.forgery()
    (entry,) = forgery.cache.entries()
    retained = forgery.retained
    matrix = np.array(entry.rows(retained.ids, forgery.description.width))
    honest = min(path.stem for path in entry.paths("shards"))
    while True:  # files are read in the order of their names
        matrix[first(forgery, "east")] += 5
        tensors = {"rows": matrix, "ids": retained.ids}
        forged = write_tensors(entry.folder / "shards", tensors, {"encoding": entry.digest})
        if forged < honest:
            break
        (entry.folder / "shards" / f"{forged}.safetensors").unlink()
    forgery.trained().write()
    assert known.codes() == (6, 6, 6)


def test_a_stray_file_is_noted(story: Copy) -> None:
    known = story("ridge")
    (known.folder / "states/0002/notes.txt").write_text("north")
    (known.folder / "more").mkdir()
    found = known.verify()
    assert found.exit_code == 0
    assert sum("notes.txt" in note and "more" in note for note in found.notes) == 1


def test_what_is_within_a_distance_of_the_readers(story: Copy) -> None:
    known = story("ridge")
    old_head_true_certificate(known.forgery()).write()
    distance = known.verify().distance
    assert known.verify(within=distance / 2).exit_code == 7
    assert known.verify(within=distance).exit_code == 0


def test_results_say_what_they_are_about(story: Copy) -> None:
    known = story("logistic")
    run = known.run()
    found = run.verify(fingerprint=run.fingerprint, forgot="client=north")
    document = json.loads(json.dumps(found.to_dict()))
    assert found.ok
    assert document["fingerprint"] == run.fingerprint
    assert document["state_fingerprint"] == run.state_fingerprint
    assert document["head"] == run.head.digest
    assert run.certificate is not None
    assert 0 < document["distance"] <= run.certificate.distance
    assert {finding["verdict"] for finding in document["findings"]} == {"true"}


@pytest.mark.parametrize(
    "arguments",
    [
        {"fingerprint": "abc"},
        {"forgot": "north"},
        {"forgot": "client="},
        {"forgot": "sample=xyz"},
        {"within": -1.0},
        {"within": float("nan")},
    ],
)
def test_impossible_arguments_are_refused(story: Copy, arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        story("ridge").verify(noted=False, asked=False, **arguments)


def test_a_folder_that_is_no_run_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        verify_run(tmp_path)
