"""A node with foreseeable answers: `standin.py run NODE [PAUSE]`, which runs `standin.py answer NODE PORT`."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

from probekit.cache import DiskStore
from probekit.errors import CorruptError
from probekit.federated.envelope import QUESTION, Envelope
from probekit.federated.flower import executor, supervisor
from probekit.federated.flower.folders import SECRET
from probekit.federated.membership import safe_name
from probekit.federated.node import Node


def answer(content: bytes, machines: Path) -> bytes:
    """The content backwards; where it begins with "wait 5:", only after so many seconds.

    A signed question is answered by the node for which it is, below `machines`.
    """
    with suppress(CorruptError):
        said = Envelope.read(content, QUESTION)[0]
        place = machines / said.federation / safe_name(said.client)
        return opened(place).answer(content)
    if content.startswith(b"wait "):
        time.sleep(float(content[5:].partition(b":")[0]))
    return content[::-1]


@cache
def opened(place: Path) -> Node:
    """The node in a folder that has a cache of its own."""
    return Node.open(place, DiskStore(place / "cache").open)


def main(what: str, folder: Path, number: str = "3") -> None:
    """Run a node, or answer for it."""
    if what == "answer":
        secret = (folder / "private" / SECRET).read_bytes()
        given = partial(answer, machines=folder.parent / "machines")
        executor.serve(f"127.0.0.1:{number}", secret, given, until=threading.Event())
    supervisor.run(
        folder,
        pause=float(number),
        executor=lambda node, port: [sys.executable, __file__, "answer", str(node), str(port)],
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
