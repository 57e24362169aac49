"""Whole networks through the command line: forgotten, verified, evaluated, erased."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit import Run
from probekit.cli.main import run
from probekit.federated.training.cg import ConjugateGradients
from probekit.networks import architectures
from probekit.runs.run import RunData

Command = Callable[..., dict[str, Any]]
DIGITS = ("packaged:digits", "-b", "pixels:8", "--limit", "120", "--clients", "4")
SERVER = ("--server-share", "0.2")
FEDAVG = "fedavg:rounds=4,batch_size=16,optimizer=adam,rate=1e-3"
OWN = Path(__file__).parents[2] / "examples" / "own_network"
NAME = "py:residual:network:width=2"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A linearized network and a conventional one on digits, of which client 3 is poisoned."""
    root = tmp_path_factory.mktemp("networks")
    poison = ["--poison", "client=3,trigger=square:size=2,target=0"]
    cache = ["--cache", str(root / "cache"), "--quiet"]
    digits = ["train", *DIGITS, *SERVER, *poison, *cache, "--network", "mlp:6"]
    assert run([*digits, "--run", str(root / "linearized")]) == 0
    conventional = ["--no-linearize", "--method", FEDAVG, "--run", str(root / "conventional")]
    assert run([*digits, *conventional]) == 0
    return root


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy of the runs and their cache."""
    shutil.copytree(trained, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def command(folder: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command with --json; an error's document is its "error"."""

    def call(*arguments: object, code: int = 0) -> dict[str, Any]:
        texts = [str(argument) for argument in arguments]
        exit_code = run([*texts, "--cache", str(folder / "cache"), "--json"])
        captured = capsys.readouterr()
        assert exit_code == code, captured.err
        document: dict[str, Any] = json.loads(captured.out)
        return document.get("error", document)

    return call


def test_a_linearized_network_is_forgotten_verified_and_erased(
    command: Command, folder: Path
) -> None:
    linearized = folder / "linearized"
    noted = command("verify", linearized)["fingerprint"]
    done = command("unlearn", linearized, "--client", "3")
    assert (done["method"], done["certificate"]["evidence"]) == ("exact", "linearized")
    known = ("--fingerprint", noted, "--forgot", "client=3")
    checked = command("verify", linearized, *known)
    assert checked["ok"]
    assert checked["distance"] <= done["certificate"]["distance"]
    command("verify", linearized, "--forgot", "client=2", code=6)
    heads = command("evaluate", linearized)["heads"]
    assert list(heads) == ["before", "after", "retrained", "minimum"]
    assert heads["before"]["backdoor"]["value"] > 0.8
    assert heads["after"]["backdoor"]["value"] < 0.5
    assert heads["after"]["minus_retrained"]["test"] == 0
    page = folder / "page.html"
    command("report", linearized, "--out", page)
    assert "linearized" in page.read_text()
    command("erase", linearized, "--client", "3", "--yes")
    command("verify", linearized, *known)


def test_a_conventional_network_has_nothing_to_verify_a_distance_by(
    command: Command, folder: Path
) -> None:
    conventional = folder / "conventional"
    done = command("unlearn", conventional, "--client", "3")
    assert (done["method"], done["certificate"]) == ("retrain", None)
    checked = command("verify", conventional, "--forgot", "client=3", code=7)
    unknown = [item["claim"] for item in checked["findings"] if item["verdict"] == "not shown"]
    assert len(unknown) == 1
    assert "conventional" in unknown[0]
    assert list(command("evaluate", conventional)["heads"]) == ["before", "after", "retrained"]
    command("report", conventional, "--out", folder / "page.html")
    command("erase", conventional, "--client", "3", "--yes")
    command("verify", conventional, code=7)


@pytest.mark.parametrize(
    ("method", "verified"),
    [("rounds", 0), ("fedremoval", 7), ("fedremoval-line", 7), ("fedremoval-pcg", 7)],
)
def test_methods_of_linear_scores_refuse_conventional_networks(
    command: Command, folder: Path, method: str, verified: int
) -> None:
    request = ("--client", "3", "--method", method)
    command("unlearn", folder / "linearized", *request)
    command("verify", folder / "linearized", code=verified)
    refused = command("unlearn", folder / "conventional", *request, code=2)
    assert "linearized network" in refused["message"]


@pytest.mark.parametrize(
    ("number", "factor"), [("distance", 1e-6), ("excess_loss", 1e-9), ("residual", 1e-6)]
)
def test_a_forged_certificate_is_false(
    command: Command, folder: Path, number: str, factor: float
) -> None:
    linearized = folder / "linearized"
    command("unlearn", linearized, "--client", "3", "--method", "fedremoval")
    path = linearized / "states" / "0002" / "certificate.json"
    document = json.loads(path.read_text())
    document[number] *= factor
    document["allowance"] = min(document["allowance"], document["residual"])
    path.write_text(json.dumps(document))
    command("verify", linearized, code=6)


@pytest.mark.parametrize("verb", ["unlearn", "erase"])
def test_rows_that_a_network_was_pretrained_on_stay(
    command: Command, folder: Path, verb: str
) -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(90) % 3
    hospitals = np.array(["north", "south", "east"])[generator.integers(0, 3, 90)]
    vectors = generator.normal(size=(90, 6)) + np.eye(6)[labels]
    np.savez(folder / "all.npz", embedding=vectors, label=labels, hospital=hospitals)
    training = (folder / "all.npz", "--clients", "hospital", *SERVER, "--network", "mlp:4")
    command("train", *training, "--run", folder / "hospitals")
    yes = ("--yes",) if verb == "erase" else ()
    refused = command(verb, folder / "hospitals", "--client", "north", *yes, code=2)
    assert "--pretrain-epochs 0" in refused["message"]
    command("verify", folder / "hospitals")
    command("train", *training, "--pretrain-epochs", "0", "--run", folder / "random")
    command("unlearn", folder / "random", "--client", "north")
    command("verify", folder / "random", "--forgot", "client=north")


def test_own_code_runs_where_the_command_asks_for_it(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_another_process() -> None:
        monkeypatch.setattr(architectures, "_named", set())
        architectures.built.cache_clear()

    monkeypatch.syspath_prepend(OWN)
    own = folder / "own"
    rough = ("--ridge", "0.2", "--tolerance", "1e-3")
    command("train", *DIGITS, *SERVER, *rough, "--network", NAME, "--run", own)
    head = own / "states" / "0001" / "head"
    for arguments in (
        ("unlearn", own, "--client", "3"),
        ("evaluate", own),
        ("method", "ls", "--run", own),
        ("predict", head, "packaged:digits", "--split", "test", "--limit", "5"),
    ):
        in_another_process()
        assert f"--network {NAME}" in command(*arguments, code=2)["message"]
        command(*arguments, "--network", NAME)
    in_another_process()
    checked = command("verify", own, code=7)
    assert any(f"--network {NAME}" in item["claim"] for item in checked["findings"])
    command("verify", own, "--network", NAME, "--forgot", "client=3")


def test_what_is_printed_as_next_names_own_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def last_line(*arguments: str) -> str:
        assert run([*arguments, "--cache", str(folder / "cache")]) == 0
        return capsys.readouterr().out.splitlines()[-1]

    monkeypatch.syspath_prepend(OWN)
    own = ("--network", NAME, "--no-linearize", "--method", "fedavg:rounds=1,rate=1e-3")
    following = last_line("train", *DIGITS, *own, "--run", str(folder / "own"))
    assert following == f"next: probekit unlearn {folder / 'own'} --client=0 --network {NAME}"
    following = last_line(*shlex.split(following)[2:])
    assert following == f"next: probekit verify {folder / 'own'} --network {NAME}"


@pytest.mark.slow
@pytest.mark.parametrize("network", ["mlp:30", "cnn"])
def test_rounds_of_fedremoval_approach_the_minimum_of_a_network(
    tmp_path: Path, network: str
) -> None:
    """Certified distances hold, and shrink with the rounds until verify accepts the head."""
    side = "16" if network == "cnn" else "8"
    digits = ["train", "packaged:digits", "-b", f"pixels:{side}", "--limit", "300"]
    digits += ["--clients", "5", *SERVER, "--network", network, "--ridge", "0.05"]
    digits += ["--poison", "client=3,trigger=square:size=2,target=0"]
    folder = tmp_path / "run"
    assert run([*digits, "--run", str(folder), "--quiet"]) == 0
    assert run(["verify", str(folder), "--quiet"]) == 0
    distances = []
    for method in ("fedremoval", *(f"fedremoval-pcg:{count}" for count in (2, 5, 10, 40))):
        copy = tmp_path / f"copy{len(distances)}"
        shutil.copytree(folder, copy)
        unlearned = Run(copy)
        unlearned.unlearn(client="3", method=method)
        stored = unlearned.newest
        data = RunData.of(stored.rows, stored.description, unlearned.cache)
        federation = data.federation(stored.state.model)
        minimum = ConjugateGradients(products=20_000, tolerance=1e-11).minimize(
            federation, stored.state.params, ridge=stored.ridge
        )
        distance = float(np.linalg.norm(stored.state.params - minimum))
        certificate = unlearned.certificate
        assert certificate is not None
        assert distance <= certificate.distance
        distances.append(distance)
        verified = 0 if method.endswith(":40") else 7
        assert run(["verify", str(copy), "--quiet"]) == verified
    assert sorted(distances[1:], reverse=True) == distances[1:]
    assert distances[-1] < 1e-6 * distances[0]
