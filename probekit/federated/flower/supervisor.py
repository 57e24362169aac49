"""A node: a SuperNode and the process that answers for it, started together, ended together, started again in time.

`python -m probekit.federated.flower.supervisor NODE`
"""

from __future__ import annotations

import signal
import ssl
import sys
import threading
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from probekit.errors import InputError
from probekit.federated.flower import children, tls
from probekit.federated.flower.folders import NODE_KEY, RELAY, SECRET
from probekit.federated.node import read_node
from probekit.files import make_folder

PAUSE = 65.0
"""Seconds after a crash before a SuperLink takes the same key again."""
AHEAD, BEHIND = 5.0, 300.0
"""How far a node's clock may differ from the server's: Flower signs the time."""


def check(folder: Path, *, clock: Callable[[], float] = time.time) -> str | None:
    """Refuse a server with a wrong certificate or another time; a sentence where it cannot be reached now."""
    import httpx

    address = read_node(folder)["address"]
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust.load_verify_locations(cafile=folder / "ca.crt")
    try:
        with httpx.Client(verify=trust, timeout=20) as client:
            found = client.get(f"https://{address}/")
    except httpx.HTTPError as error:
        wrong = tls.fault(error, address)
        if wrong:
            raise InputError(wrong) from error
        return f"The server at {address} cannot be reached ({error}). This node goes on trying."
    # the header counts whole seconds
    ahead = clock() - parsedate_to_datetime(found.headers["date"]).timestamp()
    if ahead >= AHEAD + 1 or ahead < -BEHIND:
        way = f"{ahead:.0f} s ahead of" if ahead > 0 else f"{-ahead:.0f} s behind"
        raise InputError(
            f"The clock of this machine is {way} the server's; Flower accepts {AHEAD:.0f} s ahead and {BEHIND:.0f} s "
            "behind. Set it (NTP), here or there."
        )
    return None


def run(
    folder: Path,
    *,
    pause: float = PAUSE,
    executor: Callable[[Path, int], list[str]] | None = None,
    until: threading.Event | None = None,
    watch: Callable[[str], None] = print,
) -> None:
    """Run a node until it is told to end (SIGTERM or Ctrl-C, or `until`).

    pause: seconds before a new start after a crash. executor: the command that answers, by default our own.
    """
    address = read_node(folder)["address"]
    if address.startswith(RELAY):
        raise InputError(
            f"This node answers over a SuperLink of somebody's ({address}). Start Flower's own SuperNode for it with "
            f"--node-config 'folder=\"{folder}\"' --auth-supernode-private-key {folder / 'private' / NODE_KEY}"
        )
    stop = until or _told_to_end()
    answering = executor or (lambda node, port: children.python("executor", str(node), str(port)))
    while not stop.is_set():
        note = check(folder)
        if note:
            watch(note)
        why = _once(folder, answering, stop)
        if not stop.is_set():
            watch(f"{why} Both are started again in {pause:g} s.")
            stop.wait(pause)


def _once(folder: Path, executor: Callable[[Path, int], list[str]], stop: threading.Event) -> str:
    """Run both processes until one of them ends, or both are told to; why they ended."""
    port, home = children.free_port(), folder / "flower"
    log, variables = home / "supernode.log", children.environment(home)
    make_folder(home)
    begin = log.stat().st_size if log.exists() else 0
    both = [children.start(_supernode(folder, port), log, variables)]
    try:
        both.append(children.start(executor(folder, port), home / "executor.log", variables))
        while not stop.wait(0.2) and all(one.poll() is None for one in both):
            pass
        ended = [one.poll() for one in both]
    finally:
        children.stop(*both)
    if ended[0] is None:
        return f"The process that answers ended ({ended[1]}); its log is {home / 'executor.log'}."
    with log.open("rb") as lines:
        lines.seek(begin)
        if b"SuperNode ID:" in lines.read():
            return f"The SuperNode ended ({ended[0]}); its log is {log}."
    return (
        "The server does not let this node in: its key is not registered or was revoked (whoever runs the server adds "
        "it: probekit federate add), or the node ended less than a minute ago without a word."
    )


def _supernode(folder: Path, port: int) -> list[str]:
    kept = folder / "private"
    named: dict[str, Any] = {
        "superlink": read_node(folder)["address"],
        "root-certificates": folder / "ca.crt",
        "auth-supernode-private-key": kept / NODE_KEY,
        "superexec-auth-secret-file": kept / SECRET,
        "isolation": "process",
        "host": "127.0.0.1",
        "port": port,
    }
    options = [text for key, value in named.items() for text in (f"--{key}", str(value))]
    return children.python("private", "supernode", *options)


def _told_to_end() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


if __name__ == "__main__":
    run(Path(sys.argv[1]))
