"""What the Flower app of a federation does on stock nodes and servers: answer, relay, or train a head in one round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from probekit.errors import InputError
from probekit.federated.flower.carrier import FlowerCarrier
from probekit.federated.flower.executor import open_node, reply
from probekit.federated.flower.folders import member_keys
from probekit.federated.flower.relay import PublicGrid, forward
from probekit.federated.membership import FederationFolder
from probekit.federated.party import Description
from probekit.federated.remote import RemoteFederation, Sender
from probekit.federated.rows import design_for, head_problem
from probekit.federated.training import train
from probekit.models.serving import save_head
from probekit.values import Partition


def answer(message: Any, context: Any) -> Any:
    """The node's reply to a signed question; its folder is given as `--node-config 'folder="..."'`."""
    folder = context.node_config.get("folder")
    if not folder:
        raise InputError("Start the SuperNode with --node-config 'folder=\"...\"': the folder of a probekit node.")
    return reply(message, open_node(Path(str(folder))).answer)


def serve(grid: Any, context: Any) -> None:
    """Relay questions, where a run says for whom; else train a head by closed form and save it."""
    config, calls = context.run_config, PublicGrid(grid)
    if config["relay"]:
        forward(calls, str(config["relay"]))
        return
    folder = FederationFolder.open(Path(str(config["folder"])))
    cards = folder.members
    first = next(iter(cards.values()))
    rows = Description(
        first.encoding, first.dimension, first.classes, {name: one.rows for name, one in cards.items()}
    ).hollow
    federation = RemoteFederation(
        head_problem(rows, design_for(rows)),
        {name: bytes.fromhex(card.key) for name, card in cards.items()},
        FlowerCarrier(calls, member_keys(folder.path)),
        Sender(folder.id, folder.key),
        folder.path / "jobs" / f"run {context.run_id}",
        job=f"run {context.run_id}",
        timeout=float(config["timeout"]),
    )
    nobody = Partition({}, np.empty(0, dtype=np.int64), 0, "federation", 0)
    found = train(rows, nobody, ridge=float(config["ridge"]), problem=federation.problem, federation=federation)
    save_head(found.head, str(config["head"]) or folder.path / "head")
