"""The rows of a run: columns that fit, leaves that their salts open, fingerprints."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from probekit.arrays import TEXT, hex_id
from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError
from probekit.records import dump, parse
from probekit.runs.rows import (
    SERVER,
    TEST,
    TRAINING,
    RunRows,
    commit,
    fingerprint_of,
    leaves_of,
    state_fingerprint,
)
from tests.runs.examples import CLASSES, HOSPITALS, embeddings


def hospital_rows(count: int = 30) -> tuple[RunRows, EmbeddingSet]:
    """Rows whose last ten are test rows, and the embeddings that they are made of."""
    source = embeddings(count)
    owners = source.columns["hospital"].astype(TEXT)
    owners[-10:] = ""
    roles = np.full(count, TRAINING, np.uint8)
    roles[-10:] = TEST
    roles[:2] = SERVER
    return RunRows.of(source, clients=owners, roles=roles), source


def in_order(rows: RunRows, source: EmbeddingSet) -> np.ndarray:
    """The embeddings of the rows, found by their ids."""
    places = {hex_id(row): number for number, row in enumerate(source.ids)}
    return np.array([source.rows[places[hex_id(row)]] for row in rows.ids])


def test_rows_stand_by_role_then_client_then_as_in_the_data() -> None:
    rows, source = hospital_rows()
    assert rows.clients == ("", *HOSPITALS)
    assert rows.roles.tolist() == [TRAINING] * 18 + [TEST] * 10 + [SERVER] * 2
    expected = [
        hex_id(source.ids[number])
        for hospital in HOSPITALS
        for number in range(2, 20)
        if source.columns["hospital"][number] == hospital
    ]
    assert [hex_id(row) for row in rows.ids[:18]] == expected


def test_clients_are_read_from_their_place_in_the_matrix() -> None:
    rows, source = hospital_rows()
    sets = rows.client_sets(in_order(rows, source), source.encoding, rows.classes)
    assert {name: len(part) for name, part in sets.items()} == rows.counts()
    for name, part in sets.items():
        assert part.labels is not None
        for embedding, label, sample in zip(part.rows[:], part.labels, part.ids, strict=True):
            place = np.flatnonzero((source.ids == sample).all(axis=1))[0]
            assert source.columns["hospital"][place] == name
            assert np.array_equal(source.rows[place], embedding)
            assert source.class_names[source.labels[place]] == part.class_names[label]
        np.testing.assert_array_equal(part.rows[[0, -1]], part.to_numpy()[[0, -1]])


def test_classes_are_those_of_training_rows() -> None:
    rows, source = hospital_rows()
    assert rows.classes == CLASSES
    assert rows.labels is not None
    owls = rows.labels == 2
    left = rows.take(~(owls & (rows.roles == TRAINING)))
    assert left.classes == ("cat", "dog")
    assert left.outputs == CLASSES  # test rows still are owls
    test = left.role_set(in_order(left, source), source.encoding, left.classes, TEST)
    assert test is not None
    assert test.labels is not None
    assert (test.labels == -1).sum() == (owls & (rows.roles == TEST)).sum()


def test_taken_rows_name_nobody_else() -> None:
    rows, _ = hospital_rows()
    left = rows.take(~rows.held_by({"north"}))
    assert left.clients == ("", "east", "south", "west")
    sample = hex_id(rows.ids[0])
    assert rows.with_ids([sample]).tolist() == [hex_id(row) == sample for row in rows.ids]


def test_a_leaf_is_the_salted_digest_of_everything_about_a_row() -> None:
    rows, source = hospital_rows()
    matrix = in_order(rows, source)
    committed, leaves = commit(rows, matrix)
    assert sorted(map(hex_id, leaves)) == list(map(hex_id, leaves))
    for number in range(len(rows)):
        assert rows.labels is not None
        client = rows.clients[rows.holders[number]].encode()
        label = rows.outputs[rows.labels[number]].encode()
        content = rows.salts[number].tobytes() + rows.ids[number].tobytes()
        content += struct.pack("<BII", rows.roles[number], len(client), len(label))
        content += client + label + matrix[number].astype("<f4").tobytes()
        assert leaves[committed.leaves[number]].tobytes() == hashlib.sha256(content).digest()


def test_targets_are_committed_by_their_bytes() -> None:
    source = EmbeddingSet.from_numpy(np.eye(3, dtype=np.float32), targets=[[0.5], [1.5], [2.5]])
    owners = np.array(["a", "b", "c"], TEXT)
    rows = RunRows.of(source, clients=owners, roles=np.zeros(3, np.uint8))
    moved = replace(rows, targets=np.array([[0.5], [1.5], [2.6]]))
    same = leaves_of(rows, source.rows) == leaves_of(moved, source.rows)
    assert same.all(axis=1).tolist() == [True, True, False]


def test_fingerprints_are_of_options_and_leaves() -> None:
    _, leaves = commit(*_with_matrix())
    options = hashlib.sha256(b"{}").digest()
    expected = hashlib.sha256(b"probekit run 1\n" + options + leaves.tobytes()).hexdigest()
    assert fingerprint_of(b"{}", leaves) == expected
    assert fingerprint_of(b"{ }", leaves) != expected
    assert state_fingerprint(expected, leaves) != state_fingerprint(expected, leaves[1:])


def _with_matrix() -> tuple[RunRows, np.ndarray]:
    rows, source = hospital_rows()
    return rows, in_order(rows, source)


def test_salts_are_new_every_time() -> None:
    first, source = hospital_rows()
    second, _ = hospital_rows()
    assert first.same_rows(second)
    assert not (first.salts == second.salts).all(axis=1).any()
    assert not first.same_rows(first.take(np.arange(1, len(first))))
    same = leaves_of(first, in_order(first, source)) == leaves_of(second, in_order(first, source))
    assert not same.all(axis=1).any()


def test_rows_come_back_from_bytes() -> None:
    rows, _ = hospital_rows()
    again = parse(dump(rows), RunRows, max_bytes=1 << 20)
    assert again.same_rows(rows)
    assert np.array_equal(again.salts, rows.salts)


@pytest.mark.parametrize(
    "change",
    [
        {"clients": ("", "north", "east", "south", "west")},
        {"clients": ("", "east")},
        {"outputs": ("cat", "cat", "dog")},
        {"labels": None},
        {"holders": np.zeros(3, np.int64)},
        {"roles": np.full(30, 3, np.uint8)},
        {"roles": np.arange(30, dtype=np.uint8)[::-1] % 3},
        {"labels": np.full(30, -1)},
        {"labels": np.full(30, 3)},
        {"targets": np.zeros((30, 3))},
        {"salts": np.zeros((30, 15), np.uint8)},
        {"leaves": np.zeros(30, np.int64)},
        {"leaves": np.arange(-1, 29)},
    ],
)
def test_columns_that_do_not_fit_are_refused(change: dict[str, Any]) -> None:
    rows, _ = hospital_rows()
    with pytest.raises(InputError):
        replace(rows, **change)
