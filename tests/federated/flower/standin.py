"""A node with foreseeable answers: `standin.py run NODE [PAUSE]`, which runs `standin.py answer NODE PORT`."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from probekit.federated.flower import executor, supervisor
from probekit.federated.flower.folders import SECRET


def answer(content: bytes) -> bytes:
    """The content backwards; where it begins with "wait 5:", only after so many seconds."""
    if content.startswith(b"wait "):
        time.sleep(float(content[5:].partition(b":")[0]))
    return content[::-1]


def main(what: str, folder: Path, number: str = "3") -> None:
    """Run a node, or answer for it."""
    if what == "answer":
        secret = (folder / "private" / SECRET).read_bytes()
        executor.serve(f"127.0.0.1:{number}", secret, answer, until=threading.Event())
    supervisor.run(
        folder,
        pause=float(number),
        executor=lambda node, port: [sys.executable, __file__, "answer", str(node), str(port)],
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
