"""Who asked: clients by their keys, which stand in their leaves, or the operator."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from probekit.cache import DiskStore
from probekit.cli.main import run as command
from probekit.custody.petitions import OPERATOR, Petition
from probekit.custody.signatures import new_private_key, public_key_of, raw_public_key
from probekit.custody.slots import NONE
from probekit.errors import InputError, VerificationError
from probekit.runs.asking import client_of, petition
from probekit.runs.rows import request_of
from probekit.runs.run import Run
from probekit.unlearning.request import UnlearnRequest
from tests.shelves import Shelve
from tests.shelves import shelve as shelve

KEYS = {name: new_private_key() for name in ("1", "2")}


@pytest.fixture
def trained(shelve: Shelve, tmp_path: Path, store: DiskStore) -> Run:
    """A run of four clients, two of which gave their keys."""
    shelve("rows", rows=120)
    keys = {name: raw_public_key(key, private=True) for name, key in KEYS.items()}
    return Run.train(tmp_path / "run", "rows", clients=4, ridge=0.01, store=store, client_keys=keys)


@pytest.fixture
def asked(trained: Run, tmp_path: Path) -> Petition:
    """The petition of client 2."""
    trained.prove("2", tmp_path / "two.json")
    return petition(tmp_path / "two.json", tmp_path / "petition.json", key=KEYS["2"])


def test_keys_stand_in_the_leaves_and_stay_there(trained: Run) -> None:
    trained.unlearn("3")
    held = trained.folder.at().commitments()
    assert held is not None
    assert {name: one.key for name, one in held.leaves.items()} == {
        "0": NONE,
        **{name: raw_public_key(public_key_of(key)) for name, key in KEYS.items()},
    }


def test_a_client_asks_for_itself(trained: Run, asked: Petition, tmp_path: Path) -> None:
    read = Petition.read(tmp_path / "petition.json")
    assert read == asked
    assert client_of(trained.folder, read) == "2"
    done = trained.unlearn("2", asked=[read])
    entry = trained.folder.entries()[-1]
    assert request_of(entry).asked == (asked,)
    assert asked.by not in json.dumps(entry.stored)  # a key names a client
    assert asked.by not in done.path.read_text()
    found = {one.name: one.verdict for one in trained.verify().findings}
    assert found["asked"] == "proven"
    again = UnlearnRequest.of(["2"])
    assert again.digest == request_of(entry).digest
    assert again.asked == (Petition(OPERATOR),)


def test_petitions_of_others_are_refused(trained: Run, asked: Petition, tmp_path: Path) -> None:
    """Of another run, for another slot, by another key, not signed, or for somebody else's request."""
    with pytest.raises(VerificationError, match="the request is not about it"):
        trained.unlearn("1", asked=[asked])
    own = raw_public_key(KEYS["1"], private=True).hex()
    for wrong in (
        replace(asked, said={**asked.said, "run": "00" * 32}),
        replace(asked, said={**asked.said, "slot": 17}),
        replace(asked, by=own),
        replace(asked, signature=None),
        replace(asked, by=OPERATOR, said={"reference": "x"}),
    ):
        with pytest.raises(VerificationError):
            trained.unlearn("2", asked=[wrong])
    for said in ({**asked.said, "run": "00" * 32}, {**asked.said, "slot": 17}):
        with pytest.raises((VerificationError, InputError)):
            trained.unlearn("2", asked=[Petition(asked.by, said).signed(KEYS["2"])])
    with pytest.raises(VerificationError, match="gave another one"):
        trained.unlearn("2", asked=[Petition(own, asked.said).signed(KEYS["1"])])
    with pytest.raises(InputError, match="another public key than yours"):
        petition(tmp_path / "two.json", tmp_path / "other.json", key=KEYS["1"])
    assert trained.state == 1


def test_a_client_without_a_key_asks_the_operator(trained: Run, tmp_path: Path) -> None:
    trained.prove("3", tmp_path / "three.json")
    found = petition(tmp_path / "three.json", tmp_path / "petition.json", key=new_private_key())
    with pytest.raises(VerificationError, match="gave no key"):
        trained.unlearn("3", asked=[found])


@pytest.mark.parametrize("text", ["", "{}", "[" * 20_000, "\ud800".encode("utf-8", "surrogatepass"), b"\xff", "[1]"])
def test_what_is_no_petition_is_refused(tmp_path: Path, text: str | bytes) -> None:
    path = tmp_path / "petition.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(VerificationError, match="is not a petition"):
        Petition.read(path)


def test_keys_and_petitions_by_command(
    shelve: Shelve,
    tmp_path: Path,
    store: DiskStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBEKIT_CACHE", str(store.root))
    shelve("rows", rows=120)
    Path("keys").mkdir()
    for name, key in KEYS.items():
        Path(f"keys/{name}.pem").write_bytes(public_key_of(key))
    Path("me.pem").write_bytes(KEYS["1"])
    line = ["train", "rows", "--run", "run", "--clients", "4", "--ridge", "0.01", "--client-keys"]
    assert command([*line, "nowhere"]) == 3
    assert command([*line, "keys"]) == 0
    assert command(["prove", "run", "--client", "1"]) == 0
    assert command(["petition", "receipt.json", "--key", "me.pem"]) == 0
    assert Petition.read(Path("petition.json")).by == raw_public_key(KEYS["1"], private=True).hex()
    Path("keys/9.pem").write_bytes(public_key_of(KEYS["1"]))
    assert command([*line, "keys", "--force"]) == 2
    assert "a key of client 9" in capsys.readouterr().err
