"""Who of a federation is connected, and until when its certificates are valid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from probekit.errors import NotFoundError
from probekit.federated.flower.folders import member_keys
from probekit.federated.flower.grid import SuperLink, known_nodes
from probekit.federated.flower.tls import expiry, registered_key
from probekit.values import Json


@dataclass(frozen=True)
class FlowerStatus:
    """Whether the server runs; each member: connected, away, never connected or unknown; the certificates' expiry."""

    running: bool
    members: Mapping[str, str]
    certificates: Mapping[str, datetime]

    @property
    def plain(self) -> dict[str, Json]:
        """For JSON."""
        return {
            "running": self.running,
            "members": dict(self.members),
            "certificates": {name: until.isoformat() for name, until in self.certificates.items()},
        }


def status(folder: Path) -> FlowerStatus:
    """How a federation's folder stands."""
    import httpx

    keys = member_keys(folder)
    try:
        with SuperLink.of(folder).control() as control:
            found = {node.public_key: node for node in known_nodes(control)}
        running = True
    except (NotFoundError, httpx.HTTPError):
        found, running = {}, False
    nodes = {name: found.get(registered_key(key)) for name, key in keys.items()}
    members = {
        name: "unknown"
        if node is None
        else "connected"
        if node.status == "online"
        else "away"
        if node.last_activated_at
        else "never connected"
        for name, node in nodes.items()
    }
    files = {"server": folder / "private" / "server.crt", "authority": folder / "private" / "ca.crt"}
    return FlowerStatus(running, members, {name: expiry(path.read_bytes()) for name, path in files.items()})
