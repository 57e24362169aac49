"""Objective noise: the secret term, where it stands and where it does not, and its guarantee."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import kstest

from probekit import Run
from probekit.cache import DiskStore
from probekit.errors import CacheError, InputError, VerificationError
from probekit.linear.design import Design
from probekit.linear.objective import draw_objective
from probekit.linear.statistics import statistics
from probekit.models.serving import load_head
from probekit.runs.checkpoint import TrainingCheckpoint, TrainingState
from probekit.runs.folder import RunFolder
from probekit.runs.rows import rows_at
from probekit.runs.snapshot import snapshot
from probekit.runs.tensors import put_objective
from probekit.runs.verification import verify_head
from tests.oracles import columns, one_hot
from tests.runs.conftest import Opened
from tests.shelves import Shelve
from tests.shelves import shelve as shelve
from tests.verdicts import STORY, unproven

OPTIONS = {"clients": 4, "server_share": 0.2, "ridge": 0.01}
SIGMA = 2.0

Array = NDArray[np.float64]


@pytest.fixture
def trained(shelve: Shelve, tmp_path: Path, store: DiskStore) -> Path:
    """A run of four clients with a secret linear term."""
    shelve("rows", rows=160)
    shelve("test", rows=40, seed=5)
    Run.train(tmp_path / "run", "rows", clients=4, server_share=0.2, ridge=0.01, objective_noise=2, store=store)
    return tmp_path / "run"


def term_file(run: Path, state: int = 1) -> Path:
    """Where a state keeps the term."""
    return run / "states" / f"{state:04d}" / "kept" / "objective.safetensors"


def certificate(run: Path, state: int = 2) -> Path:
    """Where the certificate of a state stands."""
    return run / "states" / f"{state:04d}" / "certificate.json"


def term_of(run: Path) -> Array:
    """The secret term."""
    found = RunFolder.open(run).trained().objective
    assert found is not None
    return np.array(found)


def minimum(run: Path, store: DiskStore) -> Array:
    """The minimum of the perturbed objective over the rows as they stand, from the explicit matrix."""
    folder = RunFolder.open(run)
    embeddings, partition = rows_at(folder, store)
    held = np.concatenate([partition.clients[name] for name in folder.trained().counts])
    X, Y = columns(embeddings.to_numpy()[held].astype(np.float64)), one_hot(embeddings.labels[held], 3)
    penalty = 0.01 * len(held) * np.eye(X.shape[1])
    return np.asarray(np.linalg.solve(X.T @ X + penalty, X.T @ Y - term_of(run)))


def test_every_request_solves_again_with_the_same_term(trained: Path, opened: Opened, store: DiskStore) -> None:
    folder = RunFolder.open(trained)
    term, embeddings = term_of(trained), folder.embeddings(store)
    first, second = (embeddings.ids[int(row)] for row in folder.partition().clients["1"][:2])
    label = (int(embeddings.labels[embeddings.ids.index(second)]) + 1) % 3
    requests: list[dict[str, Any]] = [
        {"client": "2"},
        {"samples": [first]},
        {"relabel": {second: label}},
        {"add": ["2"]},
    ]
    for state, request in enumerate(requests, start=2):
        done = opened(trained).unlearn(**request)
        assert (done.certificate.method, done.state) == ("exact", state)
        head = load_head(trained / "states" / f"{state:04d}" / "head")
        np.testing.assert_allclose(head.params, minimum(trained, store), rtol=0, atol=1e-10)
        assert np.array_equal(term_of(trained), term)
        assert unproven(opened(trained).verify(certificate(trained, state), rows=True)) == STORY
    opened(trained).unlearn("0", method="retrain")
    np.testing.assert_allclose(RunFolder.open(trained).head().params, minimum(trained, store), rtol=0, atol=1e-10)


def test_the_certificate_states_the_budget_by_itself(trained: Path, opened: Opened, store: DiskStore) -> None:
    value = opened(trained).unlearn("2", epsilon=0.5, delta=1e-6).plain
    found = value["privacy"]
    assert (found["mechanism"], found["sigma"]) == ("objective perturbation", SIGMA)
    assert (found["epsilon"], found["delta"]) == (0.5, 1e-6)
    rows = sum(value["retained"].values())
    assert found["bound"] == pytest.approx(rows * (value["residual"]["norm"] + value["residual"]["rounding"]))
    assert found["bound"] <= found["largest_bound"] == pytest.approx(SIGMA * 0.5 / np.sqrt(2 * np.log(1.5e6)))
    assert any("stay secret" in caveat for caveat in found["caveats"])
    assert unproven(opened(trained).verify(value["certificate"])) == {*STORY, "retained", "statistics"}
    checked = verify_head(certificate(trained), trained / "states/0002/head", store=store)
    assert unproven(checked) >= {"residual", "weights", "request"}
    assert any("Without that term" in one for one in checked.assumptions)
    assert any("stay secret" in one for one in checked.caveats)


def test_what_the_noise_cannot_cover_changes_nothing(trained: Path, opened: Opened) -> None:
    options: list[tuple[dict[str, Any], str]] = [
        ({"epsilon": 1e-14}, "hides a residual of at most"),
        ({"epsilon": 2}, "up to 1"),
        ({"unreleased": True}, "without noise on its releases"),
        ({"method": "fedremoval"}, "Use exact"),
        ({"method": "fedremoval-pcg:3"}, "Use exact"),
        ({"method": "fedremoval-line"}, "Use exact"),
    ]
    for more, words in options:
        with pytest.raises(InputError, match=words):
            opened(trained).unlearn("2", **more)
    assert RunFolder.open(trained).state == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"method": "fedavg"}, "closed form"),
        ({"method": "logistic", "ridge": 1}, "closed form"),
        ({"ridge": 0}, "ridge above 0"),
        ({"intercept": "free"}, "free intercept"),
        ({"arithmetic": "fast"}, "arithmetic fast"),
        ({"fit_view": "centre"}, "columns changed .centre"),
        ({"class_weight": "balanced"}, "class weights"),
        ({"normalise_classes": True}, "normalised classes"),
        ({"keep": "gradients"}, "kept gradients"),
        ({"objective_noise": 0.0}, "sigma above 0"),
        ({"objective_noise": -1.0}, "sigma above 0"),
        ({"objective_noise": float("nan")}, "sigma above 0"),
    ],
)
def test_options_that_hide_nothing_are_refused(
    shelve: Shelve, tmp_path: Path, store: DiskStore, more: dict[str, Any], words: str
) -> None:
    shelve("rows", rows=160)
    with pytest.raises(InputError, match=words):
        Run.train(tmp_path / "run", "rows", **{**OPTIONS, "objective_noise": 2.0, **more}, store=store)
    assert not (tmp_path / "run").exists()


def test_a_chosen_ridge_is_not_hidden_and_it_says_so(
    opened: Opened, shelve: Shelve, tmp_path: Path, store: DiskStore
) -> None:
    shelve("rows", rows=160)
    chosen = Run.train(tmp_path / "auto", "rows", clients=4, objective_noise=2, store=store).trained().solution.note
    assert "give the ridge as a number" in chosen
    given = Run.train(tmp_path / "given", "rows", clients=4, objective_noise=2, ridge=0.01, store=store)
    assert "secret linear term" in given.trained().solution.note
    assert "give the ridge as a number" not in given.trained().solution.note
    Run.train(
        tmp_path / "exact", "rows", clients=4, objective_noise=2, view="l2", arithmetic="exact", ridge=0.01, store=store
    )
    opened(tmp_path / "exact").unlearn("1")


def test_a_run_that_kept_nothing_retrains_with_its_term(
    opened: Opened, shelve: Shelve, store: DiskStore, tmp_path: Path
) -> None:
    shelve("rows", rows=160)
    run = tmp_path / "lean"
    Run.train(run, "rows", clients=4, server_share=0.2, ridge=0.01, objective_noise=2, keep="nothing", store=store)
    value = opened(run).unlearn("1", method="retrain").plain
    assert value["privacy"]["mechanism"] == "objective perturbation"
    np.testing.assert_allclose(RunFolder.open(run).head().params, minimum(run, store), rtol=0, atol=1e-10)
    assert opened(run).verify(certificate(run), rows=True).intact
    with pytest.raises(InputError, match="nobody may be asked"):
        opened(run).unlearn("2", method="retrain", server_only=True)
    assert RunFolder.open(run).state == 2


def test_the_term_is_in_no_file_but_its_own(trained: Path, opened: Opened) -> None:
    opened(trained).unlearn("2")
    opened(trained).report(["test"]).write(trained / "report")
    term = term_of(trained)
    numbers = [one.tobytes() for one in term.ravel()]
    texts = [repr(float(one)).encode() for one in term.ravel()]
    digits = [text.partition(b"e")[0].lstrip(b"-")[:12] for text in texts]
    leaks = {
        path.relative_to(trained).as_posix()
        for path in trained.rglob("*")
        if path.is_file() and any(one in path.read_bytes() for one in [*numbers, *digits])
    }
    assert leaks == {f"states/{state:04d}/kept/objective.safetensors" for state in (1, 2)}
    assert term_file(trained).stat().st_mode & 0o077 == 0
    assert RunFolder.open(trained).config["objective_noise"] == SIGMA


def test_the_term_is_normal_and_from_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """C10: not from a generator whose state its own output tells."""
    stats = statistics(np.ones((1, 299)), np.zeros(1, np.int64), Design(299, 100))
    monkeypatch.setattr(secrets, "token_bytes", np.random.default_rng(3).bytes)
    drawn = draw_objective(stats, SIGMA)
    assert drawn.shape == (300, 100)
    assert kstest(drawn.ravel() / SIGMA, "norm").pvalue > 1e-3
    monkeypatch.setattr(secrets, "token_bytes", bytes)
    assert (draw_objective(stats, SIGMA) < -8 * SIGMA).all()
    monkeypatch.setattr(secrets, "token_bytes", lambda size: b"\xff" * size)
    assert (draw_objective(stats, SIGMA) > 8 * SIGMA).all()
    assert np.isfinite(draw_objective(stats, SIGMA)).all()


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_a_run_is_closed_to_others_from_its_creation(
    shelve: Shelve, tmp_path: Path, store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C10: no mode is set afterwards, so what stands at the end stood from the beginning."""
    shelve("rows", rows=160)
    shelve("test", rows=40, seed=5)
    for name in ("chmod", "fchmod"):
        monkeypatch.setattr(os, name, lambda *_, **__: pytest.fail("a mode was set after writing"))
    before, place = os.umask(0), tmp_path / "open"
    try:
        place.mkdir()
        for name, options in (("head", {"objective_noise": 2}), ("rounds", {"method": "fedavg", "keep_history": True})):
            run = Run.train(place / name, "rows", clients=4, server_share=0.2, ridge=0.01, store=store, **options)
            run.unlearn("2")
            run.report(["test"]).write(run.path / "report")
            checkpoint = TrainingCheckpoint(place / f".{name}.training", "key")
            checkpoint.save(TrainingState({"weight": np.ones(3)}))
            inside = [
                run.path,
                checkpoint.path,
                *(run.path / "states").glob("*"),
                *(run.path / "states").glob("**/kept/**/*"),
            ]
            assert len(inside) > 8
            assert [str(path) for path in inside if path.stat().st_mode & 0o077] == []
    finally:
        os.umask(before)


def test_two_runs_with_one_seed_have_two_terms(trained: Path, tmp_path: Path, store: DiskStore) -> None:
    other = tmp_path / "other"
    Run.train(other, "rows", clients=4, server_share=0.2, ridge=0.01, objective_noise=2, store=store)
    assert RunFolder.open(other).config["seed"] == RunFolder.open(trained).config["seed"]
    assert not np.isclose(term_of(trained), term_of(other)).any()


def test_a_changed_term_fails_with_exit_code_6(trained: Path, opened: Opened) -> None:
    opened(trained).unlearn("2")
    path, term = term_file(trained, 2), term_of(trained)
    good = path.read_bytes()
    path.unlink()
    put_objective(path, term + 1e-3)
    with pytest.raises(VerificationError):
        opened(trained).verify(certificate(trained))
    with pytest.raises(VerificationError):
        opened(trained).unlearn("1")
    put_objective(path, term[:-1])
    with pytest.raises(VerificationError):
        opened(trained).verify(certificate(trained))
    path.unlink()
    with pytest.raises(CacheError):
        opened(trained).verify(certificate(trained))
    path.write_bytes(good)
    assert opened(trained).verify(certificate(trained)).intact


def test_a_forged_budget_fails(trained: Path, opened: Opened, tmp_path: Path, store: DiskStore) -> None:
    opened(trained).unlearn("2")
    from probekit.certificates.certificate import certificate_text, read_certificate

    claims, _ = read_certificate(certificate(trained).read_text())
    forged, head = tmp_path / "forged.json", trained / "states" / "0002" / "head"
    forged.write_text(certificate_text(claims))
    assert verify_head(forged, head, store=store).intact
    for name, value in (("sigma", 20.0), ("epsilon", 0.01), ("bound", 1e-20), ("largest_bound", 50.0)):
        changed = replace(claims, privacy={**(claims.privacy or {}), name: value})
        forged.write_text(certificate_text(changed))
        assert not verify_head(forged, head, store=store).intact, name
        with pytest.raises(VerificationError):  # the ledger knows no such certificate
            opened(trained).verify(forged)


def test_purging_keeps_the_term_and_says_so(trained: Path, opened: Opened, store: DiskStore) -> None:
    opened(trained).unlearn("2")
    term = term_of(trained)
    value = opened(trained).purge(rows=True).plain
    assert any("linear term" in one for one in value["unreached"])
    assert np.array_equal(term_of(trained), term)
    opened(trained).unlearn("1")
    np.testing.assert_allclose(RunFolder.open(trained).head().params, minimum(trained, store), rtol=0, atol=1e-10)
    assert opened(trained).verify(certificate(trained, 3), rows=True).intact


def test_evaluation_and_report_retrain_with_the_term(trained: Path, opened: Opened, store: DiskStore) -> None:
    opened(trained).unlearn("2")
    run = RunFolder.open(trained)
    for number in (1, 2):
        for from_rows in (False, True):
            head, why = snapshot(run, store, number, from_rows=from_rows).retrained()
            assert head is not None, why
            np.testing.assert_allclose(head.params, run.head(number).params, rtol=0, atol=1e-10)
        head = snapshot(run, store, number).reference()
        np.testing.assert_allclose(head.params, run.head(number).params, rtol=0, atol=1e-10)
    opened(trained).evaluate("test")
    opened(trained).report(["test"]).write(trained / "report")
    written: Any = json.loads((trained / "report" / "report.json").read_text())
    assert all(one["distance"] < 1e-10 and one["bound"] < 1e-8 for one in written["stages"])
    page = (trained / "report" / "report.md").read_text()
    assert "objective perturbation" in page
    assert "must stay secret" in page
    opened(trained).influence(test="test")
