"""Partitions: laws for every scheme, the server's share, and what is refused."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from probekit.errors import InputError, NotFoundError
from probekit.federated.partition import parse_scheme, partition

COUNTED = st.sampled_from(["iid", "dirichlet:0.01", "dirichlet:0.5", "dirichlet:100", "shards:1", "shards:3"])
LABELS = st.lists(st.integers(0, 4), min_size=30, max_size=80).map(lambda found: np.array(found, np.int64))


def labels_of(counts: list[int]) -> NDArray[np.int64]:
    shuffled: NDArray[np.int64] = np.random.default_rng(5).permutation(np.repeat(np.arange(len(counts)), counts))
    return shuffled


@settings(max_examples=60, deadline=None)
@given(
    labels=LABELS,
    scheme=COUNTED,
    clients=st.integers(1, 8),
    seed=st.integers(0, 2**40),
    share=st.sampled_from([0.0, 0.1]),
)
def test_every_row_has_one_holder_and_every_client_a_row(
    labels: NDArray[np.int64], scheme: str, clients: int, seed: int, share: float
) -> None:
    made = partition(labels, scheme, clients=clients, seed=seed, server_share=share)
    held = np.concatenate([made.server, *made.clients.values()])
    assert sorted(held.tolist()) == list(range(len(labels)))
    assert list(made.clients) == [str(number) for number in range(clients)]
    assert all(len(rows) and (np.diff(rows) > 0).all() for rows in made.clients.values())
    assert len(made.server) == round(share * len(labels))
    again = partition(labels, scheme, clients=clients, seed=seed, server_share=share)
    assert again.digest == made.digest


@given(labels=LABELS, share=st.floats(0.05, 0.5), seed=st.integers(0, 1000))
def test_the_server_share_is_stratified_and_leaves_every_class_to_clients(
    labels: NDArray[np.int64], share: float, seed: int
) -> None:
    counts = np.bincount(labels, minlength=5)
    made = partition(labels, "iid", clients=2, seed=seed, server_share=share)
    taken = np.bincount(labels[made.server], minlength=5)
    assert (counts[counts > 0] - taken[counts > 0] >= 1).all()
    roomy = counts * (1 - share) >= 2
    assert (np.abs(taken - share * counts)[roomy] <= 1 + (~roomy).sum()).all()


def test_the_server_rows_do_not_depend_on_the_scheme_of_the_clients() -> None:
    labels = labels_of([30, 20, 10])
    servers = [
        partition(labels, scheme, clients=3, server_share=0.2, seed=4).server.tolist()
        for scheme in ("iid", "dirichlet:0.3", "shards:2")
    ]
    assert servers[0] == servers[1] == servers[2]


def test_a_partition_is_the_same_on_every_machine() -> None:
    made = partition(np.arange(20) % 3, "dirichlet:0.5", clients=3, server_share=0.2, seed=1)
    assert made.server.tolist() == [1, 11, 12, 18]
    assert [rows.tolist() for rows in made.clients.values()] == [
        [0, 2, 3, 5, 6, 8, 9, 15, 17],
        [4, 7, 10],
        [13, 14, 16, 19],
    ]


@given(n=st.integers(10, 200), clients=st.integers(1, 10))
def test_iid_sizes_differ_by_at_most_one(n: int, clients: int) -> None:
    sizes = [len(rows) for rows in partition(np.zeros(n, np.int64), "iid", clients=clients).clients.values()]
    assert max(sizes) - min(sizes) <= 1


def test_a_small_alpha_concentrates_classes_and_a_large_one_spreads_them() -> None:
    labels = labels_of([400] * 5)

    def concentration(alpha: float) -> float:
        made = partition(labels, f"dirichlet:{alpha}", clients=5, seed=3)
        table = np.array([np.bincount(labels[rows], minlength=5) for rows in made.clients.values()])
        return float((table.max(axis=0) / 400).mean())

    assert concentration(0.01) > 0.9
    assert concentration(1e4) < 0.25


def test_a_client_left_empty_by_the_draw_is_given_one_row() -> None:
    labels = labels_of([12] * 5)
    for seed in range(5):
        sizes = [len(rows) for rows in partition(labels, "dirichlet:0.001", clients=9, seed=seed).clients.values()]
        # five classes go to at most five clients almost whole; the other four have what was moved to them
        assert sizes.count(1) >= 4
        assert min(sizes) == 1


def test_dirichlet_shares_have_the_mean_and_variance_of_the_law() -> None:
    labels = np.zeros(10_000, np.int64)
    shares = np.array(
        [len(partition(labels, "dirichlet:2", clients=4, seed=seed).clients["1"]) / 10_000 for seed in range(400)]
    )
    variance = 2 * 6 / (8**2 * 9)
    assert shares.mean() == pytest.approx(1 / 4, abs=4 * np.sqrt(variance / 400))
    assert shares.var() == pytest.approx(variance, rel=0.3)


@given(clients=st.integers(1, 6), shards=st.integers(1, 4), seed=st.integers(0, 100))
def test_shards_are_runs_of_rows_sorted_by_label(clients: int, shards: int, seed: int) -> None:
    labels = labels_of([20, 20, 20, 20])
    made = partition(labels, f"shards:{shards}", clients=clients, seed=seed)
    runs = [len(run) for run in np.array_split(np.arange(80), clients * shards)]
    assert all(shards * min(runs) <= len(rows) <= shards * max(runs) for rows in made.clients.values())
    edges = np.cumsum([0, *runs])
    touched = max(len({i // 20 for i in range(a, b)}) for a, b in pairwise(edges.tolist()))
    assert all(len(np.unique(labels[rows])) <= shards * touched for rows in made.clients.values())


def test_classes_gives_one_client_per_class() -> None:
    labels = labels_of([5, 6, 0, 7])
    made = partition(labels, "classes", server_share=0.2)
    assert list(made.clients) == ["0", "1", "3"]
    assert all(set(labels[rows].tolist()) == {int(name)} for name, rows in made.clients.items())


@given(seed=st.integers(0, 200))
def test_a_column_keeps_its_clients_even_those_with_one_row(seed: int) -> None:
    labels = labels_of([10, 10])
    ids = ["alone", *["b"] * 9, *["a"] * 10]
    made = partition(labels, "column:client_id", client_ids=ids, server_share=0.5, seed=seed)
    assert list(made.clients) == ["a", "alone", "b"]
    for name, rows in made.clients.items():
        assert len(rows) > 0
        assert all(ids[row] == name for row in rows.tolist())


def test_a_representative_server_set_covers_what_a_random_one_may_miss() -> None:
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(8, 6)) * 20
    group = np.repeat(np.arange(8), [100, 100, 100, 100, 4, 4, 4, 4])
    rows = (centres[group] + generator.normal(size=(len(group), 6))).astype(np.float32)
    labels = (group % 2).astype(np.int64)
    share = 8 / len(rows)
    made = partition(
        labels, "iid", clients=2, server_share=share, server_choice="representative", embeddings=rows, seed=2
    )
    drawn = partition(labels, "iid", clients=2, server_share=share, seed=2)
    assert len(made.server) == len(drawn.server) == 8
    assert np.bincount(labels[made.server]).tolist() == [4, 4]
    assert len(set(group[made.server].tolist())) > len(set(group[drawn.server].tolist()))


@pytest.mark.parametrize(
    ("scheme", "options", "words"),
    [
        ("iid", {"clients": 31}, "31 clients"),
        ("iid", {"clients": 0}, "found 0"),
        ("iid", {}, "found None"),
        ("dirichlet:0", {"clients": 2}, "'0'"),
        ("dirichlet:-1", {"clients": 2}, "'-1'"),
        ("dirichlet:nan", {"clients": 2}, "'nan'"),
        ("dirichlet:x", {"clients": 2}, "'x'"),
        ("dirichlet", {"clients": 2}, "dirichlet:ALPHA"),
        ("iid:3", {"clients": 2}, "'iid:3'"),
        ("shards:1.5", {"clients": 2}, "whole number"),
        ("shards:16", {"clients": 2}, "32 shards"),
        ("classes", {"clients": 5}, "3 clients"),
        ("column:client_id", {}, "names none"),
        ("column:hospital", {}, "'hospital'"),
        ("iid", {"clients": 2, "server_share": 1.0}, "found 1.0"),
        ("iid", {"clients": 2, "server_share": -0.1}, "found -0.1"),
        ("iid", {"clients": 2, "server_share": 0.99}, "between 1 and 27"),
        ("iid", {"clients": 2, "server_share": 0.001}, "is 0 rows"),
        ("iid", {"clients": 2, "server_share": 0.1, "server_choice": "representative"}, "embeddings"),
        ("iid", {"clients": 2, "server_choice": "best"}, "'best'"),
        ("iid", {"clients": 2, "seed": -1}, "found -1"),
        ("iid", {"clients": 28, "server_share": 0.2}, "24 of 30 rows"),
    ],
)
def test_what_cannot_be_is_refused(scheme: str, options: dict[str, int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        partition(labels_of([10, 10, 10]), scheme, **options)  # type: ignore[arg-type]


def test_an_unknown_scheme_is_answered_with_the_nearest() -> None:
    with pytest.raises(NotFoundError, match="dirichlet:ALPHA"):
        parse_scheme("dirichelt:0.5")


def test_rows_without_label_or_embedding_are_refused() -> None:
    labels = np.array([0, 1, -1, 1], np.int64)
    with pytest.raises(InputError, match="row 2"):
        partition(labels, "iid", clients=2)
    masked = np.array([False, True, False, False])
    with pytest.raises(InputError, match="row 1"):
        partition(np.abs(labels), "iid", clients=2, masked=masked)
    with pytest.raises(InputError, match="row 3 has none"):
        partition(np.abs(labels), "column:client_id", client_ids=["a", "a", "b", ""])
    with pytest.raises(InputError, match="found 3"):
        partition(np.abs(labels), "column:client_id", client_ids=["a", "a", "b"])


def test_groups_stay_whole_at_one_client_or_the_server() -> None:
    groups = np.repeat(np.arange(30), np.arange(30) % 4 + 1)
    labels = np.arange(len(groups)) % 3
    found = partition(labels, "groups", clients=4, server_share=0.2, seed=3, groups=groups)
    places = [set(groups[rows].tolist()) for rows in (found.server, *found.clients.values())]
    assert sum(map(len, places)) == 30
    sizes = [len(rows) for rows in found.clients.values()]
    assert max(sizes) - min(sizes) <= 4
    assert 0 < len(found.server) <= round(0.2 * len(groups))
    renamed = partition(labels, "groups", clients=4, server_share=0.2, seed=3, groups=(groups * 7919) % 1009)
    assert renamed.digest == found.digest  # what groups are called draws nothing
    other = partition(labels, "groups", clients=4, server_share=0.2, seed=4, groups=groups)
    assert other.digest != found.digest
    lone = np.array([0, 0, 1, 1, 1, 1])
    kept = partition(lone, "groups", clients=2, server_share=0.4, seed=0, groups=np.array([0, 0, 1, 1, 2, 3]))
    assert 0 in {int(lone[row]) for rows in kept.clients.values() for row in rows}  # no class is the server's alone


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "again with `group`"),
        ({"groups": np.zeros(6, int)}, "Each client needs a group: 2 clients"),
        ({"groups": np.arange(6) // 3, "server_share": 0.2}, "no room for a group"),
        ({"groups": np.arange(6), "server_share": 1.5}, "must lie in"),
        ({"groups": np.arange(6), "server_choice": "representative"}, "drawn at random"),
    ],
)
def test_groups_that_cannot_be_dealt_are_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        partition(np.arange(6) % 2, "groups", clients=2, **more)
