"""`probekit prove` and `probekit verify --receipt`: what a client holds, and one command that checks it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from probekit import Run
from probekit.cache import DiskStore
from probekit.cli.main import run as command
from probekit.custody.signatures import new_private_key, public_key_of
from tests.shelves import Shelve
from tests.shelves import shelve as shelve


@pytest.fixture
def trained(shelve: Shelve, tmp_path: Path, store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of four clients, seen from a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBEKIT_CACHE", str(store.root))
    shelve("rows", rows=160)
    Run.train(tmp_path / "run", "rows", clients=4, server_share=0.2, ridge=0.01, store=store)
    return tmp_path / "run"


def test_a_former_client_checks_its_receipt(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("key.pem").write_bytes(key := new_private_key())
    Path("public.pem").write_bytes(public_key_of(key))
    assert command(["prove", "run", "--client", "2", "--key", "key.pem", "--receipt", "two.json"]) == 0
    shown = capsys.readouterr().out
    assert "not shown: that the same rows are in no other slot" in shown
    assert json.loads(Path("two.json").read_text())["leaf"]["salt"] not in shown
    check = ["verify", "--receipt", "two.json", "--run", "run", "--client", "2", "--public-key", "public.pem"]
    assert command(check) == 7
    assert "Still there" in capsys.readouterr().out
    assert command(["unlearn", "run", "--client", "2", "--purge"]) == 0
    assert command(check) == 0
    assert "Emptied in state 2, at 20" in capsys.readouterr().out
    assert command([*check, "--json"]) == 0
    value = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (value["emptied"], value["missing"]) == (2, None)
    Path("run/transitions/0002.json").unlink()
    assert command(check) == 7
    assert "the transition to state 2 is missing" in capsys.readouterr().out


def test_wrong_receipts_and_wrong_uses(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["prove", "run", "--client", "2"]) == 0
    assert command(["verify", "--receipt", "receipt.json", "--run", "run", "--client", "1"]) == 6
    text = Path("receipt.json").read_text()
    for changed in (text[:-10], text.replace('"rows": ', '"rows": 1'), "", "{}"):
        Path("receipt.json").write_text(changed)
        assert command(["verify", "--receipt", "receipt.json", "--run", "run"]) == 6
    assert command(["verify", "--receipt", "none.json", "--run", "run"]) == 3
    assert command(["verify", "--receipt", "receipt.json", "--head", "run/states/0001/head"]) == 2
    assert command(["verify", "--run", "run"]) == 2
    assert command(["verify", "a.json", "--receipt", "receipt.json", "--run", "run"]) == 2
    assert command(["prove", "run", "--client", "9"]) == 2
    assert command(["prove", "run", "--client", "1", "--key", "none.pem"]) == 3
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("inside", ["run/key.pem", "run/states/key.pem"])
def test_a_private_key_in_the_run_is_refused(
    trained: Path, capsys: pytest.CaptureFixture[str], inside: str, store: DiskStore
) -> None:
    """A run is copied and shown around; whoever gets it could sign."""
    Path(inside).write_bytes(new_private_key())
    Path("link.pem").symlink_to(inside)
    for path in (inside, "link.pem"):
        for line in (["prove", "run", "--client", "1"], ["unlearn", "run", "--client", "1"]):
            assert command([*line, "--key", path]) == 2
            assert "which others get to see" in capsys.readouterr().err
    (store.root / "key.pem").write_bytes(new_private_key())
    assert command(["prove", "run", "--client", "1", "--key", str(store.root / "key.pem")]) == 2
