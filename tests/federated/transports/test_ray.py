"""Clients on Ray: the same bits as in one process, whoever raises, dies or is late meanwhile."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from probekit.errors import InputError, OfflineError
from probekit.federated.client import Limits
from probekit.federated.federation import Federation, InProcess
from probekit.federated.transports import ray as on_ray
from probekit.federated.transports.loopback import Loopback
from probekit.federated.transports.ray import RayTransport, check_address, cluster, grouped
from probekit.linear.stats import SufficientStats
from probekit.runs.run import single_thread
from probekit.runs.train import train
from tests.federated.examples import arrived
from tests.federated.transports.scenarios import CLIENTS, MODEL, Misbehaving, states


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[None]:
    with cluster():
        yield


def listening() -> set[str]:
    """Addresses on which a port of this machine waits for connections, in hexadecimal."""
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return {fields[1] for fields in lines if fields[3] == "0A"}


def test_every_way_of_asking_gives_the_same_bits(
    ray_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_ray, "MOST_ROWS", 60)  # two tasks
    with single_thread():
        expected = states(InProcess(CLIENTS))
        assert states(Loopback(CLIENTS)) == expected
        assert states(RayTransport.of(CLIENTS)) == expected


def test_sums_answer_for_a_client_without_rows(ray_cluster: None) -> None:
    sums = {name: SufficientStats.from_rows(rows) for name, rows in CLIENTS.items()}
    federation = Federation.of(RayTransport.of(sums), MODEL)
    assert federation.without_rows == {"a", "b", "c", "d"}
    assert federation.clients == {"a": 40, "b": 25, "c": 30, "d": 35}


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("nan", "garbage"),
        ("1e300", "garbage"),
        ("raise", "refused"),
        ("refuse", "refused"),
        ("die", "gone"),
        pytest.param("late", "late", marks=pytest.mark.slow),
    ],
)
def test_what_one_client_does_is_its_own(
    ray_cluster: None, monkeypatch: pytest.MonkeyPatch, how: str, reason: str
) -> None:
    monkeypatch.setattr(on_ray, "RETRIES", 0)
    transport = RayTransport.of(CLIENTS)
    if how == "late":
        transport = replace(transport, timeout=40.0)
    asked = Federation.of(transport, MODEL).ask(Misbehaving("b", how))
    assert arrived(asked) == (["a", "c", "d"], {"b": reason})


def test_limits_hold_on_ray(ray_cluster: None) -> None:
    transport = replace(RayTransport.of(CLIENTS), limits=Limits(min_rows=30))
    asked = Federation.of(transport, MODEL).ask(Misbehaving("nobody", ""))
    assert arrived(asked) == (["a", "c", "d"], {"b": "refused"})


def test_large_answers_have_tasks_of_their_own() -> None:
    assert list(grouped([3, 4, 9, 1, 1, 1], int, 7)) == [[3, 4], [9], [1, 1, 1]]


def test_a_run_on_ray_is_the_run_of_one_process(ray_cluster: None, tmp_path: Path) -> None:
    options = {"backbone": "pixels:8", "clients": 3, "limit": 200, "ridge": 0.01}
    here = train("packaged:digits", run=tmp_path / "here", **options)
    there = train("packaged:digits", run=tmp_path / "there", transport="ray", **options)
    kept = "states/0001/kept.safetensors"
    assert (here.folder / kept).read_bytes() == (there.folder / kept).read_bytes()


@pytest.mark.parametrize("transport", ["rays", "ray:", "loopback"])
def test_other_transports_are_refused(transport: str, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        train("packaged:digits", backbone="pixels:8", limit=50, run=tmp_path / "r",
              transport=transport)  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_on_one_machine_ray_is_reached_by_nobody_else(ray_cluster: None) -> None:
    import ray

    _, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    addresses = {
        text.partition(":")[0] for text in listening() if text.endswith(f":{int(port):04X}")
    }
    assert addresses
    assert addresses <= {"0100007F", "0000000000000000FFFF00000100007F"}


def test_a_cluster_elsewhere_needs_a_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    for address in ("192.0.2.1:6379", "ray.example:6379", "127.0.0.1", "here:port"):
        with pytest.raises(InputError):
            check_address(address)


def test_nobody_at_an_address_is_found_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(OfflineError):
        check_address(f"127.0.0.1:{port}")
