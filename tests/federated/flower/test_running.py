"""What may happen to a federation that runs: nodes and servers die, come late, are strangers, are lied to."""

from __future__ import annotations

import os
import select
import signal
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from probekit.errors import InputError
from probekit.federated.federation import Missing
from probekit.federated.flower import children, folders, private, supervisor
from probekit.federated.flower.carrier import FlowerCarrier
from probekit.federated.flower.grid import SuperLink, known_nodes
from probekit.federated.flower.status import status
from probekit.federated.flower.tls import registered_key
from probekit.federated.flower.up import Up
from probekit.federated.joining import rotate
from probekit.federated.membership import FederationFolder
from tests.federated.flower.parties import Party, ask, below, rows_of

pytestmark = pytest.mark.slow
Running = tuple[Party, Up]


def until(true: Callable[[], Any], seconds: float = 90) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.2)


@contextmanager
def another(running: Running, name: str, *, member: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    """Another node of the running federation, connected if it is a member; ended and revoked afterwards."""
    party, processes = running
    processes.start_node(name, party.add(name, rows_of(name), member=member))
    try:
        if member:
            processes.wait(name)
        yield processes.nodes[name]
    finally:
        children.stop(processes.nodes.pop(name))
        if name in FederationFolder.open(party.folder).members:
            FederationFolder.open(party.folder).revoke(name)


@contextmanager
def asking(running: Running) -> Iterator[FlowerCarrier]:
    """What carries questions."""
    with closing(running[0].carrier()) as carrier:
        yield carrier


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all below it, at once."""
    for pid in (process.pid, *below(process.pid)):
        os.kill(pid, signal.SIGSTOP)  # so that none of them can take its leave
    for pid in (process.pid, *below(process.pid)):
        os.kill(pid, signal.SIGKILL)
    process.wait()


def test_64_mib_to_and_from_each_of_four(running: Running) -> None:
    large = {name: os.urandom(2**26) for name in "abcd"}
    with asking(running) as carrier:
        assert ask(carrier, large, 300) == {name: content[::-1] for name, content in large.items()}


def test_a_late_answer_is_not_taken_for_one_to_the_next_question(running: Running) -> None:
    with asking(running) as carrier:
        assert ask(carrier, {"a": b"first"}) == {"a": b"tsrif"}
        found = ask(carrier, {"a": b"wait 12:late"}, 4)
        assert found == {"a": Missing("late", "it did not answer in time.")}
        assert ask(carrier, {"a": b"next", "b": b"next"}) == {"a": b"txen", "b": b"txen"}


def test_two_who_ask_at_once_do_not_take_each_others_answers(running: Running) -> None:
    with asking(running) as one, asking(running) as two:
        assert ask(one, {"a": b"one"}) == {"a": b"eno"}
        assert ask(two, {"a": b"two"}) == {"a": b"owt"}
        assert ask(one, {"a": b"one again"}) == {"a": b"niaga eno"}


def test_a_killed_node_is_told_and_the_others_answer(running: Running) -> None:
    away = Missing("gone", "its node is not connected.")
    with another(running, "killed") as process, asking(running) as carrier:
        replies = carrier.carry({"killed": b"wait 600:", "a": b"here"})
        assert next(replies) == ("a", b"ereh")
        kill(process)
        assert next(replies) == ("killed", away)
        assert ask(carrier, {"killed": b"again", "a": b"again"}) == {"killed": away, "a": b"niaga"}


def test_a_node_whose_answering_process_was_killed_comes_back(running: Running) -> None:
    with another(running, "hurt") as process, asking(running) as carrier:
        [answering] = [pid for pid in below(process.pid) if b"answer" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(answering, signal.SIGKILL)
        until(lambda: status(running[0].folder).members["hurt"] == "away")
        running[1].wait("hurt")
        assert ask(carrier, {"hurt": b"well"}) == {"hurt": b"llew"}


def test_an_unregistered_key_never_gets_in(running: Running) -> None:
    with another(running, "stranger", member=False) as process:
        log = running[0].nodes["stranger"] / "flower" / "node.log"
        until(lambda: "does not let this node in" in log.read_text())
        key = registered_key(folders.prepare_node(running[0].nodes["stranger"]))
        with SuperLink.of(running[0].folder).control() as control:
            assert key not in {one.public_key for one in known_nodes(control)}
        assert process.poll() is None


def test_a_revoked_key_is_out_and_the_members_new_one_is_in(running: Running) -> None:
    party = running[0]
    with another(running, "changing"):
        log = party.nodes["changing"] / "flower" / "node.log"
        old = FederationFolder.open(party.folder).revoke("changing")
        until(lambda: "does not let this node in" in log.read_text())
    party.nodes["changing"].rename(party.root / "before")
    with another(running, "changing"), asking(running) as carrier:
        assert folders.prepare_node(party.nodes["changing"]) != old.flower
        assert ask(carrier, {"changing": b"new"}) == {"changing": b"wen"}


def test_a_rotated_key_is_in_and_the_one_before_is_out(running: Running) -> None:
    party = running[0]
    with another(running, "rotating"):
        old = registered_key(folders.prepare_node(party.nodes["rotating"]))
        card = rotate(party.nodes["rotating"], flower_key=folders.new_node_key)
        assert FederationFolder.open(party.folder).add(card) == "rotated"
        assert registered_key(card.flower) != old
        until(lambda: status(party.folder).members["rotating"] == "connected")
        with SuperLink.of(party.folder).control() as control:
            assert old not in {one.public_key for one in known_nodes(control)}
        with asking(running) as carrier:
            assert ask(carrier, {"rotating": b"on"}) == {"rotating": b"no"}


@contextmanager
def tunnel() -> Iterator[tuple[str, list[bytes]]]:
    """An HTTP proxy that connects whom it is asked to, its address, and what it was asked."""
    asked: list[bytes] = []

    class Tunnel(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            line = self.request.recv(4096).split()[1]
            asked.append(line)
            host, port = line.decode().split(":")
            with socket.create_connection((host, int(port))) as far:
                self.request.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                ends = {self.request: far, far: self.request}
                while True:
                    for one in select.select(list(ends), [], [])[0]:
                        if not (part := one.recv(65536)):
                            return
                        ends[one].sendall(part)

    class Tunnels(socketserver.ThreadingTCPServer):
        daemon_threads, block_on_close = True, False

    with Tunnels(("127.0.0.1", 0), Tunnel) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()


def test_a_node_behind_an_https_proxy_answers_through_it(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with tunnel() as (address, asked):
        monkeypatch.setenv("HTTPS_PROXY", address)
        with another(running, "behind"), asking(running) as carrier:
            assert ask(carrier, {"behind": b"out"}) == {"behind": b"tuo"}
        assert set(asked) == {running[0].address.encode()}


def test_an_app_that_the_server_pushes_is_not_run(running: Running, tmp_path: Path) -> None:
    from flwr.app import ConfigRecord, Message, RecordDict

    party, marker = running[0], tmp_path / "was run"
    app = party.folder / "flower" / "app"
    client = app / "probekit_federation" / "client.py"
    good = client.read_text()
    bad = f"from pathlib import Path\nPath({str(marker)!r}).write_text('')\n{good}"
    client.write_text(bad)
    try:
        subprocess.run([sys.executable, "-c", "import probekit_federation.client"], cwd=app, check=True)
        assert marker.exists()  # it would, if somebody loaded it
        marker.unlink()
        carrier = party.carrier()
        assert ask(carrier, dict.fromkeys("abcd", b"hello")) == dict.fromkeys("abcd", b"olleh")
        grid: Any = carrier._grid
        nodes = [grid.nodes()[carrier._keys[name]] for name in "abcd"]
        private.flwr("TaskIdentity").run_id = grid._grid.run.run_id
        record = RecordDict({"config": ConfigRecord({"do": "harm"})})
        pushed = [
            grid._grid.push_messages([Message(record, node, kind)]) for node in nodes for kind in ("train", "query")
        ]
        waiting, refused = {one for [one] in pushed}, []
        while waiting:
            for one in grid.pull(waiting):
                waiting.remove(one.to)
                refused.append(one.why)
            time.sleep(0.2)
        assert refused == ["this node answers signed questions of probekit only"] * len(pushed)
        carrier.close()
    finally:
        client.write_text(good)
    assert not marker.exists()


def test_from_outside_nothing_but_the_twelve_calls_is_there(running: Running) -> None:
    from flwr.superlink.main import create_app

    party = running[0]
    paths = create_app().openapi()["paths"]
    routes = [(method, path) for path, methods in paths.items() for method in methods]
    routes += [("get", one) for one in ("/docs", "/openapi.json")]
    allowed = {("post", f"/v1/fleet/{call}") for call in private.FLEET}
    assert allowed < set(routes)
    others = sorted(set(routes) - allowed)
    assert len(others) > 60
    trust = ssl.create_default_context(cafile=party.folder / "private" / "ca.crt")
    inner, outer = SuperLink.of(party.folder).address, party.address
    headers = {"content-type": "application/protobuf", "accept": "application/protobuf"}
    with httpx.Client(verify=trust, trust_env=False, headers=headers, timeout=30) as client:

        def found(address: str, method: str, path: str) -> int:
            url = httpx.URL(f"https://{address}/").copy_with(raw_path=path.encode())
            with client.stream(method.upper(), url, content=b"") as response:
                return response.status_code

        assert {found(outer, *one) for one in others} == {404}
        assert {found(outer, *one) for one in allowed} == {401}  # passed on, and refused for want of a signature
        at_home = [found(inner, *one) for one in others if "stream" not in one[1]]
        assert at_home.count(200) >= 9  # the same calls, with nobody between
        assert sum(one != 404 for one in at_home) > 50  # the rest is of handlers that do not find what was named
        tricks = [f"/v1/fleet/{way}/control/list-nodes" for way in ("..", "%2e%2e", "pull-messages/../..", "%2e.")]
        tricks += ["//v1/control/list-nodes", "/v1%2fcontrol%2flist-nodes", "/v1/fleet//pull-messages"]
        assert {found(outer, "post", one) for one in tricks} == {404}
        assert found(inner, "post", "/v1/control/list-nodes") == 200


def test_a_killed_superlink_is_started_again_and_the_question_goes_on(running: Running) -> None:
    server = running[1].server
    assert server is not None
    with asking(running) as carrier:
        assert ask(carrier, dict.fromkeys("ab", b"before")) == dict.fromkeys("ab", b"erofeb")
        [link] = below(server.pid)
        replies = carrier.carry({"a": b"wait 15:slow", "b": b"quick"}, timeout=120)
        assert next(replies) == ("b", b"kciuq")
        os.kill(link, signal.SIGKILL)
        assert next(replies) == ("a", b"wols:51 tiaw")
        assert ask(carrier, {"c": b"after"}) == {"c": b"retfa"}


def test_a_killed_server_is_started_again_and_the_question_goes_on(running: Running) -> None:
    processes = running[1]
    assert processes.server is not None
    with asking(running) as carrier:
        assert ask(carrier, dict.fromkeys("ab", b"before")) == dict.fromkeys("ab", b"erofeb")
        replies = carrier.carry({"a": b"wait 15:slow", "b": b"quick"}, timeout=120)
        assert next(replies) == ("b", b"kciuq")
        kill(processes.server)
        processes.start_server()
        assert next(replies) == ("a", b"wols:51 tiaw")


def test_a_clock_is_compared_with_the_servers_before_a_node_starts(running: Running) -> None:
    party = running[0]
    node = party.nodes["a"]
    assert supervisor.check(node) is None
    for offset, way in ((6, r"\d s ahead of"), (-600, r"\d+ s behind")):
        with pytest.raises(InputError, match=f"The clock of this machine is {way} the server's"):
            supervisor.check(node, clock=partial(sum, (time.time(), offset)))
