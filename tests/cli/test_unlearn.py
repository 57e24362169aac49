"""`unlearn` and `purge`: flags become arguments, files are written where they should be, errors have exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from probekit import Run
from probekit.cache import DiskStore
from probekit.custody.signatures import new_private_key, public_key_of
from tests.cli.conftest import Command, Probekit
from tests.shelves import Shelve
from tests.shelves import shelve as shelve

SAME: dict[tuple[str, ...], dict[str, Any]] = {
    ("--client", "2"): {"client": "2"},
    ("--client", "2", "--client", "0", "--method", "retrain"): {"clients": ["2", "0"], "method": "retrain"},
    ("--client", "1", "--method", "fedremoval", "--server-only"): {
        "client": "1",
        "method": "fedremoval",
        "server_only": True,
    },
    ("--client", "1", "--test", "test"): {"client": "1", "test": "test"},
}
WRONG = {
    ("unlearn", "run", "--client", "7"): (2, "this run has clients 0 to 3"),
    ("unlearn", "run"): (2, "must name something"),
    ("unlearn", "run", "--client", "0", "--method", "exakt"): (3, "exact"),
    ("unlearn", "run", "--client", "0", "--method", "retrain-fedavg"): (2, "--method fedavg"),
    ("unlearn", "run", "--relabel", "abc"): (2, "ID=NUMBER"),
    ("unlearn", "run", "--client", "0", "--key", "no.pem"): (3, "openssl"),
    ("unlearn", "run", "--client", "0", "--test", "nowhere"): (3, "no set"),
    ("unlearn", "run", "--client", "0", "--sigma", "0.1"): (2, "--sigma"),
    ("unlearn", "run", "--client", "0", "--epsilon", "0.5"): (2, "--epsilon and --delta are asked of objective"),
    ("unlearn", "run", "--client", "0", "--unreleased"): (2, "Leave --unreleased out"),
    ("unlearn", "quiet", "--client", "0", "--method", "fedremoval"): (2, "give --unreleased"),
    ("export", "quiet", "quiet/states/0001/head"): (2, "inside the run"),
    ("export", "quiet", "released", "--state", "2"): (3, "has no state 2"),
    ("export", "nowhere", "released"): (3, "not a run folder"),
    ("unlearn", "lean", "--client", "0", "--server-only"): (2, "--keep statistics"),
    ("unlearn", "lean", "--client", "0", "--method", "retrain", "--server-only"): (2, "asked (--server-only)"),
    ("unlearn", "nowhere", "--client", "0"): (3, "not a run folder"),
    ("purge", "run", "--yes"): (2, "nothing was unlearned yet"),
}


@pytest.fixture
def run(probekit: Probekit, shelve: Shelve, store: DiskStore) -> Run:
    """A run of four clients that kept everything, one that kept nothing, and two with noise."""
    shelve("rows", rows=160)
    shelve("test", rows=40, seed=5)
    options: dict[str, Any] = {"clients": 4, "ridge": 0.01, "store": store}
    Run.train("lean", "rows", keep="nothing", **options)
    Run.train("noisy", "rows", objective_noise=2.0, **options)
    Run.train("quiet", "rows", release=1e-6, server_share=0.2, **options)
    return Run.train("run", "rows", server_share=0.2, **options)


def comparable(value: dict[str, Any]) -> dict[str, Any]:
    """What does not say where or how fast it was done, and is not drawn anew (the salts in a certificate)."""
    cost = {**value["cost"], "seconds": None}
    return {**value, "run": "", "certificate": "", "certificate_digest": "", "cost": cost}


@pytest.mark.parametrize("words", SAME, ids=" ".join)
def test_flags_are_the_arguments_of_the_library(words: tuple[str, ...], run: Run, probekit: Probekit) -> None:
    wanted = run.fork("other").unlearn(**SAME[words]).plain
    code, value, said = probekit("unlearn", "run", *words)
    assert code == 0, said
    assert comparable(value) == comparable(wanted)
    assert Path(value["certificate"]).is_file()


def test_samples_labels_and_returning_clients_by_flags(run: Run, probekit: Probekit, store: DiskStore) -> None:
    embeddings, rows = run.folder.embeddings(store), run.folder.partition().clients["1"]
    first, second = (embeddings.ids[int(row)] for row in rows[:2])
    words = ("--sample", f"1/{first[:12]}", "--relabel", f"{second}=2", "--client", "3")
    code, value, said = probekit("unlearn", "run", *words)
    assert code == 0, said
    assert value["request"] == {
        "clients": ["3"],
        "samples": [[first, "1"]],
        "relabelled": [[second, 2, None]],
        "added": [],
        "asked": [["operator", {}, None]],
    }
    assert probekit("unlearn", "run", *words)[1]["already_done"] is True
    assert probekit("unlearn", "run", "--add", "3")[1]["request"]["added"] == ["3"]


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_errors_have_their_exit_codes_and_name_flags(words: tuple[str, ...], run: Run, probekit: Probekit) -> None:
    code, value, _ = probekit(*words)
    assert (code, value["error"]["exit_code"]) == (WRONG[words][0], WRONG[words][0])
    assert WRONG[words][1] in value["error"]["message"]
    assert [Run.open(name, store=run.store).state for name in ("run", "lean", "noisy", "quiet")] == [1] * 4
    assert not Path("released").exists()


def test_certificates_are_signed_copied_and_checked(run: Run, probekit: Probekit) -> None:
    mine, other = new_private_key(), new_private_key()
    for name, key in (("key.pem", mine), ("mine.pub", public_key_of(mine)), ("other.pub", public_key_of(other))):
        Path(name).write_bytes(key)
    code, value, said = probekit("unlearn", "run", "--client", "2", "--key", "key.pem", "--certificate", "copy.json")
    assert code == 0, said
    assert Path("copy.json").read_bytes() == Path(value["certificate"]).read_bytes()
    assert probekit("verify", "copy.json", "--run", "run", "--public-key", "mine.pub")[0] == 7
    assert probekit("verify", "copy.json", "--run", "run", "--public-key", "mine.pub", "--require", "signature")[0] == 0
    assert probekit("verify", "copy.json", "--run", "run", "--public-key", "other.pub")[0] == 6
    assert probekit("verify", "copy.json", "--head", "run/states/0002/head")[0] == 7
    assert probekit("verify", "copy.json", "--head", "run/states/0001/head")[0] == 6
    sealed = json.loads(Path("copy.json").read_text())
    sealed["certificate"]["claims"][0]["value"] = 0.0
    Path("copy.json").write_text(json.dumps(sealed, sort_keys=True, indent=1) + "\n")
    assert probekit("verify", "copy.json", "--run", "run")[0] == 6


def test_objective_noise_is_asked_for_its_guarantee(run: Run, probekit: Probekit) -> None:
    code, value, said = probekit("unlearn", "noisy", "--client", "1", "--epsilon", "0.5", "--delta", "1e-6")
    assert code == 0, said
    assert (value["privacy"]["epsilon"], value["privacy"]["delta"]) == (0.5, 1e-6)


def test_purging_at_once_or_later(run: Run, probekit: Probekit) -> None:
    later = run.fork("later")
    code, value, _ = probekit("unlearn", "run", "--client", "2", "--purge")
    assert (code, value["purged"]["cache"]) == (0, None)
    assert not Path("run/states/0001").exists()
    code, value, _ = probekit("purge", "run", "--yes")
    assert (code, "purged already" in value["error"]["message"]) == (2, True)
    later.unlearn("2")
    code, value, _ = probekit("purge", "later", "--rows")
    assert (code, "it forgot them too: --also-runs" in value["error"]["message"]) == (2, True)
    code, value, said = probekit("purge", "later", "--rows", "--yes")
    assert (code, value["cache"]["remains"]) == (0, []), said
    assert str(Path("run").absolute()) in value["other_runs"]
    assert value["cache"]["rows"] == 32
    assert "the data set itself, and the clients' own files" in value["unreached"]


def test_an_interrupted_purge_is_finished_by_the_same_command(
    run: Run, probekit: Probekit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C15, through the command line: everything else refuses, nothing is called done too early."""

    def reached(step: str) -> None:
        if step == "files removed":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("probekit.cache.journal.reached", reached)
        assert probekit("unlearn", "run", "--client", "2", "--purge")[0] == 130
    for other in (["evaluate", "run"], ["unlearn", "run", "--client", "1"], ["report", "run"]):
        code, value, _ = probekit(*other)
        assert (code, "probekit purge" in value["error"]["message"]) == (4, True)
    code, value, _ = probekit("unlearn", "run", "--client", "2", "--purge")
    assert (code, value["already_done"], value["purged"]["complete"]) == (0, True, True)
    assert probekit("evaluate", "run")[0] == 0


def test_people_see_what_json_says(run: Run, command: Command, store: DiskStore) -> None:
    shown = command("unlearn", "run", "--client", "2", "--test", "test", "--purge", "--cache", str(store.root)).out
    for words in ("now in state 2", "client 2", "exact.", "to retraining at most", "provably get", "files removed"):
        assert words in " ".join(shown.split())
    again = command("unlearn", "run", "--client", "2", "--cache", str(store.root)).out
    assert "this was done before" in again
    assert "GFLOP" in again
