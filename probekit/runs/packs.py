"""Clients' statistics in files: many clients to a pack, and sums of many clients.

A pack holds the leaves of some clients, at most `PACK_ROWS` rows' worth, and lists them in its header: name, place in
the order of clients, rows, digest, public key (zeros: none) and parts, each with the targets that its rows have, how
many rows have each, and whether it is a root or a triangle. Files are named by their content and linked from state to
state, so that a state writes what changed. What was judged when it arrived is later known by the sha256 of its file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from probekit.cache.matrices import map_tensors, write_tensors
from probekit.errors import CorruptError, HostileError, VerificationError
from probekit.federated.summation import StatisticsTree, key_of
from probekit.files import parsed
from probekit.linear.design import ClientStats, Design
from probekit.linear.roots import RootStats
from probekit.linear.targets import TargetDesign, TargetPart, TargetStats, known
from probekit.runs.stored import StoredStats, address, branches, packed, stored_sum, triangle_length, unpacked
from probekit.runs.tensors import DOUBLE, check, link
from probekit.values import Array, Indices

PACK_ROWS = 256
ROOT, TRIANGLE = "root", "triangle"
NO_KEY = "0" * 64
MOST_HEADER = 1 << 28


@dataclass(frozen=True, eq=False)
class Pack:
    """A file with the leaves of some clients. Its header was checked; the rest is when a leaf is first read."""

    path: Path
    sha256: str
    header: str
    design: Design
    leaves: Sequence[Mapping[str, Any]]

    @classmethod
    def open(cls, path: Path, sha256: str, header: str, design: Design) -> Pack:
        """The pack in a file, whose header must have this sha256."""
        try:
            with path.open("rb") as handle:
                size = handle.read(8)
                length = int.from_bytes(size, "little")
                content = size + handle.read(length if length < MOST_HEADER else 0)
        except FileNotFoundError:
            raise CorruptError(f"{path} is missing from its run. Restore it from a copy, or train again.") from None
        if hashlib.sha256(content).hexdigest() != header:
            raise CorruptError(f"The header of {path} is not the one that was written. Restore it from a copy.")
        try:
            leaves = parsed(parsed(content[8:])["__metadata__"]["probekit"].encode())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise HostileError(f"{path} is not one that was written: {error}. Restore it from a copy.") from error
        return cls(path, sha256, header, design, leaves)

    def stats(self) -> Iterator[tuple[str, StoredStats]]:
        """Each client and its statistics, which are read when asked for."""
        place = 0
        for leaf in self.leaves:
            size = sum(_size(part, self.design) for part in leaf["parts"])
            found = _Reader(self, leaf, place, place + size)
            stored = StoredStats(self.design, leaf["rows"], leaf["digest"], found.read, place=leaf["place"], file=self)
            yield leaf["client"], stored
            place += size

    @cached_property
    def numbers(self) -> Array:
        """All numbers of all leaves."""
        check(self.path, self.sha256)
        return map_tensors(self.path)[0]["numbers"]


@dataclass(frozen=True, eq=False)
class _Reader:
    """Where a leaf lies."""

    pack: Pack
    leaf: Mapping[str, Any]
    start: int
    stop: int

    def read(self) -> ClientStats:
        """The leaf as statistics, which must have the digest that is stated."""
        found, leaf = self._read(), self.leaf
        if (found.digest, found.count) != (leaf["digest"], leaf["rows"]):
            raise VerificationError(
                f"The statistics of client {leaf['client']} in {self.pack.path} are not those of {leaf['rows']} rows "
                f"with digest {leaf['digest'][:12]}. Ask their client again."
            )
        return found

    def _read(self) -> ClientStats:
        design, numbers = self.pack.design, self.pack.numbers[self.start : self.stop]
        if isinstance(design, TargetDesign):
            return _targets_read(design, numbers, self.leaf)
        counts = np.zeros(design.classes, np.int64)
        parts = self.leaf["parts"]
        for part in parts:
            counts[part["targets"]] = part["counts"]
        if parts and parts[0]["form"] == ROOT:
            return RootStats(design, numbers.reshape(int(counts.sum()), -1), counts)
        gram, moment = (np.zeros(shape) for shape in design.shapes[:2])
        grams, place = gram if design.per_class else gram[None], 0
        for part in parts:
            own, end = part["targets"], place + _size(part, design)
            triangle = triangle_length(design.columns)
            grams[own[0] if design.per_class else 0] = unpacked(numbers[place : place + triangle], design.columns)
            moment[:, own] = numbers[place + triangle : end].reshape(design.columns, -1)
            place = end
        return ClientStats(design, gram, moment, counts)


def write_packs(folder: Path, statistics: Mapping[str, ClientStats], order: Iterable[str]) -> dict[str, Pack]:
    """Write or link the packs of these clients; gives them by their sha256. `order` are all clients in theirs."""
    found, places = _whole_packs(statistics), _places(statistics, order)
    there = {leaf["client"] for pack in found for leaf in pack.leaves}
    packs = {pack.sha256: pack for pack in found}
    for pack in found:
        link(pack.path, folder / pack.path.name)
    loose = sorted((name for name in statistics if name not in there), key=key_of)
    for some in _chunks(loose, statistics):
        pack = _write_pack(folder, {name: statistics[name] for name in some}, places)
        packs[pack.sha256] = pack
    return packs


def read_packs(
    folder: Path, packs: Mapping[str, str], sums: Mapping[str, str], design: Design
) -> tuple[StatisticsTree, dict[str, int]]:
    """The clients' statistics with their partial sums, and how many rows each client has, in their order."""
    found: dict[str, StoredStats] = {}
    for sha256, header in packs.items():
        found.update(Pack.open(folder / f"{sha256}.safetensors", sha256, header, design).stats())
    found = dict(sorted(found.items(), key=lambda item: item[1].place))
    tree = StatisticsTree.of(found, keep_sums=True) if found else StatisticsTree(design)
    for node in branches(tree):
        if (named := sums.get(address(node))) is not None:
            node.known.append(stored_sum(folder / f"{named}.safetensors", named, design, node.count))
    return tree, {name: one.count for name, one in found.items()}


def _whole_packs(statistics: Mapping[str, ClientStats]) -> list[Pack]:
    """The packs of which every client is still here, with the same statistics."""
    here: dict[Pack, int] = {}
    for one in statistics.values():
        if isinstance(one, StoredStats) and isinstance(one.file, Pack):
            here[one.file] = here.get(one.file, 0) + 1
    return [pack for pack, many in here.items() if many == len(pack.leaves)]


def _places(statistics: Mapping[str, ClientStats], order: Iterable[str]) -> dict[str, int]:
    """Every client's place: as stored, and those that are new after all others."""
    stored = {name: one.place for name, one in statistics.items() if isinstance(one, StoredStats)}
    following = max(stored.values(), default=-1) + 1
    new = [name for name in order if name in statistics and name not in stored]
    return stored | {name: following + number for number, name in enumerate(new)}


def _chunks(names: Sequence[str], statistics: Mapping[str, ClientStats]) -> Iterator[list[str]]:
    some: list[str] = []
    room = PACK_ROWS
    for name in names:
        worth = _worth(statistics[name].loaded)
        if some and worth > room:
            yield some
            some, room = [], PACK_ROWS
        some.append(name)
        room -= worth
    if some:
        yield some


def _worth(one: ClientStats) -> int:
    """How many rows take as much room."""
    if isinstance(one, RootStats):
        return one.count
    if isinstance(one, TargetStats):
        return sum(part.matrix.size if part.is_root else part.matrix.size // 2 for part in one.parts.values()) // max(
            1, one.design.columns
        )
    classes, columns = np.count_nonzero(one.class_counts), one.design.columns
    triangles = classes if one.design.per_class else 1
    return int(triangles * triangle_length(columns) + columns * classes) // columns


def _write_pack(folder: Path, statistics: Mapping[str, ClientStats], places: Mapping[str, int]) -> Pack:
    design = next(iter(statistics.values())).design
    leaves, blocks = [], []
    for name, one in statistics.items():
        loaded = one.loaded
        parts = [*_parts(loaded)]
        counts = _part_counts(loaded, [own for own, _, _ in parts])
        about = {"client": name, "place": places[name], "rows": loaded.count, "digest": one.digest, "key": NO_KEY}
        listed = [
            {"targets": own.tolist(), "counts": rows, "form": form}
            for (own, form, _), rows in zip(parts, counts, strict=True)
        ]
        leaves.append({**about, "parts": listed})
        blocks += [block.reshape(-1) for _, _, own in parts for block in own]
    size = sum(map(len, blocks))
    note: Any = leaves
    sha256 = write_tensors(folder, {"numbers": ((size,), DOUBLE, blocks)}, note)
    path = folder / f"{sha256}.safetensors"
    with path.open("rb") as handle:
        start = handle.read(8)
        header = hashlib.sha256(start + handle.read(int.from_bytes(start, "little"))).hexdigest()
    return Pack(path, sha256, header, design, leaves)


def _part_counts(one: ClientStats, targets: Sequence[Indices]) -> list[list[int]]:
    """The rows of every part: those of each class, or all that know the same real targets."""
    if isinstance(one, TargetStats):
        return [[part.count] for part in one.parts.values()]
    return [one.class_counts[own].tolist() for own in targets]


def _targets_read(design: TargetDesign, numbers: Array, leaf: Mapping[str, Any]) -> TargetStats:
    """A leaf of real targets: pairs of what a part knows and its root or triangle."""
    found, place = {}, 0
    for part in leaf["parts"]:
        end, own, (count,) = place + _size(part, design), set(part["targets"]), part["counts"]
        pattern = "".join("1" if label in own else "0" for label in range(design.classes))
        rooted, width = part["form"] == ROOT, design.width(pattern)
        some = numbers[place:end]
        matrix = some.reshape(count, width) if rooted else unpacked(some, width)
        found[pattern], place = TargetPart(count, matrix, is_root=rooted), end
    return TargetStats(design, found, leaf["rows"])


def _parts(one: ClientStats) -> Iterator[tuple[Indices, str, list[Array]]]:
    """Targets, form and numbers of each part of a leaf."""
    if isinstance(one, TargetStats):
        for pattern, part in one.parts.items():
            yield (
                known(pattern),
                ROOT if part.is_root else TRIANGLE,
                [part.matrix if part.is_root else packed(part.matrix)],
            )
        return
    if isinstance(one, RootStats):
        for own, root in one.parts():
            yield own, ROOT, [root]
        return
    own = np.flatnonzero(one.class_counts)
    for some in own[:, None] if one.design.per_class else [own]:
        yield some, TRIANGLE, [packed(one.gram[some[0]] if one.design.per_class else one.gram), one.moment[:, some]]


def _size(part: Mapping[str, Any], design: Design) -> int:
    many = len(part["targets"])
    if isinstance(design, TargetDesign) and part["form"] != ROOT:
        return triangle_length(design.columns + many)
    if part["form"] == ROOT:
        return int(sum(part["counts"]) * (design.columns + many))
    return triangle_length(design.columns) + design.columns * many
