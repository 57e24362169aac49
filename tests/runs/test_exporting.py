"""Heads that leave a run: noise fixed before training, one draw per state, counted, refused above the budget."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit import Run
from probekit.cache import DiskStore
from probekit.certificates.certificate import certificate_text, read_certificate
from probekit.custody.accounting import ReleaseNoise
from probekit.errors import CorruptError, InputError, StorageError, VerificationError
from probekit.models.serving import load_head, save_head
from probekit.runs import ledger, training
from probekit.runs.folder import RunFolder
from probekit.runs.ledger import LedgerEntry
from probekit.runs.noise import releases_of
from probekit.runs.options import TrainOptions
from probekit.runs.verification import verify_head
from probekit.values import Json
from tests.runs.conftest import Opened
from tests.shelves import Shelve
from tests.shelves import shelve as shelve
from tests.verdicts import false, unproven

OPTIONS: dict[str, Any] = {"clients": 4, "server_share": 0.2, "ridge": 0.01}
SIGMA = 1e-3
ROUNDS = "fedremoval-pcg:1"
"""A removal that is near retraining, and not there."""

Train = Callable[..., Run]


@pytest.fixture
def train(shelve: Shelve, tmp_path: Path, store: DiskStore) -> Train:
    """Trains a run of four clients."""
    shelve("rows", rows=160)
    return lambda name="run", **more: Run.train(tmp_path / name, "rows", store=store, **OPTIONS, **more)


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def spent(run: Run) -> float:
    """The rho that the ledger counts."""
    found = releases_of(run.folder.entries())
    assert found is not None
    return found.spent


def rewritten(run: Path, change: Callable[[list[LedgerEntry]], list[LedgerEntry]]) -> None:
    """The ledger with other entries, every digest computed anew: by somebody who owns every file."""
    note = json.loads((run / "run.json").read_text())
    previous, entries = ledger.FIRST, change(RunFolder.open(run).entries())
    for path in (run / "ledger.jsonl", *(run / "openings").glob("*.json")):
        path.unlink()
    for number, entry in enumerate(entries, start=1):
        made = replace(entry, number=number, previous=previous)
        previous = made.digest
        ledger.append(run / "ledger.jsonl", made)
    (run / "run.json").write_text(json.dumps({**note, "ledger": previous}))


def test_noise_is_in_the_ledger_before_anything_is_fitted(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C9: a training that stops, or is killed, has fixed its noise; the same again goes on, another is refused."""
    place = tmp_path / ".run.noise"

    def stop(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    remarks: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(training, "fit", stop)
        with pytest.raises(KeyboardInterrupt):
            train(release=SIGMA, note=remarks.append)
    first = ledger.first(place)
    assert not (tmp_path / "run").exists()
    assert first.details["noise"] == ReleaseNoise.of(SIGMA).plain
    assert first.digest in remarks[0]
    for other in ({"release": 2 * SIGMA}, {"release": SIGMA, "epsilon": 2.0}, {"release": SIGMA, "delta": 1e-6}):
        with pytest.raises(InputError, match="was fixed at"):
            train(**other)
    run = train(release=SIGMA)
    assert [entry.action for entry in run.folder.entries()] == ["noise", "train"]
    assert run.folder.entries()[0] == first
    assert not place.exists()
    assert run.training is not None
    assert run.training.plain["release"] == {**ReleaseNoise.of(SIGMA).plain, "entry": first.digest}


def test_a_killed_training_has_fixed_its_noise(train: Train, tmp_path: Path, store: DiskStore) -> None:
    """C9: SIGKILL between the ledger and the fit."""
    script = (
        "import os, signal, sys\n"
        "from probekit import Run\n"
        "from probekit.cache import DiskStore\n"
        "from probekit.runs import training\n"
        "training.fit = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"Run.train('run', 'rows', store=DiskStore({str(store.root)!r}), release={SIGMA}, **{OPTIONS})\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    first = ledger.first(tmp_path / ".run.noise")
    with pytest.raises(InputError, match="was fixed at"):
        train(release=2 * SIGMA)
    assert train(release=SIGMA).folder.entries()[0] == first
    anew = train(release=2 * SIGMA, force=True)
    assert anew.folder.entries()[0].details["noise"] == ReleaseNoise.of(2 * SIGMA).plain


def test_a_cut_or_changed_promise_is_not_believed(train: Train, tmp_path: Path) -> None:
    (tmp_path / ".run.noise").write_bytes(b'{"action":"noise","det')
    with pytest.raises(VerificationError, match="has no entry"):
        train(release=SIGMA)
    train(release=SIGMA, force=True)


def test_a_state_is_drawn_once_and_gives_the_same_bytes(train: Train, tmp_path: Path, opened: Opened) -> None:
    """C9: no second draw to average with; draws of different states have nothing in common."""
    run = train(release=SIGMA)
    run.unlearn("2")
    for number in (1, 2):
        run.export(tmp_path / f"first{number}", state=number, to="somebody")
        opened(run.path).export(tmp_path / f"again{number}", state=number)
        assert bytes_of(tmp_path / f"first{number}") == bytes_of(tmp_path / f"again{number}")
    noise = [load_head(tmp_path / f"first{one}").params - run.head(one).params for one in (1, 2)]
    for one in noise:
        assert 0.4 * SIGMA < one.std() < 2 * SIGMA
    assert abs(np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1]) < 0.9
    exports = [entry.details for entry in opened(run.path).folder.entries() if entry.action == "export"]
    assert [(one["state"], one["to"]) for one in exports] == [(1, "somebody"), (1, ""), (2, "somebody"), (2, "")]
    assert not any(run.head(number).digest in str(exports) for number in (1, 2)), "C19"
    again = train("second", release=SIGMA)
    again.export(tmp_path / "third")
    assert load_head(tmp_path / "third").digest != load_head(tmp_path / "first1").digest


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_what_was_drawn_is_closed_to_others(train: Train, tmp_path: Path) -> None:
    """C10, from its creation: the folder it is made in is closed already."""
    before = os.umask(0)
    try:
        (tmp_path / "open").mkdir()
        run = train("open/run", release=SIGMA)
        run.export(tmp_path / "open" / "out")
        kept = run.path / "states" / "0001" / "released"
        assert [path for path in (kept, *kept.iterdir()) if path.stat().st_mode & 0o077] == []
        assert (tmp_path / "open" / "out").stat().st_mode & 0o077 == 0o077
    finally:
        os.umask(before)


def test_killed_between_draw_and_ledger_it_is_the_same_draw(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing leaves before the ledger says so; a draw that nobody saw is used, not drawn again."""
    run = train(release=SIGMA)

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "record", stop)
        with pytest.raises(KeyboardInterrupt):
            run.export(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    drawn = bytes_of(run.path / "states" / "0001" / "released")
    with monkeypatch.context() as patched:
        patched.setattr("probekit.runs.exporting.save_head", stop)
        with pytest.raises(KeyboardInterrupt):
            run.export(tmp_path / "out")
    assert run.folder.entries()[-1].action == "export"
    run.export(tmp_path / "out")
    assert bytes_of(tmp_path / "out") == drawn


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_dying_at_any_step_nothing_leaves_unrecorded_and_nothing_is_drawn_twice(
    train: Train, tmp_path: Path, opened: Opened
) -> None:
    """C9: the process dies, without any cleaning up, before each fsync and each renaming in turn."""
    run, out = train(release=SIGMA), tmp_path / "out"
    kept = run.path / "states" / "0001" / "released" / "model.safetensors"
    drawn: set[bytes] = set()
    for step in range(100):
        child = os.fork()
        if child == 0:
            try:
                left = iter(range(step))
                for home, name in ((os, "fsync"), (Path, "rename")):
                    setattr(home, name, _dying(getattr(home, name), left))
                opened(run.path).export(out)
                os._exit(0)
            finally:
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        drawn |= {kept.read_bytes()} if kept.exists() else set()
        if out.exists():
            assert (out / "model.safetensors").read_bytes() in drawn
            assert opened(run.path).folder.entries()[-1].action == "export"
        if code == 0:
            break
    assert step > 15
    assert out.exists()
    assert len(drawn) == 1


def _dying(real: Callable[..., Any], left: Iterator[int]) -> Callable[..., Any]:
    """The same call, until its number is up."""

    def call(*given: Any) -> Any:
        return os._exit(9) if next(left, None) is None else real(*given)

    return call


def test_a_draw_that_was_released_is_never_replaced(train: Train, tmp_path: Path) -> None:
    """C9: with the kept draw gone or another in its place, asking again is refused."""
    run, other = train(release=SIGMA), train("other", release=SIGMA)
    for one in (run, other):
        one.export(tmp_path / f"{one.path.name}-out")
    kept = run.path / "states" / "0001" / "released"
    kept.rename(tmp_path / "aside")
    with pytest.raises(CorruptError, match="drawn once only"):
        run.export(tmp_path / "again")
    (other.path / "states" / "0001" / "released").rename(kept)
    with pytest.raises(CorruptError, match="not the head that was released"):
        run.export(tmp_path / "again")
    assert not (tmp_path / "again").exists()


def scarce(train: Train) -> float:
    """A sigma that covers either of two removals of such a run, and not both."""
    trial, one = train("trial"), ReleaseNoise.of(1.0)
    bounds = [trial.unlearn(client, method=ROUNDS).certificate.bounds.weights or 0.0 for client in ("2", "1")]
    sigma = 1.02 * max(bounds) / one.largest_bound(trial.head().params.size)
    assert sum(one.cost(bound / sigma, 1) for bound in bounds) > 1.05 * one.budget
    return sigma


def test_costs_add_up_and_above_the_budget_it_refuses(train: Train, tmp_path: Path) -> None:
    run = train(release=scarce(train))
    assert run.export(tmp_path / "1").spent == 0.0
    first, second = (run.unlearn(client, method=ROUNDS).certificate for client in ("2", "1"))
    costs = [dict(one.privacy or {})["rho"] for one in (first, second)]
    released = run.export(tmp_path / "2", state=2)
    noise = ReleaseNoise.of(scarce_sigma(run))
    assert released.spent == costs[0] == pytest.approx(noise.cost(first.bounds.weights or 0, run.head().params.size))
    assert released.epsilon is not None
    assert released.epsilon <= 1.0
    assert run.export(tmp_path / "2again", state=2).spent == costs[0]
    with pytest.raises(InputError, match="of that budget is spent"):
        run.export(tmp_path / "3", state=3)
    assert not (tmp_path / "3").exists()
    assert spent(run) == costs[0]
    before = run.state
    with pytest.raises(InputError, match="`unreleased=True`"):
        run.unlearn("0", method="fedremoval")
    assert run.state == before
    forced = run.unlearn("0", method="fedremoval", unreleased=True).certificate
    assert (forced.privacy, "never released" in forced.warnings[-1]) == (None, True)
    with pytest.raises(InputError, match="never released"):
        run.export(tmp_path / "4")
    run.purge()
    assert spent(run) == costs[0], "what was released stays released"


def scarce_sigma(run: Run) -> float:
    """The sigma that a run's ledger fixed."""
    found: Any = run.folder.entries()[0].details["noise"]
    return float(found["sigma"])


def test_a_removal_too_far_from_retraining_changes_nothing(train: Train) -> None:
    run = train(release=1e-6)
    with pytest.raises(InputError, match="fedremoval-pcg"):
        run.unlearn("2", method="fedremoval")
    assert run.state == 1
    done = run.unlearn("2").certificate
    said: Any = done.privacy
    assert said["mechanism"] == "discrete Gaussian"
    assert any("not differential privacy of training" in one for one in said["caveats"])
    assert any("still know the forgotten" in one for one in said["caveats"])


def test_a_head_without_noise_voids_the_guarantee(train: Train, tmp_path: Path) -> None:
    run = train(release=SIGMA)
    run.unlearn("2")
    assert "release" in unproven(run.verify())
    out = run.export(tmp_path / "bare", noise=False)
    assert (out.epsilon, out.mechanism, out.head) == (None, None, run.head().digest)
    assert "without noise (ledger entry 4)" in out.remarks[0]
    said = {one.name: one for one in run.verify().findings}["release"]
    assert (said.verdict, "left this run without noise" in said.found) == ("not proven", True)
    later = run.unlearn("1").certificate
    assert (later.privacy, "left this run without noise" in later.warnings[-1]) == (None, True)
    noisy = run.export(tmp_path / "noisy")
    assert (noisy.epsilon, noisy.head != run.head().digest) == (None, True)


def test_what_was_spent_before_a_voiding_stays_spent(train: Train, tmp_path: Path) -> None:
    run = train(release=SIGMA)
    run.unlearn("2")
    cost = run.export(tmp_path / "out").spent
    run.export(tmp_path / "bare", noise=False)
    run.export(tmp_path / "out")
    assert spent(run) == cost
    assert cost is not None
    assert cost > 0
    assert "release" in unproven(run.verify())


def test_a_place_that_is_taken_costs_nothing(train: Train, tmp_path: Path) -> None:
    run = train(release=SIGMA)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.txt").write_text("mine")
    with pytest.raises(StorageError, match="holds no head"):
        run.export(tmp_path / "taken")
    assert [entry.action for entry in run.folder.entries()] == ["noise", "train"]
    assert (tmp_path / "taken" / "thesis.txt").read_text() == "mine"


def test_a_run_without_noise_exports_its_head_and_says_to_whom(train: Train, tmp_path: Path) -> None:
    run = train()
    out = run.export(tmp_path / "out", to="a clinic")
    assert load_head(tmp_path / "out").digest == run.head().digest == out.head
    assert run.folder.entries()[-1].details["to"] == "a clinic"
    with pytest.raises(InputError, match="inside the run itself"):
        run.export(run.path / "states" / "0001" / "head")
    with pytest.raises(InputError, match="trained without noise"):
        run.unlearn("2", unreleased=True)
    with pytest.raises(InputError, match="asked of objective noise"):
        run.unlearn("2", epsilon=0.5)
    assert "for a clinic" in str(run.report([]).plain["ledger"])


def test_a_run_with_noise_is_not_copied(train: Train, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="spend its budget twice"):
        train(release=SIGMA).fork(tmp_path / "copy")


def test_an_anchor_from_before_training_proves_that_noise_was_fixed(train: Train, store: DiskStore) -> None:
    run = train(release=SIGMA)
    assert run.training is not None
    anchor = run.training.plain["release"]["entry"]
    done = run.unlearn("2")
    assert "release" in unproven(run.verify())
    assert "release" not in unproven(run.verify(anchors=[anchor]))
    alone = verify_head(done.path, run.path / "states" / "0002" / "head", store=store)
    assert {"release"} <= unproven(alone)


def test_who_got_a_head_with_noise_can_hold_it_against_the_certificate(
    train: Train, tmp_path: Path, store: DiskStore
) -> None:
    """It is no other head, so not false; which one it is a release of, only the ledger says."""
    run, loud = train(release=SIGMA), train("loud", release=2 * SIGMA)
    done = run.unlearn("2")
    run.export(tmp_path / "out")
    loud.export(tmp_path / "loud-out")
    assert "head" in unproven(verify_head(done.path, tmp_path / "out", store=store))
    assert false(verify_head(done.path, tmp_path / "loud-out", store=store)) == {"head"}
    head: Any = load_head(tmp_path / "out")
    save_head(replace(head, params=head.params + SIGMA / 3), tmp_path / "moved")
    assert false(verify_head(done.path, tmp_path / "moved", store=store)) == {"head"}
    plain = train("plain").unlearn("2")
    assert false(verify_head(plain.path, tmp_path / "out", store=store)) == {"head"}


def _other_sigma(entries: list[LedgerEntry]) -> list[LedgerEntry]:
    first = replace(entries[0], details={**entries[0].details, "noise": ReleaseNoise.of(1.0).plain})
    return [first, *entries[1:]]


def _own_grid(entries: list[LedgerEntry]) -> list[LedgerEntry]:
    noise: Any = entries[0].details["noise"]
    return [replace(entries[0], details={"noise": {**noise, "grid": 1e-3}}), *entries[1:]]


def _no_cost(entries: list[LedgerEntry]) -> list[LedgerEntry]:
    return [replace(one, details={**one.details, "rho": 0.0}) if one.action == "export" else one for one in entries]


def _overspent(entries: list[LedgerEntry]) -> list[LedgerEntry]:
    more: dict[str, Json] = {**entries[-1].details, "rho": 1.0}
    return [*entries[:-1], replace(entries[-1], details=more)]


def _refunded(entries: list[LedgerEntry]) -> list[LedgerEntry]:
    more: dict[str, Json] = {**entries[-1].details, "rho": -1.0, "state": 9}
    return [*entries, replace(entries[-1], details=more)]


def _of_no_kind(entries: list[LedgerEntry]) -> list[LedgerEntry]:
    return [replace(entries[0], details={"noise": [1]}), *entries[1:]]


FORGERIES = (_other_sigma, lambda entries: entries[1:], _own_grid, _no_cost, _overspent, _refunded, _of_no_kind)


@pytest.mark.parametrize("forge", FORGERIES)
def test_a_ledger_that_says_otherwise_is_noticed(
    forge: Callable[[list[LedgerEntry]], list[LedgerEntry]], train: Train, tmp_path: Path, opened: Opened
) -> None:
    """C9: by an owner of every file who computes all digests anew: the certificate does not fit his ledger."""
    run = train(release=SIGMA)
    anchor = run.folder.entries()[0].digest
    run.unlearn("2")
    run.export(tmp_path / "out")
    assert not false(opened(run.path).verify(anchors=[anchor]))
    rewritten(run.path, forge)
    assert "release" in false(opened(run.path).verify())


def test_who_writes_ledger_and_certificate_anew_is_caught_by_an_anchor_only(
    train: Train, tmp_path: Path, opened: Opened
) -> None:
    run = train(release=SIGMA)
    anchor = run.folder.entries()[0].digest
    path = run.unlearn("2").path
    found, _ = read_certificate(path.read_text())
    other, said = ReleaseNoise.of(1.0), dict(found.privacy or {})
    parameters, bound = int(str(said["parameters"])), float(str(said["bound"]))
    changed = {"rho": other.cost(bound, parameters), "largest_bound": other.largest_bound(parameters)}
    forged = replace(found, privacy={**said, **other.plain, **changed})
    (tmp_path / "forged.json").write_text(certificate_text(forged))

    def both(entries: list[LedgerEntry]) -> list[LedgerEntry]:
        *start, last = _other_sigma(entries)
        return [*start, replace(last, details={**last.details, "certificate": forged.digest})]

    rewritten(run.path, both)
    result = opened(run.path).verify(tmp_path / "forged.json")
    assert "release" in unproven(result)
    assert "anchor" in false(opened(run.path).verify(tmp_path / "forged.json", anchors=[anchor]))


def test_options_that_do_not_go_together_are_refused() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"release": 0.1, "objective_noise": 1.0}, "not in both"),
        ({"epsilon": 0.5}, "give `release` too"),
        ({"delta": 0.5}, "give `release` too"),
        ({"release": 0.0}, "sigma above 0"),
        ({"release": 0.1, "epsilon": 0.0}, "budget needs"),
        ({"release": 0.1, "delta": 1.0}, "budget needs"),
    ]
    for options, why in wrong:
        with pytest.raises(InputError, match=why):
            TrainOptions(**options)


def test_a_chosen_ridge_is_not_covered_and_it_says_so(shelve: Shelve, tmp_path: Path, store: DiskStore) -> None:
    shelve("rows", rows=160)
    remarks: list[str] = []
    run = Run.train(tmp_path / "auto", "rows", clients=4, release=SIGMA, store=store, note=remarks.append)
    assert "give the ridge as a number" in remarks[1]
    run.export(tmp_path / "out")
    assert "ridge_chosen" not in load_head(tmp_path / "out").recipe


def test_a_run_that_released_heads_is_not_trained_anew(train: Train, tmp_path: Path) -> None:
    """C9: the same head with fresh noise, and a ledger that knows nothing of the first."""
    train(release=SIGMA)
    run = train(release=SIGMA, force=True)
    run.export(tmp_path / "out")
    for options in ({"release": SIGMA}, {"release": 2 * SIGMA}, {}):
        with pytest.raises(InputError, match="forget what they cost"):
            train(force=True, **options)
    assert run.folder.entries()[-1].action == "export"
    (run.path / "ledger.jsonl").write_bytes(b"")
    train(force=True)
