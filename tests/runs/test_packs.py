"""Packs: every form of statistics comes back to the bit, states share files, and sums on disk change no bit."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit.errors import CorruptError, VerificationError
from probekit.federated.summation import StatisticsTree
from probekit.linear.design import ClientStats, Design
from probekit.linear.roots import RootStats, client_statistics
from probekit.runs.packs import PACK_ROWS, read_packs, write_packs
from probekit.runs.stored import StoredStats, branches, write_sums

DESIGNS = [Design(12, 5), Design(12, 5, intercept="none"), Design(12, 5, per_class=True), Design(12, 1)]


def made(design: Design, sizes: list[int]) -> dict[str, ClientStats]:
    """Clients with so many rows each."""
    generator = np.random.default_rng(1)
    rows = {str(name): generator.standard_normal((size, design.dimension)) for name, size in enumerate(sizes)}
    return {
        name: client_statistics(own, generator.integers(0, design.classes, len(own)), design)
        for name, own in rows.items()
    }


def stored(folder: Path, statistics: Any) -> tuple[StatisticsTree, dict[str, str], dict[str, str]]:
    """The statistics written and read again, and what a state says of them."""
    folder.mkdir()
    packs = {name: pack.header for name, pack in write_packs(folder, statistics, list(statistics)).items()}
    sums = write_sums(folder, statistics)
    design = next(iter(statistics.values())).design
    return read_packs(folder, packs, sums, design)[0], packs, sums


@pytest.mark.parametrize("design", DESIGNS)
def test_what_is_written_comes_back(design: Design, tmp_path: Path) -> None:
    given = made(design, [1, 2, 3, 40, 2, 100])
    found, packs, _ = stored(tmp_path / "one", given)
    assert list(found) == list(given)
    for name, one in given.items():
        again = found[name]
        assert isinstance(again, StoredStats)
        assert (again.digest, again.count) == (one.digest, one.count)
        assert again.loaded.digest == one.digest
        np.testing.assert_array_equal(again.gram, one.gram)
        np.testing.assert_array_equal(again.class_counts, one.class_counts)
    assert len(packs) < len(given)
    assert found.total.digest == StatisticsTree.of(given).total.digest


def test_packs_are_small_and_a_removal_writes_one(tmp_path: Path) -> None:
    design = Design(12, 5)
    tree = StatisticsTree.of(made(design, [2] * 1000), keep_sums=True)
    total = tree.total
    first, packs, sums = stored(tmp_path / "one", tree)
    assert len(packs) == -(-2000 // PACK_ROWS)
    assert sums
    assert first.total.digest == total.digest
    second, others, fewer = stored(tmp_path / "two", first.without("7"))
    assert len(others.keys() - packs.keys()) == 1
    assert set(fewer.values()) <= set(sums.values())
    for name in others.keys() & packs.keys():
        assert (tmp_path / "one" / f"{name}.safetensors").samefile(tmp_path / "two" / f"{name}.safetensors")
    anew = {name: one for name, one in tree.items() if name != "7"}
    assert second.total.digest == StatisticsTree.of(anew).total.digest
    assert not any(leaf["client"] == "7" for one in second.values() for leaf in _file(one).leaves)


def _file(one: ClientStats) -> Any:
    assert isinstance(one, StoredStats)
    return one.file


def test_a_stream_of_removals_ends_in_the_bits_of_training_anew(tmp_path: Path) -> None:
    given = made(Design(12, 5), [2, 3, 90, 1, 60, 2, 2, 5, 70, 80] * 20)
    tree, gone = StatisticsTree.of(given), []
    _ = tree.total
    tree = stored(tmp_path / "start", tree)[0]
    for number in range(0, 200, 17):
        gone.append(str(number))
        tree = tree.without(str(number))
        _ = tree.total
        tree = stored(tmp_path / str(number), tree)[0]
    rest = StatisticsTree.of({name: one for name, one in given.items() if name not in gone})
    assert tree.total.digest == rest.total.digest


def read_all(folder: Path, packs: dict[str, str], sums: dict[str, str]) -> None:
    """Read every leaf and every sum."""
    tree = read_packs(folder, packs, sums, Design(12, 5))[0]
    for one in (*tree.values(), *(known for node in branches(tree) for known in node.known)):
        assert one.loaded.count == one.count


def test_changed_bytes_are_noticed_when_they_are_read(tmp_path: Path) -> None:
    given = StatisticsTree.of(made(Design(12, 5), [2] * 400))
    _ = given.total
    _, packs, sums = stored(tmp_path / "one", given)
    for name in (*packs, *sums.values()):
        path = tmp_path / "one" / f"{name}.safetensors"
        good = path.read_bytes()
        path.write_bytes(good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
        with pytest.raises(CorruptError, match=name):
            read_all(tmp_path / "one", packs, sums)
        path.unlink()
        with pytest.raises(CorruptError, match=name):
            read_all(tmp_path / "one", packs, sums)
        path.write_bytes(good)
    read_all(tmp_path / "one", packs, sums)


def test_a_header_that_was_changed_is_refused(tmp_path: Path) -> None:
    _, packs, _ = stored(tmp_path / "one", made(Design(12, 5), [2, 2]))
    path = tmp_path / "one" / f"{next(iter(packs))}.safetensors"
    content = path.read_bytes()
    path.write_bytes(content.replace(b'\\"rows\\":2', b'\\"rows\\":3'))
    assert path.read_bytes() != content
    with pytest.raises(CorruptError, match="header"):
        read_packs(tmp_path / "one", packs, {}, Design(12, 5))
    path.write_bytes((1 << 60).to_bytes(8, "little") + content[8:])
    with pytest.raises(CorruptError, match="header"):
        read_packs(tmp_path / "one", packs, {}, Design(12, 5))


def test_a_leaf_has_room_for_a_key_and_lists_what_its_rows_have(tmp_path: Path) -> None:
    given = made(Design(12, 5), [2, 90])
    _, packs, _ = stored(tmp_path / "one", given)
    assert len(packs) == 1
    content = (tmp_path / "one" / f"{next(iter(packs))}.safetensors").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    leaves = json.loads(header["__metadata__"]["probekit"])
    assert {leaf["key"] for leaf in leaves} == {"0" * 64}
    forms = {leaf["client"]: [part["form"] for part in leaf["parts"]] for leaf in leaves}
    assert forms == {"0": ["root"], "1": ["triangle"]}
    assert isinstance(given["0"], RootStats)
    for leaf in leaves:
        (part,) = leaf["parts"]
        assert sum(part["counts"]) == leaf["rows"]
        assert part["targets"] == np.flatnonzero(given[leaf["client"]].class_counts).tolist()


def _same(one: ClientStats) -> ClientStats:
    return one


def test_numbers_of_another_digest_are_refused(tmp_path: Path) -> None:
    """Whoever writes other numbers and all files' hashes anew must state the digest that certificates are about."""
    given, other = made(Design(12, 5), [2, 90]), made(Design(12, 5), [90, 2])
    lie = {
        name: StoredStats(one.design, one.count, given[name].digest, partial(_same, one), place=0, file=None)
        for name, one in zip(given, reversed(other.values()), strict=True)
    }
    tree, _, _ = stored(tmp_path / "one", lie)
    for name in given:
        assert tree[name].digest == given[name].digest
        with pytest.raises(VerificationError, match=f"client {name} in"):
            _ = tree[name].loaded
