"""Federations on this machine: folders for every test, and one that runs for all that only ask."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from probekit.federated.flower.up import Up, up
from tests.federated.flower.parties import Party, rows_of, standin


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Party, Up]]:
    """Four nodes with foreseeable answers, connected."""
    party = Party(tmp_path_factory.mktemp("party")).make({name: rows_of(name) for name in "abcd"})
    with up(party.folder, party.nodes, command=standin) as processes:
        yield party, processes
