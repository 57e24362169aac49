"""Every verb of a run whose rows lie with the clients: as of any other, or one sentence says where the rows are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit import Run
from probekit.cache import DiskStore
from probekit.custody.petitions import Petition
from probekit.custody.signatures import new_private_key, raw_public_key
from probekit.errors import InputError, MismatchError, NotFoundError, Pending
from probekit.runs import federation
from probekit.runs.asking import petition
from probekit.values import EmbeddingSet
from tests.runs.parties import PlayedParty
from tests.runs.test_elsewhere import NAMES
from tests.runs.test_elsewhere import party as party
from tests.runs.test_elsewhere import rows as rows
from tests.shelves import Shelve
from tests.shelves import shelve as shelve

KEYS = {name: new_private_key() for name in NAMES}
AWAY = "its rows lie with the clients"


@pytest.fixture
def run(shelve: Shelve, store: DiskStore, party: PlayedParty, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Four clients elsewhere with keys, found again by the name of their party, and a test set here."""
    party.embeddings = replace(party.embeddings, embeddings=np.array(party.embeddings.embeddings))  # not in this cache
    party.keys = {name: raw_public_key(key, private=True) for name, key in KEYS.items()}
    monkeypatch.setattr("probekit.runs.retained.open_party", {"played": party}.__getitem__)
    shelve("test", rows=60, dimension=12, seed=1)
    shelve("own", rows=50, dimension=12, seed=2)
    return Run.train(tmp_path / "run", federation=party, ridge=0.01, server_set="own", store=store)


def test_a_run_finds_its_clients_again(run: Run, party: PlayedParty) -> None:
    party.log.clear()
    run.unlearn("a", method="retrain")
    assert {name for *_, name in party.log} == {"b", "c", "d"}
    again = run.fork(run.path.parent / "fork")
    again.unlearn("b", method="retrain")
    assert tuple(again.trained().counts) == ("c", "d")


def test_heads_are_judged_on_sets_here(run: Run) -> None:
    run.unlearn("b")
    found = run.evaluate("test", "own")
    assert [one.kind for one in found.results] == ["test", "server"]
    assert found.results[0].also_trained_on is None
    assert run.evaluate().results[0].kind == "server"
    assert run.evaluate().results[0].rows == 50
    for given in ({"knn": 3}, {"shots": (1,)}):
        with pytest.raises(NotFoundError, match=AWAY):
            run.evaluate("test", **given)


def test_reports_and_proofs_are_those_of_any_run(run: Run, party: PlayedParty, tmp_path: Path) -> None:
    run.unlearn("b", test="test")
    assert run.verify(test="test").intact
    party.log.clear()
    assert run.verify(rows=True).intact
    assert sorted(name for *_, name in party.log) == ["a", "c", "d"]
    report = run.report(["test"])
    report.write(tmp_path / "page")
    assert len(report.pages) == 1
    assert "with the clients" in "".join(path.read_text() for path in (tmp_path / "page").glob("*.json"))
    run.prove("a", tmp_path / "a.json")
    assert (tmp_path / "a.json").exists()
    assert {one.client for one in run.influence().clients} == {"a", "c", "d"}


LOOKS: dict[str, Callable[[Run], Any]] = {
    "duplicates": lambda run: run.duplicates(),
    "membership": lambda run: run.membership(client="a"),
    "purge rows": lambda run: run.purge(rows=True),
    "subjects": lambda run: run.unlearn(subjects=["patient=1"]),
}


@pytest.mark.parametrize("verb", LOOKS)
def test_what_needs_rows_says_where_they_are(verb: str, run: Run) -> None:
    run.unlearn("b")
    with pytest.raises(NotFoundError, match=AWAY):
        LOOKS[verb](run)


def test_a_purge_removes_what_the_server_had_of_the_forgotten(run: Run) -> None:
    run.unlearn("b")
    assert run.purge().complete
    assert run.folder.states() == [2]
    assert run.verify().intact


@pytest.mark.parametrize("asked_by", ["client", "operator"])
def test_a_client_is_erased_by_its_own_petition_or_by_the_operator(asked_by: str, run: Run, tmp_path: Path) -> None:
    given: dict[str, Any] = {"client": "c"}
    if asked_by == "client":
        run.prove("c", tmp_path / "receipt.json")
        petition(tmp_path / "receipt.json", tmp_path / "petition.json", key=KEYS["c"])
        given = {"petition": Petition.read(tmp_path / "petition.json")}
    done = run.erase(**given)
    assert done.complete
    assert tuple(run.trained().counts) == ("a", "b", "d")
    assert ("a client, by a petition" in str(done.records[0].plain)) == (asked_by == "client")
    assert run.erase(**given).already_done


def test_samples_of_a_client_are_erased_by_their_full_names(run: Run, rows: EmbeddingSet, party: PlayedParty) -> None:
    sample = rows.ids[int(party.rows["c"][0])]
    before = run.trained().counts["c"]
    with pytest.raises(InputError, match="a sample is written CLIENT/ID"):
        run.erase(samples=[sample])
    assert run.erase(samples=[f"c/{sample}"]).complete
    assert run.trained().counts["c"] == before - 1
    assert federation.on_engine(str(run.folder.config["federation"])) is False


def test_rows_of_the_server_are_not_erased_from_under_it(run: Run, store: DiskStore, tmp_path: Path) -> None:
    local = Run.train(tmp_path / "local", "own", clients=5, ridge=0.01, store=store)
    with pytest.raises(InputError, match="other runs use rows that would be erased"):
        local.erase("3")


def test_clients_that_answer_otherwise_or_left_are_found_when_rows_are_verified(
    run: Run, rows: EmbeddingSet, party: PlayedParty
) -> None:
    run.unlearn("b")
    whole = party.embeddings
    changed = np.array(whole.embeddings)
    changed[party.rows["c"]] += 1
    party.embeddings = replace(whole, embeddings=changed)
    assert not run.verify(rows=True).intact
    party.embeddings = whole.select(np.flatnonzero(np.asarray(whole.clients) != "c"))
    with pytest.raises(MismatchError, match=r"Client c of .* is not in the federation"):
        run.verify(rows=True)


def test_verifying_leaves_a_request_that_is_awaited_its_job(run: Run, party: PlayedParty) -> None:
    run.unlearn("b")
    party.log.clear()
    party.awaited = 1
    with pytest.raises(Pending):
        run.unlearn("c", method="retrain")
    party.awaited = None
    assert run.verify(rows=True).intact
    assert run.unlearn("c", method="retrain").state == 3
    begun, verified, ended = (party.log[place][0] for place in (0, 1, -1))
    assert begun == ended != verified
    assert not run.path.with_name(f".{run.path.name}.job").exists()
