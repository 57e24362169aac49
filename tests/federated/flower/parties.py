"""Small federations on this machine, and what is asked of them."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from probekit.cache import DiskStore
from probekit.federated.federation import Missing
from probekit.federated.flower import children, folders
from probekit.federated.flower.carrier import FlowerCarrier
from probekit.federated.flower.grid import open_carrier
from probekit.federated.joining import join
from probekit.federated.membership import FederationFolder
from probekit.values import EmbeddingSet
from tests.conftest import spec
from tests.nodes import OPEN


def rows_of(name: str, rows: int = 30) -> EmbeddingSet:
    """A few rows of three classes that no other name has."""
    generator = np.random.default_rng(list(name.encode()))
    vectors = generator.normal(size=(rows, 4)).astype(np.float32)
    labels = np.arange(rows, dtype=np.int64) % 3
    ids = [hashlib.sha256(vector.tobytes()).hexdigest() for vector in vectors]
    return EmbeddingSet(spec(), vectors, labels, ids, class_names=("x", "y", "z"))


@dataclass
class Party:
    """A server's folder and its nodes' folders, not running yet."""

    root: Path
    address: str = field(default_factory=lambda: f"127.0.0.1:{children.free_port()}")
    nodes: dict[str, Path] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The server's."""
        return self.root / "server"

    def make(self, sets: Mapping[str, EmbeddingSet]) -> Party:
        """Write all folders; each node has a cache of its own with its set."""
        FederationFolder.create(self.folder, transport="flower", address=self.address)
        folders.prepare_server(self.folder, "trial", ["127.0.0.1"])
        for name, rows in sets.items():
            self.add(name, rows)
        return self

    def add(self, name: str, rows: EmbeddingSet, *, member: bool = True) -> Path:
        """A node's folder; one that is no member is not registered."""
        node = self.nodes[name] = self.root / name
        store = DiskStore(self.root / f"cache of {name}")
        store.save(rows.spec, list(rows.ids), rows.to_numpy())
        store.sets.give_name("own", store.seal(rows).digest)
        invitation, cache = self.folder / "invitation", str(store.root)
        card = join(invitation, node, name, "own", rows, policy=OPEN, cache=cache, flower_key=folders.prepare_node)
        if member:
            FederationFolder.open(self.folder).add(card)
        return node

    def carrier(self) -> FlowerCarrier:
        """What carries questions to its members."""
        return open_carrier(self.folder)


def standin(folder: Path) -> list[str]:
    """The command of a node with foreseeable answers."""
    return [sys.executable, str(Path(__file__).with_name("standin.py")), "run", str(folder)]


def ask(carrier: FlowerCarrier, parcels: Mapping[str, bytes], timeout: float | None = 60) -> dict[str, bytes | Missing]:
    """All replies, by member."""
    found = list(carrier.carry(parcels, timeout=timeout))
    assert len(found) == len(parcels)
    return dict(found)


def below(pid: int) -> set[int]:
    """Every process below this one."""
    parents = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}
