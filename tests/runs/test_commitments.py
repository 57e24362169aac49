"""What a run commits to of its clients, receipts, and an operator who owns every file and writes all of them anew."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from probekit import Run
from probekit.cache import DiskStore
from probekit.custody.receipts import Receipt
from probekit.custody.signatures import new_private_key, public_key_of
from probekit.custody.slots import EMPTY, NONE, SlotTree, row_ids_digest
from probekit.custody.transitions import change
from probekit.errors import CorruptError, InputError, NotFoundError, VerificationError
from probekit.runs import ledger
from probekit.runs.commitments import Commitments, LeafContent, read_transition, transition_path, write_transition
from probekit.runs.folder import RunFolder
from probekit.runs.proving import check_receipt, judge_transition, prove
from tests.runs.conftest import Opened
from tests.shelves import Shelve
from tests.shelves import shelve as shelve

OLD = Path(__file__).parent / "before"


@pytest.fixture
def trained(shelve: Shelve, tmp_path: Path, store: DiskStore) -> Path:
    """A run of four clients that kept everything."""
    shelve("rows", rows=160)
    Run.train(tmp_path / "run", "rows", clients=4, server_share=0.2, ridge=0.01, store=store)
    return tmp_path / "run"


def committed(run: Path, state: int | None = None) -> Commitments:
    """What a state commits to."""
    found = RunFolder.open(run).at(state).commitments()
    assert found is not None
    return found


def test_training_commits_to_every_client(trained: Path, store: DiskStore) -> None:
    run, found = RunFolder.open(trained), committed(trained)
    ids, partition, statistics = run.embeddings(store).ids, run.partition(), run.trained().statistics
    assert statistics is not None
    for name, leaf in found.leaves.items():
        assert leaf.rows == len(partition.clients[name])
        assert leaf.row_ids == row_ids_digest([ids[row] for row in partition.clients[name]])
        assert leaf.statistics.hex() == statistics[name].digest
        assert leaf.key == NONE
    assert sorted(one.slot for one in found.leaves.values()) == [0, 1, 2, 3]
    assert len({one.salt for one in found.leaves.values()}) == 4
    assert run.entries()[0].outputs["root"] == found.root(1).plain


def test_a_run_without_statistics_commits_to_rows(shelve: Shelve, tmp_path: Path, store: DiskStore) -> None:
    shelve("rows", rows=160)
    Run.train(tmp_path / "run", "rows", clients=4, ridge=0.01, method="fedavg", rounds=2, keep="nothing", store=store)
    for leaf in committed(tmp_path / "run").leaves.values():
        assert leaf.statistics == NONE != leaf.row_ids


def test_slots_tell_nothing_of_names() -> None:
    contents = {str(number): LeafContent(1) for number in range(60)}
    orders = {tuple(one.slot for one in Commitments.first(contents).leaves.values()) for _ in range(3)}
    assert len(orders) == 3
    assert tuple(range(60)) not in orders


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_salts_are_closed_to_others_from_the_start(
    shelve: Shelve, tmp_path: Path, store: DiskStore, umask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C10, of salts: at no moment can anybody else open the file."""
    shelve("rows", rows=60)
    modes = []
    real = os.open

    def watched(path: Any, flags: int, *more: Any, **named: Any) -> int:
        handle = real(path, flags, *more, **named)
        if ".aside-" in Path(str(path)).name:
            modes.append(os.fstat(handle).st_mode & 0o777)
        return handle

    monkeypatch.setattr(os, "open", watched)
    old = os.umask(umask)
    try:
        run = Run.train(tmp_path / "run", "rows", clients=3, ridge=0.01, store=store)
        run.unlearn("1")
        receipt = run.prove("0", tmp_path / "receipt.json").path
    finally:
        os.umask(old)
    files = [*run.path.glob("states/*/slots.bin"), *run.path.rglob("openings/**/*.json"), receipt]
    assert [path.stat().st_mode & 0o777 for path in files] == [0o600] * 6
    assert len(modes) > 6
    assert not any(mode & 0o077 for mode in modes)
    for folder in ("openings", "openings/certificates"):
        assert (run.path / folder).stat().st_mode & 0o777 == 0o700


def test_forgetting_a_client_empties_its_slot_and_no_other(trained: Path, opened: Opened) -> None:
    before = committed(trained)
    opened(trained).unlearn("2")
    after, proof = committed(trained), read_transition(trained, 2)
    assert proof is not None
    assert proof.emptied == (before.leaves["2"].slot,)
    assert len(proof.changes) == 1
    assert after.leaves == {name: one for name, one in before.leaves.items() if name != "2"}
    entry = RunFolder.open(trained).entries()[-1]
    assert entry.inputs["root"] == before.root(1).digest
    assert entry.outputs["root"] == after.root(2).plain == proof.after.plain


def test_several_clients_leave_at_once_and_one_returns_to_a_new_slot(trained: Path, opened: Opened) -> None:
    before = committed(trained)
    opened(trained).unlearn(clients=["0", "2"])
    opened(trained).unlearn(add=["2"])
    proofs = [read_transition(trained, state) for state in (2, 3)]
    assert [sorted(one.emptied) for one in proofs if one] == [sorted(before.leaves[name].slot for name in "02"), []]
    back = committed(trained).leaves["2"]
    assert back.slot == 4
    assert (back.rows, back.row_ids) == (before.leaves["2"].rows, before.leaves["2"].row_ids)
    assert back.salt != before.leaves["2"].salt


def test_forgetting_a_sample_changes_its_clients_leaf_and_salt(trained: Path, opened: Opened, store: DiskStore) -> None:
    """C19: with the old salt, whoever has the retained ids could try which id was there too."""
    run, before = RunFolder.open(trained), committed(trained)
    ids, rows = run.embeddings(store).ids, run.partition().clients["1"].tolist()
    opened(trained).unlearn(samples=[ids[rows[0]]])
    after, proof = committed(trained), read_transition(trained, 2)
    assert proof is not None
    assert [one.slot for one in proof.changes] == [before.leaves["1"].slot]
    assert proof.emptied == ()
    assert after.leaves["1"].row_ids == row_ids_digest([ids[row] for row in rows[1:]])
    assert after.leaves["1"].rows == len(rows) - 1
    assert after.leaves["1"].salt != before.leaves["1"].salt
    others = [name for name in before.leaves if name != "1"]
    assert [after.leaves[name] for name in others] == [before.leaves[name] for name in others]


def test_purge_erases_the_salts_of_the_forgotten(trained: Path, opened: Opened, store: DiskStore) -> None:
    run, before = RunFolder.open(trained), committed(trained)
    opened(trained).unlearn("2", samples=[run.embeddings(store).ids[run.partition().clients["1"][0]]])
    opened(trained).purge()
    gone, kept = [before.leaves[name].salt for name in "12"], [before.leaves[name].salt for name in "03"]
    everything = [path.read_bytes() for path in trained.rglob("*") if path.is_file()]
    for salt in gone:
        assert not any(salt in data or salt.hex().encode() in data for data in everything)
    for salt in kept:
        assert any(salt in data for data in everything)
    assert read_transition(trained, 2) is not None  # which tells nothing without the salts


def test_a_former_client_sees_that_its_leaf_was_emptied(trained: Path, opened: Opened, tmp_path: Path) -> None:
    run = opened(trained)
    made = run.prove("2", tmp_path / "two.json")
    run.prove("3", tmp_path / "three.json")
    assert made.receipt.leaf.salt.hex() not in json.dumps(made.plain)
    assert check_receipt(run, made.path).emptied is None
    run.unlearn("0")
    run.unlearn("2")
    run.purge()
    found = check_receipt(opened(trained), made.path, client="2")
    assert (found.proven, found.emptied, found.state) == (True, 3, 1)
    assert found.when == RunFolder.open(trained).entries()[2].time
    assert found.anchor == str(RunFolder.open(trained).entries()[-1].anchor)
    assert not check_receipt(opened(trained), tmp_path / "three.json").proven
    with pytest.raises(VerificationError, match="not of client 3"):
        check_receipt(opened(trained), made.path, client="3")
    with pytest.raises(InputError, match="Cannot prove anything to client 2"):
        prove(run, "2", tmp_path / "again.json")


def test_a_receipt_survives_a_change_of_its_clients_rows(
    trained: Path, opened: Opened, tmp_path: Path, store: DiskStore
) -> None:
    run = opened(trained)
    made = run.prove("1", tmp_path / "one.json")
    run.unlearn(samples=[run.folder.embeddings(store).ids[run.folder.partition().clients["1"][0]]])
    assert check_receipt(run, made.path).emptied is None
    run.unlearn("1")
    assert check_receipt(run, made.path).emptied == 3


def test_signed_receipts(trained: Path, opened: Opened, tmp_path: Path) -> None:
    key, other = new_private_key(), new_private_key()
    made = opened(trained).prove("2", tmp_path / "two.json", key=key)
    assert check_receipt(opened(trained), made.path, public_key=public_key_of(key)).signed_by
    with pytest.raises(VerificationError, match="somebody else"):
        check_receipt(opened(trained), made.path, public_key=public_key_of(other))
    with pytest.raises(NotFoundError, match="no receipt"):
        check_receipt(opened(trained), tmp_path / "none.json")


def test_a_receipt_of_another_run_is_refused(trained: Path, opened: Opened, tmp_path: Path, store: DiskStore) -> None:
    Run.train(tmp_path / "other", "rows", clients=4, server_share=0.2, ridge=0.01, store=store)
    made = opened(tmp_path / "other").prove("2", tmp_path / "two.json")
    with pytest.raises(VerificationError, match="another run's"):
        check_receipt(opened(trained), made.path)


def test_a_salt_of_another_client_is_refused(trained: Path, opened: Opened, tmp_path: Path) -> None:
    made = opened(trained).prove("2", tmp_path / "two.json").receipt
    forged = replace(made, leaf=replace(made.leaf, salt=committed(trained).leaves["3"].salt))
    (tmp_path / "two.json").write_text(forged.text)
    with pytest.raises(VerificationError, match="a salt, a number or a sibling is another's") as caught:
        check_receipt(opened(trained), tmp_path / "two.json")
    assert caught.value.exit_code == 6


def test_a_run_rolled_back_or_written_anew_is_noticed_by_who_holds_a_receipt(
    trained: Path, opened: Opened, tmp_path: Path, store: DiskStore
) -> None:
    """C7: without an anchor from elsewhere nobody could tell; a receipt is one."""
    shutil.copytree(trained, tmp_path / "copy")
    run = opened(trained)
    run.unlearn("0")
    made = run.prove("2", tmp_path / "two.json")
    shutil.rmtree(trained)
    shutil.copytree(tmp_path / "copy", trained)
    with pytest.raises(VerificationError, match="rolled back"):
        check_receipt(opened(trained), made.path)
    opened(trained).unlearn("1")  # another history of the same length
    with pytest.raises(VerificationError, match="written anew"):
        check_receipt(opened(trained), made.path)
    Run.train(trained, "rows", clients=4, server_share=0.2, ridge=0.01, store=store, force=True)
    opened(trained).unlearn("2")
    with pytest.raises(VerificationError, match="written anew"):
        check_receipt(opened(trained), made.path)


def test_an_operator_who_empties_another_slot_proves_nothing(trained: Path, opened: Opened, tmp_path: Path) -> None:
    """The request says client 2, the leaf of client 3 is emptied: client 2's receipt does not show it forgotten."""
    run, before = opened(trained), committed(trained)
    made = run.prove("2", tmp_path / "two.json")
    renamed = {**before.leaves, "2": before.leaves["3"], "3": before.leaves["2"]}
    wrong = Commitments(before.run, before.slots, renamed)
    contents = {
        name: LeafContent(one.rows, one.row_ids, one.statistics) for name, one in renamed.items() if name != "2"
    }
    step = wrong.following(contents, 1)
    run.folder.write_state(run.trained(), ledger.Event("unlearn"), committed=step)
    assert not check_receipt(opened(trained), made.path).proven


def test_a_forged_transition_is_not_between_the_ledgers_roots(trained: Path, opened: Opened, tmp_path: Path) -> None:
    run = opened(trained)
    made, before = run.prove("2", tmp_path / "two.json"), committed(trained)
    run.unlearn("0")
    leaf = before.leaves["2"]
    _, forged = change(before.tree, before.root(1), {leaf.slot: EMPTY})
    write_transition(trained, forged)
    with pytest.raises(VerificationError, match="not between its ledger's roots"):
        check_receipt(run, made.path)
    transition_path(trained, 2).write_text("[" * 50_000)
    with pytest.raises(VerificationError, match="not a transition"):
        check_receipt(run, made.path)
    transition_path(trained, 2).unlink()
    found = check_receipt(run, made.path)
    assert (found.proven, found.missing) == (False, 2)


def transition(run: Run) -> tuple[str, str]:
    """What the current certificate's verification says of the transition."""
    [found] = [one for one in run.verify().findings if one.name == "transition"]
    return found.verdict, found.found


def test_a_certificate_is_verified_with_its_transition(trained: Path, opened: Opened) -> None:
    run, slot = opened(trained), committed(trained).leaves["2"].slot
    run.unlearn("2")
    assert transition(run) == ("proven", f"slots {slot}: 1 emptied; no other of 4")
    assert run.verify(require=["transition"]).verdict == "proven"
    run.purge()
    assert transition(opened(trained))[0] == "proven"
    run.unlearn(add=["2"])
    assert transition(run) == ("proven", "slots 4: 1 joined; no other of 5")


@pytest.mark.parametrize(
    ("clients", "why"),
    [((), "not what was asked"), (("2", "3"), "not what was asked"), (("3",), "slot of client 2 was not emptied")],
)
def test_a_transition_that_was_not_asked_for_is_called_false(
    trained: Path, opened: Opened, clients: tuple[str, ...], why: str
) -> None:
    """C2: the request says client 2, and something else was done."""
    run, before = opened(trained), committed(trained)
    contents = {
        name: LeafContent(one.rows, one.row_ids, one.statistics)
        for name, one in before.leaves.items()
        if name not in clients
    }
    request = {"clients": ["2"], "samples": [], "relabelled": [], "added": []}
    event = ledger.Event("unlearn", {}, {"request": request})
    run.folder.write_state(run.trained(), event, committed=before.following(contents, 1))
    entries = run.folder.entries()
    found = judge_transition(run.folder, entries[-1], entries)
    assert found.verdict == "false"
    assert why in found.found


def test_a_missing_or_forged_transition_is_told(trained: Path, opened: Opened) -> None:
    run, before = opened(trained), committed(trained)
    run.unlearn("2")
    whole = transition_path(trained, 2).read_text()
    _, forged = change(before.tree, before.root(1), {before.leaves["3"].slot: EMPTY})
    write_transition(trained, forged)
    assert transition(run) == ("false", "it is not between the roots that the ledger has")
    transition_path(trained, 2).write_text(whole.replace('"slot":', '"slot":1'))
    assert transition(run)[0] == "false"
    transition_path(trained, 2).unlink()
    assert transition(run)[0] == "not proven"


def test_leaves_changed_behind_the_ledgers_back_are_noticed(trained: Path, opened: Opened, tmp_path: Path) -> None:
    path = trained / "states/0001/slots.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with pytest.raises(CorruptError, match=r"slots\.bin"):
        opened(trained).prove("2", tmp_path / "two.json")


@pytest.mark.parametrize("spoil", [lambda data: data[:-1], lambda data: data + bytes(144), lambda data: b"{}\n", bytes])
def test_damaged_leaves_are_told(spoil: object) -> None:
    data = Commitments.first({"a": LeafContent(1), "b": LeafContent(2)}).data
    assert callable(spoil)
    with pytest.raises(CorruptError, match="damaged"):
        Commitments.of_data(spoil(data) if spoil is not bytes else b"", Path("slots.bin"))
    assert Commitments.of_data(data, Path("slots.bin")).data == data


def test_an_old_run_begins_to_commit_with_its_next_state(tmp_path: Path) -> None:
    for part in ("cache", "runs"):
        shutil.copytree(OLD / part, tmp_path / part)
    run = Run.open(tmp_path / "runs/closed-exact", store=DiskStore(tmp_path / "cache"))
    with pytest.raises(InputError, match="earlier probekit"):
        run.prove("2", tmp_path / "two.json")
    state = run.unlearn("0").state
    assert read_transition(run.path, state) is None
    made = run.prove("2", tmp_path / "two.json")
    run.unlearn("2")
    assert check_receipt(run, made.path).emptied == state + 1


def test_ten_thousand_clients() -> None:
    contents = {f"client {number}": LeafContent(2, row_ids_digest([str(number)])) for number in range(10_000)}
    before = Commitments.first(contents)
    del contents["client 7"]
    step = before.following(contents, 1)
    assert step.transition is not None
    assert step.transition.emptied == (before.leaves["client 7"].slot,)
    assert len(step.commitments.data) < 2_000_000
    again = Commitments.of_data(step.commitments.data, Path("slots.bin"))
    assert again.root(2) == step.root
    leaf = again.leaves["client 8"]
    receipt = Receipt(
        leaf, step.root, again.tree.siblings(leaf.slot), ledger.LedgerEntry(1, "", "", {}, {}, {}, "").anchor
    )
    assert len(receipt.check(name="client 8").text) < 3_000
    assert isinstance(again.tree, SlotTree)


def test_a_proof_that_could_not_be_read_again_is_not_written(
    trained: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many clients at once as a transition has room for; the run stays as it was."""
    monkeypatch.setattr("probekit.runs.commitments.MOST_BYTES", 500)
    with pytest.raises(InputError, match="Ask for fewer at once"):
        opened(trained).unlearn(clients=["2", "1"])
    monkeypatch.undo()
    assert opened(trained).state == 1
    assert opened(trained).unlearn("2").state == 2
