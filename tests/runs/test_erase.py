"""Erasure: nothing of the erased stays below runs and cache, wherever the command was killed."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit import Cache, EmbeddingSet, Run
from probekit.arrays import hex_id
from probekit.cache.erasure import Tombstones
from probekit.cache.runs import noted_runs
from probekit.errors import CacheError, CorruptError, InputError, NotFoundError
from probekit.files import write_bytes
from probekit.runs import layout
from probekit.runs.erase import Erasure, erase_rows, plan_erasure
from probekit.runs.verify import verify_run
from tests.power import Disk, killed_at
from tests.runs.examples import embeddings, make_run, rows_of

KINDS: dict[str, dict[str, Any]] = {
    "ridge": {},
    "logistic": {"head": "logistic", "C": 1.0},
    "network": {"network": "mlp:2", "ridge": 1.0},
}
MAX_STEPS = 600


@dataclass(frozen=True)
class Place:
    """Two runs of the same rows in two folders, their cache, and what is known of north."""

    root: Path
    fingerprint: str
    secrets: tuple[bytes, ...]

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def first(self) -> Path:
        return self.root / "runs" / "a"

    @property
    def second(self) -> Path:
        return self.root / "more" / "b"

    def at(self, root: Path) -> Place:
        return replace(self, root=root)

    def erase(self, **request: Any) -> Erasure:
        """As the command line does, agreeing to everything."""
        request = request or {"clients": ["north"]}
        return erase_rows(plan_erasure(self.first, cache=self.cache, **request), others=True)

    def codes(self, **known: Any) -> list[int]:
        cache = Cache(self.cache, during_erasure=True)
        return [
            verify_run(folder, cache=cache, **known).exit_code
            for folder in (self.first, self.second)
        ]

    def found(self) -> set[bytes]:
        """Which secrets are in any byte or name below."""
        content = b"\n".join(contents(self.root))
        return {secret for secret in self.secrets if secret in content}


def contents(root: Path) -> Iterator[bytes]:
    for path in root.rglob("*"):
        yield str(path.relative_to(root)).encode()
        if path.is_file():
            yield path.read_bytes()


def secrets_of(rows: EmbeddingSet, run: Run) -> tuple[bytes, ...]:
    """Everything that tells of north: names, ids, rows, salts, and digests of these."""
    north = rows_of(rows, "north")
    ids = [row.tobytes() for row in rows.ids[north]]
    vectors = [row.tobytes() for row in np.asarray(rows.rows)[north]]
    held = run.newest.all_rows
    salts = [row.tobytes() for row in held.salts[held.held_by(["north"])]]
    raw = [*ids, *vectors, *salts, *(hashlib.sha256(part).digest() for part in (*ids, *vectors))]
    old_head = run.head.digest.encode()
    return (b"north", b"heron", b"P-north", old_head, *raw, *(part.hex().encode() for part in raw))


def hospital_rows() -> EmbeddingSet:
    """North alone has herons, and patients of its own."""
    rows = embeddings(60)
    north = rows_of(rows, "north")
    assert rows.labels is not None
    labels = rows.labels.copy()
    labels[north[:3]] = 3
    columns = {**rows.columns, "patient": rows.columns["patient"].copy()}
    columns["patient"][north] = "P-north"
    return replace(rows, labels=labels, class_names=(*rows.class_names, "heron"), columns=columns)


def leave_leftovers(place: Place, rows: EmbeddingSet) -> None:
    """What killed and odd commands leave: asides everywhere, pieces, a memo, damaged files."""
    cache = Cache(place.cache)
    north = rows_of(rows, "north")
    cache.memo.remember(b"k" * 32, rows.ids[north[0]].tobytes())
    cache.memo.remember(b"l" * 32, rows.ids[rows_of(rows, "east")[0]].tobytes())
    cache.memo.flush()
    (entry,) = cache.entries()
    entry.save(rows.ids[north], np.asarray(rows.rows)[north])
    damaged = place.cache / "damaged"
    shutil.copytree(entry.folder / "shards", damaged)
    for folder in (place.first, place.second):
        states = folder / "states"
        for target in (states, folder, folder.parent):
            shutil.copytree(states / "0001", target / ".aside-0002-77-0123abcd")
        write_bytes(folder.parent / ".aside-77-0123abcd", b"north")
    (place.cache / "columns" / ".aside-77-0123abcd").write_bytes(b"north")
    (place.cache / ".aside-sets-77-0123abcd").mkdir()
    (place.cache / ".aside-sets-77-0123abcd" / "north").write_bytes(b"")


def make_place(root: Path, **options: Any) -> Place:
    rows = hospital_rows()
    test = embeddings(20, seed=1)
    test = replace(test, columns={})
    settings = {"cache": root / "cache", "test": test, **options}
    run = make_run(root / "runs" / "a", rows, **settings)
    make_run(root / "more" / "b", rows, **settings)
    place = Place(root, run.fingerprint, secrets_of(rows, run))
    leave_leftovers(place, rows)
    return place


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Place]:
    made: dict[str, Place] = {}

    def make(kind: str) -> Place:
        if kind not in made:
            made[kind] = make_place(tmp_path_factory.mktemp(kind) / "place", **KINDS[kind])
        return made[kind]

    return make


@pytest.fixture
def place(templates: Callable[[str], Place], tmp_path: Path) -> Place:
    return copied(templates("ridge"), tmp_path / "place")


def copied(template: Place, root: Path) -> Place:
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(template.root, root)
    return template.at(root)


def test_the_secrets_are_there_before(place: Place) -> None:
    assert len(place.found()) > 40
    assert {b"north", b"heron", b"P-north"} <= place.found()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_a_client_stays(
    templates: Callable[[str], Place], tmp_path: Path, kind: str
) -> None:
    place = copied(templates(kind), tmp_path / "place")
    done = place.erase()
    assert done.finished
    assert set(done.rows) == {place.first, place.second}
    assert place.found() == set()
    assert place.codes() == [0, 0]
    assert verify_run(
        place.first, cache=place.cache, fingerprint=place.fingerprint, forgot="client=north"
    ).ok
    assert "heron" not in Run(place.first, cache=place.cache).head.names
    assert Run(place.first, cache=place.cache).fingerprint == place.fingerprint


def kill_everywhere(template: Place, root: Path, steps: range) -> int:
    """Kill an erasure before its steps, move everything, repeat; how many steps it has."""
    for step in steps:
        place = copied(template, root)
        if not killed_at(place.erase, step):
            return step
        if step % 2:
            moved = place.at(root.with_name("moved"))
            shutil.rmtree(moved.root, ignore_errors=True)
            place.root.rename(moved.root)
            place = moved
        cache = Cache(place.cache, during_erasure=True)
        if cache.is_erasing():
            with pytest.raises(CacheError):
                Cache(place.cache)
            assert place.codes() == [7, 7]
        try:
            place.erase()
        except InputError:  # it was killed after its last step
            assert not cache.is_erasing()
        assert place.found() == set()
        assert place.codes() == [0, 0]
        assert len(layout.state_numbers(place.first)) == 1
    raise AssertionError(f"an erasure has more than {max(steps)} steps")


@pytest.mark.parametrize(("kind", "every"), [("ridge", 11), ("network", 41)])
def test_killed_erasures_are_finished_by_the_same_command(
    templates: Callable[[str], Place], tmp_path: Path, kind: str, every: int
) -> None:
    assert kill_everywhere(templates(kind), tmp_path / "place", range(0, MAX_STEPS, every)) > 60


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "every"), [("ridge", 1), ("logistic", 1), ("network", 7)])
def test_erasures_killed_at_every_step(
    templates: Callable[[str], Place], tmp_path: Path, kind: str, every: int
) -> None:
    steps = range(0, MAX_STEPS, every)
    assert kill_everywhere(templates(kind), tmp_path / "place", steps) > 60


@pytest.mark.parametrize("ahead", [False, True])
def test_power_cuts_are_finished_by_the_same_command(
    templates: Callable[[str], Place], tmp_path: Path, ahead: bool
) -> None:
    """`ahead`: the disk kept every new name, but only the bytes that were synced."""
    place = copied(templates("ridge"), tmp_path / "place")
    disk = Disk(place.root)
    with disk.watching():
        place.erase()
    states = len(disk.ahead if ahead else disk.states)
    for state in range(0, states, 9):
        disk.cut(state, ahead=ahead)
        try:
            place.erase()
        except InputError:
            assert not Cache(place.cache).is_erasing()
        assert place.found() == set()
        assert place.codes() == [0, 0]
    disk.close()


def test_what_was_unlearned_before_is_erased_without_another_head(place: Place) -> None:
    run = Run(place.first, cache=place.cache)
    run.unlearn(client="north")
    digest = run.head.digest
    noted = run.state_fingerprint
    place.erase()
    found = verify_run(place.first, cache=place.cache, fingerprint=noted, forgot="client=north")
    assert found.exit_code == 0
    assert found.head == digest
    assert place.found() == set()


def test_samples_leave_every_client_that_has_them(place: Place) -> None:
    run = Run(place.first, cache=place.cache)
    rows = run.newest.all_rows
    samples = [hex_id(row) for row in rows.ids[rows.held_by(["east"])][:3]]
    place.erase(samples=[sample[:10] for sample in samples])
    content = b"\n".join(contents(place.root))
    assert not any(sample.encode() in content for sample in samples)
    assert not any(bytes.fromhex(sample) in content for sample in samples)
    assert place.codes() == [0, 0]
    assert "east" in Run(place.first, cache=place.cache).newest.rows.clients


def test_rows_of_others_that_are_the_same_samples_are_counted(tmp_path: Path) -> None:
    rows = embeddings(60)
    east = rows_of(rows, "east")
    order = np.concatenate([np.arange(60), east[:2]])
    hospitals = np.concatenate([rows.columns["hospital"], ["south", "south"]])
    rows = replace(rows.take(order), columns={"hospital": hospitals})
    run = make_run(tmp_path / "runs" / "a", rows)
    plan = plan_erasure(run.folder, cache=run.cache, clients=["east"])
    assert plan.same_samples == {"south": 2}
    done = erase_rows(plan, others=True)
    assert (done.same_samples, done.rows[run.folder]) == ({"south": 2}, len(east) + 2)


def test_rows_are_chosen_by_a_column(place: Place) -> None:
    done = place.erase(where="patient=P-north")
    assert done.finished
    assert place.found() == set()


def test_a_dry_run_changes_nothing(
    place: Place, file_digests: Callable[[Path], dict[str, str]]
) -> None:
    def digests() -> dict[str, str]:
        """Without what killed commands left, which every command removes."""
        found = file_digests(place.root)
        return {path: value for path, value in found.items() if ".aside-" not in path}

    before = digests()
    plan = plan_erasure(place.first, cache=place.cache, clients=["north"], dry_run=True)
    assert not plan.finished
    assert plan.others == [place.second]
    assert set(plan.rows.values()) == {len(plan.samples)}
    assert digests() == before


def test_other_runs_must_be_agreed_to(place: Place) -> None:
    run = Run(place.first, cache=place.cache)
    with pytest.raises(InputError):
        run.erase(client="north")
    assert not run.cache.is_erasing()
    assert run.erase(client="north", others=True).finished


@pytest.mark.parametrize(
    "request_",
    [
        {"clients": ["nroth"]},
        {"clients": [""]},
        {"samples": ["00000000"]},
        {"where": "patient=nobody"},
        {"clients": ["north"], "where": "patient=P-north"},
        {},
        {"clients": ["east", "south", "west"]},
        {"clients": ["east", "north", "south", "west"]},
    ],
)
def test_impossible_requests_change_nothing(place: Place, request_: dict[str, Any]) -> None:
    """The last two would leave one class's rows, and none."""
    if request_.get("clients") == ["east", "south", "west"]:
        Run(place.first, cache=place.cache).unlearn(sample=herons(place, others=True))
    with pytest.raises(InputError):
        plan_erasure(place.first, cache=place.cache, **request_)
    assert not Cache(place.cache).is_erasing()


def herons(place: Place, *, others: bool) -> list[str]:
    """North's samples that are herons, or that are not."""
    rows = Run(place.first, cache=place.cache).newest.all_rows
    assert rows.labels is not None
    are_herons = rows.labels == rows.outputs.index("heron")
    wanted = rows.held_by(["north"]) & (~are_herons if others else are_herons)
    return [hex_id(row) for row in rows.ids[wanted]]


def test_a_lost_run_must_be_named(place: Place) -> None:
    lost = Run(place.second, cache=place.cache).newest.description.id
    shutil.rmtree(place.second)
    with pytest.raises(NotFoundError):
        place.erase()
    done = place.erase(clients=["north"], gone=[lost])
    assert set(done.rows) == {place.first}
    assert lost not in noted_runs(Cache(place.cache))
    assert place.found() == set()


def test_a_run_that_moved_is_found_beside(place: Place) -> None:
    moved = place.first.with_name("moved")
    place.second.rename(moved)
    assert set(place.erase().rows) == {place.first, moved}
    assert place.found() == set()


@pytest.mark.parametrize("where", ["runs/a/states", "more/b/states/0001/head", "cache/sets"])
def test_links_are_refused(place: Place, tmp_path: Path, where: str) -> None:
    """What stands behind one would stay."""
    folder = place.root / where
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptError):
        place.erase()
    assert not Cache(place.cache).is_erasing()


def test_an_extraction_must_end_first(place: Place) -> None:
    cache = Cache(place.cache)
    (entry,) = cache.entries()
    with cache.working(entry.encoding, "photos"), pytest.raises(CacheError):
        place.erase()
    assert not cache.is_erasing()


def test_a_client_that_is_gone_cannot_be_erased_again(place: Place) -> None:
    place.erase()
    with pytest.raises(InputError):
        place.erase()


def test_erased_samples_do_not_come_back(place: Place) -> None:
    """Whoever trains on the same vectors again trains without them, and is told."""
    place.erase()
    rows = hospital_rows()
    run = make_run(place.root / "runs" / "again", rows, cache=place.cache, test=None)
    assert run.newest.rows.clients == ("east", "south", "west")
    assert sum(str(len(rows_of(rows, "north"))) in note for note in run.notes) == 1
    assert place.found() == set()
    tombstones = Tombstones.read(Cache(place.cache))
    np.testing.assert_array_equal(tombstones.holds(rows.ids), rows.columns["hospital"] == "north")


def test_what_else_was_cached_is_as_before(place: Place) -> None:
    rows = hospital_rows()
    others = rows.take(np.flatnonzero(rows.columns["hospital"] != "north"))
    place.erase()
    cache = Cache(place.cache)
    name = next(name for name in cache.names() if name.endswith("-train"))
    stored = cache.open(name)
    np.testing.assert_array_equal(stored.to_numpy(), others.to_numpy())
    np.testing.assert_array_equal(stored.ids, others.ids)
    assert stored.class_names == ("cat", "dog", "owl")
    assert stored.labels is not None
    assert others.labels is not None
    np.testing.assert_array_equal(stored.labels, others.labels)
    assert stored.columns["patient"].tolist() == others.columns["patient"].tolist()
