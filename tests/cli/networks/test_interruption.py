"""Work on whole networks that is stopped halfway."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from probekit.cache import DiskStore
from probekit.cli import ledger
from probekit.cli.runs import Run
from probekit.cli.unlearning import Wanted, carry_out, read_request
from tests.cli.conftest import Command
from tests.cli.networks.shop import (
    FORK,
    Shop,
    certificate,
    network_head,
)
from tests.cli.shelves import Probekit


@pytest.mark.parametrize("place", ["certify", "train"])
def test_an_interrupted_unlearning_leaves_the_old_run(
    trained: Path, probekit: Probekit, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    with monkeypatch.context() as broken:
        if place == "certify":
            broken.setattr("probekit.cli.unlearning.certify", stop)
        else:
            broken.setattr("probekit.unlearning.network_retrain.train_holders", stop)
        code, _, said = probekit("unlearn", trained, "--client", "1", "--method", "retrain")
        assert (code, "Interrupted" in said) == (130, True)
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before
    code, value, _ = probekit("unlearn", trained, "--client", "1")
    assert (code, value["state"]) == (0, 2)


def _killed(path: Path, root: Path, before: str) -> None:
    """Forget a client and die at a step of the writing."""
    import probekit.cli.runs as runs

    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(runs if before == "sync_folder" else ledger, before, die)
    carry_out(Run.open(path), DiskStore(root), read_request(["1"]), Wanted("fedremoval:dual"))


@pytest.mark.parametrize("before", ["sync_folder", "append"])
def test_killed_while_writing_the_run_is_the_old_one(
    trained: Path, probekit: Probekit, shop: Shop, before: str
) -> None:
    process = FORK.Process(target=_killed, args=(trained, shop.cache, before))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    opened = Run.open(trained)
    assert opened.state == 1
    assert opened.head().digest == network_head(trained).digest
    code, value, said = probekit("unlearn", trained, "--client", "1")
    assert (code, value.get("state")) == (0, 2), said
    assert probekit("verify", certificate(trained), "--run", trained)[0] == 0


@pytest.mark.parametrize(
    ("name", "words"), [("train", ("--backend", "--network-weights", "py:module:factory")), ("unlearn", ("dual|pcg",))]
)
def test_help_names_the_options_of_networks(
    command: Command, monkeypatch: pytest.MonkeyPatch, name: str, words: Sequence[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    found = command(name, "--help")
    assert found.code == 0
    assert all(word in found.out for word in ("whole network", *words))
