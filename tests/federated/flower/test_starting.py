"""What keeps a node or a server from starting, in one sentence each."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate
from pathlib import Path

import pytest
from filelock import FileLock

from probekit.errors import InputError, NotFoundError
from probekit.federated.flower import children, folders, supervisor
from probekit.federated.flower.grid import OwnGrid
from probekit.federated.flower.server import serve
from probekit.federated.flower.status import status
from tests.federated.flower.parties import Party, rows_of


@pytest.fixture
def party(tmp_path: Path) -> Party:
    """A federation's folder and one node's."""
    return Party(tmp_path).make({"a": rows_of("a")})


@contextmanager
def gate(party: Party, *, ahead: float = 0) -> Iterator[None]:
    """Something at the federation's address that has its certificate and tells the time, perhaps a wrong one."""
    kept = party.folder / "private"
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trust.load_cert_chain(kept / "server.crt", kept / "server.key")
    host, port = party.address.split(":")

    def answer(listening: socket.socket) -> None:
        with suppress(OSError), listening.accept()[0] as line, trust.wrap_socket(line, server_side=True) as secure:
            secure.recv(4096)
            date = formatdate(time.time() + ahead, usegmt=True)
            secure.sendall(f"HTTP/1.1 404 None\r\ndate: {date}\r\ncontent-length: 0\r\n\r\n".encode())

    with socket.create_server((host, int(port))) as listening:
        thread = threading.Thread(target=answer, args=(listening,))
        thread.start()
        yield
        thread.join()


def test_a_server_with_the_right_certificate_and_time_is_fine(party: Party) -> None:
    with gate(party):
        assert supervisor.check(party.nodes["a"]) is None


def test_an_expired_certificate(party: Party) -> None:
    folders.renew(party.folder, days=-1)
    with gate(party), pytest.raises(InputError, match=r"The certificate of .* has expired\. .* federate renew"):
        supervisor.check(party.nodes["a"])
    with pytest.raises(InputError, match=r"The server's certificate expired on 20\d\d-.* federate renew"):
        serve(party.folder)


def test_the_certificate_of_another_authority(party: Party, tmp_path: Path) -> None:
    folders.prepare_server(tmp_path / "other", "other", [])
    (party.nodes["a"] / "ca.crt").write_bytes((tmp_path / "other" / "invitation" / "ca.crt").read_bytes())
    with gate(party), pytest.raises(InputError, match="was not issued by this federation's CA"):
        supervisor.check(party.nodes["a"])


@pytest.mark.parametrize(("ahead", "said"), [(-6, r"[67] s ahead of"), (600, r"(599|600) s behind")])
def test_a_clock_that_is_ahead_or_behind(party: Party, ahead: float, said: str) -> None:
    with gate(party, ahead=ahead), pytest.raises(InputError, match=f"The clock of this machine is {said} the server's"):
        supervisor.check(party.nodes["a"])


def test_a_server_that_is_away_is_said_and_waited_for(party: Party) -> None:
    assert "cannot be reached" in str(supervisor.check(party.nodes["a"]))


def test_a_port_in_use_and_two_servers_on_one_folder(party: Party) -> None:
    host, port = party.address.split(":")
    with socket.create_server((host, int(port))), pytest.raises(InputError, match=r"cannot listen on .* in use"):
        serve(party.folder)
    with FileLock(party.folder / "flower" / "server.lock"), pytest.raises(InputError, match="Another server runs for"):
        serve(party.folder)


def test_without_a_server_nobody_is_asked(party: Party) -> None:
    with pytest.raises(NotFoundError, match=r"No server runs for .* probekit federate server"):
        OwnGrid(party.folder)
    found = status(party.folder)
    assert (found.running, found.members) == (False, {"a": "unknown"})
    assert json.dumps(found.plain)


def test_what_somebody_else_runs_needs_no_server_and_no_process_of_ours(tmp_path: Path) -> None:
    party = Party(tmp_path, address="relay:own").make({"a": rows_of("a")})
    with pytest.raises(InputError, match="needs no server"):
        serve(party.folder)
    with pytest.raises(InputError, match=r"Start Flower's own SuperNode for it with --node-config 'folder="):
        supervisor.run(party.nodes["a"])


def test_children_look_nothing_up_and_send_nothing(tmp_path: Path) -> None:
    found = children.environment(tmp_path)
    assert found["FLWR_TELEMETRY_ENABLED"] == "0"
    assert found["FLWR_DISABLE_UPDATE_CHECK"] == found["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
