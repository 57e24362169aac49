"""Runs written before the rebuilding still open, and unlearn to the same heads; only the command line is used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from probekit.cli.main import run as command

BEFORE = Path(__file__).parent / "before"
EXPECTED: dict[str, dict[str, dict[str, str | int]]] = json.loads((BEFORE / "expected.json").read_text())
EXACT, MINIMA = "closed-exact", ("exact", "retrain")
"""The run whose sums are exact, and the methods that solve it for the minimum: on one machine, to the last bit."""
HITS = {"closed-float64": 342, "closed-exact": 342, "fedavg": 337, "network": 348}
"""How many of the 397 test rows each head got right at that commit."""

TOLERANCE = {name: 1e-6 if name == "network" else 1e-9 for name in EXPECTED}
INTACT = 7
"""Nothing is false; that the files of a run were not all written anew, no file of it proves."""
CERTIFIED = [name for name in EXPECTED if (BEFORE / "runs" / name / "states/0002/certificate.json").exists()]
ANSWERED = [(name, method) for name in EXPECTED for method in EXPECTED[name] if "digest" in EXPECTED[name][method]]
REFUSED = [(name, method) for name in EXPECTED for method in EXPECTED[name] if "refused" in EXPECTED[name][method]]

Call = Callable[..., int]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the old runs and their cache that a test may change."""
    for part in ("cache", "runs"):
        shutil.copytree(BEFORE / part, tmp_path / part)
    return tmp_path / "runs"


@pytest.fixture
def call(folder: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    """Carries out a command on the copied cache, checks that it printed one JSON object, gives its exit code."""

    def carry_out(name: str, *arguments: str | Path) -> int:
        code = command([name, *map(str, arguments), "--cache", str(folder.parent / "cache"), "--json"])
        assert isinstance(json.loads(capsys.readouterr().out), dict)
        return code

    return carry_out


def states(run: Path) -> list[Path]:
    """The folders of a run's states, oldest first."""
    return sorted((run / "states").iterdir())


def verify(call: Call, run: Path, state: Path) -> int:
    """The exit code of checking a state's certificate against the run and the cached rows."""
    return call("verify", state / "certificate.json", "--run", run, "--rows")


def files(run: Path) -> dict[Path, bytes]:
    """Every file below a run and what it holds, locks aside."""
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and not path.name.startswith(".lock")}


def test_the_old_runs_are_all_here() -> None:
    assert CERTIFIED == ["closed-float64", "closed-exact"]
    assert REFUSED == [("fedavg", "exact"), ("network", "exact")]
    assert {f"{name}-{method.replace(':', '-')}" for name, method in ANSWERED} == {
        path.stem for path in (BEFORE / "heads").iterdir()
    }


@pytest.mark.parametrize("name", EXPECTED)
def test_an_old_run_opens_in_every_state_and_is_not_written_to(name: str, folder: Path, call: Call) -> None:
    run = folder / name
    before = files(run)
    assert call("evaluate", run, "te") == 0
    for number in range(1, len(states(run)) + 1):
        assert call("evaluate", run, "te", "--state", str(number)) == 0
    assert files(run) == before


@pytest.mark.parametrize("name", EXPECTED)
def test_an_old_head_predicts_as_before(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["evaluate", str(folder / name), "te", "--cache", str(folder.parent / "cache"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["accuracy"]["hits"] == HITS[name]


@pytest.mark.parametrize("name", CERTIFIED)
def test_an_old_certificate_verifies(name: str, folder: Path, call: Call) -> None:
    run = folder / name
    assert verify(call, run, states(run)[-1]) == INTACT


@pytest.mark.parametrize("name", CERTIFIED)
def test_an_old_certificate_of_another_head_does_not_verify(name: str, folder: Path, call: Call) -> None:
    run = folder / name
    first, last = states(run)
    shutil.copy(first / "head/model.safetensors", last / "head/model.safetensors")
    assert verify(call, run, last) in (4, 6)


@pytest.mark.parametrize(("name", "method"), ANSWERED)
def test_a_client_is_forgotten_as_before(name: str, method: str, folder: Path, call: Call) -> None:
    run, expected = folder / name, EXPECTED[name][method]
    old = states(run)
    assert call("unlearn", run, "--client", "2", "--method", method) == 0
    assert states(run)[:-1] == old
    new = states(run)[-1]

    head = load_file(new / "head/model.safetensors")
    wanted = load_file(BEFORE / "heads" / f"{name}-{method.replace(':', '-')}.safetensors")
    assert head.keys() == wanted.keys()
    for tensor, values in wanted.items():
        assert head[tensor].shape == values.shape
        assert np.linalg.norm(head[tensor] - values) <= TOLERANCE[name] * np.linalg.norm(values)

    certificates = [state for state in states(run) if (state / "certificate.json").exists()]
    assert expected["verify"] == 0
    assert [verify(call, run, state) for state in certificates] == [INTACT] * len(certificates)
    assert call("evaluate", run, "te", "--state", "1") == 0

    assert call("purge", run, "--yes") == 0
    assert [state for state in old if (state / "head").exists()] == []
    assert verify(call, run, new) == INTACT
    assert call("evaluate", run, "te") == 0
    assert call("evaluate", run, "te", "--state", "1") != 0


@pytest.mark.parametrize(("name", "method"), REFUSED)
def test_what_was_not_kept_is_refused(name: str, method: str, folder: Path, call: Call) -> None:
    run = folder / name
    before = files(run)
    assert call("unlearn", run, "--client", "2", "--method", method) == EXPECTED[name][method]["refused"]
    assert files(run) == before


@pytest.mark.parametrize("name", EXPECTED)
def test_a_purged_run_goes_on(name: str, folder: Path, call: Call) -> None:
    run = folder / name
    assert call("unlearn", run, "--client", "2", "--method", "fedremoval-pcg:3", "--purge") == 0
    assert call("unlearn", run, "--client", "0") == 0
    assert verify(call, run, states(run)[-1]) == INTACT
    assert call("evaluate", run, "te") == 0


def test_exact_removal_and_retraining_give_the_same_bits(folder: Path, call: Call) -> None:
    digests = []
    for method in MINIMA:
        run = shutil.copytree(folder / EXACT, folder / f"{EXACT}-{method}")
        assert call("unlearn", run, "--client", "2", "--method", method) == 0
        digests.append(json.loads((states(run)[-1] / "head/config.json").read_text())["digest"])
    assert digests[0] == digests[1]
