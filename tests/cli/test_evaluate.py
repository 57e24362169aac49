"""`probekit evaluate` and `probekit report`, on digits of which one client's carry a backdoor."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from probekit.cli.main import run

Command = Callable[..., dict[str, Any]]
POISON = "client=3,trigger=square:size=2,target=0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that forgot its poisoned client, one that did not, one by FedAvg, and their cache."""
    root = tmp_path_factory.mktemp("runs")
    cache = ["--cache", str(root / "cache"), "--quiet"]
    digits = ["packaged:digits", "-b", "pixels:8", "--clients", "5", "--poison", POISON, *cache]
    trained = ["train", *digits, "--ridge", "0.001", "--intercept", "penalized"]
    assert run([*trained, "--run", str(root / "exact")]) == 0
    assert run(["unlearn", str(root / "exact"), "--client", "3", *cache]) == 0
    assert run([*trained, "--run", str(root / "poisoned")]) == 0
    rounds = ["--method", "fedavg:rounds=8,epochs=1,rate=0.01", "--server-share", "0.3"]
    assert run([*trained, *rounds, "--run", str(root / "rounds")]) == 0
    request = ["--client", "3", "--method", "fedremoval"]
    assert run(["unlearn", str(root / "rounds"), *request, *cache]) == 0
    return root


@pytest.fixture
def command(folder: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command with --json; an error's document is its "error"."""

    def call(*arguments: str, code: int = 0) -> dict[str, Any]:
        exit_code = run([*arguments, "--cache", str(folder / "cache"), "--json"])
        captured = capsys.readouterr()
        assert exit_code == code, captured.err
        document: dict[str, Any] = json.loads(captured.out)
        return document.get("error", document)

    return call


def test_the_backdoor_is_there_before_and_gone_after(command: Command, folder: Path) -> None:
    document = command("evaluate", str(folder / "exact"))
    heads = document["heads"]
    assert list(heads) == ["before", "after", "retrained", "minimum"]
    assert heads["before"]["backdoor"]["value"] > 0.8
    assert heads["after"]["backdoor"]["value"] < 0.02
    assert heads["before"]["forgotten"]["value"] > 0.9
    assert heads["after"]["forgotten"]["value"] < 0.2
    assert heads["after"]["test"]["value"] > heads["before"]["test"]["value"]
    assert set(heads["after"]["minus_retrained"].values()) == {0}
    assert document["agreement"]["retrained"]["value"] == 1
    assert document["distances"]["retrained"]["after"] == 0
    assert document["distances"]["minimum"]["before"] > 1
    assert document["test_rows"] == 397
    assert document["poison"]["target"] == "0"
    digits = load_digits().target[-397:]
    assert heads["after"]["backdoor"]["count"] == (digits != 0).sum()
    assert heads["after"]["backdoor_all"]["count"] == 397
    clients = {client["client"]: client for client in document["clients"]}
    assert list(clients) == ["0", "1", "2", "3", "4"]
    assert [name for name, client in clients.items() if client["is_forgotten"]] == ["3"]
    assert sum(client["rows"] for client in clients.values()) == 1400


def test_a_limit_of_the_run_is_that_of_the_triggered_pictures(
    command: Command, folder: Path
) -> None:
    limited = str(folder / "limited")
    data = ["packaged:digits", "-b", "pixels:8", "--clients", "5", "--limit", "300"]
    command("train", *data, "--poison", POISON, "--run", limited)
    document = command("evaluate", limited)
    assert document["test_rows"] == 300
    assert document["heads"]["before"]["backdoor_all"]["count"] == 300


def test_a_run_that_only_trained_has_no_retrained_head(command: Command, folder: Path) -> None:
    document = command("evaluate", str(folder / "poisoned"))
    assert list(document["heads"]) == ["before", "minimum"]
    assert "forgotten" not in document["heads"]["before"]
    assert document["distances"]["minimum"]["before"] == 0


def test_fedavg_retrained_is_not_the_minimum(command: Command, folder: Path) -> None:
    document = command("evaluate", str(folder / "rounds"))
    distances = document["distances"]
    assert distances["minimum"]["retrained"] > 0.5
    assert distances["retrained"]["after"] > 0
    assert distances["minimum"]["retrained"] == pytest.approx(distances["retrained"]["minimum"])


def test_other_rows_are_evaluated(command: Command, folder: Path, tmp_path: Path) -> None:
    own = command("evaluate", str(folder / "exact"))["heads"]["after"]["test"]
    again = command("evaluate", str(folder / "exact"), "packaged:digits")
    assert again["heads"]["after"]["test"] == own
    few = command("evaluate", str(folder / "exact"), "packaged:digits", "--limit", "50")
    assert few["test_rows"] == 50
    confident = command("evaluate", str(folder / "exact"), "--confidence", "0.5")
    assert confident["heads"]["after"]["test"]["low"] > own["low"]
    vectors = tmp_path / "vectors.npz"
    np.savez(vectors, x=np.zeros((3, 5), np.float32), y=np.array([0, 1, 1]))
    refused = command("evaluate", str(folder / "exact"), str(vectors), code=4)
    assert "pixels:8" in refused["message"]


def test_what_is_no_run_is_not_found(command: Command, tmp_path: Path) -> None:
    assert str(tmp_path) in command("evaluate", str(tmp_path), code=3)["message"]
    assert str(tmp_path) in command("report", str(tmp_path), code=3)["message"]


def test_a_run_whose_rows_are_elsewhere_names_the_cache(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["evaluate", str(folder / "exact"), "--cache", str(tmp_path)]) == 3
    assert "--cache" in capsys.readouterr().err


def test_the_same_runs_give_the_same_page(command: Command, folder: Path, tmp_path: Path) -> None:
    pages = []
    for name in ("a.html", "b.html"):
        page = tmp_path / name
        runs = [str(folder / name) for name in ("exact", "rounds")]
        document = command("report", *runs, "-o", str(page))
        assert document["page"] == str(page)
        assert [Path(part["run"]).name for part in document["runs"]] == ["exact", "rounds"]
        pages.append(page.read_bytes())
    assert pages[0] == pages[1]
    text = pages[0].decode()
    for expected in ("packaged:digits", POISON, "a priori: at most", "397 of 397"):
        assert expected in text
    assert str(tmp_path) not in text
    assert str(folder) not in text


def test_a_page_of_a_run_that_only_trained(command: Command, folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    command("report", str(folder / "poisoned"), "-o", str(page))
    assert "a priori: at most" not in page.read_text()
