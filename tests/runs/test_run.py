"""A run as an object of the library: every verb, what it gives, and what it leaves as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit import Run, TrainOptions
from probekit.cache import DiskStore
from probekit.errors import InputError, NotFoundError
from tests.conftest import tree
from tests.shelves import Shelve
from tests.shelves import shelve as shelve


@pytest.fixture
def run(store: DiskStore, shelve: Shelve, tmp_path: Path) -> Run:
    """Four clients with their statistics kept, and a server with rows of its own."""
    shelve("rows", rows=160, dimension=12)
    shelve("test", rows=60, dimension=12, seed=1)
    return Run.train(tmp_path / "run", "rows", clients=4, server_share=0.2, ridge=0.01, store=store)


def files(run: Run) -> dict[str, str]:
    """Every file of a run and its sha256."""
    return tree(run.path)


def keys(value: Any) -> Iterator[str]:
    """Every key in plain values."""
    if isinstance(value, dict):
        for key, inside in value.items():
            yield key
            yield from keys(inside)
    elif isinstance(value, list):
        for inside in value:
            yield from keys(inside)


def test_options_are_given_as_a_value_or_as_keywords_but_checked_either_way(run: Run, tmp_path: Path) -> None:
    options = TrainOptions(clients=4, server_share=0.2, ridge="0.01")
    again = Run.train(tmp_path / "again", "rows", options, store=run.store)
    assert again.head().digest == run.head().digest
    assert again.folder.config == run.folder.config
    with pytest.raises(InputError, match="`local_steps` is no option of training by closed-form"):
        Run.train(tmp_path / "bad", "rows", local_steps=3, store=run.store)
    with pytest.raises(InputError, match="`clients` is at least 1; found 0"):
        TrainOptions(clients=0)
    with pytest.raises(InputError, match="`scaling` is one of mean, sum; found 'max'"):
        TrainOptions(scaling="max")
    assert not (tmp_path / "bad").exists()


def test_training_tells_what_it_gave_and_opening_does_not(run: Run) -> None:
    assert run.training is not None
    assert run.training.plain["clients"] == {"0": 32, "1": 32, "2": 32, "3": 32}
    assert run.training.can_unlearn["exact"].possible
    opened = Run.open(run.path, store=run.store)
    assert opened.training is None
    assert (opened.path, opened.state, opened.head().digest) == (run.path, 1, run.head().digest)
    assert repr(opened) == f"Run({str(run.path)!r}, state 1)"


def test_runs_of_a_folder_are_listed_by_name(run: Run, tmp_path: Path) -> None:
    run.fork(tmp_path / "another")
    assert [one.path.name for one in Run.list(tmp_path, store=run.store)] == ["another", "run"]
    assert Run.list(tmp_path / "nowhere") == []


@pytest.mark.parametrize(("method", "missing"), [("auto", ""), ("retrain-fedavg", "FedAvg options")])
def test_a_plan_says_what_would_be_done_and_changes_nothing(run: Run, method: str, missing: str) -> None:
    before = files(run)
    plan = run.plan("3", method=method)
    assert (plan.method, plan.already_done) == ("exact" if method == "auto" else method, False)
    assert (missing in "".join(plan.missing)) if missing else plan.missing == ()
    assert plan.retained == ("0", "1", "2")
    assert len(plan.why) > 5
    assert files(run) == before
    json.dumps(plan.plain)


def test_a_plan_is_what_unlearning_does(run: Run) -> None:
    plan = run.plan(clients=["3"], samples=[run.folder.embeddings(run.store).ids[5][:12]])
    done = run.unlearn(clients=["3"], samples=[run.folder.embeddings(run.store).ids[5][:12]])
    assert (done.certificate.method, done.why, done.request) == (plan.method, plan.why, plan.request)
    assert tuple(done.certificate.retained) == plan.retained
    again = run.plan(clients=["3"], samples=[run.folder.embeddings(run.store).ids[5][:12]])
    assert (again.already_done, again.state) == (True, 2)
    with pytest.raises(InputError, match="Cannot forget client 9"):
        run.plan("9")


def test_forgetting_is_retraining_and_is_proven(run: Run, tmp_path: Path) -> None:
    done = run.unlearn("3", test="test")
    assert (done.state, run.state, done.already_done, done.asked) == (2, 2, False, "client 3")
    embeddings, partition = run.folder.embeddings(run.store), run.folder.partition()
    rows = np.sort(np.concatenate([partition.clients[name] for name in "012"]))
    X = np.hstack([embeddings.embeddings[rows].astype(np.float64), np.ones((len(rows), 1))])
    wanted = np.linalg.solve(X.T @ X + 0.01 * len(rows) * np.eye(13), X.T @ np.eye(3)[embeddings.labels[rows]])
    assert np.abs(run.head().params - wanted).max() < 1e-9
    proof = run.verify(rows=True, test="test")
    assert proof.intact
    assert proof.certificate == done.path
    assert run.verify(done.path).digest == proof.digest


def test_the_same_request_again_gives_the_same_certificate_and_cost(run: Run) -> None:
    first = run.unlearn("3")
    before = files(run)
    again = run.unlearn("3")
    assert (again.already_done, again.certificate.digest) == (True, first.certificate.digest)
    assert again.cost == first.cost
    assert files(run) == before


def test_a_label_is_put_right_by_a_mapping_or_by_texts(run: Run, tmp_path: Path) -> None:
    sample = run.folder.embeddings(run.store).ids[int(run.folder.partition().clients["1"][0])]
    copy = run.fork(tmp_path / "copy")
    run.unlearn(relabel={sample: 2})
    copy.unlearn(relabel=[f"{sample}=2"])
    assert run.head().digest == copy.head().digest


def test_a_state_without_a_certificate_cannot_be_verified(run: Run) -> None:
    with pytest.raises(InputError, match="Nothing was unlearned in state 1"):
        run.verify()
    with pytest.raises(NotFoundError, match="There is no certificate"):
        run.verify(run.path / "nothing.json")


def test_a_fork_goes_its_own_way(run: Run, tmp_path: Path) -> None:
    run.unlearn("3")
    copy = run.fork(tmp_path / "deeper/copy")
    assert files(copy) == files(run)
    assert copy.verify().intact
    before = files(run)
    copy.unlearn("2")
    copy.purge()
    assert files(run) == before
    assert (run.state, copy.state) == (2, 3)
    with pytest.raises(InputError, match="holds a finished run"):
        run.fork(copy.path)
    with pytest.raises(InputError, match="onto itself"):
        run.fork(run.path)
    assert run.fork(copy.path, force=True).state == 2


def test_an_audit_is_duplicates_and_membership(run: Run) -> None:
    run.unlearn("3")
    found = run.audit(test="test")
    assert found.duplicates.plain == run.duplicates(test="test").plain
    assert found.membership.plain == run.membership(unseen="test").plain


def test_a_report_is_a_value_until_it_is_written(run: Run, tmp_path: Path) -> None:
    run.unlearn("3")
    before = files(run)
    found = run.report(["test"])
    assert files(run) == before
    value = found.write(tmp_path / "report")
    assert json.loads((tmp_path / "report/report.json").read_text()) == value
    assert {**value, "pictures": {}} == found.plain
    assert (tmp_path / "report/report.md").read_text().startswith("# Report of run")


def test_every_result_is_json_and_its_keys_are_words_without_spaces(run: Run) -> None:
    assert run.training is not None
    results: list[Any] = [run.training, run.plan("3"), run.unlearn("3", test="test"), run.verify(test="test")]
    results += [run.evaluate("test", knn=3, shots=[1]), run.influence(test="test"), run.audit(test="test")]
    results += [run.report(["test"]), run.purge(rows=True)]
    named = {*run.folder.partition().clients, "the server's rows"}
    for result in results:
        again = json.loads(json.dumps(result.plain))
        assert again == result.plain
        assert [key for key in keys(again) if " " in key and key not in named] == []
