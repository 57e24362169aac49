"""Questions over a federation that exists already: a ServerApp on Flower's public API dials back to whoever asks.

The app forwards three calls of its Grid over a line of this machine that begins with a token; each call and reply is
a length, a line of JSON, and bytes.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from probekit.errors import NotFoundError
from probekit.federated.flower.carrier import Connection, EndedError, Reply
from probekit.federated.flower.children import QUIET
from probekit.federated.flower.executor import packed

HOST = "127.0.0.1"
DIAL = 180.0
"""Seconds that a run gets to start and dial back."""


class PublicGrid:
    """The Grid that Flower gives to a ServerApp."""

    def __init__(self, grid: Any) -> None:
        self._grid = grid

    def nodes(self) -> Mapping[bytes, int]:
        """The number of each node that is connected, by its public key."""
        return {one.public_key: one.node_id for one in self._grid.get_nodes()}

    def connections(self) -> Mapping[bytes, Connection]:
        """Nobody says when a node came or left."""
        return {}

    def push(self, node: int, content: bytes, *, seconds: float) -> str | None:
        """Send a message; its id, or None where the node cannot be sent any."""
        from flwr.app import Message

        [sent] = self._grid.push_messages([Message(packed(content), node, "query", ttl=seconds)])
        return sent or None

    def pull(self, sent: Iterable[str]) -> list[Reply]:
        """The replies to these messages that are there, each once."""
        return [Reply.of(one) for one in self._grid.pull_messages(list(sent))]

    def close(self) -> None:
        """Flower ends the run with its ServerApp."""


def forward(grid: PublicGrid, target: str) -> None:
    """What the ServerApp does: dial PORT:TOKEN and do the calls that come until the other end hangs up."""
    port, token = target.split(":")
    with socket.create_connection((HOST, int(port))) as line:
        line.sendall(token.encode())
        while True:
            try:
                call, content = _read(line)
            except EOFError:
                return
            if call["call"] == "nodes":
                _write(line, {"nodes": {key.hex(): node for key, node in grid.nodes().items()}})
            elif call["call"] == "push":
                _write(line, {"sent": grid.push(call["node"], content, seconds=call["seconds"])})
            else:
                found = grid.pull(call["sent"])
                about = [{"to": one.to, "code": one.code, "why": one.why, "bytes": len(one.content)} for one in found]
                _write(line, {"replies": about}, *(one.content for one in found))


class RelayGrid:
    """The Grid of a ServerApp that was started for us, at the other end of a line."""

    def __init__(self, app: Path, connection: str) -> None:
        """connection: the name of the SuperLink, on this machine, in Flower's own configuration."""
        self._app, self._connection = app, connection
        self._line: socket.socket | None = None

    def nodes(self) -> Mapping[bytes, int]:
        """The number of each node that is connected, by its public key."""
        return {bytes.fromhex(key): node for key, node in self._call({"call": "nodes"})[0]["nodes"].items()}

    def connections(self) -> Mapping[bytes, Connection]:
        """Nobody says when a node came or left."""
        return {}

    def push(self, node: int, content: bytes, *, seconds: float) -> str | None:
        """Send a message; its id, or None where the node cannot be sent any."""
        found: str | None = self._call({"call": "push", "node": node, "seconds": seconds}, content)[0]["sent"]
        return found

    def pull(self, sent: Iterable[str]) -> list[Reply]:
        """The replies to these messages that are there, each once."""
        found, content = self._call({"call": "pull", "sent": list(sent)})
        replies, at = [], 0
        for one in found["replies"]:
            end = at + one.pop("bytes")
            replies.append(Reply(content=content[at:end], **one))
            at = end
        return replies

    def close(self) -> None:
        """Hang up; the app ends, and its run with it."""
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def _call(self, call: Mapping[str, Any], content: bytes = b"") -> tuple[Any, bytes]:
        try:
            if self._line is None:
                self._line = self._dialled()
            _write(self._line, call, content)
            return _read(self._line)
        except (EOFError, OSError) as error:
            self.close()
            raise EndedError from error

    def _dialled(self) -> socket.socket:
        """Start the app's run and wait until it dials."""
        token = secrets.token_hex(32)
        with socket.create_server((HOST, 0)) as listener:
            target = f"{listener.getsockname()[1]}:{token}"
            command = [sys.executable, "-c", "from flwr.cli.app import app; app()", "run", str(self._app)]
            command += [self._connection, "--run-config", f'relay="{target}"', "--format", "json"]
            done = subprocess.run(command, env={**os.environ, **QUIET}, capture_output=True, text=True)
            if '"success": true' not in done.stdout:
                why = (done.stdout + done.stderr).strip()[-300:]
                raise NotFoundError(f"Flower did not start the relay at {self._connection!r}: {why}")
            listener.settimeout(DIAL)
            try:
                while True:
                    line, _ = listener.accept()
                    line.settimeout(None)
                    if hmac.compare_digest(_exactly(line, len(token)), token.encode()):
                        return line
                    line.close()
            except TimeoutError as error:
                raise NotFoundError(
                    f"The relay at {self._connection!r} did not dial back within {DIAL:g} s. Its log says why: flwr log"
                ) from error


def _write(line: socket.socket, about: Mapping[str, Any], *contents: bytes) -> None:
    text = json.dumps(about).encode() + b"\n"
    line.sendall((len(text) + sum(map(len, contents))).to_bytes(8, "big") + text)
    for content in contents:
        line.sendall(content)


def _read(line: socket.socket) -> tuple[Any, bytes]:
    about, _, content = _exactly(line, int.from_bytes(_exactly(line, 8), "big")).partition(b"\n")
    return json.loads(about), content


def _exactly(line: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        part = line.recv(min(count - len(found), 2**20))
        if not part:
            raise EOFError
        found += part
    return bytes(found)
