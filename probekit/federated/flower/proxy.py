"""What stands before the SuperLink: it passes the twelve calls of SuperNodes on, and nothing else."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

from probekit.federated.flower.private import FLEET

PATHS = frozenset(f"/v1/fleet/{call}".encode() for call in FLEET)
LARGEST = 8 * 2**20
"""Bytes of one body; flwr cuts what is larger than 5 MiB into pieces."""
_HOP = {
    b"accept-encoding",
    b"connection",
    b"content-encoding",
    b"content-length",
    b"date",
    b"host",
    b"keep-alive",
    b"server",
    b"te",
    b"transfer-encoding",
}


class Proxy:
    """An ASGI application before a SuperLink at an address of this machine, whose certificate the CA signed."""

    def __init__(self, inner: str, authority: bytes, ready: Callable[[], bool]) -> None:
        """ready: whether the SuperLink knows its nodes; before, none is refused for good."""
        import httpx

        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trust.load_verify_locations(cadata=authority.decode())
        limits = httpx.Limits(max_connections=200, max_keepalive_connections=50)
        self._ready, self._failed = ready, httpx.HTTPError
        self.link = httpx.AsyncClient(
            base_url=f"https://{inner}", verify=trust, timeout=60, trust_env=False, limits=limits
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return None
        if scope["method"] != "POST" or scope["raw_path"] not in PATHS or scope["query_string"]:
            return await _say(send, 404)
        if not self._ready():
            return await _say(send, 503)
        body = await _body(receive)
        if body is None:
            return await _say(send, 413)
        headers = [(key, value) for key, value in scope["headers"] if key not in _HOP]
        try:
            found = await self.link.post(scope["raw_path"].decode(), content=body, headers=headers)
        except self._failed:
            return await _say(send, 503)
        if found.status_code >= 500:  # with 500 every SuperNode would lose its connection for good
            return await _say(send, 503)
        kept = [(key.lower(), value) for key, value in found.headers.raw if key.lower() not in _HOP]
        return await _say(send, found.status_code, found.content, kept)


async def _body(receive: Any) -> bytes | None:
    """The whole body of a request; None where it is too large."""
    body, more = bytearray(), True
    while more and len(body) <= LARGEST:
        part = await receive()
        body += part.get("body", b"")
        more = part.get("more_body", False)
    return None if len(body) > LARGEST else bytes(body)


async def _say(send: Any, status: int, content: bytes = b"", headers: list[tuple[bytes, bytes]] | None = None) -> None:
    length = [(b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": (headers or []) + length})
    await send({"type": "http.response.body", "body": content})
