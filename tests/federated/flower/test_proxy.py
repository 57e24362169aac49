"""The proxy: twelve calls, exactly; nothing too large; and the one answer that lets SuperNodes wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from probekit.federated.flower import folders, proxy
from probekit.federated.flower.proxy import Proxy

HEADERS = {"content-type": "application/protobuf"}


def asked(
    tmp_path: Path,
    path: str,
    content: bytes = b"x",
    *,
    inner: Callable[[httpx.Request], httpx.Response],
    **more: object,
) -> httpx.Response:
    """What the proxy says to a request when the SuperLink behind it says so."""
    if not (tmp_path / "private").exists():
        folders.prepare_server(tmp_path, "trial", [])
    ready, method = bool(more.get("ready", True)), str(more.get("method", "POST"))

    async def ask() -> httpx.Response:
        passing = Proxy("127.0.0.1:1", (tmp_path / "private" / "ca.crt").read_bytes(), lambda: ready)
        await passing.link.aclose()
        passing.link = httpx.AsyncClient(base_url="https://inner", transport=httpx.MockTransport(inner))
        transport = httpx.ASGITransport(passing)  # type: ignore[arg-type,unused-ignore]
        async with passing.link, httpx.AsyncClient(base_url="https://outer", transport=transport) as client:
            return await client.request(method, path, content=content, headers=HEADERS)

    return asyncio.run(ask())


def echo(request: httpx.Request) -> httpx.Response:
    """A SuperLink that says what it was asked."""
    return httpx.Response(201, content=request.url.raw_path + b" " + request.content, headers={"x-kept": "yes"})


def away(request: httpx.Request) -> httpx.Response:
    """A SuperLink that is not there."""
    raise httpx.ConnectError("refused")


def test_a_call_of_a_node_passes_both_ways(tmp_path: Path) -> None:
    found = asked(tmp_path, "/v1/fleet/pull-messages", b"question", inner=echo)
    assert (found.status_code, found.content) == (201, b"/v1/fleet/pull-messages question")
    assert found.headers["x-kept"] == "yes"


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/docs", "/v1/control/start-run", "/v1/runtime/acquire-task", "/v1/fleet/", "/v1/fleet/pull-messages/"),
        *("//v1/fleet/pull-messages", "/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run"),
        *(
            "/v1/fleet%2fpull-messages",
            "/v1/fleet/pull-messages?x=1",
            "/V1/fleet/pull-messages",
            "/v1/fleet/pull-object%00",
        ),
    ],
)
def test_everything_else_is_not_there(tmp_path: Path, path: str) -> None:
    assert asked(tmp_path, path, inner=echo).status_code == 404


def test_other_methods_are_not_there(tmp_path: Path) -> None:
    for method in ("GET", "PUT", "DELETE", "OPTIONS"):
        assert asked(tmp_path, "/v1/fleet/pull-messages", inner=echo, method=method).status_code == 404


def broken(request: httpx.Request) -> httpx.Response:
    """A SuperLink that stumbles."""
    return httpx.Response(500)


def test_while_the_superlink_is_away_nodes_are_told_to_come_again(tmp_path: Path) -> None:
    assert asked(tmp_path, "/v1/fleet/pull-messages", inner=broken).status_code == 503
    assert asked(tmp_path, "/v1/fleet/pull-messages", inner=away).status_code == 503
    assert asked(tmp_path, "/v1/fleet/pull-messages", inner=echo, ready=False).status_code == 503


def test_a_body_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "LARGEST", 100)
    assert asked(tmp_path, "/v1/fleet/push-object", bytes(100), inner=echo).status_code == 201
    assert asked(tmp_path, "/v1/fleet/push-object", bytes(101), inner=echo).status_code == 413
