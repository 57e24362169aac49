"""`evaluate`, `verify` and `audit`: flags become arguments, results become JSON or text, errors exit codes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit import Run
from probekit.cache import DiskStore
from probekit.cli.evaluate import _share
from probekit.evaluation.metrics import Share
from tests.cli.conftest import Command, Probekit
from tests.conftest import spec
from tests.shelves import Shelve, rows_around_centres
from tests.shelves import shelve as shelve

CERTIFICATE = "run/states/0002/certificate.json"
ATTACK = ("--client", "a", "--unseen", "test", "--most", "30", "--shadows", "8", "--seed", "2")
SAME: dict[tuple[str, ...], Callable[[Run], Any]] = {
    ("evaluate", "run"): lambda run: run.evaluate(),
    ("evaluate", "run", "test", "rows", "--state", "1"): lambda run: run.evaluate("test", "rows", state=1),
    (
        "evaluate",
        "run",
        "test",
        "--knn",
        "3",
        "--shots",
        "1, 2",
        "--draws",
        "2",
        "--seed",
        "4",
        "--confidence",
        "0.9",
    ): (lambda run: run.evaluate("test", knn=3, shots=(1, 2), draws=2, seed=4, confidence=0.9)),
    ("evaluate", "run", "test", "--triggered", "pasted", "--target", "1"): (
        lambda run: run.evaluate("test", triggered="pasted", target=1)
    ),
    ("verify", CERTIFICATE, "--run", "run"): lambda run: run.verify(CERTIFICATE),
    ("verify", CERTIFICATE, "--run", "run", "--rows", "--test", "test"): (
        lambda run: run.verify(CERTIFICATE, rows=True, test="test")
    ),
    ("audit", "influence", "run"): lambda run: run.influence(),
    ("audit", "influence", "run", "--test", "test", "--state", "1"): lambda run: run.influence(test="test", state=1),
    ("audit", "duplicates", "run"): lambda run: run.duplicates(),
    ("audit", "duplicates", "run", "--test", "test", "--threshold", "0.5", "--client", "a", "--limit", "9999"): (
        lambda run: run.duplicates(test="test", threshold=0.5, client="a", limit=9999)
    ),
    ("audit", "membership", "run"): lambda run: run.membership(),
    ("audit", "membership", "run", *ATTACK): (
        lambda run: run.membership(client="a", unseen="test", most=30, shadows=8, seed=2)
    ),
}
WRONG = {
    ("evaluate", "nothing"): (3, "not a run folder"),
    ("evaluate", "run", "foreign"): (4, "differ in weights"),
    ("evaluate", "run", "--shots", "one"): (2, "whole numbers"),
    ("evaluate", "run", "rows", "--knn", "3"): (2, "--knn learns from the training rows"),
    ("evaluate", "run", "--state", "7"): (3, "it has 1, 2"),
    ("audit", "influence", "run", "--test", "nothing"): (3, "nothing"),
    ("audit", "influence", "run", "--test", "foreign"): (4, "differ in weights"),
    ("audit", "duplicates", "run", "--client", "z"): (3, "no client 'z'"),
    ("audit", "membership", "run", "--client", "z"): (3, "no client 'z'"),
    ("audit", "membership", "bare", "--client", "a"): (2, "Name a set with --unseen"),
    ("verify", "run/run.json", "--run", "run"): (6, "not a certificate"),
    ("verify", "nothing.json", "--run", "run"): (3, "There is no certificate"),
    ("verify", CERTIFICATE): (2, "--run FOLDER, or --head FOLDER"),
    ("verify", CERTIFICATE, "--run", "run", "--public-key", "no.pem"): (3, "no key file"),
}


@pytest.fixture
def run(probekit: Probekit, shelve: Shelve, store: DiskStore) -> Run:
    """A run of three clients of different sizes; two samples are held twice, and client `wrong` is forgotten."""
    rows, labels = rows_around_centres(160, 5, 3, seed=0)
    rows[41], rows[90] = rows[0], rows[1]
    labels[40:80] = (labels[40:80] + 1) % 3
    owners = ("a",) * 40 + ("wrong",) * 40 + ("c",) * 80
    shelve("rows", embeddings=rows, labels=labels, clients=owners)
    shelve("test", rows=70, seed=5)
    shelve("pasted", rows=50, seed=6, spec=spec(trigger="square"))
    shelve("foreign", seed=1, spec=spec(weights="1" * 64))
    Run.train("bare", "rows", partition="column:client_id", ridge=0.01, store=store)
    made = Run.train("run", "rows", partition="column:client_id", server_share=0.2, ridge=0.01, store=store)
    made.unlearn("wrong", test="test")
    return made


@pytest.mark.parametrize("words", SAME, ids=" ".join)
def test_json_is_the_plain_values_of_what_the_library_gives(
    words: tuple[str, ...], run: Run, probekit: Probekit
) -> None:
    code, value, said = probekit(*words)
    assert code == (7 if words[0] == "verify" else 0), said
    assert value == SAME[words](run).plain


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_errors_have_their_exit_codes_and_name_flags(words: tuple[str, ...], run: Run, probekit: Probekit) -> None:
    code, value, _ = probekit(*words)
    assert (code, value["error"]["exit_code"]) == (WRONG[words][0], WRONG[words][0])
    assert WRONG[words][1] in value["error"]["message"]


def test_a_ledger_that_was_changed_exits_6(run: Run, probekit: Probekit) -> None:
    ledger = Path("run/ledger.jsonl")
    ledger.write_bytes(ledger.read_bytes().replace(b'"train"', b'"trian"'))
    for words in (("evaluate", "run"), ("audit", "influence", "run"), ("audit", "membership", "run")):
        assert probekit(*words)[0] == 6


def test_people_see_what_json_says(run: Run, command: Command, store: DiskStore) -> None:
    def shown(*words: str) -> str:
        return " ".join(command(*words, "--cache", str(store.root)).out.split())

    text = shown("evaluate", "run", "rows", "--triggered", "pasted", "--target", "1")
    for words in (
        "training accuracy",
        "WAS trained on",
        "per class",
        "per client",
        "confusion",
        "square gives class 1",
    ):
        assert words in text
    lines = command("audit", "influence", "run", "--state", "1", "--cache", str(store.root)).out.splitlines()
    assert lines[-3].startswith("wrong")
    assert all("points" in line for line in lines[-3:])
    text = shown("audit", "duplicates", "run", "--test", "rows")
    for words in ("stay known when it leaves", "same sample", "flatters"):
        assert words in text
    text = shown("audit", "membership", "run")
    for words in ("by loss", "by likelihood ratio", "retrained", "cannot be told apart"):
        assert words in text
    text = shown("verify", CERTIFICATE, "--run", "run")
    for words in ("Nothing is false, but not all is proven.", "residual", "an anchor"):
        assert words in text


def test_many_classes_show_what_is_confused_most(command: Command, shelve: Shelve, store: DiskStore) -> None:
    shelve("small", rows=200, classes=25, labels=np.arange(200) % 25)
    for arguments in (("train", "small", "--run", "r", "--server-share", "0.3"), ("evaluate", "r", "--shots", "1")):
        outcome = command(*arguments, "--cache", str(store.root))
        assert outcome.code == 0, outcome.err
    assert "confused most" in outcome.out
    assert "the worst 20 of 25" in outcome.out
    assert "few-shot" in outcome.out
    assert "\naccuracy" in outcome.out


def test_people_see_what_is_rare(run: Run, command: Command, shelve: Shelve, store: DiskStore) -> None:
    def shown(*words: str) -> str:
        outcome = command(*words, "--cache", str(store.root))
        assert outcome.code == 0, outcome.err
        return " ".join(outcome.out.split())

    labels = np.arange(70) % 3
    labels[:5] = -1
    shelve("gaps", rows=70, seed=5, labels=labels)
    text = shown("evaluate", "run", "gaps", "--knn", "3")
    for words in ("5 rows without a label", "3-NN"):
        assert words in text
    shelve("few", rows=30, seed=9)
    Run.train("apart", "few", clients=2, ridge=0.01, store=store)
    text = shown("audit", "duplicates", "apart")
    assert "0 pairs of rows" in text
    assert "per client" not in text
    assert "flatters" in shown("audit", "duplicates", "apart", "--test", "test")
    Run.train("untold", "rows", partition="column:client_id", ridge=0.01, keep="nothing", store=store)
    assert "by loss" in shown("audit", "membership", "run", "--unseen", "test")
    unlearned = shown("unlearn", "untold", "--client", "a", "--method", "retrain")
    assert "certificate" in unlearned
    assert "no rows" in _share(Share("nobody", 0, 0, None, None, None, 0.95, "none"))
