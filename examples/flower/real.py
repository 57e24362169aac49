"""A SuperLink with TLS and three registered SuperNodes on this machine; one node is killed.

Run it with a folder to work in: python real.py /tmp/federation. It needs openssl and ssh-keygen.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from probekit.cache import Cache
from probekit.embeddings import EmbeddingSet
from probekit.federated.federation import Federation, InProcess
from probekit.federated.training.closed_form import ClosedForm
from probekit.heads import load_head
from probekit.linear.model import LinearModel
from probekit.runs.run import single_thread

APP = Path(__file__).parent
BIN = Path(sys.executable).parent
NAMES = ("north", "south", "east")
RIDGE = 0.01
WAIT_SECONDS = 180


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


class Party:
    """A SuperLink, its SuperNodes, and `flwr` for whoever starts runs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "FLWR_HOME": str(root / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }

    def certify(self) -> None:
        """An authority of our own, and the SuperLink's certificate by it."""
        (self.root / "home").mkdir(parents=True)
        (self.root / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        for command in (
            "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key "
            "-out ca.crt",
            "req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout server.key -out server.csr",
            "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 "
            "-extfile names -out server.crt",
        ):
            self.call("openssl", *command.split())
        (self.root / "home" / "config.toml").write_text(
            f'[superlink.own]\naddress = "{self.address}"\n'
            f'root-certificates = "{self.root / "ca.crt"}"\n'
        )

    def call(self, *command: str) -> str:
        done = subprocess.run(
            command, cwd=self.root, env=self.environment, check=True, capture_output=True, text=True
        )
        return done.stdout

    def start(self, name: str, *command: str) -> None:
        with (self.root / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                command, cwd=self.root, env=self.environment, stdout=log, stderr=log
            )

    def start_superlink(self) -> None:
        self.start("superlink", "flower-superlink", "--host=127.0.0.1", f"--port={self.port}",
                   "--ssl-certfile=server.crt", "--ssl-keyfile=server.key",
                   "--ssl-ca-certfile=ca.crt", "--enable-supernode-auth",
                   "--disable-runtime-dependency-installation")  # fmt: skip

    def start_node(self, name: str, config: str) -> None:
        """Its key is registered under its name before it may come in."""
        self.call("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", f"{name}.key")
        deadline = time.monotonic() + WAIT_SECONDS
        register = (
            "supernode",
            "register",
            str(self.root / f"{name}.key.pub"),
            "own",
            "--name",
            name,
        )
        while not self.flwr(*register)["success"]:
            assert time.monotonic() < deadline, "the SuperLink did not start"
            time.sleep(1)
        self.start(name, "flower-supernode", "--superlink", self.address,
                   "--root-certificates=ca.crt", f"--auth-supernode-private-key={name}.key",
                   f"--port={free_port()}", "--node-config", config)  # fmt: skip

    def flwr(self, *arguments: str) -> Any:
        done = subprocess.run(
            ["flwr", *arguments, "--format", "json"],
            env=self.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        start = done.stdout.find("{")
        return json.loads(done.stdout[start:]) if start >= 0 else {"success": False}

    def run(self, **config: object) -> float:
        """Seconds until a run of the app has ended."""
        started = time.monotonic()
        pairs = " ".join(f"{key.replace('_', '-')}={json.dumps(v)}" for key, v in config.items())
        print(self.call("flwr", "run", str(APP), "own", "--stream", "-c", pairs)[-1500:])
        return time.monotonic() - started

    def stop(self) -> None:
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            process.wait(30)


def make_sets(root: Path) -> dict[str, EmbeddingSet]:
    generator = np.random.default_rng(0)
    labels = np.arange(600) % 3
    rows = (generator.standard_normal((600, 16)) + 2 * np.eye(16)[labels]).astype(np.float32)
    clients = {}
    for number, name in enumerate(NAMES):
        part = slice(200 * number, 200 * (number + 1))
        data = EmbeddingSet.from_numpy(rows[part], labels[part], class_names=("a", "b", "c"))
        Cache(root / name).save("rows", data)
        clients[name] = Cache(root / name).open("rows")
    return clients


def head_here(clients: dict[str, EmbeddingSet]) -> np.ndarray:
    with single_thread():
        federation = Federation.of(InProcess(clients), LinearModel(16, 3))
        return ClosedForm().train(federation, ridge=RIDGE).params


def main(root: Path) -> None:
    root.mkdir(parents=True)
    clients = make_sets(root)
    party = Party(root)

    def check(folder: str, names: tuple[str, ...], seconds: float) -> None:
        head = load_head(root / folder / "head.safetensors")
        params = np.vstack([head.weights, head.intercept])
        expected = head_here({name: clients[name] for name in names})
        assert params.tobytes() == expected.tobytes(), folder
        print(f"{folder}: {seconds:.0f} s, the bits of one process", flush=True)

    try:
        party.certify()
        party.start_superlink()
        for name in NAMES:
            party.start_node(name, f'name="{name}" set="rows" cache="{root / name}"')
        all_of_us = {"run": str(root / "all"), "nodes": 3, "ridge": str(RIDGE), "timeout": 60.0}
        check("all", NAMES, party.run(**all_of_us))
        check("all", ("north", "east"), party.run(**all_of_us, forget="south"))
        party.processes["south"].kill()
        two = {**all_of_us, "run": str(root / "two"), "at_least": 2}
        check("two", ("north", "east"), party.run(**two))
    finally:
        party.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
