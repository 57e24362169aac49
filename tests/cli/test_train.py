"""`probekit train`, `unlearn` and `preset`: what they print, and their exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probekit.cache import Cache
from probekit.cli.main import run
from probekit.runs.run import Run
from tests.runs.examples import HOSPITALS, embeddings


@pytest.fixture
def rows(own_cache: Path) -> str:
    """The name of a cached set."""
    Cache().save("rows", embeddings())
    Cache().save("test", embeddings(40, seed=1))
    return "rows"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "run")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def command(*arguments: str) -> tuple[int, str]:
        code = run(list(arguments))
        return code, capsys.readouterr().out

    return command


Call = Callable[..., tuple[int, str]]


def test_train_and_unlearn_print_fingerprints_and_the_next_command(
    call: Call, rows: str, folder: str
) -> None:
    code, printed = call("train", rows, "--clients", "hospital", "--test", "test", "--run", folder)
    opened = Run(folder)
    assert code == 0
    assert opened.fingerprint in printed
    assert opened.state_fingerprint in printed
    following = printed.splitlines()[-1].removeprefix("next: probekit ").split()
    assert following[0] == "unlearn"
    code, printed = call(*following)
    assert code == 0
    opened = Run(folder)
    assert opened.newest.number == 2
    assert opened.state_fingerprint in printed
    assert printed.splitlines()[-1] == f"next: probekit verify {folder}"


def test_json_is_one_object(call: Call, rows: str, folder: str) -> None:
    code, printed = call("train", rows, "--clients", "3", "--run", folder, "--json")
    document: dict[str, Any] = json.loads(printed)
    opened = Run(folder)
    assert code == 0
    assert document["fingerprint"] == opened.fingerprint
    assert set(document["clients"]) == {"0", "1", "2"}
    code, printed = call("unlearn", folder, "--client", "1", "--client", "2", "--json")
    document = json.loads(printed)
    assert document["clients_forgotten"] == ["1", "2"]
    assert (document["changed"], document["method"]) == (True, "exact")
    assert document["certificate"]["rows"] == document["rows"]
    code, printed = call("unlearn", folder, "--client", "1", "--json")
    document = json.loads(printed)
    assert (code, document["changed"], document["state"]) == (0, False, 2)
    assert len(document["warnings"]) == 1


def test_the_same_training_again_is_done_already(call: Call, rows: str, folder: str) -> None:
    command = ("train", rows, "--clients", "hospital", "--run", folder, "--json")
    first = json.loads(call(*command)[1])
    code, printed = call(*command)
    assert code == 0
    assert json.loads(printed)["fingerprint"] == first["fingerprint"]
    assert call(*command, "--ridge", "0.5")[0] == 2


def test_samples_from_a_file_and_rows_by_a_column(
    call: Call, rows: str, folder: str, tmp_path: Path
) -> None:
    call("train", rows, "--clients", "hospital", "--run", folder)
    ids = [bytes(row).hex() for row in embeddings().ids[:3]]
    (tmp_path / "ids.txt").write_text("\n".join(ids[:2]))
    code, printed = call(
        "unlearn", folder, "--sample", f"@{tmp_path / 'ids.txt'}", "--sample", ids[2][:9], "--json"
    )
    assert code == 0
    assert json.loads(printed)["samples_forgotten"] == sorted(ids)
    code, printed = call("unlearn", folder, "--where", "hospital=north", "--json")
    assert code == 0
    assert "north" not in json.loads(printed)["clients"]
    assert call("unlearn", folder, "--sample", f"@{tmp_path / 'none.txt'}")[0] == 3


@pytest.mark.parametrize("command", ["train", "unlearn"])
def test_dry_runs_change_nothing(
    call: Call, rows: str, folder: str, command: str, file_digests: Callable[..., dict[str, str]]
) -> None:
    training = ("train", rows, "--clients", "hospital", "--run", folder)
    if command == "train":
        code, printed = call(*training, "--dry-run", "--json")
        assert set(json.loads(printed)["clients"]) == set(HOSPITALS)
        assert not Path(folder).exists()
    else:
        call(*training)
        before = file_digests(Path(folder))
        code, printed = call("unlearn", folder, "--client", "north", "--dry-run", "--json")
        document = json.loads(printed)
        assert document["method"] == "exact"
        assert {item["name"] for item in document["plans"]} >= {"exact", "retrain", "fedremoval"}
        assert file_digests(Path(folder)) == before
        assert call("unlearn", folder, "--client", "north", "--dry-run")[1].count("\n") > 5
    assert code == 0


def test_flags_reach_the_training(call: Call, rows: str, folder: str) -> None:
    code, _ = call(
        *("train", rows, "--clients", "4", "--partition", "dirichlet:0.5", "--run", folder),
        *("--preset", "f2l2-paper", "--method", "fedavg:rounds=2,rate=0.001"),
        *("--server-share", "0.2", "--keep", "gradients", "--seed", "3"),
    )
    assert code == 0
    options = Run(folder).options
    assert (options.clients, options.partition, options.seed) == (4, "dirichlet:0.5", 3)
    assert (options.preset, options.server_share, options.keep) == ("f2l2-paper", 0.2, "gradients")
    code, printed = call("unlearn", folder, "--client", "0", "--method", "fedremoval:sgd", "--json")
    assert code == 0
    assert json.loads(printed)["facts"]["server_rows"] > 0


def test_a_file_may_hold_the_flags(call: Call, rows: str, folder: str, tmp_path: Path) -> None:
    config = tmp_path / "train.toml"
    config.write_text('[train]\nclients = "hospital"\nhead = "logistic"\nc = 0.5\n')
    assert call("train", rows, "--run", folder, "--config", str(config))[0] == 0
    assert (Run(folder).options.head, Run(folder).options.C) == ("logistic", 0.5)


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (("--ridge", "1e400"), 2),
        (("--ridge", "nan"), 2),
        (("--clients", "0"), 2),
        (("--clients", "500"), 2),
        (("--clients", "2.5"), 2),
        (("--clients", "ward"), 3),
        (("--head", "logistic", "--c", "gcv"), 2),
        (("--head", "tree"), 2),
        (("--method", "fedavg:rounds=x"), 2),
        (("--method", "boosting"), 3),
        (("--partition", "dirichlet:-1", "--clients", "3"), 2),
        (("--preset", "f3"), 3),
        (("--poison", "client=1"), 2),
    ],
)
def test_what_cannot_be_trained_has_its_exit_code(
    call: Call, rows: str, folder: str, flags: tuple[str, ...], code: int
) -> None:
    assert call("train", rows, "--run", folder, *flags)[0] == code
    assert not Path(folder).exists()


def test_no_run_and_unknown_clients(call: Call, rows: str, folder: str, tmp_path: Path) -> None:
    assert call("unlearn", folder, "--client", "1")[0] == 3
    call("train", rows, "--run", folder, "--clients", "3")
    assert call("unlearn", folder, "--client", "9")[0] == 2
    assert call("unlearn", folder)[0] == 2
    Path(folder, "run.json").write_text("{}")
    assert call("unlearn", folder, "--client", "1")[0] == 4


def test_presets_stand_side_by_side(call: Call) -> None:
    code, printed = call("preset", "show", "f2l2-paper", "f2l2-code")
    assert code == 0
    assert printed.count("f2l2-paper:") == printed.count("f2l2-code:") > 5
    code, printed = call("preset", "show", "--json")
    assert json.loads(printed)["f2l2-paper"]["ridge"] == 0.01
    assert call("preset", "show", "nobody")[0] == 3
