"""A real SuperLink and real SuperNodes with TLS and keys on this machine: the same head as in one process."""

from __future__ import annotations

import os
from pathlib import Path

from probekit.federated.flower.status import status
from probekit.federated.flower.up import up
from probekit.federated.in_process import InProcess
from probekit.federated.membership import FederationFolder
from probekit.federated.partition import partition
from probekit.federated.remote import RemoteFederation, Sender
from probekit.federated.rows import design_for, head_problem
from probekit.federated.training import train
from tests.federated.flower.parties import Party, below, rows_of


def test_two_nodes_give_the_head_of_one_process_and_leave_nothing_behind(tmp_path: Path) -> None:
    whole = rows_of("both", 40)
    split = partition(whole.labels, "iid", clients=2, seed=1)
    rows = split.clients
    party = Party(tmp_path).make({name: whole.select(own) for name, own in rows.items()})
    problem = head_problem(whole, design_for(whole))
    before = below(os.getpid())
    with up(party.folder, party.nodes) as processes:
        assert status(party.folder).members == dict.fromkeys(rows, "connected")
        folder, carrier = FederationFolder.open(party.folder), party.carrier()
        keys = {name: bytes.fromhex(card.key) for name, card in folder.members.items()}
        far = RemoteFederation(
            problem, keys, carrier, Sender(folder.id, folder.key), folder.path / "jobs" / "x", job="x"
        )
        near = InProcess.of(problem, whole, rows)
        found, wanted = (train(whole, split, ridge=0.1, problem=problem, federation=one) for one in (far, near))
        assert found.head.digest == wanted.head.digest
        assert far.traffic == near.traffic
        carrier.close()
        started = below(os.getpid()) - before
        assert len(started) == 1 + 1 + 2 * 3  # the server and its SuperLink; per node three
        assert not any("libtorch" in Path(f"/proc/{pid}/maps").read_text() for pid in started)
    assert not started & below(os.getpid())
    assert {one.returncode for one in processes.nodes.values()} == {0}
    assert processes.server is not None
    assert processes.server.returncode == 0
    assert not status(party.folder).running
