"""What stands sealed in the ledger: opened while it may be, erased by purge, and worth nothing to whoever guesses."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit import Run
from probekit.cache import DiskStore
from probekit.certificates.certificate import certificate_text, read_certificate
from probekit.custody.seals import Opening
from probekit.custody.seals import opened as is_open
from probekit.custody.slots import row_ids_digest
from probekit.errors import CorruptError, InputError, VerificationError
from probekit.federated.partition import partition
from probekit.runs import ledger
from probekit.runs.folder import RunFolder
from probekit.runs.ledger import Event
from probekit.runs.openings import certificate_openings, erase_openings, openings_path, read_openings, write_openings
from probekit.runs.rows import request_of
from probekit.runs.verification import verify_head
from probekit.unlearning.request import SampleRef, UnlearnRequest, asked
from probekit.values import EmbeddingSet, canonical
from tests.runs.conftest import Opened
from tests.shelves import Shelve, rows_around_centres
from tests.shelves import shelve as shelve
from tests.verdicts import STORY, unproven

SECRET = Event("unlearn", {"head": "a" * 64, "state": 1}, {"request": {"clients": ["Ann"]}, "method": "exact"})


@pytest.fixture
def trained(shelve: Shelve, tmp_path: Path, store: DiskStore) -> Path:
    """A run of four clients that kept everything."""
    shelve("rows", rows=160)
    Run.train(tmp_path / "run", "rows", clients=4, server_share=0.2, ridge=0.01, store=store)
    return tmp_path / "run"


def texts(run: Path) -> str:
    """Everything that a run's folder says in words."""
    return "".join(path.read_text("latin-1") for path in sorted(run.rglob("*")) if path.is_file())


def test_the_file_shows_seals_and_the_reader_values(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    entry = ledger.follow(None, SECRET, {"state": 2, "head": "b" * 64})
    ledger.append(path, entry)
    line = path.read_text()
    assert "Ann" not in line
    assert "a" * 64 not in line
    assert "b" * 64 not in line
    assert '"method":"exact"' in line
    [found] = ledger.read(path, entry.digest)
    assert found == entry
    assert found.details["request"] == {"clients": ["Ann"]}


def test_equal_values_have_unequal_seals(tmp_path: Path) -> None:
    first, second = (ledger.follow(None, SECRET, {"state": 2}) for _ in range(2))
    assert first.stored["inputs"]["head"] != second.stored["inputs"]["head"]
    salts = {one.salt for entry in (first, second) for one in entry.openings.values()}
    assert len(salts) == len(first.openings) + len(second.openings)


def test_the_chain_holds_without_openings(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    first = ledger.follow(None, SECRET, {"state": 2})
    ledger.append(path, first)
    second = ledger.follow(first, SECRET, {"state": 3})
    ledger.append(path, second)
    erase_openings(openings_path(tmp_path, 1), lambda place: False)
    erase_openings(openings_path(tmp_path, 2), lambda place: place == "inputs.head")
    found = ledger.read(path, second.digest)
    assert [one.digest for one in found] == [first.digest, second.digest]
    assert [is_open(one.inputs["head"]) for one in found] == [False, True]
    assert not any(is_open(one.details["request"]) for one in found)
    with pytest.raises(InputError, match="erased by a purge"):
        request_of(found[0])
    assert [path.name for path in (tmp_path / "openings").iterdir()] == ["000002.json"]
    for number in (1, 2, 2):
        erase_openings(openings_path(tmp_path, number), lambda place: False)
    assert list((tmp_path / "openings").iterdir()) == []


def _other_value(said: Any) -> Any:
    return {**said, "inputs.head": [said["inputs.head"][0], "c" * 64]}


def _other_salt(said: Any) -> Any:
    return {**said, "inputs.head": ["0" * 64, said["inputs.head"][1]]}


def _swapped(said: Any) -> Any:
    return {**said, "inputs.head": said["details.request"], "details.request": said["inputs.head"]}


def _unsealed_place(said: Any) -> Any:
    return {**said, "inputs.state": ["0" * 64, 7]}


@pytest.mark.parametrize(
    "forge",
    [
        *(_other_value, _other_salt, _swapped, _unsealed_place),
        lambda said: [],
        lambda said: {"inputs.head": 7},
        lambda said: {"inputs.head": ["zz", 1]},
        lambda said: {"nowhere": ["0" * 64, 1]},
    ],
)
def test_forged_openings_are_refused(tmp_path: Path, forge: Callable[[Any], Any]) -> None:
    path = tmp_path / "ledger.jsonl"
    entry = ledger.follow(None, SECRET, {"state": 2})
    ledger.append(path, entry)
    place = tmp_path / "openings/000001.json"
    place.write_text(canonical(forge(json.loads(place.read_text()))))
    with pytest.raises(VerificationError):
        ledger.read(path, entry.digest)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 50_000])
def test_damaged_openings_are_told(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "ledger.jsonl"
    entry = ledger.follow(None, SECRET, {"state": 2})
    ledger.append(path, entry)
    (tmp_path / "openings/000001.json").write_bytes(data)
    with pytest.raises(VerificationError, match="is damaged"):
        ledger.read(path, entry.digest)


def test_lines_with_duplicate_keys_are_refused(tmp_path: Path) -> None:
    """C12: two readers must not read two things in one line."""
    path = tmp_path / "ledger.jsonl"
    entry = ledger.follow(None, Event("train"), {"state": 1})
    path.write_bytes(entry.line.replace(b'{"action"', b'{"action":"purge","action"', 1))
    with pytest.raises(VerificationError, match="not the one that was written"):
        ledger.read(path, entry.digest)
    path.write_bytes(entry.line.replace(b'"number":1', b'"number": 1', 1))
    with pytest.raises(VerificationError, match="not the one that was written"):
        ledger.read(path, entry.digest)


def test_a_killed_process_leaves_no_openings(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    first = ledger.follow(None, SECRET, {"state": 2})
    ledger.append(path, first)
    second = ledger.follow(first, SECRET, {"state": 3})
    whole = path.read_bytes()
    ledger.append(path, second)
    path.write_bytes(whole)  # killed between the openings and the line
    ledger.LedgerFile(path).cut(first.digest)
    assert [one.name for one in (tmp_path / "openings").iterdir()] == ["000001.json"]


def test_without_openings_of_its_state_a_run_does_not_open(trained: Path) -> None:
    shutil.rmtree(trained / "openings")
    with pytest.raises(CorruptError, match="no entry for state 1, or its file in openings/ is missing"):
        RunFolder.open(trained).trained()


def test_purge_erases_what_earlier_states_were(trained: Path, opened: Opened) -> None:
    """C13, C19: digests of heads and statistics that contained the forgotten."""
    run = opened(trained)
    before, statistics = run.head().digest, run.trained().statistics
    assert statistics is not None
    digests = [before, statistics["2"].digest]
    run.unlearn("2")
    assert "client 2" in run.unlearn("2").asked
    run.purge()
    entries = RunFolder.open(trained).entries()
    assert not is_open(entries[0].outputs["head"])
    assert not is_open(entries[0].outputs["trained"])
    assert not is_open(entries[1].inputs["head"])
    assert is_open(entries[1].outputs["trained"])
    assert request_of(entries[1]).clients == ("2",)  # its rows are in the cache still
    assert [one for one in digests if one in texts(trained)] == []
    assert run.unlearn("1").state == 3


def test_purge_of_rows_erases_requests_and_sets(trained: Path, opened: Opened, store: DiskStore) -> None:
    """C19: a sample's id is a hash of its content, and a set's digest is one of all ids."""
    run = opened(trained)
    embeddings = run.folder.embeddings(store)
    sample = embeddings.ids[run.folder.partition().clients["1"][0]]
    digests = [sample, embeddings.digest, run.folder.partition().digest, run.head().digest]
    run.unlearn(samples=[sample])
    run.purge(rows=True)
    assert [one for one in digests if one in texts(trained)] == []
    again = opened(trained)
    again.unlearn("2")
    again.purge(rows=True)
    assert len(again.trained().counts) == 3
    assert '"sealed"' in texts(trained)


def test_certificates_name_nobody(trained: Path, opened: Opened) -> None:
    """C20: whoever gets one learns how many others there are, and neither who asked nor who stays."""
    run = opened(trained)
    made = run.unlearn(clients=["2", "3"], method="fedremoval-line")
    text = made.path.read_text()
    said = json.loads(text)["certificate"]
    assert said["retained"].keys() == {"clients", "rows", "sealed"}
    assert (said["retained"]["clients"], said["retained"]["rows"]) == (2, sum(made.certificate.retained.values()))
    assert said["before"].keys() == {"sealed"}
    assert [one.keys() for one in said["request"]["clients"]] == [{"sealed"}] * 2
    changed = next(one for one in said["claims"] if one["kind"] == "loss_change")
    assert changed.keys() == {"kind", "sealed"}
    stranger, _ = read_certificate(text)
    assert (stranger.retained, stranger.retained_numbers) == ({}, made.certificate.retained_numbers)
    assert stranger.digest == made.certificate.digest
    assert certificate_text(stranger) == text
    assert not any(one.salt in text for one in made.certificate.openings.values())
    openings = made.certificate.openings
    assert set(openings) == {
        "request.clients.0",
        "request.clients.1",
        "request.asked.0",
        "before",
        "retained",
        "loss_change",
    }
    one, _ = read_certificate(text, {"request.clients.1": openings["request.clients.1"]})
    assert one.request["clients"] == [openings["request.clients.0"].seal, "3"]  # who asked sees itself alone
    assert asked(one.request) == "a client (sealed), client 3"
    assert one.digest == made.certificate.digest


def test_a_certificate_of_many_clients_is_small(shelve: Shelve, tmp_path: Path, store: DiskStore) -> None:
    """C20: 220 kB at 10,000 clients, before."""
    shelve("many", rows=600)
    run = Run.train(tmp_path / "run", "many", clients=300, ridge=0.01, store=store)
    few = len(run.unlearn("7").path.read_bytes())
    assert few < 8_000
    assert run.verify(rows=True).intact


def test_a_stranger_and_the_run_verify_the_same_certificate(
    trained: Path, opened: Opened, tmp_path: Path, store: DiskStore
) -> None:
    run = opened(trained)
    made = run.unlearn("2")
    (tmp_path / "copy.json").write_bytes(made.path.read_bytes())
    assert unproven(run.verify(tmp_path / "copy.json", rows=True)) == STORY
    alone = {
        one.name: one for one in verify_head(tmp_path / "copy.json", made.path.parent / "head", store=store).findings
    }
    assert (alone["before"].verdict, alone["before"].claimed) == ("not proven", "sealed")
    assert alone["head"].verdict == "proven"
    assert alone["retained"].claimed == f"3 clients, {sum(made.certificate.retained.values())} rows"


def test_a_forged_opening_of_a_certificate_opens_nothing(trained: Path, opened: Opened) -> None:
    run = opened(trained)
    run.unlearn("2")
    path = certificate_openings(trained, 2)
    whole = read_openings(path)
    for place in ("request.clients.0", "request.clients.7", "request.others.0"):
        write_openings(path, {**whole, place: replace(whole["request.clients.0"], value="3")})
        opened(trained).verify(rows=True)
    write_openings(path, {**whole, "request.clients.0": replace(whole["request.clients.0"], value="3")})
    found = run.verify(rows=True)
    assert next(one for one in found.findings if one.name == "request").claimed == "a client (sealed)"
    assert not found.proven
    write_openings(path, {**whole, "retained": replace(whole["retained"], value={"0": 1})})
    assert "retained" in unproven(run.verify(rows=True))
    path.write_text("[]")
    with pytest.raises(VerificationError, match="is damaged"):
        run.verify()


def test_after_a_purge_of_rows_the_certificate_still_verifies(trained: Path, opened: Opened, store: DiskStore) -> None:
    run = opened(trained)
    sample = run.folder.embeddings(store).ids[run.folder.partition().clients["1"][0]]
    run.unlearn("2", samples=[sample])
    run.purge(rows=True)
    found = opened(trained).verify(rows=True)
    assert unproven(found) == STORY | {"before"}
    claimed = next(one for one in found.findings if one.name == "request").claimed
    assert claimed == "a client (sealed), 1 samples forgotten"
    assert opened(trained).report().write(trained / "report") is not None


HEX = re.compile(rb"[0-9a-f]{64}")


def matches(run: Path, retained: EmbeddingSet, rows: np.ndarray[Any, Any], candidate: tuple[Any, int, str]) -> set[str]:
    """What in a run's folder fits a candidate that client 1 may have held: every digest that anybody could compute."""
    vector, label, sample = candidate
    folder = RunFolder.open(run)
    after, committed = folder.trained(), folder.at().commitments()
    assert after.statistics is not None
    assert committed is not None
    ids = [retained.ids[row] for row in rows] + [sample]
    own = replace(
        retained,
        embeddings=np.concatenate([retained.to_numpy()[rows], vector[None]]),
        labels=np.append(retained.labels[rows], label),
        ids=ids,
    )
    statistics = after.problem.hold(own, np.arange(len(ids))).statistics
    total = reduce(add, [statistics, *(one for name, one in after.statistics.items() if name != "1")])
    request = UnlearnRequest(samples=(SampleRef(sample),))
    values: dict[str, Any] = {
        "id": sample,
        "head": after.minimum(total)[0].digest,
        "statistics": statistics.digest,
        "ids": row_ids_digest(ids).hex(),
        "request": request.digest,
    }
    data = b"".join(path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file())
    known = {one.decode() for one in HEX.findall(data)}
    every = [folder.at(state).commitments() for state in folder.states()]
    binary = {bytes.fromhex(one) for one in known}
    binary |= {leaf.salt for one in every if one is not None for leaf in one.leaves.values()}
    found = {name for name, value in values.items() if value in known}
    for salt in binary:  # anything of 32 bytes may be a salt
        for name, value in (*values.items(), ("request itself", request.plain)):
            if Opening(salt.hex(), value).seal["sealed"] in known:
                found.add(f"sealed {name}")
        leaf = replace(
            committed.leaves["1"],
            salt=salt,
            rows=len(ids),
            row_ids=row_ids_digest(ids),
            statistics=bytes.fromhex(statistics.digest),
        )
        if leaf.digest.hex() in known:
            found.add("leaf")
    return found


def test_the_forgotten_picture_is_not_told_from_two_hundred(shelve: Shelve, tmp_path: Path, store: DiskStore) -> None:
    """C13, C19: in exact arithmetic, by somebody who owns the run, the retained rows and 200 candidates."""
    shelve("rows", rows=90)
    others = shelve("others", rows=199, seed=8)
    run = Run.train(tmp_path / "run", "rows", clients=3, ridge=0.01, arithmetic="exact", grid=2.0**-10, store=store)
    embeddings, held = run.folder.embeddings(store), run.folder.partition().clients["1"]
    row = int(held[4])
    gone = (embeddings.to_numpy()[row], int(embeddings.labels[row]), embeddings.ids[row])
    candidates = [(others.to_numpy()[n], int(others.labels[n]), others.ids[n]) for n in range(199)]
    retained, rows = embeddings, np.delete(held, 4)
    run.unlearn(samples=[gone[2]])
    there = {"id", "head", "statistics", "request", "sealed head", "sealed request itself", "leaf"}
    assert matches(run.path, retained, rows, gone) >= there  # before the purge
    run.purge(rows=True)
    found = [matches(run.path, retained, rows, one) for one in (gone, *candidates)]
    assert found == [set()] * 200


RANDOM = re.compile(
    r"(openings/.*|transitions/.*|.*\.sealed|ledger\.jsonl \d+\.(digest|previous|time|inputs\.root|outputs\.root\.\w+)"
    r"|ledger\.jsonl \d+\.details\.(certificate|cost\.seconds|cache\.searched|operation)"
    r"|run\.json \.ledger|timings\.json .*"
    r"|states/\d+/certificate\.json \.digest|states/\d+/trained\.json \.files\.(certificate\.json|slots\.bin))"
)
"""What is drawn anew, or is a digest of that, or a time, or how large the cache was."""


def leaves_of(value: Any, place: str) -> dict[str, Any]:
    """Every single value in plain values, by its place."""
    if not isinstance(value, dict | list):
        return {place: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {name: leaf for key, one in items for name, leaf in leaves_of(one, f"{place}.{key}").items()}


def what_stays(run: Path) -> dict[str, Any]:
    """All that a run's folder says, in the clear, that is neither random nor a time."""
    found: dict[str, Any] = {}
    for path in sorted(run.rglob("*")):
        name = str(path.relative_to(run))
        if path.suffix == ".json":
            found |= leaves_of(json.loads(path.read_bytes()), f"{name} ")
        elif path.suffix == ".jsonl":
            for number, line in enumerate(path.read_text().splitlines()):
                found |= leaves_of(json.loads(line), f"{name} {number}")
        elif path.is_file() and path.name != "slots.bin":
            found[name] = path.read_bytes()
    return {name: value for name, value in found.items() if not RANDOM.fullmatch(name)}


TRAININGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "exact": ({"arithmetic": "exact"}, {}),
    "float64": ({}, {}),
    "a chosen ridge": ({"ridge": "auto"}, {}),
    "gradients": ({"keep": "gradients"}, {}),
    "nothing": ({"keep": "nothing"}, {}),
    "fedavg": ({"method": "fedavg", "rounds": 4, "local_steps": 2, "ridge": 0.01, "keep_history": True}, {}),
    "fedavg again": ({"method": "fedavg", "rounds": 4, "local_steps": 2}, {"method": "retrain-fedavg"}),
    "line": ({"keep": "gradients"}, {"method": "fedremoval-line"}),
    "pcg": ({"keep": "gradients"}, {"method": "fedremoval-pcg:3"}),
}
"""How a run is trained, and how it unlearns."""
TRACES = {"line": "fedremoval-line", "pcg": "fedremoval-pcg:3"}
OF_THE_HEAD = re.compile(
    r"states/\d+/(head|kept)/.*|states/\d+/trained\.json \.(head|files\.(head|kept)/.*|solution\..*|traffic\..*)"
    r"|states/\d+/certificate\.json \.certificate\.(after\.head|claims\.\d+\..*)"
)
"""What a head that still knows the forgotten says by itself."""


@pytest.mark.parametrize("kind", ["sample", "client", "both"])
@pytest.mark.parametrize("how", TRAININGS)
def test_the_same_stays_whoever_was_forgotten(
    shelve: Shelve, tmp_path: Path, store: DiskStore, how: str, kind: str
) -> None:
    """C13, C19: two runs that differ only in what was forgotten are equal after the purge, but for salts and times.

    Both: a client in state 2, another's sample in state 3. A method that starts from the head before is named.
    """
    if (how, kind) == ("a chosen ridge", "client"):
        pytest.skip("a whole client of noise moves the choice, as the purge says")
    vectors, _ = rows_around_centres(90, 5, 3, seed=0)
    first = shelve("first", rows=90, embeddings=vectors)
    divided = partition(first.labels, "iid", clients=4, server_share=0.2, seed=0).clients
    rows = divided["1"] if kind == "client" else divided["1"][4:5]
    vectors = vectors.copy()
    vectors[rows] = np.random.default_rng(5).normal(size=(len(rows), 5))
    second = shelve("second", rows=90, embeddings=vectors)
    stays, (training, method) = [], TRAININGS[how]
    for name, made in {"first": first, "second": second}.items():
        options: Any = {"clients": 4, "ridge": 0.01, "server_share": 0.2, **training}
        own = DiskStore(tmp_path / name / "cache")
        run = Run.train(tmp_path / name / "run", own.adopt(made, "rows").digest, store=own, **options)
        ids, before = run.folder.embeddings(own).ids, run.head().digest
        if kind == "both":
            run.unlearn("2", **method)
        run.unlearn("1", **method) if kind == "client" else run.unlearn(samples=[ids[int(rows[0])]], **method)
        unreached = run.purge(rows=True).unreached
        assert any("chosen from all rows" in line for line in unreached) == (how == "a chosen ridge")
        told = [line for line in unreached if "took it from the head before" in line]
        assert [TRACES[how] in line for line in told] == [True] * (how in TRACES)
        assert run.folder.entries()[-1].details["trace"] == TRACES.get(how)
        stays.append((before, what_stays(run.path)))
    assert stays[0][0] != stays[1][0]
    one, other = stays[0][1], stays[1][1]
    assert one.keys() == other.keys()
    different = {name for name in one if one[name] != other[name] and "/first/" not in str(one[name])}
    assert {name for name in different if how not in TRACES or not OF_THE_HEAD.fullmatch(name)} == set()
    assert (how in TRACES) == (different != set())
    assert len(one) > 60


@pytest.mark.parametrize("rows", [False, True])
def test_a_purge_killed_before_the_salts_are_erased_is_finished(
    trained: Path, opened: Opened, rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C15, of salts: until they are erased nobody is let in but the same purge."""
    run = opened(trained)
    run.unlearn("1")
    run.unlearn("2")

    record = RunFolder.record

    def killed(*given: Any) -> None:
        record(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "record", killed)
    with pytest.raises(KeyboardInterrupt):
        run.purge(rows=rows)
    monkeypatch.undo()
    left = Run.open(trained, store=run.store, unfinished=True)
    assert left.unfinished
    assert is_open(left.folder.entries()[0].outputs["head"])
    assert left.purge(rows=rows).complete
    with pytest.raises(InputError, match="purged already"):
        opened(trained).purge(rows=rows)
    first, _, last = RunFolder.open(trained).entries()[:3]
    assert not is_open(first.outputs["head"])
    assert not is_open(last.inputs["head"])
    assert is_open(last.details["request"]) != rows
    assert set(read_openings(certificate_openings(trained, 2))) == set()
    stay = {"retained"} if rows else {"retained", "request.clients.0", "request.asked.0"}
    assert set(read_openings(certificate_openings(trained, 3))) == stay
    assert opened(trained).unlearn("0").state == 4
    assert "before" in read_openings(certificate_openings(trained, 4))
    assert is_open(RunFolder.open(trained).entries()[-1].inputs["head"])
