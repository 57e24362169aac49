"""`probekit train --objective-noise`: the secret term, where it stands and where it does not, and its guarantee."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.cache import DiskStore
from probekit.models.serving import load_head
from probekit.runs.folder import RunFolder
from probekit.runs.rows import rows_at
from probekit.runs.snapshot import snapshot
from probekit.runs.tensors import put_objective
from tests.cli.conftest import Probekit
from tests.oracles import columns, one_hot
from tests.shelves import Shelve
from tests.shelves import shelve as shelve

OPTIONS = ("--clients", "4", "--server-share", "0.2", "--ridge", "0.01")
SIGMA = 2.0

Array = NDArray[np.float64]


@pytest.fixture
def trained(probekit: Probekit, shelve: Shelve, tmp_path: Path) -> Path:
    """A run of four clients with a secret linear term."""
    shelve("rows", rows=160)
    shelve("test", rows=40, seed=5)
    code, _, said = probekit("train", "rows", *OPTIONS, "--objective-noise", "2", "--run", str(tmp_path / "run"))
    assert code == 0, said
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
    opened = RunFolder.open(run)
    embeddings, partition = rows_at(opened, store)
    held = np.concatenate([partition.clients[name] for name in opened.trained().counts])
    X, Y = columns(embeddings.to_numpy()[held].astype(np.float64)), one_hot(embeddings.labels[held], 3)
    penalty = 0.01 * len(held) * np.eye(X.shape[1])
    return np.asarray(np.linalg.solve(X.T @ X + penalty, X.T @ Y - term_of(run)))


def test_every_request_solves_again_with_the_same_term(trained: Path, probekit: Probekit, store: DiskStore) -> None:
    opened = RunFolder.open(trained)
    term, embeddings = term_of(trained), opened.embeddings(store)
    first, second = (embeddings.ids[int(row)] for row in opened.partition().clients["1"][:2])
    label = (int(embeddings.labels[embeddings.ids.index(second)]) + 1) % 3
    requests = (("--client", "2"), ("--sample", first), ("--relabel", f"{second}={label}"), ("--add", "2"))
    for state, request in enumerate(requests, start=2):
        code, value, said = probekit("unlearn", str(trained), *request)
        assert (code, value["method"], value["state"]) == (0, "exact", state), said
        head = load_head(trained / "states" / f"{state:04d}" / "head")
        np.testing.assert_allclose(head.params, minimum(trained, store), rtol=0, atol=1e-10)
        assert np.array_equal(term_of(trained), term)
        code, checked, said = probekit("verify", str(certificate(trained, state)), "--run", str(trained), "--rows")
        assert (code, checked["verified"]) == (0, True), (checked, said)
    code, value, said = probekit("unlearn", str(trained), "--client", "0", "--method", "retrain")
    assert code == 0, said
    np.testing.assert_allclose(RunFolder.open(trained).head().params, minimum(trained, store), rtol=0, atol=1e-10)


def test_the_certificate_states_the_budget_by_itself(trained: Path, probekit: Probekit) -> None:
    code, value, said = probekit("unlearn", str(trained), "--client", "2", "--epsilon", "0.5", "--delta", "1e-6")
    assert code == 0, said
    found = value["privacy"]
    assert (found["mechanism"], found["sigma"]) == ("objective perturbation", SIGMA)
    assert (found["epsilon"], found["delta"]) == (0.5, 1e-6)
    rows = sum(value["retained"].values())
    assert found["bound"] == pytest.approx(rows * (value["residual"]["norm"] + value["residual"]["rounding"]))
    assert found["bound"] <= found["largest_bound"] == pytest.approx(SIGMA * 0.5 / np.sqrt(2 * np.log(1.5e6)))
    assert any("stay secret" in caveat for caveat in found["caveats"])
    code, checked, _ = probekit("verify", value["certificate"], "--run", str(trained))
    names = {one["name"] for one in checked["checks"]}
    assert {"retained residual", "what the noise covers", "linear term as before", "size of the linear term"} <= names
    code, checked, _ = probekit("verify", value["certificate"], "--head", str(trained / "states" / "0002" / "head"))
    assert (code, checked["verified"]) == (0, True)
    assert any("Without that term" in one for one in checked["assumptions"])
    assert any("stay secret" in one for one in checked["caveats"])


def test_what_the_noise_cannot_cover_changes_nothing(trained: Path, probekit: Probekit, tmp_path: Path) -> None:
    released = str(tmp_path / "released")
    for more, words in (
        (("--epsilon", "1e-14"), "hides a residual of at most"),
        (("--epsilon", "2"), "up to 1"),
        (("--sigma", "0.1"), "Leave --sigma out"),
        (("--sigma", "0.1", "--release", released), "Leave --sigma out"),
        (("--method", "fedremoval"), "Use exact"),
        (("--method", "fedremoval-pcg:3"), "Use exact"),
        (("--method", "fedremoval-line"), "Use exact"),
    ):
        code, _, said = probekit("unlearn", str(trained), "--client", "2", *more)
        assert (code, words in said) == (2, True), (more, said)
    assert RunFolder.open(trained).state == 1
    assert not Path(released).exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--method", "fedavg"), "closed form"),
        (("--method", "logistic", "--ridge", "1"), "closed form"),
        (("--ridge", "0"), "ridge above 0"),
        (("--intercept", "free"), "free intercept"),
        (("--arithmetic", "fast"), "arithmetic fast"),
        (("--fit-view", "centre"), "fit view centre"),
        (("--class-weight", "balanced"), "class weights"),
        (("--normalise-classes",), "normalised classes"),
        (("--keep", "gradients"), "kept gradients"),
        (("--objective-noise", "0"), "sigma above 0"),
        (("--objective-noise", "-1"), "sigma above 0"),
        (("--objective-noise", "nan"), "sigma above 0"),
    ],
)
def test_options_that_hide_nothing_are_refused(
    probekit: Probekit, shelve: Shelve, tmp_path: Path, more: tuple[str, ...], words: str
) -> None:
    shelve("rows", rows=160)
    base = ("train", "rows", *OPTIONS, "--objective-noise", "2", "--run", str(tmp_path / "run"))
    code, _, said = probekit(*base, *more)
    assert (code, words in said) == (2, True), said
    assert not (tmp_path / "run").exists()


def test_a_chosen_ridge_is_not_hidden_and_it_says_so(probekit: Probekit, shelve: Shelve, tmp_path: Path) -> None:
    shelve("rows", rows=160)
    base = ("train", "rows", "--clients", "4", "--objective-noise", "2", "--run")
    _, chosen, _ = probekit(*base, str(tmp_path / "auto"))
    assert "give the ridge as a number" in chosen["note"]
    _, given, _ = probekit(*base, str(tmp_path / "given"), "--ridge", "0.01")
    assert "secret linear term" in given["note"]
    assert "give the ridge as a number" not in given["note"]
    exact = ("--view", "l2", "--arithmetic", "exact", "--ridge", "0.01")
    assert probekit(*base, str(tmp_path / "exact"), *exact)[0] == 0
    assert probekit("unlearn", str(tmp_path / "exact"), "--client", "1")[0] == 0


def test_a_run_that_kept_nothing_retrains_with_its_term(
    probekit: Probekit, shelve: Shelve, store: DiskStore, tmp_path: Path
) -> None:
    shelve("rows", rows=160)
    run = tmp_path / "lean"
    options = (*OPTIONS, "--objective-noise", "2", "--keep", "nothing")
    assert probekit("train", "rows", *options, "--run", str(run))[0] == 0
    code, value, said = probekit("unlearn", str(run), "--client", "1", "--method", "retrain")
    assert (code, value["privacy"]["mechanism"]) == (0, "objective perturbation"), said
    np.testing.assert_allclose(RunFolder.open(run).head().params, minimum(run, store), rtol=0, atol=1e-10)
    assert probekit("verify", str(certificate(run)), "--run", str(run), "--rows")[0] == 0
    code, _, said = probekit("unlearn", str(run), "--client", "2", "--method", "retrain", "--server-only")
    assert (code, "needs what this run does not have" in said) == (2, True), said
    assert RunFolder.open(run).state == 2


def test_the_term_is_in_no_file_but_its_own(trained: Path, probekit: Probekit) -> None:
    assert probekit("unlearn", str(trained), "--client", "2")[0] == 0
    assert probekit("report", str(trained), "--test", "test")[0] == 0
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


def test_two_runs_with_one_seed_have_two_terms(trained: Path, probekit: Probekit, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert probekit("train", "rows", *OPTIONS, "--objective-noise", "2", "--run", str(other))[0] == 0
    assert RunFolder.open(other).config["seed"] == RunFolder.open(trained).config["seed"]
    assert not np.isclose(term_of(trained), term_of(other)).any()


def test_a_changed_term_fails_with_exit_code_6(trained: Path, probekit: Probekit) -> None:
    assert probekit("unlearn", str(trained), "--client", "2")[0] == 0
    path, term = term_file(trained, 2), term_of(trained)
    good = path.read_bytes()
    path.unlink()
    put_objective(path, term + 1e-3)
    assert probekit("verify", str(certificate(trained)), "--run", str(trained))[0] == 6
    assert probekit("unlearn", str(trained), "--client", "1")[0] == 6
    put_objective(path, term[:-1])
    assert probekit("verify", str(certificate(trained)), "--run", str(trained))[0] == 6
    path.unlink()
    assert probekit("verify", str(certificate(trained)), "--run", str(trained))[0] == 4
    path.write_bytes(good)
    assert probekit("verify", str(certificate(trained)), "--run", str(trained))[0] == 0


def test_a_forged_budget_fails_with_exit_code_6(trained: Path, probekit: Probekit, tmp_path: Path) -> None:
    assert probekit("unlearn", str(trained), "--client", "2")[0] == 0
    from probekit.certificates.certificate import Certificate, certificate_text

    plain = json.loads(certificate(trained).read_text())["certificate"]
    forged, head = tmp_path / "forged.json", str(trained / "states" / "0002" / "head")
    forged.write_text(certificate_text(Certificate.from_plain(plain)))
    assert probekit("verify", str(forged), "--head", head)[0] == 0
    for name, value in (("sigma", 20.0), ("epsilon", 0.01), ("bound", 1e-20), ("largest_bound", 50.0)):
        changed = Certificate.from_plain({**plain, "privacy": {**plain["privacy"], name: value}})
        forged.write_text(certificate_text(changed))
        for about in (("--head", head), ("--run", str(trained))):
            assert probekit("verify", str(forged), *about)[0] == 6, name


def test_purging_keeps_the_term_and_says_so(trained: Path, probekit: Probekit, store: DiskStore) -> None:
    assert probekit("unlearn", str(trained), "--client", "2")[0] == 0
    term = term_of(trained)
    code, value, said = probekit("purge", str(trained), "--rows", "--yes")
    assert code == 0, said
    assert any("linear term" in one for one in value["unreached"])
    assert np.array_equal(term_of(trained), term)
    assert probekit("unlearn", str(trained), "--client", "1")[0] == 0
    np.testing.assert_allclose(RunFolder.open(trained).head().params, minimum(trained, store), rtol=0, atol=1e-10)
    assert probekit("verify", str(certificate(trained, 3)), "--run", str(trained), "--rows")[0] == 0


def test_evaluation_and_report_retrain_with_the_term(trained: Path, probekit: Probekit, store: DiskStore) -> None:
    assert probekit("unlearn", str(trained), "--client", "2")[0] == 0
    run = RunFolder.open(trained)
    for number in (1, 2):
        for from_rows in (False, True):
            head, why = snapshot(run, store, number, from_rows=from_rows).retrained()
            assert head is not None, why
            np.testing.assert_allclose(head.params, run.head(number).params, rtol=0, atol=1e-10)
        head = snapshot(run, store, number).reference()
        np.testing.assert_allclose(head.params, run.head(number).params, rtol=0, atol=1e-10)
    code, _, said = probekit("evaluate", str(trained), "test")
    assert code == 0, said
    code, _, said = probekit("report", str(trained), "--test", "test")
    assert code == 0, said
    written: Any = json.loads((trained / "report" / "report.json").read_text())
    assert all(one["distance"] < 1e-10 and one["bound"] < 1e-8 for one in written["stages"])
    page = (trained / "report" / "report.md").read_text()
    assert "objective perturbation" in page
    assert "must stay secret" in page
    assert probekit("audit", "influence", str(trained), "--test", "test")[0] == 0
