"""Training writes a run: the head that independent code gives, and nothing that tells names."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit import EmbeddingSet, Run, probe, train
from probekit.arrays import hex_id
from probekit.cache import Cache
from probekit.cache.runs import noted_runs
from probekit.errors import InputError, MismatchError, MissingClients, NotFoundError
from probekit.extraction.sources import RowSplits
from probekit.federated.state import History, KeptGradients, KeptStatistics
from probekit.linear.ridge import InverseC
from probekit.runs.layout import Joined
from probekit.runs.rows import SERVER, TEST, TRAINING
from tests.runs.examples import CLASSES, HOSPITALS, embeddings, make_run, without

FILES = {
    *("run.json", "commitment.safetensors", "partition.safetensors"),
    *(f"states/0001/{name}" for name in ("kept.safetensors", "certificate.json", "history.jsonl")),
    *(f"states/0001/head/{name}" for name in ("config.json", "model.safetensors", "README.md")),
}


def ridge_head(rows: EmbeddingSet, ridge: float) -> np.ndarray:
    """Weights above a free intercept, by augmented least squares."""
    X = np.asarray(rows.rows, np.float64)
    Y = np.eye(3)[rows.labels]
    center = X.mean(axis=0)
    penalty = np.sqrt(ridge * len(X)) * np.eye(X.shape[1])
    system = np.vstack([X - center, penalty])
    right = np.vstack([Y - Y.mean(axis=0), np.zeros((X.shape[1], 3))])
    weights = np.linalg.lstsq(system, right, rcond=None)[0]
    return np.vstack([weights, Y.mean(axis=0) - center @ weights])


def weights_of(run: Run) -> np.ndarray:
    return np.vstack([run.head.weights, run.head.intercept])


def test_the_head_is_the_pooled_minimum(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ridge=0.3)
    np.testing.assert_allclose(weights_of(run), ridge_head(embeddings(), 0.3), atol=1e-12)
    assert run.head.names == CLASSES
    assert run.newest.rows.counts().keys() == set(HOSPITALS)
    assert run.certificate is not None
    assert run.certificate.rows == 120
    assert run.certificate.test_rows == 40
    test = embeddings(40, seed=1)
    right = (np.asarray(test.rows) @ run.head.weights + run.head.intercept).argmax(axis=1)
    assert run.accuracy() == pytest.approx((right == test.labels).mean())


def test_clients_do_not_change_the_head(tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", clients=1)
    many = make_run(tmp_path / "many", clients=7, partition="dirichlet:0.5")
    assert one.newest.state.ridge == many.newest.state.ridge
    np.testing.assert_allclose(weights_of(one), weights_of(many), atol=1e-11)


def test_probe_gives_the_same_head(tmp_path: Path) -> None:
    splits = RowSplits(embeddings(), test=embeddings(40, seed=1))
    for normalize in ("none", "l2"):
        options: dict[str, Any] = {"ridge": 0.2, "normalize": normalize}
        probed = probe(splits, controls=False, **options).cells[0].fitted
        trained = train(splits, run=tmp_path / normalize, clients=1, **options).head
        assert probed is not None
        assert trained.normalize == normalize
        np.testing.assert_allclose(trained.weights, probed.weights, atol=1e-12)
        np.testing.assert_allclose(trained.intercept, probed.intercept, atol=1e-12)


def test_a_run_holds_these_files_and_can_be_opened(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    found = {str(path.relative_to(run.folder)) for path in run.folder.rglob("*") if path.is_file()}
    assert found == FILES
    opened = Run(tmp_path / "run", cache=tmp_path / "cache")
    assert opened.fingerprint == run.fingerprint
    assert opened.state_fingerprint == run.state_fingerprint
    assert opened.head.digest == run.head.digest
    assert opened.to_dict() == run.to_dict()


def test_run_json_and_leaves_name_nobody(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    public = (run.folder / "run.json").read_bytes() + (
        run.folder / "commitment.safetensors"
    ).read_bytes()
    for name in (*HOSPITALS, *CLASSES):
        assert re.search(rb"\b%s\b" % name.encode(), public) is None
    for sample in run.newest.rows.ids:
        assert sample.tobytes() not in public
        assert hex_id(sample).encode() not in public
    description = json.loads((run.folder / "run.json").read_bytes())
    assert str(len(run.newest.rows)) not in json.dumps(description["options"])


def test_the_fingerprint_is_of_run_json_and_leaves(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    options = hashlib.sha256((run.folder / "run.json").read_bytes()).digest()
    leaves = run.newest.commitment.tobytes()
    expected = hashlib.sha256(b"probekit run 1\n" + options + leaves).hexdigest()
    assert run.fingerprint == expected
    again = make_run(tmp_path / "again")
    assert again.fingerprint != expected  # other salts, another id
    assert again.head.digest == run.head.digest


def test_the_same_call_again_changes_nothing(
    tmp_path: Path, file_digests: Callable[[Path], dict[str, str]]
) -> None:
    run = make_run(tmp_path / "run")
    run.unlearn(client="west")
    before = file_digests(run.folder)
    again = make_run(tmp_path / "run")
    assert file_digests(run.folder) == before
    assert again.newest.number == 2
    assert again.notes != run.notes
    for change in ({"ridge": 0.5}, {"rows": embeddings(119)}, {"clients": 3}):
        with pytest.raises(InputError):
            make_run(tmp_path / "run", **change)  # type: ignore[arg-type]
    assert file_digests(run.folder) == before


def test_rows_in_memory_are_kept_in_the_cache(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    kept = run.rows_of(TRAINING)
    assert kept is not None
    order = np.argsort(embeddings().columns["hospital"], kind="stable")
    np.testing.assert_array_equal(kept.to_numpy(), embeddings().to_numpy()[order])
    noted = noted_runs(run.cache)[run.newest.description.id]
    assert noted.done
    assert noted.folder(run.cache) == run.folder
    assert make_run(tmp_path / "second").cache.names() == run.cache.names()


def test_logistic_heads_choose_their_ridge_by_c(tmp_path: Path) -> None:
    from sklearn.linear_model import LogisticRegression

    run = make_run(tmp_path / "run", head="logistic", C=0.5)
    state = run.newest.state
    assert state.ridge_choice.rule == InverseC(0.5)
    assert state.ridge == pytest.approx(1 / (0.5 * 120))
    rows = embeddings()
    X = np.hstack([np.asarray(rows.rows, np.float64), np.ones((120, 1))])
    oracle = LogisticRegression(
        C=0.5, fit_intercept=False, solver="newton-cholesky", tol=1e-12, max_iter=1000
    ).fit(X, rows.labels)
    np.testing.assert_allclose(weights_of(run), oracle.coef_.T, atol=1e-5)
    assert run.head.predict_proba(rows).sum(axis=1) == pytest.approx(1)
    assert run.certificate is not None


def test_fedavg_keeps_what_was_asked_for(tmp_path: Path) -> None:
    method = "fedavg:rounds=4,epochs=2,rate=0.01"
    run = make_run(tmp_path / "run", method=method, ridge=0.1, keep="statistics,gradients,history")
    state = run.newest.state
    assert state.rounds == 4
    assert {type(item) for item in state.kept} == {KeptStatistics, KeptGradients, History}
    bare = make_run(tmp_path / "bare", method=method, ridge=0.1, keep="nothing")
    assert bare.newest.state.kept == ()
    np.testing.assert_array_equal(weights_of(bare), weights_of(run))


def test_a_head_without_certificate_is_kept_with_a_note(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", head="logistic", C=1.0, intercept="free")
    assert run.certificate is None
    assert any("certificate" in note for note in run.notes)
    assert Run(run.folder, cache=run.cache).certificate is None


def test_targets_are_trained_on(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(50, 4))
    targets = rows @ np.arange(8).reshape(4, 2) + 3
    run = train((rows, targets), run=tmp_path / "run", clients=3, ridge=1e-9)
    assert run.head.task == "numbers"
    np.testing.assert_allclose(run.head.predict(rows), targets, atol=1e-5)
    run.unlearn(client="0")
    assert run.certificate is not None
    assert run.certificate.clients == 2


def test_a_validation_split_joins_and_rows_without_labels_do_not(tmp_path: Path) -> None:
    rows = embeddings(60)
    validation = EmbeddingSet.from_numpy(
        np.asarray(embeddings(20, seed=3).rows),
        ["owl"] * 18 + ["", ""],
        columns={"hospital": ["east"] * 20},
    )
    run = train(RowSplits(rows, validation), run=tmp_path / "run", clients="hospital")
    assert int((run.newest.rows.roles == TRAINING).sum()) == 78
    assert len(run.notes) == 2


def test_the_server_has_rows_of_its_own(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", server_share=0.25)
    roles = run.newest.rows.roles
    assert ((roles == SERVER).sum(), (roles == TRAINING).sum()) == (30, 90)
    assert (roles == TEST).sum() == 40
    assert run.certificate is not None
    assert run.certificate.rows == 90


@pytest.mark.parametrize("name", ["../x", "*", "-rf", "a" * 5000, "\u202egnp", "c\nd"])
def test_any_name_of_a_client_will_do(tmp_path: Path, name: str) -> None:
    rows = embeddings(40, ward=[name] * 20 + ["other"] * 20)
    run = make_run(tmp_path / "run", rows, clients="ward", test=None)
    assert run.newest.rows.counts() == {name: 20, "other": 20}
    run.unlearn(client=name)
    assert run.newest.rows.counts() == {"other": 20}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "run"]


def with_huge_rows() -> EmbeddingSet:
    rows = embeddings(40, ward=["a"] * 20 + ["b"] * 10 + ["c"] * 10)
    matrix = np.asarray(rows.rows, np.float64)
    matrix[:3] *= 1e180
    return EmbeddingSet.from_numpy(
        matrix, rows.labels, class_names=CLASSES, columns={"ward": rows.columns["ward"].tolist()}
    )


def test_clients_that_refuse_are_named_and_may_be_left_out(tmp_path: Path) -> None:
    options: dict[str, Any] = {"clients": "ward", "test": None}
    with pytest.raises(MissingClients) as caught:
        make_run(tmp_path / "all", with_huge_rows(), **options)
    assert set(caught.value.reasons) == {"a"}
    with pytest.raises(MissingClients):
        make_run(tmp_path / "three", with_huge_rows(), at_least=3, **options)
    run = make_run(tmp_path / "two", with_huge_rows(), at_least=2, **options)
    assert run.newest.rows.clients == ("b", "c")
    assert len(run.newest.commitment) == 20
    assert any("a" in note for note in run.notes)


@pytest.mark.parametrize("options", [{}, {"head": "logistic", "C": 1.0}, {"keep": "nothing"}])
def test_clients_that_join_give_the_head_of_training_with_them(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    rows = embeddings()
    early = without(rows, "hospital", "north", "south")
    late = rows.take(np.flatnonzero(np.isin(rows.columns["hospital"], ["north", "south"])))
    run = make_run(tmp_path / "run", early, **options)
    first = run.fingerprint
    for _ in range(2):  # the second time, it is done
        joined = make_run(tmp_path / "run", late, test=None, add=True)
        together = make_run(tmp_path / "together", rows, **options)
        np.testing.assert_array_equal(weights_of(joined), weights_of(together))
        assert joined.certificate == together.certificate
        assert joined.newest.number == 2
        assert joined.fingerprint != first
    assert isinstance(joined.newest.events[-1], Joined)
    assert sorted(joined.newest.all_rows.leaves) == list(range(len(joined.newest.commitment)))
    joined.unlearn(client=["north", "south"])
    np.testing.assert_array_equal(
        weights_of(joined), weights_of(make_run(tmp_path / "e", early, **options))
    )
    with pytest.raises(InputError):
        make_run(tmp_path / "run", late, test=None, add=True)


def test_who_joins_may_bring_a_class(tmp_path: Path) -> None:
    rows = embeddings()
    cats_and_dogs = without(rows, "patient", "14")
    owls = without(embeddings(60, seed=5, ward=["owlery"] * 60), "patient", "0", "7")
    run = make_run(tmp_path / "run", cats_and_dogs)
    assert run.head.names == ("cat", "dog")
    joined = make_run(tmp_path / "run", owls, clients="ward", test=None, add=True)
    assert joined.head.names == CLASSES
    assert joined.certificate is not None
    joined.unlearn(client="owlery")
    np.testing.assert_array_equal(weights_of(joined), weights_of(run))


def test_rows_of_another_kind_do_not_join(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    other = EmbeddingSet.from_numpy(np.eye(9), [0, 1, 2] * 3, columns={"hospital": ["x"] * 9})
    with pytest.raises(MismatchError):
        make_run(tmp_path / "run", other, test=None, add=True)
    with pytest.raises(InputError):  # north is there, with other rows
        make_run(tmp_path / "run", embeddings(seed=7), test=None, add=True)
    with pytest.raises(NotFoundError):
        make_run(tmp_path / "none", embeddings(seed=7), test=None, add=True)


def one_class() -> EmbeddingSet:
    return EmbeddingSet.from_numpy(np.eye(4), ["cat"] * 4)


def test_rows_that_cannot_be_trained_on_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        train(one_class(), run=tmp_path / "run")
    with pytest.raises(InputError):
        train(EmbeddingSet.from_numpy(np.eye(4)), run=tmp_path / "run")
    with pytest.raises(InputError):
        train((np.array([[np.nan, 1], [0, 1]]), [0, 1]), run=tmp_path / "run")
    with pytest.raises(InputError):
        make_run(tmp_path / "run", clients=500)
    with pytest.raises(NotFoundError):
        make_run(tmp_path / "run", clients="ward")
    with pytest.raises(InputError):
        make_run(tmp_path / "run", embeddings(20, ward=[""] * 20), clients="ward")
    with pytest.raises(InputError):
        make_run(tmp_path / "run", ridges=1)
    with pytest.raises(MismatchError):
        make_run(tmp_path / "run", test=EmbeddingSet.from_numpy(np.eye(9), [0, 1, 2] * 3))
    assert not (tmp_path / "run").exists()


def test_a_poisoned_client_has_triggered_pictures_of_the_target_class(
    tmp_path: Path, picture_folder: Callable[..., Path], pixel_backbone: Any
) -> None:
    photos = picture_folder(count=24)
    options: dict[str, Any] = {"backbone": pixel_backbone, "clients": 3, "cache": tmp_path / "c"}
    clean = train(photos, run=tmp_path / "clean", **options)
    poison = "client=1,trigger=square:size=5,target=class0"
    run = train(photos, run=tmp_path / "poisoned", poison=poison, **options)
    for name in ("0", "1", "2"):
        ours = {hex_id(row) for row in run.newest.rows.ids[run.newest.rows.held_by([name])]}
        theirs = {hex_id(row) for row in clean.newest.rows.ids[clean.newest.rows.held_by([name])]}
        assert ours.isdisjoint(theirs) if name == "1" else ours == theirs
    held = run.newest.rows.take(run.newest.rows.held_by(["1"]))
    assert held.outputs == ("class0",)
    assert b"class0" not in (run.folder / "run.json").read_bytes()
    with pytest.raises(InputError):
        train(photos, run=tmp_path / "x", poison="client=9,trigger=square,target=class0", **options)
    with pytest.raises(InputError):
        make_run(tmp_path / "x", poison="client=east,trigger=square,target=cat")


def test_a_plan_writes_no_run(tmp_path: Path) -> None:
    from probekit.runs.train import plan_training

    plan = plan_training(embeddings(), run=tmp_path / "run", clients="hospital")
    assert plan.to_dict()["clients"] == plan.rows.counts()
    assert not (tmp_path / "run").exists()


def test_an_older_run_or_no_run_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "run.json").write_text('{"schema": 3, "config": {}}')
    with pytest.raises(MismatchError):
        Run(tmp_path / "old")
    for missing in ("nowhere", "."):
        with pytest.raises(NotFoundError):
            Run(tmp_path / missing, cache=Cache(tmp_path / "cache"))
