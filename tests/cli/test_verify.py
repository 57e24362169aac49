"""`verify` of a run by itself, and what it says when it is given something else."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Probekit
from tests.shelves import Shelve
from tests.shelves import shelve as shelve


def test_a_run_alone_is_held_against_its_last_certificate(probekit: Probekit, shelve: Shelve) -> None:
    shelve("small")
    assert probekit("train", "small", "--run", "r", "--ridge", "0.1", "--clients", "4")[0] == 0
    code, value, _ = probekit("verify", "r")
    assert code == 2
    assert "Nothing was unlearned" in value["error"]["message"]
    assert probekit("unlearn", "r", "--client", "1")[0] == 0
    by_name = probekit("verify", "r/states/0002/certificate.json", "--run", "r")
    assert probekit("verify", "r")[:2] == probekit("verify", "--run", "r")[:2] == by_name[:2]
    assert by_name[0] == 7


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (["nothing.json"], 3, "no certificate, bundle or run nothing.json"),
        ([], 2, "Say what to check"),
        (["."], 3, "is not a run folder"),
        ([".", "--head", "h"], 2, "is a folder"),
        (["--receipt", "x"], 2, "A receipt is checked against a run"),
    ],
)
def test_what_cannot_be_verified_is_named(probekit: Probekit, given: list[str], code: int, said: str) -> None:
    found, value, _ = probekit("verify", *given)
    assert (found, said in value["error"]["message"]) == (code, True), value


def test_what_is_missing_is_said_before_anything_is_asked(probekit: Probekit, shelve: Shelve) -> None:
    shelve("small")
    assert probekit("train", "small", "--run", "r", "--ridge", "0.1", "--clients", "4")[0] == 0
    code, value, _ = probekit("erase", "r")
    assert (code, "Say what to erase" in value["error"]["message"]) == (2, True)
    code, value, _ = probekit("purge", "none")
    assert (code, "is not a run folder" in value["error"]["message"]) == (3, True)
