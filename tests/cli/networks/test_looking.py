"""What people see of runs of whole networks, and which flags they may give."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Command, Probekit
from tests.cli.networks.shop import Shop, certificate, sentence


def test_people_read_it_without_json(trained: Path, command: Command, shop: Shop) -> None:
    base = ("--cache", shop.cache)
    for arguments in (
        ("unlearn", trained, "--client", "1", "--test", "test"),
        ("verify", certificate(trained), "--run", trained),
        ("evaluate", trained, "test", "--triggered", "test-triggered"),
        ("report", trained),
        ("audit", "influence", trained),
    ):
        found = command(*arguments, *base)
        assert found.code == (7 if arguments[0] == "verify" else 0), (arguments, found.err)
        assert len(found.out) > 100


def test_what_a_network_does_not_have_is_refused_by_its_flag(trained: Path, probekit: Probekit) -> None:
    for words in (
        ("evaluate", trained, "test", "--shots", "1,2"),
        ("audit", "membership", trained),
        ("unlearn", trained, "--client", "1", "--method", "exact"),
        ("unlearn", trained, "--client", "1", "--method", "retrain-fedavg"),
    ):
        code, _, said = probekit(*words)
        assert (code, bool(sentence(said))) == (2, True)
    assert "--method fedavg" in said
