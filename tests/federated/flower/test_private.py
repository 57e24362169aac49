"""What we use of flwr beside its public API is all there, and nothing of it is loaded before it is used."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

import probekit.federated.flower
from probekit.errors import NotFoundError
from probekit.federated.flower import private


@pytest.mark.parametrize("name", sorted(private.PLACES))
def test_every_name_is_where_we_look_for_it(name: str) -> None:
    assert private.flwr(name) is not None


def test_the_twelve_calls_are_those_of_flwr() -> None:
    from flwr.superlink.routers.fleet.router import router

    assert {vars(route)["path"] for route in router.routes} == {f"/v1/fleet/{call}" for call in private.FLEET}
    assert len(set(private.FLEET)) == len(private.FLEET) == 12


def test_a_supernode_uses_the_clock_for_sleeping_alone() -> None:
    source = inspect.getsource(inspect.getmodule(private.flwr("_pull_and_store_message")) or private)
    assert set(re.findall(r"\btime\.(\w+)", source)) == {"sleep"}
    assert "time.sleep(3)" in source


def test_another_flwr_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(private.PLACES, "HttpGrid", "flwr.nowhere")
    with pytest.raises(NotFoundError, match=r"Flower 1\.41 was wanted, with HttpGrid; .* pip install"):
        private.flwr("HttpGrid")


def test_importing_loads_neither_flwr_nor_torch() -> None:
    names = [path.stem for path in Path(probekit.federated.flower.__file__).parent.glob("*.py")]
    assert len(names) > 8
    code = f"import sys, importlib\nfor one in {names!r}: importlib.import_module('probekit.federated.flower.' + one)\n"
    code += "print(*(one for one in ('flwr', 'torch', 'httpx', 'uvicorn', 'cryptography') if one in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("stumbles", [0, 1, 3])
def test_a_call_is_repeated_while_the_other_side_stumbles(stumbles: int, monkeypatch: pytest.MonkeyPatch) -> None:
    all_of_them: list[httpx.Response | httpx.ConnectError] = [httpx.Response(500), httpx.ConnectError("away")]
    now, answers = [0.0], [*all_of_them, httpx.Response(503)][:stumbles]
    monkeypatch.setattr(
        private, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: now.append(now.pop() + 1))
    )

    def call() -> int:
        if not answers:
            return 7
        found = answers.pop()
        if isinstance(found, Exception):
            raise found
        raise httpx.HTTPStatusError("", request=httpx.Request("POST", "https://x"), response=found)

    assert private.Patient(5).invoke(call) == 7
    answers = [httpx.Response(401)]
    with pytest.raises(httpx.HTTPStatusError):
        private.Patient(5).invoke(call)
    answers = [httpx.Response(500)] * 20
    with pytest.raises(httpx.HTTPStatusError):
        private.Patient(5).invoke(call)
    assert now[0] > 5
