"""The federation's Flower app on somebody's own SuperLink and SuperNodes, as `flwr run` starts it, and as a relay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from probekit.federated.flower import children, folders
from probekit.federated.flower.app import APP
from probekit.federated.in_process import InProcess
from probekit.federated.parties import party_at
from probekit.federated.partition import partition
from probekit.federated.rows import design_for, head_problem
from probekit.federated.training import train
from probekit.models.serving import load_head
from tests.federated.flower.parties import Party, rows_of

pytestmark = pytest.mark.slow
WHOLE = rows_of("all", 40)
SPLIT = partition(WHOLE.labels, "iid", clients=2, seed=1)
PROBLEM = head_problem(WHOLE, design_for(WHOLE))


def wanted() -> str:
    """The digest of the head that one process trains."""
    near = InProcess.of(PROBLEM, WHOLE, SPLIT.clients)
    return train(WHOLE, SPLIT, ridge=0.5, problem=PROBLEM, federation=near).head.digest


class Stock:
    """A SuperLink and SuperNodes as flwr's own commands start them."""

    def __init__(self, root: Path) -> None:
        self.root, self.port = root, children.free_port()
        programs = root / "bin"
        programs.mkdir()
        for one in entry_points(group="console_scripts"):
            if one.value.startswith("flwr."):
                text = f"#!{sys.executable}\nimport sys\nfrom {one.module} import {one.attr}\nsys.exit({one.attr}())\n"
                (programs / one.name).write_text(text)
                (programs / one.name).chmod(0o755)
        more = {"PATH": f"{programs}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        self.variables = children.environment(root / "home", **more)
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *arguments: object) -> None:
        """Start one of flwr's programs."""
        command = [str(self.root / "bin" / name), *map(str, arguments)]
        self.started.append(children.start(command, self.root / f"{len(self.started)} {name}.log", self.variables))

    def flwr(self, *arguments: str) -> Any:
        """What flwr's own command line says, in JSON."""
        command = [str(self.root / "bin" / "flwr"), *arguments, "--format", "json"]
        done = subprocess.run(command, env=self.variables, capture_output=True, text=True, check=False)
        return json.loads(done.stdout[done.stdout.index("{") :])

    def until_online(self, count: int) -> None:
        """Wait for so many nodes."""
        end = time.monotonic() + 120
        while sum(one["status"] == "online" for one in self.flwr("supernode", "list", "own")["nodes"]) < count:
            assert time.monotonic() < end
            time.sleep(1)


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Party, Stock]]:
    """Two stock nodes, each started with the folder of a node of ours."""
    root = tmp_path_factory.mktemp("stock")
    party = Party(root, address="relay:own").make({name: WHOLE.select(own) for name, own in SPLIT.clients.items()})
    system, kept = Stock(root), party.folder / "private"
    home = root / "home"
    home.mkdir()
    address = f"127.0.0.1:{system.port}"
    (home / "config.toml").write_text(f'[superlink.own]\naddress = "{address}"\nroot-certificates = "{kept}/ca.crt"\n')
    tls = [f"--ssl-{name}file={kept / file}" for name, file in (("cert", "server.crt"), ("key", "server.key"))]
    tls += [f"--ssl-ca-certfile={kept / 'ca.crt'}", "--enable-supernode-auth"]
    try:
        system.start("flower-superlink", "--host", "127.0.0.1", "--port", system.port, *tls)
        end = time.monotonic() + 120
        for name, node in party.nodes.items():
            key = root / f"{name}.pub"
            key.write_text(folders.prepare_node(node))
            while not system.flwr("supernode", "register", str(key), "own")["success"]:
                assert time.monotonic() < end
                time.sleep(1)
            own = [f"--auth-supernode-private-key={node / 'private' / folders.NODE_KEY}", "--superlink", address]
            own += [
                f"--root-certificates={kept / 'ca.crt'}",
                "--host",
                "127.0.0.1",
                "--port",
                str(children.free_port()),
            ]
            system.start("flower-supernode", *own, "--node-config", f'folder="{node}"')
        system.until_online(2)
        yield party, system
    finally:
        children.stop(*reversed(system.started))


def test_flwr_run_trains_the_head_of_one_process(stock: tuple[Party, Stock], tmp_path: Path) -> None:
    party, system = stock
    head = tmp_path / "head"
    started = system.flwr("run", str(party.folder / APP), "own", "--run-config", f'head="{head}" ridge=0.5')
    assert started["success"], started
    end = time.monotonic() + 150
    while not (head / "config.json").exists():
        states = [one["status"] for one in system.flwr("list", "own")["runs"]]
        assert not any("failed" in one for one in states), states
        assert time.monotonic() < end
        time.sleep(1)
    assert load_head(head).digest == wanted()


def test_a_relay_gives_the_same_head(stock: tuple[Party, Stock], monkeypatch: pytest.MonkeyPatch) -> None:
    party, system = stock
    monkeypatch.setenv("FLWR_HOME", system.variables["FLWR_HOME"])
    found = party_at(party.folder)
    far = found.clients(PROBLEM, job="relayed", timeout=150)
    assert train(WHOLE, SPLIT, ridge=0.5, problem=PROBLEM, federation=far).head.digest == wanted()
    found.close()
