"""What new users stumbled over when they trained, unlearned and verified."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from probekit import Run, load_head
from probekit.cache import Cache
from probekit.cli.main import COMMANDS, load_command, run
from tests.runs.examples import embeddings

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def rows(own_cache: Path) -> str:
    """The name of a cached set; the odd names of two clients are in the column `ward`."""
    odd = ["../x", "St. Mary's", "-n"]
    Cache().save("rows", embeddings(ward=[odd[row % 3] for row in range(120)]))
    Cache().save("test", embeddings(40, seed=1))
    return "rows"


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def command(*arguments: str) -> tuple[int, str, str]:
        code = run(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


NETWORK = """
import timm  # imports torchvision, whose operators this build of torch may lack
import torchvision
from torch import nn

def network(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(6, num_classes))
"""


def printed_next(output: str) -> list[str]:
    """The arguments of the command that a command printed last."""
    words = shlex.split(output.splitlines()[-1])
    assert words[:2] == ["next:", "probekit"]
    return words[2:]


@pytest.mark.parametrize("ridge", ["nan", "inf", "1e400", "-1", "-inf", "much"])
def test_a_ridge_that_is_none_is_named(call: Call, rows: str, tmp_path: Path, ridge: str) -> None:
    code, _, message = call("train", rows, "--run", str(tmp_path / "run"), "--ridge", ridge)
    assert code == 2
    assert ridge in message
    assert "--ridge" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("flags", [("--ridge", "0"), ("--c", "0"), ("--c", "1e400")])
def test_a_logistic_head_wants_a_ridge(
    call: Call, rows: str, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    run_flags = ("--run", str(tmp_path / "run"), "--head", "logistic")
    code, _, message = call("train", rows, *run_flags, *flags)
    assert code == 2
    assert flags[0] in message


@pytest.mark.parametrize("head", [(), ("--head", "logistic", "--c", "1")])
def test_commands_as_printed_end_with_a_verified_run(
    call: Call, rows: str, tmp_path: Path, head: tuple[str, ...]
) -> None:
    run_flags = ("--run", str(tmp_path / "a run"), "--clients", "hospital", "--test", "test")
    code, printed, _ = call("train", rows, *run_flags, *head)
    for verb in ("unlearn", "verify"):
        arguments = printed_next(printed)
        assert arguments[0] == verb
        code, printed, _ = call(*arguments)
        assert code == 0


def test_training_prints_a_line_for_each_thing(call: Call, rows: str, tmp_path: Path) -> None:
    _, printed, _ = call("train", rows, "--clients", "40", "--run", str(tmp_path / "run"))
    subjects = [line.partition(":")[0] for line in printed.splitlines()]
    assert len(subjects) == len(set(subjects)) < 15


@pytest.mark.parametrize("ridge", ["auto", "0.01"])
def test_probe_and_train_fit_the_same_head(
    call: Call, rows: str, tmp_path: Path, ridge: str
) -> None:
    flags = () if ridge == "auto" else ("--ridge", ridge)
    head = str(tmp_path / "head")
    _, probed, _ = call("probe", rows, "--test", "test", "--head", "ridge", "--save", head, *flags)
    _, trained, _ = call("train", rows, "--test", "test", "--run", str(tmp_path / "run"), *flags)
    ours, theirs = Run(tmp_path / "run").head, load_head(head)
    if ridge == "auto":  # which is all that differs
        assert "leave-one-out" in probed
        assert "gcv" in trained
    else:
        np.testing.assert_allclose(ours.weights, theirs.weights, rtol=1e-12)
        np.testing.assert_allclose(ours.intercept, theirs.intercept, rtol=1e-12)


@pytest.mark.parametrize("client", ["../x", "St. Mary's", "-n"])
def test_names_are_names_and_no_paths_or_flags(
    call: Call, rows: str, tmp_path: Path, client: str
) -> None:
    folder = str(tmp_path / "runs" / "a")
    before = sorted(tmp_path.rglob("*"))
    call("train", rows, "--clients", "ward", "--run", folder)
    forget = f"--client={client}"
    assert call("unlearn", folder, forget)[0] == 0
    assert call("verify", folder, f"--forgot=client={client}")[0] == 0
    assert client not in Run(folder).newest.rows.clients
    assert call("erase", folder, forget, "--yes")[0] == 0
    assert call("verify", folder)[0] == 0
    outside = {path for path in tmp_path.rglob("*") if Path(folder) not in (path, *path.parents)}
    cache = {path for path in outside if Cache().root in (path, *path.parents)}
    assert outside - cache - {*before, Path(folder).parent, Cache().root.parent} == set()


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (("--clients", "3", "--partition", "shards"), 2),
        (("--clients", "3", "--partition", "by-class"), 2),
        (("--poison", "client=3"), 2),
        (("--clients", "-2"), 2),
    ],
)
def test_a_wrong_flag_is_named_before_anything_is_encoded(
    call: Call, own_cache: Path, tmp_path: Path, flags: tuple[str, ...], code: int
) -> None:
    data = ("packaged:digits", "-b", "pixels:2", "--limit", "20")
    found, _, message = call("train", *data, "--run", str(tmp_path / "run"), *flags)
    assert found == code
    assert flags[-1].partition("=")[0] in message
    assert not Cache().names()


def test_more_clients_cannot_answer_than_there_are(call: Call, rows: str, tmp_path: Path) -> None:
    flags = ("--clients", "3", "--at-least", "4")
    code, _, message = call("train", rows, "--run", str(tmp_path / "run"), *flags)
    assert code == 2
    assert "--at-least" in message


def test_a_file_in_the_place_of_a_run(call: Call, rows: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    code, _, message = call("train", rows, "--run", str(tmp_path / "notes.txt"))
    assert code == 2
    assert "--run" in message
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_network_may_import_torchvision_and_timm(rows: str, tmp_path: Path) -> None:
    (tmp_path / "network_of_mine.py").write_text(NETWORK)
    flags = ["--network", "py:network_of_mine:network", "--method", "fedavg:rounds=1,rate=1e-3"]
    arguments = ["train", rows, *flags, "--no-linearize", "--run", "run", "--quiet"]
    command = [sys.executable, "-m", "probekit", *arguments]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    assert (tmp_path / "run" / "run.json").is_file()


def test_every_command_that_encodes_takes_a_gpu_where_there_is_one() -> None:
    defaults = {
        name: flag.default
        for name in COMMANDS
        for flag in load_command(name).params
        if flag.name == "device"
    }
    assert {"probe", "predict", "extract", "train", "evaluate", "report"} <= defaults.keys()
    assert set(defaults.values()) == {"auto"}
