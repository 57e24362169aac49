"""Clients on Flower's simulation engine: the same bits, and a node's nonsense by its own name."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from probekit.errors import InputError, MismatchError, MissingClients
from probekit.federated.federation import Federation, InProcess
from probekit.federated.transports import flower
from probekit.federated.transports.flower import FlowerTransport
from probekit.runs.run import single_thread
from tests.federated.examples import arrived
from tests.federated.transports import flower_nodes
from tests.federated.transports.scenarios import CLIENTS, MODEL, Misbehaving, states

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""Flower's engine is old, and runs on Ray, which leaves files open."""
Seen = dict[str, Any]


class RegisteredAsA:
    """A grid whose nodes were all registered by the name of client a."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def __getattr__(self, name: str) -> Any:
        return getattr(self.grid, name)

    def get_nodes(self) -> Any:
        infos = list(self.grid.get_nodes())
        for info in infos:
            info.name = "a"
        return infos


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What a ServerApp saw of four nodes; the engine takes ten seconds to start."""
    mode_file = tmp_path_factory.mktemp("flower") / "mode"
    environment = {"FLWR_TELEMETRY_ENABLED": "0", flower_nodes.MODE: str(mode_file)}
    environment["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")  # the engine changes it
    seen: Seen = {}
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        def connected(mode: str, **options: Any) -> FlowerTransport:
            mode_file.write_text(mode)
            return FlowerTransport.connect(grid, nodes=len(CLIENTS), **options)

        def note(name: str, look: Callable[[], object]) -> None:
            try:
                seen[name] = look()
            except Exception as error:  # looked at by a test
                seen[name] = error

        with single_thread():
            note("states", lambda: states(connected("rows")))
        note("sums", lambda: Federation.of(connected("sums"), MODEL))
        for how in ("nan", "1e300", "raise", "refuse"):
            query = Misbehaving("b", how)
            note(how, lambda: arrived(Federation.of(connected("rows"), MODEL).ask(query)))  # noqa: B023
        for mode in ("garbled", "late"):
            transport = replace(connected(mode), timeout=10.0)
            query = Misbehaving("nobody", "")
            note(mode, lambda: arrived(Federation.of(transport, MODEL).ask(query)))  # noqa: B023
        for mode in ("broken", "same name", "other classes"):
            note(mode, lambda: connected(mode))  # noqa: B023
        note("without", lambda: connected("broken", at_least=3))
        mode_file.write_text("rows")
        note("names", lambda: FlowerTransport.connect(RegisteredAsA(grid), nodes=4, at_least=1))
        note("too few", lambda: FlowerTransport.connect(grid, nodes=5, timeout=0.1))

    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(flower, "POLL_SECONDS", 0.02)
        run_simulation(
            server_app=app,
            client_app=flower_nodes.app,
            num_supernodes=len(CLIENTS),
            backend_config={"client_resources": {"num_cpus": 1}},
        )
    gc.collect()
    return seen


def test_nodes_give_the_bits_of_one_process(seen: Seen) -> None:
    with single_thread():
        assert seen["states"] == states(InProcess(CLIENTS))


def test_nodes_may_have_sums_alone(seen: Seen) -> None:
    assert seen["sums"].without_rows == {"a", "b", "c", "d"}
    assert seen["sums"].clients == {"a": 40, "b": 25, "c": 30, "d": 35}


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("nan", "garbage"),
        ("1e300", "garbage"),
        ("garbled", "garbage"),
        ("raise", "refused"),
        ("refuse", "refused"),
        ("late", "late"),
    ],
)
def test_what_one_node_does_is_its_own(seen: Seen, how: str, reason: str) -> None:
    assert seen[how] == (["a", "c", "d"], {"b": reason})


def test_a_node_that_does_not_say_who_it_is_is_missing(seen: Seen) -> None:
    assert isinstance(seen["broken"], MissingClients)
    [failure] = seen["broken"].reasons.values()
    assert failure.reason == "gone"
    assert set(seen["without"].describe()) == {"a", "c", "d"}
    assert len(seen["without"].missing) == 1


def test_a_node_has_the_name_that_it_is_registered_by(seen: Seen) -> None:
    assert set(seen["names"].describe()) == {"a"}
    assert seen["names"].missing["a"].reason == "garbage"


def test_nodes_have_names_of_their_own_and_the_same_classes(seen: Seen) -> None:
    assert isinstance(seen["same name"], InputError)
    assert isinstance(seen["other classes"], MismatchError)
    assert isinstance(seen["too few"], InputError)
