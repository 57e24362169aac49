"""What is left after unlearning is what training without the forgotten gives, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probekit import EmbeddingSet, Run
from probekit.arrays import hex_id
from probekit.cache.removal import remove
from probekit.errors import InputError, MissingClients, NotFoundError
from probekit.runs.layout import Unlearned
from probekit.runs.rows import SERVER, TEST, TRAINING
from tests.runs.examples import HOSPITALS, embeddings, make_run, rows_of, without


def assert_same_head(left: Run, right: Run) -> None:
    assert left.head.names == right.head.names
    assert left.newest.state.ridge == right.newest.state.ridge
    np.testing.assert_array_equal(left.head.weights, right.head.weights)
    np.testing.assert_array_equal(left.head.intercept, right.head.intercept)
    assert left.certificate == right.certificate


def samples(rows: EmbeddingSet, *numbers: int) -> list[str]:
    return [hex_id(rows.ids[number]) for number in numbers]


@pytest.mark.parametrize(
    "options",
    [{}, {"intercept": "penalized", "ridge": 0.1}, {"keep": "nothing"}, {"normalize": "l2"}],
)
def test_an_unlearned_client_leaves_the_head_of_training_without_it(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    run = make_run(tmp_path / "run", **options)
    ridge = run.newest.state.ridge
    done = run.unlearn(client="north")
    assert (done.changed, done.method, done.rows) == (
        True,
        "exact",
        len(rows_of(embeddings(), "north")),
    )
    retrained = make_run(
        tmp_path / "without", without(embeddings(), "hospital", "north"), **options
    )
    assert_same_head(run, retrained)
    if not options:
        assert run.newest.state.ridge != ridge  # north had moved it


def test_logistic_heads_train_anew_from_zero(tmp_path: Path) -> None:
    options: dict[str, Any] = {"head": "logistic", "C": 1.0}
    run = make_run(tmp_path / "run", **options)
    assert run.unlearn(client="north").method == "exact"
    retrained = make_run(
        tmp_path / "without", without(embeddings(), "hospital", "north"), **options
    )
    assert_same_head(run, retrained)


def test_fedavg_repeats_its_own_training_where_asked(tmp_path: Path) -> None:
    options: dict[str, Any] = {"method": "fedavg:rounds=3,rate=0.002", "ridge": 0.1}
    run = make_run(tmp_path / "run", **options)
    run.unlearn(client="north", method="retrain")
    retrained = make_run(
        tmp_path / "without", without(embeddings(), "hospital", "north"), **options
    )
    assert_same_head(run, retrained)


@given(st.lists(st.sampled_from([*HOSPITALS[:3], *range(0, 60, 7)]), min_size=1, max_size=4))
@settings(max_examples=8)
def test_chains_of_requests_end_where_training_without_all_of_them_does(
    tmp_path_factory: pytest.TempPathFactory, requests: list[str | int]
) -> None:
    folder = tmp_path_factory.mktemp("chain")
    rows = embeddings(60)
    run = make_run(folder / "run", rows)
    keep = np.ones(60, bool)
    for request in requests:
        if isinstance(request, str):
            run.unlearn(client=request)
            keep[rows_of(rows, request)] = False
        else:
            run.unlearn(sample=samples(rows, request))
            keep[request] = False
    retrained = make_run(folder / "without", rows.take(np.flatnonzero(keep)))
    assert_same_head(run, retrained)
    assert run.newest.rows.counts() == retrained.newest.rows.counts()


def test_samples_are_named_by_their_first_digits(tmp_path: Path) -> None:
    rows = embeddings()
    run = make_run(tmp_path / "run")
    done = run.unlearn(sample=[name[:8] for name in samples(rows, 3, 50)])
    assert sorted(done.samples) == sorted(samples(rows, 3, 50))
    left = rows.take(np.setdiff1d(np.arange(120), [3, 50]))
    assert_same_head(run, make_run(tmp_path / "without", left))


def test_rows_are_chosen_by_a_column_of_the_data(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    done = run.unlearn(where="patient=7")
    assert done.rows == int((embeddings().columns["patient"] == "7").sum()) + int(
        (embeddings(40, seed=1).columns["patient"] == "7").sum()
    )
    assert run.head.names == ("cat", "owl")  # all dogs were patient 7's
    assert_same_head(
        run,
        make_run(
            tmp_path / "without",
            without(embeddings(), "patient", "7"),
            test=without(embeddings(40, seed=1), "patient", "7"),
        ),
    )


def test_a_class_leaves_with_its_last_row(tmp_path: Path) -> None:
    rows = embeddings()
    ward = np.where(rows.columns["patient"] == "14", "owls", rows.columns["hospital"]).tolist()
    rows = embeddings(ward=ward)
    kinds: list[dict[str, Any]] = [
        {},
        {"head": "logistic", "C": 1.0},
        {"server_share": 0.2},
        {"server_share": 0.2, "keep": "gradients", "intercept": "penalized"},
    ]
    for number, options in enumerate(kinds):
        folder = tmp_path / str(number)
        run = make_run(folder / "run", rows, clients="ward", **options)
        run.unlearn(client="owls", method="fedremoval" if number >= 2 else "auto")
        assert run.head.names == ("cat", "dog")
        assert run.newest.state.model.classes == 2
        assert run.certificate is not None
        assert run.certificate.test_rows == 40
        if number < 2:
            left = make_run(
                folder / "without", without(rows, "ward", "owls"), clients="ward", **options
            )
            assert_same_head(run, left)


def test_the_servers_rows_leave_with_their_client(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", server_share=0.3)
    held = run.newest.rows
    north = held.held_by(["north"])
    assert (held.roles[north] == SERVER).any()
    assert run.unlearn(client="north").rows == int(north.sum())
    assert "north" not in run.newest.rows.clients
    assert run.newest.all_rows.clients == held.clients  # until they are erased


def test_fedremoval_says_what_it_did_to_the_loss(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run", server_share=0.3, method="fedavg:rounds=30,rate=0.004", ridge=0.1
    )
    planned = run.unlearn(client="south", dry_run=True)
    assert {item.name for item in planned.plans} >= {"exact", "retrain", "fedremoval"}
    done = run.unlearn(client="south", method="fedremoval:solver=cg")
    assert done.facts is not None
    assert done.facts.server_rows > 0
    assert run.certificate is not None
    assert run.certificate.distance > 0
    event = run.newest.events[-1]
    assert isinstance(event, Unlearned)
    assert event.method == "fedremoval:solver=cg"


def test_the_same_request_again_changes_nothing(
    tmp_path: Path, file_digests: Callable[[Path], dict[str, str]]
) -> None:
    run = make_run(tmp_path / "run")
    run.unlearn(client=["north", "west"])
    before = file_digests(run.folder)
    for _ in range(2):
        done = run.unlearn(client="north")
        assert not done.changed
        assert done.notes
    assert not run.unlearn(client=["west", "north"]).changed
    assert file_digests(run.folder) == before
    assert run.newest.number == 2
    assert run.unlearn(client=["west", "east"]).clients == ("east",)


def test_a_dry_run_changes_nothing(
    tmp_path: Path, file_digests: Callable[[Path], dict[str, str]]
) -> None:
    run = make_run(tmp_path / "run")
    before = file_digests(run.folder)
    done = run.unlearn(client="north", dry_run=True)
    assert (done.changed, done.method) == (False, "exact")
    assert file_digests(run.folder) == before


def test_test_rows_can_be_forgotten_too(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    head = run.head.digest
    done = run.unlearn(sample=samples(embeddings(40, seed=1), 0, 1))
    assert (done.method, done.rows) == ("none", 2)
    assert run.head.digest == head
    assert run.certificate is not None
    assert run.certificate.test_rows == 38
    assert (run.newest.rows.roles == TEST).sum() == 38


def test_states_say_which_rows_they_retain(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    fingerprint, first = run.fingerprint, run.state_fingerprint
    run.unlearn(client="north")
    second = run.state_fingerprint
    assert run.fingerprint == fingerprint
    assert second != first
    other = Run(run.folder, cache=run.cache)
    assert (other.fingerprint, other.state_fingerprint) == (fingerprint, second)


def test_kept_statistics_need_no_rows(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for name in run.cache.names():
        remove(run.cache, name)
    assert run.rows_of(TRAINING) is None
    assert run.unlearn(client="north").method == "exact"
    other = make_run(tmp_path / "other" / "run", without(embeddings(), "hospital", "north"))
    np.testing.assert_array_equal(run.head.weights, other.head.weights)
    with pytest.raises(MissingClients):
        run.unlearn(sample=samples(embeddings(), int(rows_of(embeddings(), "east")[0])))
    assert run.newest.number == 2


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"client": "north", "where": "patient=7"},
        {"client": "oslo"},
        {"client": ""},
        {"client": HOSPITALS},
        {"sample": "0123"},
        {"sample": "f" * 64},
        {"sample": "../x"},
        {"where": "patient"},
        {"where": "patient=99"},
        {"client": "north", "method": "fedremoval"},
        {"client": "north", "method": "exact:rounds=3"},
    ],
)
def test_requests_that_make_no_sense_are_refused(
    tmp_path: Path, request_: dict[str, Any], file_digests: Callable[[Path], dict[str, str]]
) -> None:
    run = make_run(tmp_path / "run")
    before = file_digests(run.folder)
    with pytest.raises(InputError):
        run.unlearn(**request_)
    assert file_digests(run.folder) == before


@pytest.mark.parametrize(
    "request_", [{"client": "north", "method": "exactly"}, {"where": "ward=7"}]
)
def test_unknown_names_are_not_found(tmp_path: Path, request_: dict[str, Any]) -> None:
    run = make_run(tmp_path / "run")
    with pytest.raises(NotFoundError):
        run.unlearn(**request_)


@pytest.mark.parametrize(
    "options", [{}, {"keep": "nothing"}, {"head": "logistic", "C": 1.0}, {"network": "mlp:3"}]
)
def test_a_class_leaves_with_its_last_samples(tmp_path: Path, options: dict[str, Any]) -> None:
    """Clients that stay lose rows of a class that nobody has any more."""
    rows = embeddings(60)
    assert rows.labels is not None
    labels = rows.labels + 1
    labels[:2] = 0
    names = ("ape", *rows.class_names)
    rows = replace(rows, labels=labels, class_names=names)
    run = make_run(tmp_path / "run", rows, test=None, **options)
    assert run.unlearn(sample=samples(rows, 0, 1)).changed
    assert run.head.names == names[1:]
    if "network" not in options:  # one of fewer outputs begins with other weights
        left = rows.take(np.arange(2, 60))
        assert_same_head(run, make_run(tmp_path / "left", left, test=None, **options))


def test_one_class_must_not_be_left_alone(tmp_path: Path) -> None:
    rows = embeddings()
    ward = np.where(rows.columns["patient"] == "0", "cats", "others").tolist()
    run = make_run(tmp_path / "run", embeddings(ward=ward), clients="ward")
    with pytest.raises(InputError):
        run.unlearn(client="others")
