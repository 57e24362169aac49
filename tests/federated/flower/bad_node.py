"""A node that misbehaves in one way: `bad_node.py run NODE`, which runs `bad_node.py answer NODE PORT`.

The way stands in NODE/how: nan, count, replay, late, killed; anything else is honest.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from probekit.cache import DiskStore
from probekit.federated import client, node
from probekit.federated.envelope import QUESTION, Envelope
from probekit.federated.flower import executor, supervisor
from probekit.federated.flower.folders import SECRET
from probekit.federated.message import Ask
from probekit.federated.node import Node, read_node

LATE = 25.0


def lying(how: str, ask: Ask, holding: Any, memory: Any, *, name: str = "") -> Any:
    """An answer that is wrong, and will be signed."""
    found, memory = client.answer(ask, holding, memory, name=name)
    arrays = {key: value.copy() for key, value in found.arrays.items()}
    if how == "nan":
        arrays[min(arrays)] = arrays[min(arrays)] * float("nan")
    if how == "count" and "gram" in arrays:  # as of twice as many rows as it speaks of
        arrays["gram"] *= 2
    return replace(found, arrays=arrays), memory


def answering(folder: Path, how: str) -> Any:
    """The node's answers, each bad in its way once training asks for something."""
    honest = Node.open(folder, DiskStore(Path(read_node(folder)["cache"])).open)
    kept: list[bytes] = []

    def answer(content: bytes) -> bytes:
        number = Envelope.read(content, QUESTION)[0].number
        if how == "killed" and number:
            for pid in (os.getppid(), *_siblings(), os.getpid()):
                os.kill(pid, signal.SIGKILL)
        if how == "late" and number == 1:
            time.sleep(LATE)
        if how == "replay" and kept:
            return kept[0]
        kept.append(honest.answer(content))
        return kept[-1]

    return answer


def _siblings() -> list[int]:
    """The processes beside this one, the SuperNode among them."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getppid() and int(entry.parent.name) != os.getpid():
            found.append(int(entry.parent.name))
    return found


def main(what: str, folder: Path, port: str = "") -> None:
    """Run a node, or answer for it."""
    how = (folder / "how").read_text() if (folder / "how").exists() else ""
    if what == "answer":
        if how in ("nan", "count"):
            node.answer = lambda *asked, **more: lying(how, *asked, **more)  # type: ignore[attr-defined]
        secret = (folder / "private" / SECRET).read_bytes()
        executor.serve(f"127.0.0.1:{port}", secret, answering(folder, how), until=threading.Event())
    command = [sys.executable, __file__, "answer"]
    supervisor.run(folder, pause=1, executor=lambda own, number: [*command, str(own), str(number)])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
