"""`probekit verify` and `erase`: exit codes of the whole story, and what is asked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probekit.arrays import hex_id
from probekit.cache import Cache
from probekit.cache.store import INTENT
from probekit.cli.main import run
from probekit.runs.run import Run
from tests.runs.examples import embeddings

KINDS: dict[str, list[str]] = {"ridge": [], "logistic": ["--head", "logistic", "--c", "1"]}


@pytest.fixture
def rows(own_cache: Path) -> str:
    """The name of a cached set."""
    Cache().save("rows", embeddings())
    Cache().save("test", embeddings(40, seed=1))
    return "rows"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "run")


Call = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """The exit code of a command line, and what it prints as JSON."""

    def command(*arguments: str) -> tuple[int, dict[str, Any]]:
        code = run([*arguments, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return command


@pytest.fixture
def train(call: Call, rows: str, folder: str) -> Callable[..., dict[str, Any]]:
    def command(*options: str) -> dict[str, Any]:
        arguments = ("train", rows, "--clients", "hospital", "--test", "test", "--run", folder)
        code, document = call(*arguments, *options)
        assert code == 0
        return document

    return command


@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_story_needs_no_flags(
    call: Call, train: Callable[..., dict[str, Any]], folder: str, kind: str
) -> None:
    noted = train(*KINDS[kind])["fingerprint"]
    assert call("verify", folder)[0] == 0
    assert call("unlearn", folder, "--client", "north")[0] == 0
    assert call("verify", folder)[0] == 0
    known = ("--fingerprint", noted, "--forgot", "client=north")
    assert call("verify", folder, *known)[0] == 0
    assert call("verify", folder, *known, "--forgot", "client=west")[0] == 6
    assert call("erase", folder, "--client", "north", "--yes")[0] == 0
    code, document = call("verify", folder, *known)
    assert code == 0
    assert document["ok"]
    assert document["fingerprint"] == noted
    assert document["head"] == Run(folder).head.digest
    assert {finding["verdict"] for finding in document["findings"]} == {"true"}


def test_an_approximate_method_is_not_shown(
    call: Call, train: Callable[..., dict[str, Any]], folder: str
) -> None:
    """Nothing is false, but the head is farther from the minimum than the run tolerates."""
    train("--server-share", "0.3", "--keep", "gradients", "--intercept", "penalized")
    assert call("unlearn", folder, "--client", "north", "--method", "fedremoval")[0] == 0
    code, document = call("verify", folder)
    assert code == 7
    verdicts = [finding["verdict"] for finding in document["findings"]]
    assert "false" not in verdicts
    assert document["distance"] > 0


def test_what_is_false_is_said(
    call: Call, train: Callable[..., dict[str, Any]], folder: str
) -> None:
    train()
    path = Path(folder) / "states/0001/certificate.json"
    path.write_bytes(path.read_bytes().replace(b'"rows": 1', b'"rows": 2'))
    code, document = call("verify", folder)
    assert code == 6
    assert "false" in [finding["verdict"] for finding in document["findings"]]


def test_a_distance_may_be_accepted(
    call: Call, train: Callable[..., dict[str, Any]], folder: str
) -> None:
    train("--method", "fedavg:rounds=3", "--ridge", "0.1")
    code, document = call("verify", folder)
    assert code == 7
    accepted = str(2 * document["distance"])
    assert call("verify", folder, "--within", accepted)[0] == 0


def test_verdicts_are_printed(
    train: Callable[..., dict[str, Any]], folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    train()
    capsys.readouterr()
    assert run(["verify", folder]) == 0
    printed = capsys.readouterr().out
    opened = Run(folder)
    verdicts = {line.split()[0] for line in printed.splitlines() if line.startswith("true")}
    assert verdicts == {"true"}
    for digest in (opened.fingerprint, opened.state_fingerprint, opened.head.digest):
        assert digest in printed


def test_usage_and_missing_runs(call: Call, folder: str) -> None:
    assert call("verify", folder)[0] == 3
    assert call("erase", folder, "--client", "north")[0] == 3


def test_erasure_is_asked_about(
    train: Callable[..., dict[str, Any]], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    train()
    answers = iter([False, True])
    monkeypatch.setattr("typer.confirm", lambda *_, **__: next(answers) or abort())
    assert run(["erase", folder, "--client", "north"]) == 130
    assert "north" in Run(folder).newest.rows.clients
    assert run(["erase", folder, "--client", "north"]) == 0
    assert "north" not in Run(folder).newest.rows.clients


def test_json_is_no_consent(call: Call, train: Callable[..., dict[str, Any]], folder: str) -> None:
    train()
    code, document = call("erase", folder, "--client", "north")
    assert (code, document["error"]["exit_code"]) == (2, 2)
    assert "--yes" in document["error"]["message"]
    assert "north" in Run(folder).newest.rows.clients


def abort() -> None:
    import click

    raise click.Abort


def test_other_runs_are_changed_with_a_yes_only(
    call: Call, train: Callable[..., dict[str, Any]], rows: str, folder: str
) -> None:
    train()
    assert call("train", rows, "--clients", "2", "--run", f"{folder}-other")[0] == 0
    assert call("erase", folder, "--client", "north")[0] == 2
    code, document = call("erase", folder, "--client", "north", "--dry-run")
    assert code == 0
    assert set(document["rows"]) == {folder, f"{folder}-other"}
    assert not document["erased"]
    code, document = call("erase", folder, "--client", "north", "--yes")
    assert code == 0
    assert document["erased"]
    assert call("verify", f"{folder}-other")[0] == 0


def test_a_copy_of_a_run_must_go_first(
    call: Call, train: Callable[..., dict[str, Any]], folder: str
) -> None:
    train()
    shutil.copytree(folder, f"{folder}-copy")
    assert call("erase", folder, "--client", "north", "--yes")[0] == 2
    shutil.rmtree(f"{folder}-copy")
    assert call("erase", folder, "--client", "north", "--yes")[0] == 0


def test_samples_may_be_listed_in_a_file(
    call: Call, train: Callable[..., dict[str, Any]], folder: str, tmp_path: Path
) -> None:
    train()
    ids = [hex_id(row) for row in Run(folder).newest.rows.ids[:3]]
    (tmp_path / "ids").write_text("\n".join(ids))
    code, document = call("erase", folder, "--sample", f"@{tmp_path / 'ids'}", "--yes")
    assert code == 0
    assert document["samples"] == 3
    assert call("verify", folder)[0] == 0


def test_other_commands_wait_for_an_erasure(
    call: Call, train: Callable[..., dict[str, Any]], rows: str, folder: str
) -> None:
    train()
    cache = Cache()
    (cache.root / INTENT).write_text(json.dumps({}))
    for arguments in (["cache", "ls"], ["unlearn", folder, "--client", "east"], ["probe", rows]):
        assert call(*arguments)[0] == 4
    assert call("verify", folder)[0] == 7
    assert call("erase", folder, "--client", "north")[0] == 4  # its intent is damaged
