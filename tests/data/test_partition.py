"""Partitions: a law for every scheme, the draws of Flower, groups, and the server's share."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from probekit.data.partition import Partition, Scheme, partition
from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError, NotFoundError

SCHEMES = st.sampled_from(["iid", "dirichlet:0.01", "dirichlet:0.5", "shards:1", "shards:3"])
LABELS = st.lists(st.integers(0, 4), min_size=30, max_size=80).map(lambda drawn: np.array(drawn))


def make_rows(labels: NDArray[np.int64], **columns: list[str]) -> EmbeddingSet:
    return EmbeddingSet.from_numpy(np.zeros((len(labels), 1)), labels, columns=columns)


def owners(made: Partition, count: int) -> NDArray[np.int64]:
    """The client of every row, -1 for the server's; fails where a row has no holder or two."""
    holders: list[list[int]] = [[] for _ in range(count)]
    for row in made.server.tolist():
        holders[row].append(-1)
    for number, held in enumerate(made.clients.values()):
        assert (np.diff(held) > 0).all()
        for row in held.tolist():
            holders[row].append(number)
    assert {len(row) for row in holders} == {1}
    return np.array(holders).ravel()


@given(LABELS, SCHEMES, st.integers(1, 8), st.sampled_from([0.0, 0.1]), st.integers(0, 2**40))
def test_every_row_has_one_holder_and_every_client_a_row(
    labels: NDArray[np.int64], scheme: str, clients: int, share: float, seed: int
) -> None:
    made = partition(
        make_rows(labels), clients, scheme=Scheme.parse(scheme), server_share=share, seed=seed
    )
    sizes = np.bincount(owners(made, len(labels)) + 1, minlength=clients + 1)
    assert list(made.clients) == [str(number) for number in range(clients)]
    assert sizes[0] == round(share * len(labels))
    assert sizes[1:].min() >= 1


@given(LABELS, st.floats(0.05, 0.4), st.integers(0, 1000))
def test_the_server_share_is_stratified_by_largest_remainders(
    labels: NDArray[np.int64], share: float, seed: int
) -> None:
    counts = np.bincount(labels, minlength=5)
    server = partition(make_rows(labels), 2, server_share=share, seed=seed).server
    taken = np.bincount(labels[server], minlength=5)
    assert (taken[counts > 0] < counts[counts > 0]).all()
    if (counts[counts > 0] * (1 - share) >= 2).all():  # no class is too small for its part
        assert (np.abs(taken - share * counts) < 1).all()


def test_the_server_rows_do_not_depend_on_the_scheme() -> None:
    rows = make_rows(np.arange(60) % 3)
    servers = [
        partition(rows, clients, scheme=Scheme.parse(scheme), server_share=0.2, seed=4).server
        for clients, scheme in ((3, "iid"), (4, "dirichlet:0.3"), (2, "shards:2"))
    ]
    assert servers[0].tolist() == servers[1].tolist() == servers[2].tolist()


@pytest.mark.parametrize(
    ("clients", "alpha", "seed", "sizes", "digest"),
    [
        (5, 0.5, 0, [28, 45, 63, 59, 45], "2c9a52ef52ae0edf"),
        (3, 0.1, 4, [28, 139, 73], "4dcd66d6f62bae2d"),
        (4, 100.0, 7, [59, 58, 60, 63], "17b5aaa30680fa8f"),
        (6, 1.0, 3, [11, 21, 37, 65, 30, 76], "27a5c0d47962c94b"),
    ],
)
def test_dirichlet_gives_the_rows_of_flower(
    clients: int, alpha: float, seed: int, sizes: list[int], digest: str
) -> None:
    """What flwr-datasets 0.6.1 gave: DirichletPartitioner(self_balancing=False, seed=seed)."""
    rows = make_rows(np.arange(240) * 7 % 11 % 4)
    made = partition(rows, clients, scheme=Scheme("dirichlet", alpha), seed=seed)
    owner = owners(made, 240).astype(np.uint8)
    assert np.bincount(owner).tolist() == sizes
    assert hashlib.sha256(owner.tobytes()).hexdigest()[:16] == digest


def test_dirichlet_shares_have_the_mean_and_variance_of_the_law() -> None:
    rows = make_rows(np.zeros(4000, np.int64))
    scheme = Scheme.parse("dirichlet:2")
    shares = [
        len(partition(rows, 4, scheme=scheme, seed=seed).clients["1"]) / 4000 for seed in range(400)
    ]
    variance = 2 * 6 / (8**2 * 9)
    assert np.mean(shares) == pytest.approx(1 / 4, abs=4 * np.sqrt(variance / 400))
    assert np.var(shares) == pytest.approx(variance, rel=0.3)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 100))
def test_shards_hold_few_classes(clients: int, shards: int, seed: int) -> None:
    labels = np.repeat(np.arange(24), 10)
    made = partition(make_rows(labels), clients, scheme=Scheme("shards", shards), seed=seed)
    longest = -(-240 // (clients * shards))
    classes_in_a_shard = -(-longest // 10) + 1
    for held in made.clients.values():
        assert len(held) <= shards * longest
        assert len(np.unique(labels[held])) <= shards * classes_in_a_shard


def test_equal_parts_differ_by_one_row_at_most() -> None:
    sizes = [len(held) for held in partition(make_rows(np.zeros(23, int)), 4).clients.values()]
    assert sorted(sizes) == [5, 6, 6, 6]


@given(st.integers(0, 200))
def test_a_column_names_the_clients_and_whose_the_servers_rows_were(seed: int) -> None:
    column = ["alone", *["north"] * 9, *["../x"] * 10]
    rows = make_rows(np.arange(20) % 2, site=column)
    made = partition(rows, "site", server_share=0.5, seed=seed)
    owner = owners(made, 20)
    names = sorted(set(column))
    assert list(made.clients) == names
    for row, number in enumerate(owner):
        assert number == -1 or column[row] == names[number]
    assert made.server_origin.tolist() == [column[row] for row in made.server]
    assert len(made.server) == 10
    assert all(len(held) for held in made.clients.values())
    kept = made.server_rows(["north"])
    assert kept.tolist() == [row for row in made.server if column[row] == "north"]


def test_dealt_rows_of_the_server_were_nobodys() -> None:
    made = partition(make_rows(np.arange(20) % 2), 3, server_share=0.2)
    assert made.server_rows([]).tolist() == made.server.tolist()


def test_groups_stay_together() -> None:
    group = np.repeat(np.arange(30), np.arange(30) % 4 + 1)
    labels = np.arange(len(group)) % 3
    rows = make_rows(labels, patient=[str(number) for number in group])
    made = partition(rows, 4, groups="patient", server_share=0.2, seed=3)
    owner = owners(made, len(group))
    assert all(len(set(owner[group == number])) == 1 for number in range(30))
    sizes = np.bincount(owner + 1)
    assert 0 < sizes[0] <= round(0.2 * len(group))
    assert sizes[1:].max() - sizes[1:].min() <= 4
    renamed = make_rows(labels, patient=[f"{number * 7919 % 1009}" for number in group])
    again = partition(renamed, 4, groups="patient", server_share=0.2, seed=3)
    assert owners(again, len(group)).tolist() == owner.tolist()


def test_the_server_takes_no_group_with_all_rows_of_a_class() -> None:
    labels = np.array([0, 0, 1, 1, 1, 1])
    rows = make_rows(labels, patient=list("aabbcd"))
    for seed in range(20):
        made = partition(rows, 2, groups="patient", server_share=0.4, seed=seed)
        assert set(labels[np.concatenate(list(made.clients.values()))]) == {0, 1}


def test_targets_are_dealt_too() -> None:
    rows = EmbeddingSet.from_numpy(np.zeros((9, 1)), targets=np.arange(9.0))
    assert owners(partition(rows, 3, server_share=0.3), 9).tolist().count(-1) == 3


@pytest.mark.parametrize(
    ("clients", "options", "value"),
    [
        (0, {}, "0"),
        (31, {}, "31"),
        (2, {"seed": -1}, "-1"),
        (2, {"server_share": 1.0}, "1.0"),
        (2, {"server_share": 0.99}, "0.99"),
        (2, {"server_share": 0.001}, "0.001"),
        (28, {"server_share": 0.2}, "28"),
        (2, {"scheme": Scheme("shards", 16)}, "32"),
        (31, {"groups": "site"}, "31"),
        (2, {"groups": "site", "scheme": Scheme("shards", 2)}, "shards"),
        (2, {"groups": "one", "server_share": 0.1}, "0.1"),
        ("site", {"groups": "site"}, "site"),
        ("site", {"scheme": Scheme()}, "site"),
        ("gaps", {}, "row 7"),
    ],
)
def test_what_cannot_be_is_refused(
    clients: int | str, options: dict[str, object], value: str
) -> None:
    site = [str(number) for number in range(30)]
    gaps = [*site[:7], "", *site[8:]]
    rows = make_rows(np.arange(30) % 3, site=site, gaps=gaps, one=["x"] * 30)
    with pytest.raises(InputError, match=value):
        partition(rows, clients, **options)  # type: ignore[arg-type]


def test_rows_without_a_label_are_refused() -> None:
    with pytest.raises(InputError, match="1 of 4"):
        partition(
            EmbeddingSet.from_numpy(np.zeros((4, 1)), [0, 1, -1, 1], class_names=("a", "b")), 2
        )


def test_an_unknown_column_is_answered_with_the_nearest() -> None:
    with pytest.raises(NotFoundError, match="hospital"):
        partition(make_rows(np.zeros(2, int), hospital=["a", "b"]), "hopsital")


@pytest.mark.parametrize(
    "text",
    ["dirichlet", "dirichlet:0", "dirichlet:nan", "dirichlet:x", "shards:1.5", "iid:3", "even:2"],
)
def test_schemes_need_their_name_and_number(text: str) -> None:
    with pytest.raises(InputError, match=text):
        Scheme.parse(text)
