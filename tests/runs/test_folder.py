"""Run folders: what is kept comes back, what is damaged or stale is refused, and no kill leaves half a run."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probekit import Run
from probekit.cache import DiskStore
from probekit.cache.removal import remove_set
from probekit.errors import (
    CacheError,
    CorruptError,
    InputError,
    MismatchError,
    NotFoundError,
    ProbekitError,
    VerificationError,
)
from probekit.federated.summation import StatisticsTree
from probekit.federated.trained import Trained
from probekit.files import read_limited
from probekit.linear.design import Design
from probekit.linear.ridge import fit
from probekit.models.heads import head_of
from probekit.runs import commitments, ledger
from probekit.runs import folder as runs_module
from probekit.runs import tensors as kept
from probekit.runs.commitments import read_transition
from probekit.runs.folder import RunFolder
from probekit.runs.ledger import Event
from probekit.runs.options import TrainOptions
from probekit.runs.training import train_run
from probekit.unlearning.choice import can_unlearn
from tests.linear.test_plausibility import DESIGN, LIES, honest
from tests.shelves import Shelve
from tests.shelves import shelve as shelve

FORK = multiprocessing.get_context("fork")
CONFIGS: dict[str, dict[str, Any]] = {
    "closed form": {},
    "eleven clients": {"clients": 11},
    "server": {"server_share": 0.2, "scaling": "sum"},
    "per class": {"class_weight": "balanced", "fit_view": "standardise"},
    "exact": {"arithmetic": "exact", "view": "l2", "intercept": "none"},
    "gradients": {"keep": "gradients"},
    "nothing": {"keep": "nothing"},
    "fedavg": {"method": "fedavg", "rounds": 4, "keep_history": True, "server_share": 0.2},
    "some take part": {"method": "fedavg", "rounds": 3, "participation": 0.5, "keep_history": True},
    "logistic": {"method": "logistic", "server_share": 0.1},
}


def made(store: DiskStore, path: Path, **changes: Any) -> tuple[RunFolder, Trained]:
    """A run of the set `small`, and what training gave before it was written."""
    options = {"clients": 4, "ridge": "0.1", **changes}
    outcome = train_run(path, "small", TrainOptions(**options), store=store)
    return outcome.folder, outcome.trained


UNCOMPARED = dict.fromkeys(("problem", "head", "statistics"))
"""What is compared by itself."""


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal in every number, name and order."""
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other)) and one.dtype == other.dtype
    if hasattr(one, "__dataclass_fields__"):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if hasattr(one, "items"):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_what_was_trained_comes_back(store: DiskStore, shelve: Shelve, tmp_path: Path, name: str) -> None:
    shelve("small")
    run, trained = made(store, tmp_path / "run", **CONFIGS[name])
    found = RunFolder.open(run.path).trained()
    assert found.problem.digest == trained.problem.digest
    assert same(vars(trained) | UNCOMPARED, vars(found) | UNCOMPARED)
    assert found.head.digest == trained.head.digest
    assert json.loads(json.dumps(dict(trained.head.recipe))) == found.head.recipe
    assert (trained.statistics is None) == (found.statistics is None)
    if trained.statistics is not None and found.statistics is not None:
        assert list(trained.statistics) == list(found.statistics)
        assert same(dict(trained.statistics), dict(found.statistics))
        assert StatisticsTree.of(found.statistics).total.digest == StatisticsTree.of(trained.statistics).total.digest
    assert can_unlearn(found) == can_unlearn(trained)


def test_partition_rows_and_embeddings_come_back(store: DiskStore, shelve: Shelve, tmp_path: Path) -> None:
    labels = np.arange(90) % 3
    labels[[4, 50]] = -1
    masked = np.zeros(90, bool)
    masked[[0, 50, 89]] = True
    whole = shelve("small", labels=labels, masked=masked)
    run, _ = made(store, tmp_path / "run", server_share=0.1, partition="dirichlet:0.5", seed=3)
    rows = run.rows()
    assert rows is not None
    assert rows.tolist() == [row for row in range(90) if row not in (0, 4, 50, 89)]
    partition, used = run.partition(), run.embeddings(store)
    assert (partition.rows, partition.scheme, partition.seed) == (86, "dirichlet:0.5", 3)
    assert [used.ids[5], used.labels[5]] == [whole.ids[rows[5]], labels[rows[5]]]
    assert np.array_equal(used.to_numpy(), whole.embeddings[rows])
    assert run.inputs["left out"] == 4
    assert run.inputs["partition"] == partition.digest


def test_a_run_says_what_it_was_made_of(store: DiskStore, shelve: Shelve, tmp_path: Path) -> None:
    found = shelve("small")
    run, trained = made(store, tmp_path / "run")
    note = json.loads((run.path / "run.json").read_text())
    assert note["schema"] == 1
    assert note["inputs"]["set"] == found.digest
    assert note["inputs"]["spec"] == found.spec.digest
    assert run.config["ridge"] == 0.1
    assert run.config["intercept"] == "penalised"
    [entry] = run.entries()
    assert entry.action == "train"
    assert entry.inputs["set"] == found.digest
    assert entry.outputs["head"] == trained.head.digest
    assert trained.statistics is not None
    committed = run.at().commitments()
    assert committed is not None
    assert entry.outputs["root"] == committed.root(1).plain
    assert {name: one.statistics.hex() for name, one in committed.leaves.items()} == {
        name: one.digest for name, one in trained.statistics.items()
    }
    assert json.loads((run.path / "environment.json").read_text())["packages"]["numpy"] == np.__version__
    assert json.loads((run.path / "timings.json").read_text())["train"] >= 0


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=80), min_size=2, unique=True))
def test_any_client_name_makes_a_file_name_of_its_own(names: list[str]) -> None:
    files = [kept.file_of(name) for name in names]
    assert len({file.lower() for file in files}) == len(names)  # also where disks do not tell A from a
    for file in files:
        assert file.isascii()
        assert not set(file) & set('/\\:*?"<>|\0')
        assert len(file) < 120


def test_clients_of_any_name(store: DiskStore, shelve: Shelve, tmp_path: Path) -> None:
    names = ["../../etc", "A", "a", "", "con", "hôpital n° 7", "x" * 300]
    owners = [names[row % len(names)] or "empty" for row in range(90)]
    shelve("small", clients=tuple(owners))
    run, trained = made(store, tmp_path / "run", partition="column:client_id", clients=None)
    found = RunFolder.open(run.path).trained().statistics
    assert found is not None
    assert set(found) == set(owners) == set(trained.counts)
    assert all(found[name].count == trained.counts[name] for name in found)
    assert not (tmp_path / "etc").exists()


def forgotten(run: RunFolder, client: str) -> Trained:
    """The trained state without a client, by re-summing."""
    before = run.trained()
    assert before.statistics is not None
    rest = {name: one for name, one in before.statistics.items() if name != client}
    fitted = fit(StatisticsTree.of(rest).total, before.ridge, scaling=before.scaling)
    named = head_of(fitted, classes=before.head.classes, spec_digest=before.head.spec_digest)
    counts = {name: count for name, count in before.counts.items() if name in rest}
    return replace(before, head=named, solution=fitted.solution, statistics=rest, counts=counts)


def test_a_new_state_replaces_the_old_one_and_leaves_it_readable(
    store: DiskStore, shelve: Shelve, tmp_path: Path
) -> None:
    shelve("small")
    run, trained = made(store, tmp_path / "run")
    after = forgotten(run, "2")
    assert run.write_state(after, Event("unlearn", {"head": trained.head.digest}, {"client": "2"})) == 2
    again = RunFolder.open(run.path)
    assert (again.state, again.states()) == (2, [1, 2])
    assert again.head().digest == after.head.digest != trained.head.digest
    assert again.head(1).digest == trained.head.digest
    assert set(again.trained().statistics or {}) == {"0", "1", "3"}
    assert set(again.trained(1).statistics or {}) == {"0", "1", "2", "3"}
    entry = again.entries()[1]
    proof, left = read_transition(run.path, 2), run.at(1).commitments()
    assert proof is not None
    assert left is not None
    assert proof.emptied == (left.leaves["2"].slot,)
    assert (entry.inputs["root"], entry.outputs["root"]) == (proof.before.digest, proof.after.plain)
    assert entry.details == {"client": "2"}


def packs_of(run: RunFolder, state: int) -> list[Path]:
    """The packs of a state."""
    here = run.at(state)
    return [here.folder / "kept/statistics" / f"{name}.safetensors" for name in here.note["leaves"]["packs"]]


def test_statistics_that_stay_are_not_written_again(store: DiskStore, shelve: Shelve, tmp_path: Path) -> None:
    shelve("small")
    run, _ = made(store, tmp_path / "run")
    run.write_state(forgotten(run, "2"), Event("unlearn"))
    whole = sum(file.stat().st_size for file in packs_of(run, 1))
    assert {file.name for file in packs_of(run, 2)} != {file.name for file in packs_of(run, 1)}
    before = run.trained()
    assert before.statistics is not None
    run.write_state(replace(before, losses=(1.0,)), Event("look"))
    for file in packs_of(run, 3):
        assert file.samefile(run.path / "states/0002/kept/statistics" / file.name)
    assert sum(file.stat().st_size for file in packs_of(run, 3)) < whole
    changed = {**before.statistics, "0": before.statistics["0"] + before.statistics["1"]}
    counts = {**before.counts, "0": changed["0"].count}
    run.write_state(replace(before, statistics=changed, counts=counts), Event("grow"))
    again = RunFolder.open(run.path).trained().statistics
    assert again is not None
    assert again["0"].digest == changed["0"].digest


def test_something_can_be_recorded_without_a_new_state(store: DiskStore, shelve: Shelve, tmp_path: Path) -> None:
    shelve("small")
    run, _ = made(store, tmp_path / "run")
    run.record(Event("purge", {}, {"what": "nothing"}))
    again = RunFolder.open(run.path)
    assert [entry.action for entry in again.entries()] == ["train", "purge"]
    assert again.state == 1
    again.trained()


def everything(run: RunFolder) -> None:
    """Read all that a run holds."""
    run.entries()
    run.partition()
    trained, committed = run.trained(), run.at().commitments()
    assert committed is not None
    assert committed.leaves.keys() == trained.counts.keys() != set()
    for name in trained.statistics or ():
        assert trained.statistics is not None
        assert trained.statistics[name].loaded.count == trained.counts[name]


def test_every_changed_file_is_noticed(store: DiskStore, shelve: Shelve, tmp_path: Path) -> None:
    shelve("small")
    run, _ = made(
        store, tmp_path / "run", method="fedavg", rounds=2, keep_history=True, keep="statistics", server_share=0.2
    )
    everything(run)
    files = [path for path in sorted(run.path.rglob("*")) if path.is_file()]
    checked = [path for path in files if path.name not in ("run.json", "environment.json", "timings.json")]
    assert len(checked) == 12  # statistics make gradients known, so these are not kept besides
    for path in checked:
        content = path.read_bytes()
        path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
        with pytest.raises((CorruptError, VerificationError), match=path.name):
            everything(RunFolder.open(run.path))
        path.unlink()
        named = "openings/" if path.parent.name == "openings" else path.name
        with pytest.raises((CorruptError, VerificationError), match=named):
            everything(RunFolder.open(run.path))
        path.write_bytes(content)
    everything(RunFolder.open(run.path))


@pytest.mark.parametrize("why", LIES)
def test_statistics_that_cannot_be_true_are_refused(tmp_path: Path, why: str) -> None:
    lie, path = LIES[why], tmp_path / "client.safetensors"
    stated = kept.put_statistics(path, lie)
    with pytest.raises(VerificationError, match=why):
        kept.take_statistics(path, stated, DESIGN, digest=lie.digest, count=20)


def test_statistics_of_another_digest_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "client.safetensors"
    other = honest(count=22)
    stated = kept.put_statistics(path, other)
    with pytest.raises(VerificationError, match="their digest"):
        kept.take_statistics(path, stated, DESIGN, digest=honest().digest, count=22)
    with pytest.raises(VerificationError, match="this run's design"):
        kept.take_statistics(path, stated, Design(4, 2), digest=other.digest, count=22)


@pytest.mark.parametrize("schema", [0, 2, None, "1"])
def test_a_run_of_another_schema_is_refused(store: DiskStore, shelve: Shelve, tmp_path: Path, schema: object) -> None:
    shelve("small")
    run, _ = made(store, tmp_path / "run")
    note = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps({**note, "schema": schema, "probekit": "9.9"}))
    with pytest.raises(CacheError, match=r"probekit 9\.9 with run schema"):
        RunFolder.open(run.path)


def test_a_run_json_that_says_too_little_is_refused(store: DiskStore, shelve: Shelve, tmp_path: Path) -> None:
    shelve("small")
    run, _ = made(store, tmp_path / "run")
    (run.path / "run.json").write_text('{"schema": 1}')
    with pytest.raises(CorruptError, match="does not say its config"):
        RunFolder.open(run.path)


HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "nested": lambda note: note.replace(b'"config":', b'"more":' + b"[" * 100_000 + b"]" * 100_000 + b',"config":', 1),
    "nested less": lambda note: note.replace(b'"config":', b'"more":' + b"[" * 100 + b"]" * 100 + b',"config":', 1),
    "a key twice": lambda note: note.replace(b'"state":', b'"state": 7, "state":', 1),
    "no text": lambda note: note.replace(b'"config"', b'"conf\xffig"', 1),
    "half a character": lambda note: note.replace(b'"config":', b'"more": "\\udc00", "config":', 1),
    "a list": lambda note: b"[" + note + b"]",
    "100 MB": lambda note: note + b" " * 100 * 2**20,
}


@pytest.mark.parametrize("how", HOSTILE)
def test_a_hostile_run_json_is_refused(store: DiskStore, shelve: Shelve, tmp_path: Path, how: str) -> None:
    """C12: a sentence and exit 6, whatever somebody made of it."""
    shelve("small")
    run, _ = made(store, tmp_path / "run")
    note = (run.path / "run.json").read_bytes()
    hostile = HOSTILE[how](note)
    assert hostile != note
    (run.path / "run.json").write_bytes(hostile)
    with pytest.raises(VerificationError, match=r"run\.json is not one that was written") as refused:
        RunFolder.open(run.path)
    assert refused.value.exit_code == 6


def test_what_is_no_run_is_not_opened_and_not_replaced(store: DiskStore, shelve: Shelve, tmp_path: Path) -> None:
    shelve("small")
    made(store, tmp_path / "runs" / "small-closed-form")
    with pytest.raises(NotFoundError, match="small-closed-form"):
        RunFolder.open(tmp_path / "runs" / "small-closedform")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    for force in (False, True):
        with pytest.raises(InputError, match="not a run folder"):
            train_run(tmp_path / "mine", "small", TrainOptions(ridge="1"), store=store, force=force)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "all of it"


def test_a_stale_input_is_refused(store: DiskStore, shelve: Shelve, tmp_path: Path) -> None:
    found = shelve("small")
    run, _ = made(store, tmp_path / "run")
    other = shelve("other", seed=5)
    store.sets.give_name("small", other.digest)
    run.embeddings(store)  # the name moved, the set itself is still there
    remove_set(store, found.digest)
    with pytest.raises(MismatchError, match=f"now means {other.digest[:12]}"):
        run.embeddings(store)
    remove_set(store, "small")
    with pytest.raises(NotFoundError, match="not in"):
        run.embeddings(store)
    everything(run)  # what needs no rows still works


def test_a_set_that_is_not_what_its_digest_says_is_refused(store: DiskStore, shelve: Shelve, tmp_path: Path) -> None:
    found, other = shelve("small"), shelve("other", seed=5)
    run, _ = made(store, tmp_path / "run")
    shutil.rmtree(store.root / "sets" / found.digest)
    shutil.copytree(store.root / "sets" / other.digest, store.root / "sets" / found.digest)
    with pytest.raises(CorruptError, match="is not the one"):
        run.embeddings(store)


def test_force_replaces_a_run(store: DiskStore, shelve: Shelve, tmp_path: Path) -> None:
    shelve("small")
    first, _ = made(store, tmp_path / "run")
    before = first.head().digest
    with pytest.raises(InputError, match="finished run"):
        made(store, tmp_path / "run", ridge="9")
    assert RunFolder.open(first.path).head().digest == before
    outcome = train_run(tmp_path / "run", "small", TrainOptions(ridge="9"), store=store, force=True)
    assert outcome.folder.head().digest != before
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "cache") == [".run.lock", "run"]


def test_a_replacement_killed_in_between_is_undone(store: DiskStore, shelve: Shelve, tmp_path: Path) -> None:
    shelve("small")
    first, _ = made(store, tmp_path / "run")
    before = first.head().digest
    (tmp_path / "run").rename(tmp_path / ".old-run")  # what a kill between the two renames leaves
    assert RunFolder.open(tmp_path / "run").head().digest == before
    train_run(tmp_path / "run", "small", TrainOptions(ridge="9"), store=store, force=True)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "cache") == [".run.lock", "run"]


STEPS = ["write_state", "rename", "write_transition", "follow", "append", "write_json"]


@pytest.mark.parametrize("torn", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_stopped_at_any_step_the_run_is_the_old_or_the_new_one(
    store: DiskStore, shelve: Shelve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, torn: bool
) -> None:
    shelve("small")
    run, trained = made(store, tmp_path / "run")
    after = forgotten(run, "1")
    home: Any = {"rename": Path, "follow": ledger, "append": ledger, "write_transition": commitments}
    home = home.get(step, runs_module)
    real = getattr(home, step)

    def dies(*arguments: Any, **named: Any) -> Any:
        if step == "rename" and arguments[1].name != "0002":
            return real(*arguments, **named)
        if torn:
            real(*arguments, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(home, step, dies)
    with pytest.raises(KeyboardInterrupt):
        run.write_state(after, Event("unlearn"))
    monkeypatch.undo()
    found = RunFolder.open(run.path)
    everything(found)
    switched = step == "write_json" and torn
    assert found.head().digest == (after if switched else trained).head.digest
    with found.lock():
        pass
    entered = switched or step == "write_json" or (step == "append" and torn)
    assert found.state == (2 if entered else 1)
    assert found.head().digest == (after if entered else trained).head.digest
    assert len(found.entries()) == found.state
    assert sorted(path.name for path in (run.path / "states").iterdir()) == ["0001", "0002"][: found.state]
    assert (read_transition(run.path, 2) is not None) == (found.state == 2)
    everything(RunFolder.open(run.path))
    assert found.write_state(forgotten(found, "0"), Event("unlearn")) == found.state


def test_files_and_folders_left_aside_are_cleared(store: DiskStore, shelve: Shelve, tmp_path: Path) -> None:
    shelve("small")
    run, trained = made(store, tmp_path / "run")
    (run.path / ".aside-report" / "pictures").mkdir(parents=True)
    (run.path / ".aside-report" / "report.md").write_text("half of it")
    (run.path / ".aside-partition").write_bytes(b"half of it")
    (run.path / ".aside-link").symlink_to(run.path / "states")
    found = RunFolder.open(run.path)
    with found.lock():
        assert not [path.name for path in run.path.iterdir() if path.name.startswith(".aside-")]
    assert found.head().digest == trained.head.digest


def test_an_entry_without_its_state_is_dropped(store: DiskStore, shelve: Shelve, tmp_path: Path) -> None:
    shelve("small")
    run, trained = made(store, tmp_path / "run")
    note = (run.path / "run.json").read_bytes()
    run.write_state(forgotten(run, "1"), Event("unlearn"))
    (run.path / "run.json").write_bytes(note)
    (run.path / "states/0002/kept/solution.safetensors").unlink()
    found = RunFolder.open(run.path)
    with found.lock():
        assert found.state == 1
    assert len(found.entries()) == 1
    assert found.head().digest == trained.head.digest
    assert (run.path / "ledger.jsonl").read_bytes().count(b"\n") == 1


def unlearn_for_ever(path: Path) -> None:
    """Forget a client, let it return, forget the next one, and so on."""
    first = RunFolder.open(path).trained(1)
    while True:
        run = RunFolder.open(path)
        with run.lock():
            if run.state % 2:
                run.write_state(forgotten(run, str(run.state // 2 % 4)), Event("unlearn"))
            else:
                run.write_state(first, Event("return"))


@pytest.mark.parametrize("seed", [0, 1])
def test_killed_at_random_instants_a_run_stays_sound(
    store: DiskStore, shelve: Shelve, tmp_path: Path, seed: int
) -> None:
    shelve("small")
    run, _ = made(store, tmp_path / "run")
    chance, seen, kills = random.Random(seed), 1, 0
    while kills < 12 or seen <= 5:
        kills += 1
        assert kills < 400
        process = FORK.Process(target=unlearn_for_ever, args=(run.path,))
        process.start()
        time.sleep(chance.uniform(0.0, 0.25))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        found = RunFolder.open(run.path)
        everything(found)
        assert found.state >= seen
        with found.lock():
            everything(found)
        assert found.state == len(found.entries()) >= seen
        assert found.states() == list(range(1, found.state + 1))
        left = [path.name for path in [*run.path.iterdir(), *(run.path / "states").iterdir()]]
        assert not [name for name in left if name.startswith(".")]
        seen = found.state


def train_again(root: Path, path: Path) -> None:
    train_run(path, "small", TrainOptions(clients=4, ridge="0.1"), store=DiskStore(root), force=True)


@pytest.mark.parametrize("exists", [False, True])
def test_training_killed_at_random_instants_leaves_a_whole_run_or_none(
    store: DiskStore, shelve: Shelve, tmp_path: Path, exists: bool
) -> None:
    shelve("small")
    path = tmp_path / "runs" / "run"
    if exists:
        made(store, path)
    chance = random.Random(7)
    for _ in range(12):
        process = FORK.Process(target=train_again, args=(store.root, path))
        process.start()
        process.join(chance.uniform(0.0, 0.12))
        if process.exitcode is None and process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        try:
            everything(RunFolder.open(path))
        except NotFoundError:
            assert not exists
            assert not path.exists()
    train_again(store.root, path)
    everything(RunFolder.open(path))
    assert sorted(one.name for one in path.parent.iterdir()) == [".run.lock", "run"]


def test_a_second_process_waits_and_says_so(store: DiskStore, shelve: Shelve, tmp_path: Path) -> None:
    shelve("small")
    run, _ = made(store, tmp_path / "run")
    said: list[str] = []
    other = Run.open(run.path, store=DiskStore(store.root, waiting=said.append)).folder

    def later() -> None:
        with other.lock():
            said.append(f"state {other.state}")

    with run.lock():
        thread = threading.Thread(target=later)
        thread.start()
        while not said:
            time.sleep(0.002)
        run.write_state(forgotten(run, "1"), Event("unlearn"))
    thread.join()
    assert "waiting" in said[0]
    assert said[1] == "state 2"


def test_a_full_disk_is_told_and_changes_nothing(
    store: DiskStore, shelve: Shelve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelve("small")
    run, trained = made(store, tmp_path / "run")
    after = forgotten(run, "1")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("probekit.runs.ledger.sync_folder", full)
    with pytest.raises(ProbekitError, match="disk is full"):
        run.write_state(after, Event("unlearn"))
    monkeypatch.undo()
    assert RunFolder.open(run.path).head().digest == trained.head.digest


def test_a_verb_reads_the_ledger_once(
    store: DiskStore, shelve: Shelve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading takes a second for ten thousand entries; what others wrote since is read again."""
    shelve("small")
    run = Run.train(tmp_path / "run", "small", clients=3, ridge=0.01, store=store)
    read: list[Path] = []

    def counted(path: Path, most: int) -> bytes:
        read.append(path)
        return read_limited(path, most)

    monkeypatch.setattr("probekit.runs.ledger.read_limited", counted)
    verbs: dict[str, Callable[[Run], object]] = {
        "unlearn": lambda run: run.unlearn("1"),
        "verify": lambda run: run.verify(),
        "export": lambda run: run.export(tmp_path / "head"),
        "prove": lambda run: run.prove("0", tmp_path / "receipt.json"),
    }
    for name, verb in verbs.items():
        read.clear()
        verb(Run.open(run.path, store=store))
        assert len(read) == 1, name
    first, second = (RunFolder.open(run.path) for _ in range(2))
    assert first.entries() == second.entries()
    first.record(Event("noted"))
    with second.lock():
        assert second.entries() == first.entries()
    openings = run.path / "openings" / "000001.json"
    openings.rename(tmp_path / "aside")
    assert first.entries()[0].openings == {}
    (tmp_path / "aside").rename(openings)
    (run.path / "ledger.jsonl").write_bytes(b"")
    with pytest.raises(VerificationError, match="has 0 entries"):
        first.entries()
