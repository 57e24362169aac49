"""Machines of a federation, in one process: each has its folder, keys and policy, and sees its own rows alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from probekit.federated.client import QUESTIONS
from probekit.federated.files import FilesCarrier, serve
from probekit.federated.joining import join
from probekit.federated.membership import FederationFolder
from probekit.federated.node import Node
from probekit.federated.policy import Policy
from probekit.federated.remote import RemoteFederation, Sender
from probekit.values import EmbeddingSet, Indices

OPEN = Policy(
    allow=(*QUESTIONS, "no such question", "add up"), rows=("own", "only", "all-but"), backends=("embeddings", "jvp")
)


class Machines:
    """A federation's folder below `root`, and a node for each client's rows."""

    def __init__(
        self, root: Path, data: EmbeddingSet, rows: Mapping[str, Indices], *, policy: Policy = OPEN, **more: Any
    ) -> None:
        self.root, self.folder = root, FederationFolder.create(root / "federation", **more)
        self.exchange, self.nodes = root / "federation" / "exchange", dict[str, Node]()
        for name, own in rows.items():
            self.join(name, data.select(own), policy=policy)

    def join(self, name: str, rows: EmbeddingSet, *, policy: Policy = OPEN) -> Node:
        """Another machine takes part."""
        place = self.root / "nodes" / self.place(name)
        self.folder.add(join(self.folder.path / "invitation", place, name, "own", rows, policy=policy))
        self.nodes[name] = Node.open(place, lambda _: rows)
        return self.nodes[name]

    def place(self, name: str) -> str:
        return f"n{[*self.nodes, name].index(name)}"

    def restart(self, name: str) -> Node:
        """The machine as after a new start: only its folder is what it was."""
        old = self.nodes[name]
        self.nodes[name] = replace(old)
        return self.nodes[name]

    def serve(self, *names: str) -> int:
        return sum(serve(self.nodes[name], self.exchange) for name in names or self.nodes)

    @property
    def keys(self) -> dict[str, bytes]:
        return {name: bytes.fromhex(card.key) for name, card in self.folder.members.items()}

    def federation(self, problem: Any, *, carrier: Any = None, names: Any = None, **options: Any) -> RemoteFederation:
        """As a command meets it: with nobody waiting for answers."""
        job = options.pop("job", "job")
        members = {name: key for name, key in self.keys.items() if names is None or name in names}
        found = carrier or FilesCarrier(self.exchange)
        sender = Sender(self.folder.id, self.folder.key)
        return RemoteFederation(problem, members, found, sender, self.folder.path / "jobs" / job, job=job, **options)

    def answering(self, problem: Any, **options: Any) -> RemoteFederation:
        """One whose clients answer whenever answers are looked for."""

        def pause(_: float) -> None:
            self.serve()

        carrier = FilesCarrier(self.exchange, wait=60.0, pause=pause)
        return self.federation(problem, carrier=carrier, **options)
