"""Groups of a probe: by a column, kept or read again, comparable between sets, and nothing of them in clear."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import probekit
from probekit.cache import DiskStore
from probekit.cache.erasure import purge
from probekit.cli.main import run
from probekit.errors import InputError, StorageError
from probekit.evaluation.metrics import accuracy, effective_rows, share
from probekit.evaluation.probe_rows import RowSource
from probekit.evaluation.probe_table import probe_table
from probekit.values import EmbeddingSet

PEOPLE = np.array([f"patient-{number // 4}" for number in range(60)])


@pytest.fixture
def scans(tmp_path: Path) -> str:
    """Pictures of patients, four of each; three of the patients are in both splits."""
    pixels = np.random.default_rng(0).integers(0, 256, (80, 6, 6), dtype=np.uint8)
    labels = np.arange(80) % 3
    pixels[np.arange(80), labels, 0] = 255
    later = np.array([f"patient-{12 + number // 4}" for number in range(20)])
    np.savez(tmp_path / "train.npz", images=pixels[:60], labels=labels[:60], patient=PEOPLE)
    np.savez(tmp_path / "test.npz", images=pixels[60:], labels=labels[60:], patient=later)
    return str(tmp_path)


def _groups(found: EmbeddingSet) -> list[int]:
    assert found.groups is not None
    order = list(dict.fromkeys(found.groups.tolist()))
    return [order.index(number) for number in found.groups.tolist()]


def test_a_group_in_training_and_test_is_told_and_no_name_is_stored(
    scans: str, store: DiskStore, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = ["--cache", str(store.root), "--json"]
    for name in ("train", "test"):
        line = ["extract", f"npz:{scans}/{name}.npz", "-b", "pixels:6", "--name", name, *cache]
        assert run([*line, "--group", "patient"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["groups"] == 15
    assert run(["probe", "train", "--test", "test", "--no-controls", *cache]) == 0
    assert json.loads(capsys.readouterr().out)["cells"][0]["shared_groups"] == 3
    assert run(["probe", "train", "--test", "test", *cache[:2]]) == 0
    assert "3 groups are in both training and test rows" in capsys.readouterr().out
    kept = [path for path in store.root.rglob("*") if path.is_file()]
    assert not [path for path in kept if b"patient-" in path.read_bytes()]
    assert (store.root / "groups.key").stat().st_mode & 0o077 == 0


def test_groups_by_a_column_are_kept_read_again_or_refused(scans: str, store: DiskStore) -> None:
    bare = probekit.extract("pixels:6", f"npz:{scans}/train.npz", store=store)
    assert bare.groups is None
    told = RowSource(store=store, group="patient").embedded(bare)
    assert told.group_column == "patient"
    kept = probekit.extract("pixels:6", f"npz:{scans}/train.npz", store=store, group="patient")
    assert (kept.digest, kept.group_column) == (bare.digest, "patient")
    assert np.array_equal(np.asarray(kept.groups), np.asarray(told.groups))
    assert _groups(kept) == [number // 4 for number in range(60)]
    assert _groups(store.open(bare.digest)) == _groups(kept)
    assert DiskStore(store.root).group_key() == store.group_key()
    Path(f"{scans}/train.npz").unlink()
    assert RowSource(store=store, group="patient").embedded(kept).groups is kept.groups
    with pytest.raises(InputError, match=r"no groups by 'patient'.*again with `group`"):
        RowSource(store=store, group="patient").embedded(bare)


def test_a_probe_leaves_the_groups_of_a_column_out(scans: str, store: DiskStore) -> None:
    data: Any = f"npz:{scans}/train.npz"
    found = probekit.probe(data, backbone="pixels:6", group="patient", store=store, ridge=0.01)
    plain = probekit.probe(data, backbone="pixels:6", groups=PEOPLE, store=store, ridge=0.01)
    assert found.judged_on == "training rows, groups left out in turn"
    assert found.accuracy == plain.accuracy
    assert found.mean_per_class == plain.mean_per_class  # draws follow the order of rows, no key
    assert found.accuracy.how == "wilson over groups"
    with pytest.raises(InputError, match="'nobody'"):
        probekit.probe(data, backbone="pixels:6", group="nobody", store=store)


def test_a_data_sets_own_splits_have_comparable_groups(tmp_path: Path, store: DiskStore) -> None:
    for split, people in (("train", "aabbcc"), ("test", "ccdd")):
        lines = ["file_name,label,patient"]
        (tmp_path / "set" / split).mkdir(parents=True)
        for number, who in enumerate(people):
            pixels = np.random.default_rng([len(split), number]).integers(0, 256, (4, 4), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "set" / split / f"{number}.png")
            lines.append(f"{number}.png,{number % 2},{who}")
        (tmp_path / "set" / split / "metadata.csv").write_text("\n".join(lines))
    found = probekit.probe(f"folder:{tmp_path / 'set'}", backbone="pixels:4", group="patient", store=store)
    assert (found.judged_on, found.rows, found.test_rows, found.shared_groups) == ("test rows", 6, 4, 1)


def test_imported_sets_of_one_cache_have_comparable_groups(
    tmp_path: Path, store: DiskStore, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = np.random.default_rng(0).standard_normal((30, 4))
    users = [f"u{number // 3}" for number in range(30)]
    for name, part in (("a", slice(0, 21)), ("b", slice(18, 30))):
        np.savez(tmp_path / f"{name}.npz", x=rows[part], y=np.arange(30)[part] % 2, user=users[part])
        line = ["import", str(tmp_path / f"{name}.npz"), "--group", "user", "--source", "mine"]
        assert run([*line, "--cache", str(store.root), "-q"]) == 0
    found = probekit.probe("a", test="b", group="user", store=store)
    assert found.shared_groups == 1
    elsewhere = EmbeddingSet.from_numpy(rows, np.arange(30) % 2, groups=users)
    other = EmbeddingSet.from_numpy(rows[:6], [0, 1] * 3, groups=["v1"] * 3 + ["u9"] * 3)
    assert probekit.probe(elsewhere, test=other).shared_groups == 1


def test_groups_go_with_the_rows_that_are_purged(scans: str, store: DiskStore) -> None:
    kept = probekit.extract("pixels:6", f"npz:{scans}/train.npz", store=store, group="patient")
    store.sets.give_name("train", kept.digest)
    purge(store, samples=[kept.ids[5]], client=None, set_name=None, yes=True)
    left = store.open("train")
    assert (len(left), left.group_column) == (59, "patient")
    assert np.asarray(left.groups).tolist() == np.delete(np.asarray(kept.groups), 5).tolist()


def test_remarks_on_a_backbone_reach_who_asks_for_a_table(scans: str, store: DiskStore, tmp_path: Path) -> None:
    said: list[str] = []
    scan = np.random.default_rng(0).integers(0, 4096, (12, 6, 6), dtype=np.uint16)
    np.savez(tmp_path / "deep.npz", images=scan, labels=np.arange(12) % 2)
    data = [f"npz:{tmp_path / 'deep.npz'}"]
    probe_table(data, ["pixels:6"], store=store, controls=False, note=said.append)
    assert "Give `window=(0, 40" in said[0]
    probe_table(data, ["pixels:6"], store=store, controls=False, note=said.append, window=(0, 4095))
    assert len(said) == 1


def test_a_set_of_a_read_only_cache_is_used_without_a_name(
    scans: str, store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    probekit.extract("pixels:6", f"npz:{scans}/train.npz", store=store)

    def refuses(*_: object) -> None:
        raise StorageError("read-only")

    monkeypatch.setattr(store.sets, "give_name", refuses)
    assert probekit.probe(f"npz:{scans}/train.npz", backbone="pixels:6", store=store).rows == 60


def test_an_interval_by_groups_is_as_wide_as_that_of_as_many_independent_rows() -> None:
    """Rows of a group that are all alike tell as much as one row; rows in random groups tell as much as without."""
    generator = np.random.default_rng(0)
    right = generator.random(200) < 0.7
    alike = share(np.repeat(right, 5), groups=np.repeat(np.arange(200), 5))
    single = share(right)
    assert alike.effective == pytest.approx(200, rel=0.01)
    assert (alike.low, alike.high) == pytest.approx((single.low, single.high), abs=2e-3)
    mixed = effective_rows(np.repeat(right, 5).astype(float), generator.integers(0, 250, 1000))
    assert mixed > 700
    assert share(np.ones(40), groups=np.arange(40) // 4).low == share(np.ones(10, bool)).low
    assert accuracy(np.ones(4, int), np.ones(4, int), groups=np.zeros(4, int)).effective == 1
