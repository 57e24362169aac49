"""A removal from the cache that is killed anywhere is finished by the same command; nothing of the erased is left."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.cache import DiskStore, journal
from probekit.cache.audit import unused_rows, verify
from probekit.cache.erasure import purge
from probekit.cache.journal import JOURNAL
from probekit.cache.removal import Removed, prune, remove_set, remove_spec
from probekit.cache.transfer import bring, export
from probekit.cache.users import register
from probekit.encoding.extract import ExtractProgress, extract
from probekit.errors import CorruptError, InputError, NotFoundError, OtherRunsError, UnfinishedError
from probekit.files import write_json
from probekit.values import EmbeddingSet
from tests.cache.test_disk import ids, made, rows
from tests.conftest import PixelBackbone, pairs, spec
from tests.power import Disk, killed_at

EVERY = int(os.environ.get("PROBEKIT_KILL_EVERY", "4"))
"""Of how many steps one is a place to be killed at; 1 takes minutes."""
SAMPLES = [ids(2)[0], "b"]
Job = Callable[[DiskStore], Removed]


def fill(root: Path) -> None:
    """A cache with two specs, three sets and a piece of work that no set uses."""
    store = DiskStore(root)
    shared = store.seal(made(store, [1, 2, 3, 2, 6], names=["a", "b", "c", "b2", "f"], clients=list("xyxyx")))
    for name in ("all", "also"):
        store.sets.give_name(name, shared.digest)
    store.sets.give_name("some", store.seal(made(store, [1, 2])).digest)
    store.sets.give_name("other", store.seal(made(store, [2, 5], spec=spec(view="other"))).digest)
    made(store, [2, 8])
    made(store, [9])


def held(root: Path) -> list[str]:
    """Where a byte of sample 2 is left."""
    secrets = [rows(2)[0].tobytes(), bytes.fromhex(ids(2)[0]), ids(2)[0].encode()]
    files = [path for path in root.rglob("*") if path.is_file()]
    return [str(path) for path in files if any(secret in path.read_bytes() for secret in secrets)]


def erase(store: DiskStore) -> Removed:
    """The command."""
    return purge(store, samples=SAMPLES)


def check_erased(root: Path) -> None:
    """Sample 2 is gone and all others are there."""
    store = DiskStore(root)
    assert held(root) == []
    assert verify(store)[0] == []
    np.testing.assert_array_equal(store.open("all").to_numpy(), rows(1, 3, 6))
    assert store.open("all").digest == store.open("also").digest
    np.testing.assert_array_equal(store.open("some").to_numpy(), rows(1))
    np.testing.assert_array_equal(store.open("other").to_numpy(), rows(5))
    assert all(one in store.known(spec()) for one in ids(8, 9))
    assert store.erased(ids(1, 2)) == {ids(2)[0]}
    assert len(store.sets.digests()) == 3


def finish(root: Path, job: Job) -> None:
    """Give a command again after it was interrupted: until then nobody else gets in."""
    if (root / JOURNAL).exists():
        with pytest.raises(UnfinishedError, match="finish it first: probekit cache"):
            DiskStore(root)
        job(DiskStore(root, unfinished=True))
        return
    try:  # it had not begun, or was done
        job(DiskStore(root, unfinished=True))
    except NotFoundError:
        assert held(root) == [] or job is not erase


def test_killed_at_every_step_a_purge_is_finished_by_the_same_command(tmp_path: Path) -> None:
    """C15: an interrupted cache purge left the rows, and its repeat did not know them."""
    fill(tmp_path / "full")
    root = tmp_path / "cache"
    for step in count(0, EVERY):
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(tmp_path / "full", root)
        died = killed_at(lambda: erase(DiskStore(root, unfinished=True)), step)
        if died:
            finish(root, erase)
        check_erased(root)
        if not died:
            break
    assert step > 40


def test_whenever_the_power_fails_a_purge_is_finished_by_the_same_command(tmp_path: Path) -> None:
    """C22: what was unlinked could come back, as its folder was not made safe."""
    root = tmp_path / "cache"
    fill(root)
    disk = Disk(root)
    with disk.watching():
        erase(DiskStore(root))
    assert len(disk.states) > 20
    for state in range(len(disk.states)):
        disk.cut(state)
        finish(root, erase)
        check_erased(root)
    disk.cut(len(disk.states) - 1)  # after success was said nothing comes back
    check_erased(root)
    disk.close()


@pytest.mark.parametrize("what", ["set", "spec", "prune"])
def test_killed_at_every_step_other_removals_are_finished(tmp_path: Path, what: str) -> None:
    """C15, for rm and prune."""
    jobs: dict[str, Job] = {
        "set": lambda store: remove_set(store, "all"),
        "spec": lambda store: remove_spec(store, spec().digest[:12]),
        "prune": lambda store: prune(store, older_than_days=None),
    }
    job = jobs[what]
    fill(tmp_path / "full")
    for step in count(0, EVERY):
        root = tmp_path / f"cache-{step}"
        shutil.copytree(tmp_path / "full", root)
        died = killed_at(lambda root=root: job(DiskStore(root, unfinished=True)), step)  # type: ignore[misc]
        if died:
            finish(root, job)
        store = DiskStore(root)
        assert verify(store)[0] == []
        known = [number for number in (1, 2, 3, 6, 8, 9) if ids(number)[0] in store.known(spec())]
        assert known == {"set": [1, 2, 8, 9], "spec": [], "prune": [1, 2, 3, 6]}[what]
        if not died:
            break
    assert step > 5


def test_a_purge_is_finished_without_being_told_what(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store.root)

    def stop(step: str) -> None:
        raise KeyboardInterrupt(step)

    with monkeypatch.context() as patch:
        patch.setattr(journal, "reached", stop)
        with pytest.raises(KeyboardInterrupt):
            erase(store)
    others: list[Callable[[], object]] = [
        lambda: purge(store, samples=ids(1)),
        lambda: prune(store),
        lambda: store.sets.give_name("n", "0"),
        lambda: store.open("all"),
        lambda: extract(PixelBackbone(), pairs(2), store=store),
    ]
    for other in others:
        with pytest.raises(UnfinishedError):
            other()
    assert purge(store).rows == 2
    check_erased(store.root)
    with pytest.raises(InputError, match="Say what to purge"):
        purge(store)


def test_what_is_still_found_keeps_a_purge_open(store: DiskStore) -> None:
    """C16: exit 6 without a reason, then a success."""
    fill(store.root)
    copy = store.root / "copy"
    copy.write_bytes(b"xyz" + rows(2)[0].tobytes())
    assert erase(store).remains == ("copy",)
    with pytest.raises(UnfinishedError):
        DiskStore(store.root)
    assert erase(store).remains == ("copy",)
    copy.unlink()
    assert erase(store).remains == ()
    check_erased(store.root)


def test_the_same_bytes_of_another_sample_may_stay(store: DiskStore) -> None:
    """C16: two pictures with one embedding; erasing the one was called a failure."""
    store.save(spec(), ids(1, 2, 3), rows(1, 1, 3))
    store.sets.give_name("s", store.seal(made(store, [1, 2, 3])).digest)
    assert purge(store, samples=ids(2)).remains == ()
    assert list(store.open("s").ids) == ids(1, 3)


def test_bytes_across_two_ids_are_nobodys(store: DiskStore) -> None:
    """Ids that are no hashes: the end of one and the beginning of the next can be a third."""
    numbers = [f"{number:064x}" for number in (4, 0x300, 0x400, 0x301)]
    store.save(spec(), numbers, rows(1, 2, 3, 4))
    wanted = EmbeddingSet(spec(), store.load(spec(), numbers), np.zeros(4, np.int64), numbers)
    store.sets.give_name("s", store.seal(wanted).digest)
    assert purge(store, samples=numbers[:1]).remains == ()
    assert list(store.open("s").ids) == numbers[1:]


def test_an_id_that_is_still_listed_is_found(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store.root)
    monkeypatch.setattr("probekit.cache.erasure.drop_rows", lambda entry, doomed: 0)
    assert len(erase(store).remains) == 2
    monkeypatch.undo()
    assert erase(store).remains == ()


def test_the_journal_holds_no_row(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store.root)
    written, path = list[bytes](), store.root / JOURNAL

    def look(step: str) -> None:
        written.append(path.read_bytes())
        assert path.stat().st_mode & 0o077 == 0

    monkeypatch.setattr(journal, "reached", look)
    erase(store)
    assert written
    assert not any(rows(2)[0].tobytes()[:12].hex().encode() in text for text in written)


def test_runs_on_the_rows_are_named_and_asked_about(store: DiskStore, tmp_path: Path) -> None:
    """C16, C21: other runs were broken in silence."""
    fill(store.root)
    for name, used in (("one", "all"), ("two", "other"), ("three", "some")):
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "run.json", {"inputs": {"set": store.sets.resolve(used)}})
        register(store.root, tmp_path / name)
        register(store.root, tmp_path / name)
    with pytest.raises(OtherRunsError, match=r"2 runs stand on these rows.*Nothing was erased") as error:
        purge(store, samples=["c", "a"])
    assert error.value.runs == (str(tmp_path / "one"), str(tmp_path / "three"))
    assert ids(1)[0] in store.known(spec())
    assert purge(store, samples=["c", "a"], yes=True).runs == error.value.runs
    assert remove_set(store, "other").runs == (str(tmp_path / "two"),)


def test_erased_samples_stay_out_until_they_are_restored(store: DiskStore) -> None:
    """C16: the erased rows came back in silence at the next extract."""
    seen: list[ExtractProgress] = []
    first = extract(PixelBackbone(), pairs(8), store=store)
    purge(store, samples=[first.ids[3], first.ids[5]])
    again = extract(PixelBackbone(), pairs(8), store=store, progress=seen.append)
    assert (len(again), seen[-1].erased) == (6, 2)
    assert not {first.ids[3], first.ids[5]} & {*again.ids}
    other = extract(PixelBackbone(scale=2.0), pairs(8), store=store)
    assert len(other) == 6
    back = extract(PixelBackbone(), pairs(8), store=store, restore_erased=True)
    assert (back.digest, store.erased(first.ids)) == (first.digest, set())
    np.testing.assert_array_equal(back.to_numpy(), extract(PixelBackbone(), pairs(8)).to_numpy())


def test_tombstones_tell_nothing_and_are_not_exported(store: DiskStore, tmp_path: Path) -> None:
    made_here = extract(PixelBackbone(), pairs(8), store=store)
    store.sets.give_name("s", made_here.digest)
    export(store, "s", tmp_path / "before")
    purge(store, samples=made_here.ids[:2])
    assert (store.root / "erased.key").stat().st_mode & 0o077 == 0
    assert bytes.fromhex(made_here.ids[0]) not in (store.root / "erased").read_bytes()
    export(store, "s", tmp_path / "after")
    assert list((tmp_path / "after").rglob("erased*")) == []
    with pytest.raises(InputError, match="2 samples of this set were erased"):
        bring(store, tmp_path / "before", name="back")
    assert len(store.open("s")) == 6
    bring(store, tmp_path / "before", name="back", restore_erased=True)
    assert len(store.open("back")) == 8
    (store.root / "erased.key").write_bytes(b"short")
    purge_again = [store.open("back").ids[7]]
    purge(store, samples=purge_again)  # nothing was listed, so a new key does no harm
    (store.root / "erased.key").unlink()
    with pytest.raises(CorruptError, match=r"erased\.key"):
        extract(PixelBackbone(), pairs(8), store=store)


class Meddled(PixelBackbone):
    """Something is done to the cache while the last batch is encoded."""

    def __init__(self, meddle: Callable[[], object], at: int) -> None:
        super().__init__()
        self.meddle, self.at = meddle, at

    def encode(self, batch: Any) -> NDArray[np.float32]:
        """One vector per picture."""
        self.at -= 1
        if self.at == 0:
            self.meddle()
        return super().encode(batch)


SMALL: dict[str, Any] = {"batch_size": 2, "save_rows": 2, "num_workers": 0}


@pytest.mark.parametrize("what", ["prune", "rm"])
def test_a_running_extraction_keeps_its_rows(store: DiskStore, what: str) -> None:
    """`extract` ended with a set of rows that prune or rm had taken meanwhile."""
    half = extract(PixelBackbone(), pairs(4), store=store)
    store.sets.give_name("half", half.digest)
    found: list[Removed] = []

    def meddle() -> None:
        found.append(prune(store, older_than_days=0) if what == "prune" else remove_set(store, "half"))

    whole = extract(Meddled(meddle, 3), pairs(10), store=store, **SMALL)
    assert found[0].busy == ("test:pixels",)
    assert found[0].sets == (half.digest,)
    np.testing.assert_array_equal(store.open(whole.digest).to_numpy(), extract(PixelBackbone(), pairs(10)).to_numpy())
    with pytest.raises(InputError, match="extraction is at work"):
        extract(Meddled(lambda: remove_spec(store, whole.spec.digest), 1), pairs(12), store=store, **SMALL)


def test_what_is_purged_beside_a_running_extraction_is_left_out_of_it(store: DiskStore) -> None:
    ready = extract(PixelBackbone(), pairs(10)).ids
    extract(PixelBackbone(), pairs(2), store=store)
    seen: list[ExtractProgress] = []

    def meddle() -> None:
        assert purge(store, samples=[ready[0], ready[3]]).remains == ()

    found = extract(Meddled(meddle, 3), pairs(10), store=store, progress=seen.append, **SMALL)
    assert list(found.ids) == [one for row, one in enumerate(ready) if row not in (0, 3)]
    assert seen[-1].erased == 2
    assert np.isfinite(store.open(found.digest).to_numpy()).all()
    assert verify(store)[0] == []


def test_rows_of_erased_samples_are_not_saved_by_hand(store: DiskStore) -> None:
    fill(store.root)
    erase(store)
    store.save(spec(), ids(2, 4), rows(2, 4))
    assert [one in store.known(spec()) for one in ids(2, 4)] == [False, True]
    again = made(store, [3, 1])
    with pytest.raises(InputError, match="1 samples of this set were erased"):
        store.seal(replace(again, ids=[*again.ids[:1], *ids(2)]))
    store.restore(ids(2))
    store.save(spec(), ids(2), rows(2))
    assert list(store.seal(made(store, [2, 4])).ids) == ids(2, 4)


def test_a_set_of_missing_rows_is_not_sealed(store: DiskStore) -> None:
    wanted = made(store, [1, 2, 3])
    store.entry(spec()).keep("pieces", ())
    with pytest.raises(CorruptError, match="3 of 3 rows are not in the cache any more"):
        store.seal(wanted)
    assert store.sets.digests() == []


def test_rows_that_no_set_uses_are_counted(store: DiskStore) -> None:
    fill(store.root)
    assert unused_rows(store) == {spec().digest: 2}
    prune(store)
    assert unused_rows(store) == {}


def test_many_samples_cost_what_they_are(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """C16: rows that share a window were compared with every erased row, 10 s for 400 samples."""
    from probekit.cache import search

    hashed: list[int] = []
    digest = search._digest

    def counting(salt: bytes, data: bytes) -> str:
        hashed.append(len(data))
        return digest(salt, data)

    monkeypatch.setattr(search, "_digest", counting)
    numbers = list(range(400))
    pixels = np.zeros((400, 64), np.float32)
    pixels[:, -1] = 1 + np.arange(400)  # whose rarest window is the same, but for its last bytes
    store.save(spec(), ids(*numbers), pixels)
    store.sets.give_name("s", store.seal(made(store, numbers)).digest)
    assert purge(store, samples=ids(*numbers[:399])).remains == ()
    assert len(hashed) < 20 * 400
    assert len(store.open("s")) == 1
    assert not (store.root / JOURNAL).exists()
