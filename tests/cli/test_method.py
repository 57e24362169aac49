"""Every method through the command line, on a head; `probekit method ls`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit.arrays import texts
from probekit.cache import Cache
from probekit.cli.main import run
from probekit.embeddings import EmbeddingSet
from probekit.federated.training.knot import Clusters
from probekit.registry import METHODS
from probekit.runs.run import Run
from tests.runs.examples import embeddings

OWN = Path(__file__).parents[2] / "examples" / "own_method"
TRAINERS = {
    "fedavg": ("fedavg:rounds=6,steps=3,rate=0.002", "statistics,gradients,history"),
    "knot": ("knot:clusters=2,rounds=6,steps=3,rate=0.002", "statistics"),
    "history": ("fedavg:rounds=6,epochs=1,batch_size=8,rate=0.002", "history"),
}


def owls_in_north() -> EmbeddingSet:
    rows = embeddings()
    elsewhere = np.where(rows.columns["hospital"] == "north", "east", rows.columns["hospital"])
    hospitals = np.where(rows.labels == rows.class_names.index("owl"), "north", elsewhere)
    return replace(rows, columns={"hospital": texts(hospitals.tolist())})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A run by each trainer with its cache, trained once."""
    root = tmp_path_factory.mktemp("methods")
    cache = Cache(root / "cache")
    cache.save("rows", embeddings())
    cache.save("owls", owls_in_north())
    cache.save("test", embeddings(40, seed=1))

    def folder(name: str) -> Path:
        path = root / name
        if not path.exists():
            method, keep = TRAINERS[name]
            rows = ["owls"] if name == "history" else ["rows", "--test", "test"]
            command = ["train", *rows, "--clients", "hospital", "--method", method]
            command += ["--ridge", "0.1", "--keep", keep, "--server-share", "0.3"]
            assert run([*command, "--run", str(path), "--cache", str(root / "cache")]) == 0
        return path

    return folder


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], folders: Callable[[str], Path], tmp_path: Path
) -> Callable[..., tuple[int, dict[str, Any]]]:
    """call("fedavg", "unlearn", ...): a command on a copy of a run, as JSON."""

    def command(trainer: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        template = folders(trainer)
        path = tmp_path / trainer
        if not path.exists():
            shutil.copytree(template, path)
        name, *rest = arguments
        command = ["method", "ls", "--run", str(path)] if name == "method" else [name, str(path)]
        capsys.readouterr()
        code = run([*command, *rest, "--json", "--cache", str(template.parent / "cache")])
        return code, json.loads(capsys.readouterr().out)

    return command


Call = Callable[..., tuple[int, dict[str, Any]]]


@pytest.mark.parametrize(
    "method",
    [
        *sorted({*METHODS.names()} - {"ferrari", "knot", "rounds"}),
        *("ferrari:columns=0:2", "fused:rank=2", "sga:max_norm=none,steps=2", "federaser:ratio=1"),
    ],
)
def test_every_method_unlearns_from_a_head(call: Call, method: str, tmp_path: Path) -> None:
    before = Run(call("fedavg", "unlearn", "--client", "north", "--dry-run")[1]["run"])
    weights = before.head.weights
    code, document = call("fedavg", "unlearn", "--client", "north", "--method", method)
    assert (code, document["changed"], document["method"]) == (0, True, method)
    assert document["clients_forgotten"] == ["north"]
    assert "north" not in document["clients"]
    assert not np.array_equal(before.head.weights, weights)
    assert b"north" not in (before.newest.folder / "kept.safetensors").read_bytes()
    code, _ = call("fedavg", "verify")
    assert code in (0, 7)  # nothing is false


def test_knot_trains_and_unlearns_in_clusters(call: Call) -> None:
    code, document = call("knot", "unlearn", "--client", "north", "--method", "knot")
    assert (code, document["method"]) == (0, "knot")
    opened = Run(document["run"])
    clusters = opened.newest.state.get(Clusters)
    members = {name for part in clusters.parts for name in part.members}
    assert members == {"east", "south", "west"}
    code, document = call("knot", "unlearn", "--client", "east", "--method", "retrain")
    assert (code, set(document["clients"])) == (0, {"south", "west"})


@pytest.mark.parametrize("method", ["sga", "fedrecovery", "federaser", "flipping", "cf"])
def test_a_class_goes_with_its_last_client(call: Call, method: str) -> None:
    """Nothing but rounds is kept, and north had all owls."""
    code, document = call("history", "unlearn", "--client", "north", "--method", method)
    assert (code, document["classes"]) == (0, ["cat", "dog"])
    assert Run(document["run"]).head.weights.shape == (6, 2)


def test_what_a_run_lacks_is_listed(call: Call) -> None:
    code, document = call("history", "method")
    assert code == 0
    plans = {item["name"]: item for item in document["methods"]}
    assert list(plans) == METHODS.names()
    assert plans["federaser"]["missing"] == []
    assert plans["federaser"]["rounds"] > 5
    assert plans["knot"]["missing"] != []
    code, document = call("history", "method", "sga", "ferrari:columns=0:1", "--client", "east")
    assert [item["name"] for item in document["methods"]] == ["sga", "ferrari:columns=0:1"]
    assert all(item["missing"] == [] for item in document["methods"])


def test_without_a_run_the_papers_properties_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["method", "ls"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(METHODS.names())
    (recovery,) = [line.split() for line in lines if line.startswith("fedrecovery")]
    assert recovery == ["fedrecovery", "nothing", "yes", "yes", "yes", "no", "no"]


def test_an_own_method_is_typed_like_ours(
    call: Call, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(OWN)
    monkeypatch.syspath_prepend(str(OWN))
    method = "py:neggrad:NegGrad:steps=5,rate=0.001"
    code, document = call("fedavg", "method", method)
    assert code == 0
    assert document["methods"][0]["properties"]["no_target"] is False
    code, document = call("fedavg", "unlearn", "--client", "north", "--method", method)
    assert (code, document["method"], document["changed"]) == (0, method, True)
    assert Run(document["run"]).newest.state.kept  # read anew without the method's file


@pytest.mark.parametrize("method", ["cf:rounds=x", "nothing-like-it", "cf:speed=3", "py:os:getcwd"])
def test_methods_that_are_not_there(call: Call, method: str) -> None:
    code, document = call("fedavg", "unlearn", "--client", "north", "--method", method)
    assert code in (2, 3)
    assert document["error"]["exit_code"] == code
