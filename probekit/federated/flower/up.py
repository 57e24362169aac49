"""A federation's server and nodes on this machine, for trying out and for tests; nothing is left when it ends."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from probekit.errors import NotFoundError
from probekit.federated.flower import children
from probekit.federated.flower.status import status

READY = 120.0
Command = Callable[[Path], list[str]]


def node_command(folder: Path) -> list[str]:
    """What runs a node."""
    return children.python("supervisor", str(folder))


@dataclass
class Up:
    """The running processes of a federation on this machine."""

    folder: Path
    command: Command
    server: subprocess.Popen[bytes] | None = None
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start_server(self) -> None:
        """Start the server."""
        command = children.python("server", str(self.folder))
        log = self.folder / "flower" / "logs" / "server.log"
        self.server = children.start(command, log, children.environment(self.folder / "flower" / "home"))

    def start_node(self, name: str, folder: Path) -> None:
        """Start a node."""
        home = folder / "flower"
        self.nodes[name] = children.start(self.command(folder), home / "node.log", children.environment(home))

    def wait(self, *names: str, seconds: float = READY) -> None:
        """Wait until these nodes, or all, are connected."""
        until, wanted = time.monotonic() + seconds, names or tuple(self.nodes)
        while lacking := [name for name in wanted if status(self.folder).members.get(name) != "connected"]:
            ended = [one for one in (self.server, *self.nodes.values()) if one is not None and one.poll() is not None]
            if time.monotonic() > until or ended:
                raise NotFoundError(
                    f"{', '.join(lacking)} did not connect. The logs say why: {self.folder / 'flower' / 'logs'}, and "
                    "the folder flower/ of each node."
                )
            time.sleep(0.3)

    def stop(self) -> None:
        """End everything: the nodes first, so that they can take their leave."""
        children.stop(*self.nodes.values())
        if self.server is not None:
            children.stop(self.server)


@contextmanager
def up(folder: Path, nodes: Mapping[str, Path], *, command: Command = node_command) -> Iterator[Up]:
    """Run the server of a folder and these nodes while the block does; they are connected when it begins."""
    running = Up(folder, command)
    try:
        running.start_server()
        for name, node in nodes.items():
            running.start_node(name, node)
        running.wait()
        yield running
    finally:
        running.stop()
