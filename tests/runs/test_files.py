"""Runs of statistics files: the bits of one process, and nobody is asked anything later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from probekit import Cache, EmbeddingSet, Run
from probekit.arrays import TEXT, hex_id
from probekit.errors import CorruptError, InputError, MismatchError
from probekit.federated.federation import Federation, InProcess
from probekit.federated.state import KeptStatistics, State
from probekit.federated.training.closed_form import ClosedForm
from probekit.federated.transports.files import read_files, summarize
from probekit.federated.transports.kept import KeptFirst
from probekit.records import dump
from probekit.runs import layout
from probekit.runs.files import plan_files
from probekit.runs.verify import FALSE, NOT_SHOWN
from tests.runs.examples import CLASSES, HOSPITALS, embeddings, make_run, rows_of, without
from tests.runs.forging import Forgery
from tests.unlearning.problems import federation, forget, same, some_clients

ROWS = embeddings(400)


def write(folder: Path, rows: EmbeddingSet = ROWS, **options: object) -> list[Path]:
    """A file for each hospital of these rows."""
    paths = []
    for name in sorted(set(rows.columns["hospital"])):
        paths.append(folder / f"{name}.safetensors")
        own = rows.take(rows_of(rows, name))
        paths[-1].write_bytes(summarize(own, name, min_class_rows=1, **options).to_bytes())
    return paths


def run_of(folder: Path, paths: list[Path], **options: object) -> Run:
    return plan_files(paths, run=folder, cache=folder.parent / "cache", **options).write()


def add(run: Run, paths: list[Path]) -> Run:
    return plan_files(paths, run=run.folder, cache=run.cache).add()


def same_head(left: Run, right: Run) -> bool:
    a, b = left.newest.state, right.newest.state
    return a.params.tobytes() == b.params.tobytes() and a.ridge_choice == b.ridge_choice


@pytest.fixture
def by_rows(tmp_path: Path) -> Run:
    return make_run(tmp_path / "rows", ROWS, test=None)


@pytest.fixture
def by_files(tmp_path: Path) -> Run:
    return run_of(tmp_path / "files", write(tmp_path))


def test_training_and_exact_removal_have_the_bits_of_one_process(
    by_files: Run, by_rows: Run
) -> None:
    assert same_head(by_files, by_rows)
    assert by_files.head.names == CLASSES
    assert by_files.to_dict()["clients"] == by_rows.to_dict()["clients"]
    before = by_rows.newest.state.params
    for run in (by_files, by_rows):
        done = run.unlearn(client="north")
        assert (done.method, done.rows) == ("exact", 99)
        assert run.newest.events[-1].cost.rounds == 0
    assert same_head(by_files, by_rows)
    assert not np.allclose(by_files.newest.state.params, before)
    assert by_files.certificate.distance < 1e-9


@pytest.mark.parametrize("options", [{"normalize": "l2"}, {"federation": "hospitals"}])
def test_options_of_the_files_are_the_runs(tmp_path: Path, options: dict[str, str]) -> None:
    run = run_of(tmp_path / "files", write(tmp_path, **options), intercept="penalized")
    plain = {"normalize": "none", **options}["normalize"]
    by_rows = make_run(tmp_path / "rows", ROWS, test=None, normalize=plain, intercept="penalized")
    for each in (run, by_rows):
        each.unlearn(client="north", method="retrain")
    assert same_head(run, by_rows)
    assert run.certificate is not None
    assert run.verify().exit_code == NOT_SHOWN


@pytest.mark.parametrize("method", ["exact", "retrain", "fedremoval-pcg:3"])
def test_removal_from_files_has_the_bits_of_one_process(tmp_path: Path, method: str) -> None:
    """With kept sums on both sides, and a server of its own, which runs of files do not have."""
    clients = some_clients()
    paths = []
    for name, rows in clients.items():
        paths.append(tmp_path / f"{name}.safetensors")
        paths[-1].write_bytes(summarize(rows, name, min_class_rows=1).to_bytes())
    sums = {name: file.stats for name, file in read_files(paths).items()}
    server = federation({"server": some_clients((50,), seed=7)["0"]})
    ends = []
    for live in (InProcess(clients), InProcess(sums)):
        asked = Federation.of(live, federation(clients).model)
        before = ClosedForm().train(asked, ridge=0.05)
        by_sums = replace(asked, transport=KeptFirst(before.get(KeptStatistics).parts, live))
        ends.append(forget(before, by_sums, method, clients={"3"}, server=server))
        assert not np.allclose(ends[-1].params, before.params)
    assert same(*ends)


def test_the_same_files_again_change_nothing(by_files: Run, tmp_path: Path) -> None:
    again = run_of(by_files.folder, write(tmp_path, ROWS.take(np.arange(400))))
    assert (again.newest.number, len(again.notes)) == (1, 1)
    with pytest.raises(InputError):
        run_of(by_files.folder, write(tmp_path)[:3])


def test_verify_checks_the_sums_and_says_that_they_must_be_believed(by_files: Run) -> None:
    found = by_files.verify(fingerprint=by_files.fingerprint)
    assert found.exit_code == NOT_SHOWN
    assert [finding.holds for finding in found.findings].count(None) == 1
    by_files.unlearn(client="north")
    request = {"fingerprint": by_files.fingerprint, "forgot": "client=north"}
    assert by_files.verify(**request).exit_code == NOT_SHOWN
    assert by_files.verify(forgot="client=south").exit_code == FALSE
    kept = by_files.newest.folder / layout.KEPT
    state = by_files.newest.state
    parts = dict(state.get(KeptStatistics).parts)
    parts["east"], parts["west"] = parts["west"], parts["east"]
    state.kept[0].parts.update(parts)
    kept.write_bytes(dump(state))
    assert by_files.verify(**request).exit_code == FALSE


@pytest.mark.parametrize(
    "forge",
    [
        lambda run, before: run.with_params(before.params),
        lambda run, before: run.claiming(curvature=50.0),
        lambda run, before: run.claiming(rows=run.certificate.rows + 1),
        lambda run, before: replace(run, certificate=None),
    ],
    ids=["head before", "curvature", "rows", "no certificate"],
)
def test_what_does_not_follow_from_the_sums_is_false(
    by_files: Run, forge: Callable[[Forgery, State], Forgery]
) -> None:
    before = by_files.newest.state
    by_files.unlearn(client="north")
    genuine = Forgery.read(by_files.folder, by_files.cache.root)
    genuine.write()
    assert by_files.verify(forgot="client=north").exit_code == NOT_SHOWN
    forge(genuine, before).write()
    assert by_files.verify(forgot="client=north").exit_code == FALSE


def test_who_joins_has_the_bits_of_joining_at_the_start(by_rows: Run, tmp_path: Path) -> None:
    paths = write(tmp_path)
    run = add(run_of(tmp_path / "three", paths[:3]), paths[3:])
    assert same_head(run, by_rows)
    assert run.newest.number == 2
    assert len(add(run, paths[3:]).notes) == 1
    assert run.verify().exit_code == NOT_SHOWN


def test_a_newer_file_replaces_the_clients_older_one(by_files: Run, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    stale = write(old)[1]
    fingerprint = by_files.fingerprint
    lost = hex_id(ROWS.ids[rows_of(ROWS, "north")[5]])
    fewer = ROWS.without([lost])
    replaced = add(by_files, write(tmp_path, without(fewer, "hospital", "east", "south", "west")))
    assert same_head(replaced, make_run(tmp_path / "fewer", fewer, test=None))
    assert replaced.fingerprint != fingerprint
    assert replaced.newest.rows.counts()["north"] == 98
    assert layout.state_numbers(replaced.folder) == [2]
    assert replaced.verify().exit_code == NOT_SHOWN
    with pytest.raises(MismatchError):
        add(replaced, [stale])
    replaced.unlearn(client="north")
    with pytest.raises(InputError):
        add(replaced, write(tmp_path)[1:2])


def test_files_for_something_else_do_not_join(by_files: Run, by_rows: Run, tmp_path: Path) -> None:
    other = embeddings(200, seed=3, hospital=["new"] * 200)
    for options in ({"normalize": "l2"}, {"federation": "b"}, {"classes": (*CLASSES, "fox")}):
        with pytest.raises(MismatchError):
            add(by_files, write(tmp_path, other, **options))
    with pytest.raises(MismatchError, match="trained on rows"):
        add(by_rows, write(tmp_path, other))


def test_what_needs_rows_is_refused(by_files: Run) -> None:
    with pytest.raises(InputError):
        by_files.unlearn(sample=hex_id(ROWS.ids[0]))
    with pytest.raises(InputError):
        by_files.unlearn(client="north", method="fedremoval-pcg:3")
    with pytest.raises(InputError, match="predict"):
        by_files.evaluate()
    paths = [by_files.folder.parent / f"{name}.safetensors" for name in HOSPITALS]
    for options in ({"clients": 3}, {"head": "logistic", "C": 1.0}, {"keep": "nothing"}):
        with pytest.raises(InputError):
            plan_files(paths, run=by_files.folder, **options)


def test_a_client_is_erased_to_the_name(by_files: Run) -> None:
    by_files.erase(client="north")
    content = b"".join(path.read_bytes() for path in by_files.folder.rglob("*") if path.is_file())
    assert b"south" in content
    assert b"north" not in content
    assert by_files.verify().exit_code == NOT_SHOWN


def test_real_targets(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(200, 6)).astype(np.float32)
    hospitals = {"hospital": generator.choice(HOSPITALS, 200).tolist()}
    rows = EmbeddingSet.from_numpy(X, targets=X @ generator.normal(size=(6, 2)), columns=hospitals)
    run = run_of(tmp_path / "files", write(tmp_path, rows))
    assert same_head(run, make_run(tmp_path / "rows", rows, test=None))
    assert (run.head.task, run.head.names) == ("numbers", rows.target_names)
    new = replace(rows, columns={"hospital": np.full(200, "new", TEXT)})
    with pytest.raises(MismatchError):
        make_run(run.folder, new, test=None, add=True)


@pytest.mark.parametrize("name", [layout.ROWS, f"{layout.STATES}/0001/{layout.KEPT}"])
def test_a_damaged_run_of_files_is_refused(by_files: Run, name: str) -> None:
    path = by_files.folder / name
    content = path.read_bytes()
    generator = np.random.default_rng(0)
    for _ in range(100):
        data = bytearray(content)
        for place in generator.integers(len(data), size=3):
            data[place] = generator.integers(256)
        path.write_bytes(data)
        assert by_files.verify().exit_code in (FALSE, NOT_SHOWN)
    path.write_bytes(content[:-1])
    with pytest.raises(CorruptError):
        Run(by_files.folder, cache=Cache(by_files.cache.root)).unlearn(client="north")
