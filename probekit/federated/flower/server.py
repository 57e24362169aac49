"""The server of a federation: a SuperLink that only this machine reaches, the proxy before it, and its members' keys.

`python -m probekit.federated.flower.server FOLDER`
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from probekit.errors import InputError, NotFoundError, ProbekitError
from probekit.federated.flower import children, private
from probekit.federated.flower.folders import RELAY, member_keys
from probekit.federated.flower.grid import SuperLink, known_nodes
from probekit.federated.flower.proxy import Proxy
from probekit.federated.flower.tls import expiry, registered_key
from probekit.federated.membership import FederationFolder
from probekit.files import write_json

DATABASE = "superlink.db"
READY = 90.0
"""Seconds that a SuperLink gets to start."""


def serve(folder: Path, *, bind: str | None = None, watch: Callable[[str], None] = print) -> None:
    """Run the server of a federation's folder until the process is told to end.

    bind: the address of this machine to listen on, HOST:PORT; by default all of them, at the federation's port.
    """
    try:
        with FileLock(folder / "flower" / "server.lock", timeout=0):
            asyncio.run(_Server(folder, bind, watch).run())
    except Timeout as error:
        raise InputError(f"Another server runs for {folder} already. Stop it, or use it.") from error


class _Server:
    def __init__(self, folder: Path, bind: str | None, watch: Callable[[str], None]) -> None:
        self.folder, self.watch = folder, watch
        self.kept, self.state = folder / "private", folder / "flower" / "superlink.json"
        self.address = FederationFolder.open(folder).address
        if self.address.startswith(RELAY):
            raise InputError(f"{folder} uses a SuperLink that is run elsewhere ({self.address}): it needs no server.")
        until = expiry((self.kept / "server.crt").read_bytes())
        if until < datetime.now(UTC):
            raise InputError(
                f"The server's certificate expired on {until:%Y-%m-%d}. Renew it: probekit federate renew {folder}"
            )
        self.listening = _listen(bind or _default_bind(self.address))
        self.inner = _inner_address(self.state)
        self.link: subprocess.Popen[bytes] | None = None
        self.known: set[tuple[str, int]] | None = None

    async def run(self) -> None:
        import uvicorn

        write_json(self.state, {"address": self.inner})
        passing = Proxy(self.inner, (self.kept / "ca.crt").read_bytes(), lambda: self.known is not None)
        config = uvicorn.Config(
            passing,
            lifespan="off",
            log_level="warning",
            timeout_graceful_shutdown=3,
            limit_concurrency=512,
            ssl_keyfile=str(self.kept / "server.key"),
            ssl_certfile=str(self.kept / "server.crt"),
        )
        gate = uvicorn.Server(config)
        for number in (signal.SIGTERM, signal.SIGINT):  # which the gate raises once more when it has ended in order
            signal.signal(number, lambda *_: None)
        keeping = asyncio.create_task(self._keep(gate))
        try:
            await gate.serve(sockets=[self.listening])
        finally:
            keeping.cancel()
            [ended] = await asyncio.gather(keeping, return_exceptions=True)
            await passing.link.aclose()
            if self.link is not None:
                children.stop(self.link, seconds=5)  # its state is on disk; it may wait for whoever is connected
                _wipe(self.folder / "flower" / DATABASE)
            self.state.unlink(missing_ok=True)
        if isinstance(ended, Exception):
            raise ended

    async def _keep(self, gate: Any) -> None:
        """Start the SuperLink, start it again when it ends, and keep its nodes in step with the members."""
        try:
            while True:
                if self.link is None or self.link.poll() is not None:
                    if self.link is not None:
                        self.watch(f"The SuperLink ended ({self.link.returncode}). It is started again.")
                    self.link, self.known = self._start(), None
                    await asyncio.to_thread(self._await)
                found = {(one.name, one.stat().st_mtime_ns) for one in (self.folder / "members").glob("*.json")}
                if found != self.known:
                    await self._follow(found)
                await asyncio.sleep(0.5)
        finally:  # without it the gate would stand open to nothing
            gate.should_exit = True

    async def _follow(self, found: set[tuple[str, int]]) -> None:
        """Let in and out whom the members' folder names now; a card that is none changes nothing, and is said."""
        import httpx

        try:
            await asyncio.to_thread(self._enrol, member_keys(self.folder))
        except httpx.HTTPError:  # the SuperLink went away meanwhile
            return
        except ProbekitError as error:
            self.watch(str(error))
        if self.known is None:
            self.watch(f"Serving {self.folder} at {self.address}.")
        self.known = found

    def _start(self) -> subprocess.Popen[bytes]:
        host, port = self.inner.rsplit(":", 1)
        home = self.folder / "flower"
        files = {
            "ssl-ca-certfile": self.kept / "ca.crt",
            "ssl-certfile": self.kept / "server.crt",
            "ssl-keyfile": self.kept / "server.key",
            "superexec-auth-secret-file": self.kept / "secret",
            "database": home / DATABASE,
        }
        _wipe(home / DATABASE)
        named = [text for key, path in files.items() for text in (f"--{key}", str(path))]
        options = ["--host", host, "--port", port, "--isolation", "process", "--enable-supernode-auth", *named]
        command = children.python("private", "superlink", *options)
        return children.start(command, home / "logs" / "superlink.log", children.environment(home / "home"))

    def _await(self) -> None:
        """Wait until the SuperLink answers."""
        until = time.monotonic() + READY
        while time.monotonic() < until and self.link is not None and self.link.poll() is None:
            with suppress(Exception), SuperLink.of(self.folder).control() as control:
                known_nodes(control)
                return
            time.sleep(0.2)
        log = self.folder / "flower" / "logs" / "superlink.log"
        raise NotFoundError(f"The SuperLink did not start. Its log says why: {log}")

    def _enrol(self, members: Mapping[str, str]) -> None:
        """Register the keys of members that the SuperLink lacks, and unregister those of nobody."""
        import httpx

        wanted = {registered_key(key): name for name, key in members.items()}
        with SuperLink.of(self.folder).control() as control:
            there = {node.public_key: node.node_id for node in known_nodes(control)}
            for key in wanted.keys() - there.keys():
                try:
                    control.RegisterNode(private.flwr("RegisterNodeRequest")(public_key=key, name=wanted[key]))
                    self.watch(f"{wanted[key]}: may connect.")
                except httpx.HTTPStatusError:  # a key that was out once stays out
                    self.watch(f"{wanted[key]}: its key was revoked before. It needs a new one: let it join anew.")
            for key in there.keys() - wanted.keys():
                control.UnregisterNode(private.flwr("UnregisterNodeRequest")(node_id=there[key]))
                self.watch("A key that is no member's (revoked or rotated) was taken out.")


def _wipe(database: Path) -> None:
    """Let nothing of messages that were delivered stay in a SuperLink's file: to SQLite they are free pages."""
    if database.is_file():
        with suppress(sqlite3.Error), closing(sqlite3.connect(database)) as opened:
            opened.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            opened.execute("VACUUM")
            opened.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _default_bind(address: str) -> str:
    host, port = address.rsplit(":", 1)
    return f"{'127.0.0.1' if host in ('localhost', '127.0.0.1') else '0.0.0.0'}:{port}"


def _listen(bind: str) -> socket.socket:
    host, port = bind.rsplit(":", 1)
    try:
        return socket.create_server((host, int(port)), backlog=256)
    except OSError as error:
        raise InputError(
            f"The server cannot listen on {bind}: {error.strerror}. Stop what uses the port, or choose another."
        ) from error


def _inner_address(state: Path) -> str:
    """The SuperLink's address before, so that those who wait for it find it again; else a free one."""
    with suppress(OSError, ValueError, KeyError):
        address: str = json.loads(state.read_bytes())["address"]
        socket.create_server(("127.0.0.1", int(address.rsplit(":", 1)[1]))).close()
        return address
    return f"127.0.0.1:{children.free_port()}"


if __name__ == "__main__":
    serve(Path(sys.argv[1]), bind=sys.argv[2] if len(sys.argv) > 2 else None)
