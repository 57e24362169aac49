"""From a request to its record."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit.cache import DiskStore, journal
from probekit.cli.main import run as command
from probekit.custody.archive import Archive
from probekit.custody.columns import salted
from probekit.custody.signatures import new_private_key, public_key_of, raw_public_key
from probekit.errors import InputError, OtherRunsError, UnfinishedError, VerificationError
from probekit.runs.asking import petition
from probekit.runs.bundle_check import AnswerResult, Bundle
from probekit.runs.erase_plan import EraseRequest
from probekit.runs.erasing import EraseResult, erase, refuse
from probekit.runs.proving import ReceiptResult
from probekit.runs.register import CaseInfo, Register
from probekit.runs.run import Run
from probekit.runs.verification import verify as real
from tests.runs.test_openings import matches
from tests.shelves import Shelve
from tests.shelves import shelve as shelve

KEY = new_private_key()
PUBLIC = public_key_of(KEY)
PEOPLE = [f"p{row % 30}" for row in range(120)]


@pytest.fixture
def trained(shelve: Shelve, tmp_path: Path, store: DiskStore) -> Run:
    """A run of four clients; thirty people have four rows each. Client 3 gave its key."""
    shelve("rows", rows=120, columns={"patient": salted(PEOPLE)})
    keys = {"3": raw_public_key(PUBLIC)}
    return Run.train(tmp_path / "run", "rows", clients=4, ridge=0.01, store=store, client_keys=keys)


def papers(result: EraseResult, reference: str) -> dict[str, Path]:
    """The papers of a request, by how their names begin."""
    return {path.name.partition("-")[0].partition(".")[0]: path for path in (result.register / reference).iterdir()}


def ids_of(run: Run, store: DiskStore, client: str) -> set[str]:
    """The samples of a client."""
    embeddings, partition = run.folder.embeddings(store), run.folder.partition()
    return {embeddings.ids[row] for row in partition.clients[client].tolist()}


def left_of(store: DiskStore, ids: set[str]) -> list[Path]:
    """The files of a cache in which any of these samples is named."""
    needles = [one for sample in ids for one in (bytes.fromhex(sample), sample.encode())]
    files = [path for path in store.root.rglob("*") if path.is_file()]
    return [path for path in files if any(one in path.read_bytes() for one in needles)]


def test_a_client_is_erased_and_can_check_it(trained: Run, store: DiskStore) -> None:
    own = ids_of(trained, store, "2")
    done = trained.erase("2", key=KEY, reference="2026-17", identity="front desk", basis="asked", received="2026-11-01")
    assert (done.complete, done.already_done) == (True, False)
    (record,) = done.records
    assert (record.due, record.rows_erased, record.identity) == ("2026-12-01", 30, "front desk")
    assert record.asked_by == "the operator"
    assert "transition" in record.runs[0].proven
    assert left_of(store, own) == []
    found = papers(done, "2026-17")
    checked = Bundle(found["bundle"]).check(public_key=PUBLIC, require=["signature", "transition", "chain"])
    assert (checked.verdict, checked.reference) == ("proven", "2026-17")
    receipt = Bundle(found["bundle"]).receipt(found["receipt"], client="2", public_key=PUBLIC)
    assert isinstance(receipt, ReceiptResult)
    assert receipt.emptied == 2
    answer = Bundle(found["bundle"]).receipt(found["answer"], client=None, public_key=PUBLIC)
    assert isinstance(answer, AnswerResult)
    assert answer.opened == ("clients 2",)
    for name in ("receipt", "answer"):
        assert found[name].stat().st_mode & 0o077 == 0
    assert not (done.register / "journal.json").exists()
    assert '"2"' not in found["record"].read_text()


def test_the_same_again_changes_nothing(trained: Run, store: DiskStore) -> None:
    first = trained.erase("2")
    entries = len(trained.folder.entries())
    again = Run.open(trained.path, store=store).erase("2")
    assert again.already_done
    assert again.records == first.records
    assert len(trained.folder.entries()) == entries
    trained.erase("1")
    with pytest.raises(InputError, match="has a record of reference"):
        trained.erase("0", reference=first.records[0].reference)
    assert [one.wanted for one in Register(first.register).records()] == ["1 client", "1 client"]


def test_a_person_is_erased_and_can_check_it(trained: Run, store: DiskStore, shelve: Shelve) -> None:
    """In the run, in a test set that has the column, and in rows that no run uses."""
    other = shelve("test", rows=60, seed=4, columns={"patient": salted(["p7", "x"] * 30)})
    whole = trained.folder.embeddings(store)
    own = {whole.ids[row] for row, who in enumerate(PEOPLE) if who == "p7"}
    more = {other.ids[row] for row in range(0, 60, 2)}
    done = trained.erase(subjects=["patient=p7"], key=KEY, reference="p")
    (record,) = done.records
    assert record.rows_erased == 34
    assert sorted(record.sets) == ["rows", "test"]
    assert left_of(store, own | more) == []
    assert len(store.open("test")) == 30
    assert len(trained.folder.embeddings(store)) == 116
    found = papers(done, "p")
    answer = Bundle(found["bundle"]).receipt(found["answer"], client=None, public_key=PUBLIC)
    assert isinstance(answer, AnswerResult)
    assert len(answer.opened) == 4
    paper = found["bundle"].read_bytes() + found["record"].read_bytes()
    assert not any(sample.encode() in paper or bytes.fromhex(sample) in paper for sample in own)
    assert b"p7" not in found["record"].read_bytes()


def test_a_client_asks_by_its_petition(trained: Run, tmp_path: Path) -> None:
    trained.prove("3", tmp_path / "three.json")
    asked = petition(tmp_path / "three.json", tmp_path / "petition.json", key=KEY)
    done = trained.erase(petition=asked, reference="by-itself")
    assert done.records[0].asked_by == "a client, by a petition signed with its key"
    assert "asked" in done.records[0].runs[0].proven
    assert trained.erase(petition=asked).already_done
    assert "3" not in trained.trained().counts


def test_many_requests_share_a_state(trained: Run, store: DiskStore) -> None:
    wanted = [
        EraseRequest(clients=("0",), info=CaseInfo(reference="a")),
        EraseRequest(subjects=("patient=p3",), info=CaseInfo(reference="b")),
        EraseRequest(clients=("1",), info=CaseInfo(reference="c")),
    ]
    done = erase([trained], requests=wanted, key=KEY, shared="keep")
    assert [one.reference for one in done.records] == ["a", "b", "c"]
    assert trained.state == 2
    shared = done.register / done.records[0].runs[0].bundle
    assert {one.runs[0].bundle for one in done.records} == {done.records[0].runs[0].bundle}
    for reference, opened in (("a", {"clients 0"}), ("c", {"clients 1"})):
        answer = Bundle(shared).receipt(papers(done, reference)["answer"], client=None, public_key=PUBLIC)
        assert isinstance(answer, AnswerResult)
        assert {*answer.opened} == opened  # nobody learns of the others
    assert erase([trained], requests=wanted, shared="keep").already_done
    with pytest.raises(InputError, match="same reference"):
        erase([trained], requests=[EraseRequest(clients=(name,), info=CaseInfo(reference="d")) for name in "23"])


def test_several_runs_forget_together(trained: Run, tmp_path: Path, store: DiskStore) -> None:
    other = Run.train(tmp_path / "other", "rows", clients=3, ridge=0.1, seed=1, store=store)
    third = Run.train(tmp_path / "third", "rows", clients=2, ridge=0.1, seed=2, store=store)
    with pytest.raises(OtherRunsError, match="2 other runs use rows"):
        trained.erase(subjects=["p7"])
    with pytest.raises(OtherRunsError, match="third"):
        erase([trained, other], subjects=["p7"])
    assert (trained.state, other.state) == (1, 1)
    done = erase([other, trained, third], subjects=["p7"])
    assert sorted(Path(one.run).name for one in done.records[0].runs) == ["other", "run", "third"]
    for one in (trained, other, third):
        fresh = Run.open(one.path, store=store)
        assert fresh.state == 2
        assert len(fresh.folder.embeddings(store)) == 116
    lonely = erase([other], clients=["0"], yes=True)
    assert lonely.complete


def test_what_somebody_else_holds_too_is_decided(shelve: Shelve, tmp_path: Path, store: DiskStore) -> None:
    made = shelve("rows", rows=60)
    twice = shelve(
        "twice", rows=120, embeddings=made.to_numpy()[[*range(60), *range(60)]], labels=made.labels[[*range(60)] * 2]
    )
    run = Run.train(tmp_path / "run", "twice", clients=3, ridge=0.01, store=store)
    own = ids_of(run, store, "1")
    others = ids_of(run, store, "0") | ids_of(run, store, "2")
    assert own & others
    with pytest.raises(InputError, match="also held by others"):
        run.erase("1")
    assert run.state == 1
    fork = run.fork(tmp_path / "fork")
    kept = run.erase("1", shared="keep", yes=True)
    assert kept.records[0].rows_erased == len(own - others)
    assert {*run.folder.embeddings(store).ids} == others
    assert len(twice) == 120
    gone = Run.open(fork.path, store=store)
    assert gone.state == 1


def test_refusals_and_references(trained: Run, tmp_path: Path) -> None:
    book = tmp_path / "book"
    record = refuse(book, "not the person", reference="r1", received="2026-11-02", identity="desk")
    assert Register(book).records() == [record]
    assert record.refused == "not the person"
    for wrong, words in (
        ({"reference": "../x"}, "cannot be a reference"),
        ({"reference": "a/b"}, "cannot be a reference"),
        ({"received": "yesterday"}, "YYYY-MM-DD"),
        ({"received": "2026-11-02", "due": "2026-11-01"}, "cannot be due"),
        ({"reference": "r1"}, "has a record of reference r1"),
    ):
        with pytest.raises(InputError, match=words):
            refuse(book, "no", **wrong)
    with pytest.raises(InputError, match="why"):
        refuse(book, " ")
    with pytest.raises(InputError, match="Cannot erase client 9"):
        trained.erase("9")
    with pytest.raises(InputError, match="must name something"):
        trained.erase()
    with pytest.raises(InputError, match="matches nobody"):
        trained.erase(subjects=["nobody"])
    with pytest.raises(InputError, match="Cannot forget all 4 clients"):
        trained.erase(clients=["0", "1", "2", "3"])
    assert trained.state == 1


def test_a_client_that_was_forgotten_before_is_erased(trained: Run, store: DiskStore) -> None:
    own = ids_of(trained, store, "2")
    trained.unlearn("2")
    done = trained.erase("2")
    assert done.records[0].runs[0].states == (2,)
    assert trained.state == 2
    assert left_of(store, own) == []


class Killed(BaseException):
    """The process ends here."""


STEPS = (
    *("case journalled", "receipts written", "state written", "answers written", "verified", "run forgot"),
    *("journalled", "tombstones", "run switched", "set rewritten", "rows dropped", "files removed", "searched"),
    *("recorded", "run struck", "run purged", "cache purged", "bundles written", "record written"),
)


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_every_step_the_same_command_finishes_it(
    trained: Run, store: DiskStore, shelve: Shelve, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """C15: no success is said before, another request is refused meanwhile, and afterwards nothing is found."""
    other = shelve("test", rows=60, seed=4, columns={"patient": salted(["p7", "x"] * 30)})
    whole = trained.folder.embeddings(store)
    own = {whole.ids[row] for row, who in enumerate(PEOPLE) if who == "p7"} | {
        other.ids[row] for row in range(0, 60, 2)
    }
    times: list[str] = []

    def kill(reached: str) -> None:
        times.append(reached)
        if reached == step:
            raise Killed

    monkeypatch.setattr(journal, "reached", kill)
    with pytest.raises(Killed):
        trained.erase(subjects=["patient=p7"], reference="p", key=KEY)
    monkeypatch.undo()
    book = Register(trained.path.parent / "erasures")
    assert book.pending() is not None
    unfinished: Any = {"store": DiskStore(store.root, unfinished=True), "unfinished": True}
    with pytest.raises(UnfinishedError, match="the erasure for p began"):
        Run.open(trained.path, **unfinished).erase("1")
    done = Run.open(trained.path, **unfinished).erase(subjects=["patient=p7"], reference="p", key=KEY)
    assert done.complete
    assert left_of(store, own) == []
    again = DiskStore(store.root)
    run = Run.open(trained.path, store=again)
    assert run.state == 2
    actions = [one.action for one in run.folder.entries()]
    assert (actions.count("unlearn"), actions.count("purge")) == (1, 1)
    found = papers(done, "p")
    answer = Bundle(found["bundle"]).receipt(found["answer"], client=None, public_key=PUBLIC)
    assert isinstance(answer, AnswerResult)
    assert len(answer.opened) == 4
    assert len(done.records[0].runs) == 1
    assert book.pending() is None


def test_by_command(
    trained: Run, tmp_path: Path, store: DiskStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBEKIT_CACHE", str(store.root))
    Path("key.pem").write_bytes(KEY)
    Path("backups.toml").write_text('[[backup]]\nwhat = "nightly"\nwhere = "tape"\nexpires = 2027-01-01\n')
    line = ["erase", "run", "--yes", "--key", "key.pem"]
    assert command([*line, "--subject", "patient=p7", "--reference", "x-1", "--backups", "backups.toml"]) == 0
    shown = capsys.readouterr().out
    assert "may remain: backup nightly at tape, until 2027-01-01" in shown
    assert command([*line, "--subject", "patient=p7"]) == 0
    assert "This was done before" in capsys.readouterr().out
    Path("many.csv").write_text("reference,client,subject\nm-1,0,\nm-2,,patient=p9\n")
    assert command([*line, "--requests", "many.csv", "--shared", "keep"]) == 0
    assert command(["erase", "run", "--refuse", "no such person", "--reference", "x-9"]) == 0
    capsys.readouterr()
    assert command(["register", "erasures", "--json"]) == 0
    value = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [one["reference"] for one in value["records"]] == ["m-1", "m-2", "x-1", "x-9"]
    assert command(["register", "erasures"]) == 0
    assert "refused: no such person" in capsys.readouterr().out
    for wrong, code in (
        (["--requests", "none.csv"], 3),
        (["--samples-file", "none.txt"], 3),
        (["--petition", "none.json"], 3),
        (["--client", "1", "--backups", "none.toml"], 3),
        (["--client", "1", "--reference", "a b"], 2),
        ([], 2),
    ):
        assert command([*line, *wrong]) == code
    for text in ("", "name\nx\n", "client,subject\n1,patient=p1\n", "client\n", "client\n1,2\n", "client\n\xff\n"):
        Path("bad.csv").write_text(text, "latin-1")
        assert command([*line, "--requests", "bad.csv"]) == 2
    assert command(["register", "nowhere"]) == 3
    assert "Traceback" not in capsys.readouterr().err


def test_samples_by_file(trained: Run, tmp_path: Path, store: DiskStore) -> None:
    chosen = list(trained.folder.embeddings(store).ids[:3])
    path = tmp_path / "samples.txt"
    path.write_text("\n".join(chosen) + "\n")
    line = ["erase", str(trained.path), "--cache", str(store.root), "--samples-file", str(path), "--yes"]
    assert command(line) == 0
    assert left_of(store, set(chosen)) == []
    assert command(line) == 0


def test_bundles_and_records_do_not_tell_the_forgotten_picture(
    shelve: Shelve, tmp_path: Path, store: DiskStore
) -> None:
    """C13, C19: by somebody who owns the run, bundles with head, the record, the retained rows and 200 candidates."""
    shelve("rows", rows=90)
    others = shelve("others", rows=199, seed=8)
    run = Run.train(tmp_path / "run", "rows", clients=3, ridge=0.01, arithmetic="exact", grid=2.0**-10, store=store)
    embeddings, held = run.folder.embeddings(store), run.folder.partition().clients["1"]
    row = int(held[4])
    gone = (embeddings.to_numpy()[row], int(embeddings.labels[row]), embeddings.ids[row])
    candidates = [(others.to_numpy()[n], int(others.labels[n]), others.ids[n]) for n in range(199)]
    done = run.erase(samples=[gone[2]], key=KEY, reference="r")
    run.bundle(tmp_path / "head.zip", key=KEY, head=True)
    stolen = run.path / "stolen"
    stolen.mkdir()
    for source in (done.register / done.records[0].runs[0].bundle, tmp_path / "head.zip"):
        for name, data in Archive.read(source).parts.items():
            (stolen / f"{source.stem} {name.replace('/', ' ')}").write_bytes(data)
    (stolen / "record.json").write_bytes((done.register / "r" / "record.json").read_bytes())
    rows = np.delete(held, 4)
    found = [matches(run.path, embeddings, rows, one) for one in (gone, *candidates)]
    assert found == [set()] * 200
    (stolen / "answer.json").write_bytes(papers(done, "r")["answer"].read_bytes())
    assert "id" in matches(run.path, embeddings, rows, gone)  # the person's own paper does


def test_sums_of_one_state_and_an_erasure(trained: Run, tmp_path: Path) -> None:
    """Sums that were handed out before do not stand in the way of an erasure; those after it are refused."""
    trained.unlearn("0")
    trained.bundle(tmp_path / "audit.zip", sums_for="auditor")
    assert trained.erase("1").complete
    with pytest.raises(InputError, match="whoever has both"):
        trained.bundle(tmp_path / "again.zip", sums_for="auditor")


def test_papers_do_not_go_into_the_run_or_the_cache(trained: Run, store: DiskStore) -> None:
    """Answers tell which samples they were; runs and caches are copied and shown around."""
    for inside in (trained.path / "erasures", store.root / "book", trained.path):
        with pytest.raises(InputError, match="Keep the register elsewhere"):
            trained.erase("1", register=inside)
    assert trained.state == 1


def test_a_false_certificate_stops_an_erasure_before_the_purge(
    trained: Run, monkeypatch: pytest.MonkeyPatch, store: DiskStore
) -> None:
    from probekit.runs import erasing

    def forged(*arguments: Any, **named: Any) -> Any:
        found = real(*arguments, **named)
        return replace(found, verdict="false", findings=(replace(found.findings[0], verdict="false"),))

    monkeypatch.setattr(erasing, "verify", forged)
    with pytest.raises(VerificationError, match="Nothing was purged"):
        trained.erase("1")
    assert trained.folder.states() == [1, 2]
    monkeypatch.undo()
    assert Run.open(trained.path, store=store).erase("1").complete


def test_someone_taken_back_is_erased_again(trained: Run) -> None:
    trained.erase("2")
    assert trained.erase("2").already_done
    with pytest.raises(InputError):
        trained.unlearn(add=["2"])  # its rows are gone


@pytest.mark.parametrize(
    "options",
    [
        {"method": "fedavg", "rounds": 5, "server_share": 0.2},
        {"method": "fedavg", "rounds": 5, "keep": "nothing"},
        {"method": "cg"},
        {"keep": "nothing"},
        {"objective_noise": 0.5, "view": "l2"},
        {"arithmetic": "exact", "grid": 2.0**-10, "fit_view": "centre"},
    ],
    ids=lambda one: "-".join(one),
)
def test_whatever_was_trained_can_be_erased_from(
    shelve: Shelve, tmp_path: Path, store: DiskStore, options: dict[str, Any]
) -> None:
    shelve("rows", rows=120, columns={"patient": salted(PEOPLE)})
    run = Run.train(tmp_path / "run", "rows", clients=4, ridge=0.01, store=store, **options)
    own = ids_of(run, store, "2")
    requests: list[Any] = [{"clients": ["2"]}, {"subjects": ["p7"]}]
    for number, wanted in enumerate(requests):
        done = run.erase(key=KEY, reference=f"r{number}", **wanted)
        assert done.complete
        checked = Bundle(done.register / done.records[0].runs[0].bundle).check(
            public_key=PUBLIC, require=["signature", "transition", "chain"]
        )
        assert checked.verdict == "proven"
    assert left_of(store, own) == []
    assert run.state == 3


def test_an_adapter_on_the_old_head_is_no_erasure(trained: Run) -> None:
    """What was unlearned by dropping nothing still holds the forgotten: it is said, and nothing changes."""
    trained.unlearn("1", method="fused:rank=1,rounds=1,rate=0.01")
    with pytest.raises(InputError, match=r"unlearned by fused:1.*an adapter on the head before"):
        trained.erase("1")
    assert trained.state == 2
