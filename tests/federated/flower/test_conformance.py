"""The kit for federations, carried over a real SuperLink by four real SuperNodes."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from probekit.cache import DiskStore
from probekit.federated.flower import folders
from probekit.federated.flower.carrier import FlowerCarrier
from probekit.federated.flower.grid import OwnGrid
from probekit.federated.flower.up import Up
from probekit.federated.membership import safe_name
from probekit.federated.node import Node
from probekit.federated.policy import Policy
from probekit.federated.remote import RemoteFederation
from probekit.testing import check_federation
from probekit.values import EmbeddingSet
from tests.federated.flower.parties import Party
from tests.nodes import OPEN, Machines


class Reachable(Machines):
    """Machines whose folders the nodes of a running federation find, each with a cache of its own."""

    def __init__(self, party: Path, *given: Any) -> None:
        self.party = party
        super().__init__(*given)

    def join(self, name: str, rows: EmbeddingSet, *, policy: Policy = OPEN) -> Node:
        made = super().join(name, rows, policy=policy)
        DiskStore(made.folder / "cache").adopt(rows, "own")
        place = self.party / "machines" / self.folder.id / safe_name(name)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(made.folder)
        return made


@pytest.mark.slow
def test_flower_passes(running: tuple[Party, Up], tmp_path: Path) -> None:
    party, grid, number = running[0], OwnGrid(running[0].folder), count()
    keys = list(folders.member_keys(party.folder).values())

    def make(problem: Any, data: Any, rows: Any) -> RemoteFederation:
        machines = Reachable(party.root, tmp_path / str(next(number)), data, rows)
        carrier = FlowerCarrier(grid, dict(zip(rows, keys, strict=False)))
        return machines.federation(problem, carrier=carrier, timeout=60)

    assert {one.name: one.detail for one in check_federation(make) if not one.passed} == {}
    assert next(number) > 3
    grid.close()
