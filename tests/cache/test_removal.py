"""What is removed is gone from every file; what others need stays."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from probekit.cache import DiskStore
from probekit.cache.audit import verify
from probekit.cache.erasure import purge
from probekit.cache.removal import prune, remove_set, remove_spec
from probekit.cache.search import remains
from probekit.errors import InputError, NotFoundError
from tests.cache.test_disk import ids, made, rows
from tests.conftest import spec


def _holds(root: Path, secret: bytes) -> bool:
    return any(secret in path.read_bytes() for path in root.rglob("*") if path.is_file())


def test_purging_samples_leaves_no_byte_of_them(store: DiskStore) -> None:
    other = spec(view="other")
    store.sets.give_name("all", store.seal(made(store, [1, 2, 3, 2], names=["a", "b", "c", "b2"])).digest)
    store.seal(made(store, [2, 5], spec=other))
    made(store, [2, 8], spec=spec(view="third"))
    secret = rows(2)[0].tobytes()
    assert _holds(store.root, secret)
    removed = purge(store, samples=[ids(2)[0][:16]])
    assert (removed.rows, removed.remains) == (3, ())
    assert removed.searched > 0
    for gone in (secret, bytes.fromhex(ids(2)[0]), ids(2)[0].encode()):
        assert not _holds(store.root, gone)
    np.testing.assert_array_equal(store.open("all").to_numpy(), rows(1, 3))
    assert list(store.open("all").names or ()) == ["a", "c"]
    assert verify(store)[0] == []


def test_purging_by_name(store: DiskStore) -> None:
    store.seal(made(store, [1, 2], names=["a", "b"]))
    assert purge(store, samples=["b"]).rows == 1


def test_a_client_leaves_but_what_others_hold_stays(store: DiskStore) -> None:
    store.sets.give_name("s", store.seal(made(store, [1, 2, 3, 1], clients=["a", "b", "a", "b"])).digest)
    removed = purge(store, client="a", set_name="s")
    assert (removed.rows, removed.shared) == (1, 1)
    left = store.open("s")
    assert list(left.clients or ()) == ["b", "b"]
    np.testing.assert_array_equal(left.to_numpy(), rows(2, 1))
    assert not _holds(store.root, rows(3)[0].tobytes())


def test_purging_the_only_rows_removes_the_set(store: DiskStore) -> None:
    store.sets.give_name("s", store.seal(made(store, [1])).digest)
    purge(store, samples=ids(1))
    assert store.sets.digests() == []
    assert store.sets.names() == {}


def test_an_unknown_sample_removes_nothing(store: DiskStore) -> None:
    store.seal(made(store, [1, 2]))
    with pytest.raises(NotFoundError, match="Nothing was removed"):
        purge(store, samples=[ids(1)[0], ids(9)[0]])
    with pytest.raises(NotFoundError, match="Nothing was removed"):
        purge(store, client="nobody")
    with pytest.raises(InputError):
        purge(store)
    assert ids(1)[0] in store.known(spec())


def test_the_search_sees_what_is_left(tmp_path: Path) -> None:
    secret = os.urandom(64)
    (tmp_path / "a").write_bytes(os.urandom(5_000_003) + secret + os.urandom(11))
    (tmp_path / "b").write_bytes(os.urandom(100) + secret[:-1])
    (tmp_path / "c").write_bytes(b"x" + b"\0" * 900)
    sample = os.urandom(32)
    (tmp_path / "d").write_text(f"id {sample.hex()}")
    found, files, _ = remains(tmp_path, [secret, sample, b"\0" * 40 + b"\1"])
    assert (found, files) == (("a", "d"), 4)


def test_removing_a_set_keeps_the_rows_of_others(store: DiskStore) -> None:
    store.sets.give_name("one", store.seal(made(store, [1, 2])).digest)
    store.sets.give_name("two", store.seal(made(store, [2, 3])).digest)
    assert remove_set(store, "one").rows == 1
    np.testing.assert_array_equal(store.open("two").to_numpy(), rows(2, 3))
    assert remove_set(store, "two", keep_rows=True).rows == 0
    assert ids(3)[0] in store.known(spec())


def test_removing_a_spec(store: DiskStore) -> None:
    store.seal(made(store, [1, 2]))
    assert remove_spec(store, spec().digest[:8]).rows == 2
    assert (list(store.specs()), store.sets.digests()) == ([], [])
    with pytest.raises(NotFoundError):
        remove_spec(store, "0123456")


def test_prune_removes_what_no_set_uses(store: DiskStore) -> None:
    digest = store.seal(made(store, [1, 2])).digest
    made(store, [7, 8])
    assert prune(store, dry_run=True).rows == 2
    assert ids(7)[0] in store.known(spec())
    assert prune(store).rows == 2
    assert ids(7)[0] not in store.known(spec())
    assert prune(store, older_than_days=1).sets == ()
    os.utime(store.root / "sets" / digest / "set.json", (0, 0))
    assert prune(store, older_than_days=1).sets == (digest,)
