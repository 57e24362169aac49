"""A bundle: what a stranger, a former client and a person see in it; and every forgery of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from probekit.cache import DiskStore
from probekit.certificates.certificate import certificate_text, read_certificate, signed_bytes
from probekit.cli.main import run as command
from probekit.custody.archive import CONFIG, LEDGER, STATEMENT, SUMS, TRANSITIONS, WEIGHTS, Archive
from probekit.custody.chain import Chain
from probekit.custody.signatures import new_private_key, public_key_of, sign
from probekit.errors import InputError, NotFoundError, VerificationError
from probekit.runs.bundle_check import Bundle, BundleCheck
from probekit.runs.ledger import entry_of
from probekit.runs.proving import ReceiptResult
from probekit.runs.run import Run
from probekit.values import canonical
from tests.shelves import Shelve
from tests.shelves import shelve as shelve

KEY = new_private_key()
PUBLIC = public_key_of(KEY)
OTHER = new_private_key()


@pytest.fixture
def trained(shelve: Shelve, tmp_path: Path, store: DiskStore) -> Run:
    """A run of five clients in which one was forgotten."""
    shelve("rows", rows=150)
    run = Run.train(tmp_path / "run", "rows", clients=5, ridge=0.01, store=store)
    run.prove("2", tmp_path / "two.json", key=KEY)
    run.prove("3", tmp_path / "three.json")
    run.unlearn("2", key=KEY)
    return run


@pytest.fixture
def whole(trained: Run, tmp_path: Path) -> Path:
    """A bundle with everything in it."""
    made = trained.bundle(tmp_path / "bundle.zip", key=KEY, sums_for="the auditor", reference="2026-17")
    assert made.size == (tmp_path / "bundle.zip").stat().st_size
    return made.path


def verdicts(found: BundleCheck) -> dict[str, str]:
    """The worst verdict of every claim."""
    order = ("false", "not proven", "proven")
    names = {one.name for one in found.findings}
    return {name: min((one.verdict for one in found.findings if one.name == name), key=order.index) for name in names}


def test_what_a_stranger_sees(whole: Path, trained: Run) -> None:
    found = Bundle(whole).check(public_key=PUBLIC)
    told = verdicts(found)
    shown = ("signature", "statement", "transition", "chain", "head", "sums", "weights", "excess-loss", "outputs")
    assert {name: told[name] for name in shown} == dict.fromkeys(shown, "proven")
    hidden = ("sums-of-places", "rows-elsewhere", "copies", "clock", "retained", "statistics", "before")
    assert {name: told[name] for name in hidden} == dict.fromkeys(hidden, "not proven")
    assert found.verdict == "not proven"
    assert Bundle(whole).check(public_key=PUBLIC, require=shown).verdict == "proven"
    assert "false" not in verdicts(Bundle(whole).check()).values()
    assert verdicts(Bundle(whole).check())["signature"] == "not proven"  # a key inside a bundle proves nothing
    assert Bundle(whole).check(public_key=public_key_of(OTHER)).verdict == "false"
    tip = str(trained.folder.entries()[-1].anchor)
    assert verdicts(Bundle(whole).check(anchors=[tip]))["anchor"] == "proven"
    for wrong in ("1:" + "00" * 32, "9:" + "00" * 32, "x"):
        assert verdicts(Bundle(whole).check(anchors=[wrong]))["anchor"] == "false"


def test_the_page_says_what_is_not_shown_and_names_nobody(whole: Path, trained: Run) -> None:
    page = " ".join(Bundle(whole).statement.split())
    for words in (
        "no copies exist elsewhere",
        "1 emptied (number",
        "4 clients with 120 rows remain",
        "2026-17",
        "120 rows",
    ):
        assert words in page
    every = b"".join(Archive.read(whole).parts[name] for name in (STATEMENT, LEDGER, TRANSITIONS))
    held = trained.folder.at().commitments()
    assert held is not None
    assert not any(leaf.salt.hex().encode() in every for leaf in held.leaves.values())
    assert b'"clients":["2"]' not in every


def test_former_clients_check_their_receipts(whole: Path, tmp_path: Path) -> None:
    found = Bundle(whole).receipt(tmp_path / "two.json", client="2", public_key=PUBLIC)
    assert isinstance(found, ReceiptResult)
    assert (found.emptied, found.missing, found.when is None) == (2, None, False)
    still = Bundle(whole).receipt(tmp_path / "three.json", client=None, public_key=None)
    assert isinstance(still, ReceiptResult)
    assert (still.emptied, still.missing) == (None, None)
    with pytest.raises(VerificationError, match="not of client 3"):
        Bundle(whole).receipt(tmp_path / "two.json", client="3", public_key=None)
    with pytest.raises(NotFoundError):
        Bundle(whole).receipt(tmp_path / "none.json", client=None, public_key=None)


def test_receipts_of_other_runs_and_histories_are_refused(
    whole: Path, trained: Run, shelve: Shelve, tmp_path: Path, store: DiskStore
) -> None:
    shelve("others", rows=90, seed=3)
    other = Run.train(tmp_path / "other", "others", clients=3, ridge=0.01, store=store)
    other.prove("2", tmp_path / "foreign.json")
    with pytest.raises(VerificationError, match="another run"):
        Bundle(whole).receipt(tmp_path / "foreign.json", client=None, public_key=None)
    fork = trained.fork(tmp_path / "fork")
    fork.unlearn("0")
    fork.prove("1", tmp_path / "one.json")  # of a history that the bundle does not have
    with pytest.raises(VerificationError, match="beyond the end"):
        Bundle(whole).receipt(tmp_path / "one.json", client=None, public_key=None)


def test_a_receipt_of_any_earlier_state_will_do(trained: Run, tmp_path: Path) -> None:
    trained.prove("4", tmp_path / "four.json")
    trained.unlearn("0")
    trained.unlearn("4")
    made = trained.bundle(tmp_path / "b.zip")
    assert (made.receipts_from, made.states) == (1, (4,))
    for name, state in (("two", 2), ("four", 4)):
        found = Bundle(made.path).receipt(tmp_path / f"{name}.json", client=None, public_key=None)
        assert isinstance(found, ReceiptResult)
        assert found.emptied == state


def test_several_states_at_once(trained: Run, tmp_path: Path) -> None:
    trained.unlearn("0")
    made = trained.bundle(tmp_path / "b.zip", states=[2, 3], key=KEY)
    found = Bundle(made.path).check(public_key=PUBLIC)
    assert found.states == (2, 3)
    assert [one.verdict for one in found.findings if one.name == "transition"] == ["proven"] * 2
    with pytest.raises(InputError, match="Nothing was unlearned in state 1"):
        trained.bundle(tmp_path / "b.zip", states=[1])


def test_sums_go_out_once(trained: Run, tmp_path: Path) -> None:
    """Sums of two states differ by whoever was forgotten between them."""
    for _ in range(2):
        trained.bundle(tmp_path / "b.zip", sums_for="A")
    assert [one.action for one in trained.folder.entries()].count("sums") == 1
    trained.bundle(tmp_path / "b.zip", sums_for="B")
    assert [one.details["auditor"] for one in trained.folder.entries() if one.action == "sums"] == ["A", "B"]
    trained.unlearn("1")
    with pytest.raises(InputError, match="whoever has both has the forgotten rows"):
        trained.bundle(tmp_path / "c.zip", sums_for="A")
    assert not (tmp_path / "c.zip").exists()
    trained.bundle(tmp_path / "c.zip", head=True)
    with pytest.raises(InputError, match="who the auditor is"):
        trained.bundle(tmp_path / "c.zip", sums_for=" ")


def test_a_head_that_leaves_is_on_record(trained: Run, tmp_path: Path) -> None:
    for _ in range(2):
        trained.bundle(tmp_path / "b.zip", head=True)
    trained.bundle(tmp_path / "c.zip", sums_for="A")
    left = [one.details["to"] for one in trained.folder.entries() if one.action == "export"]
    assert left == ["whoever gets the bundle", "A"]


def test_a_run_with_noise_has_no_bundle(shelve: Shelve, tmp_path: Path, store: DiskStore) -> None:
    """A certificate has numbers and digests that no noise covers; an erasure is carried out all the same."""
    shelve("noisy", rows=150, seed=5)
    options: Any = {"view": "l2", "intercept": "none", "ridge": 0.1, "clients": 5}
    run = Run.train(tmp_path / "noisy", "noisy", store=store, release=5.0, **options)
    run.unlearn("1")
    with pytest.raises(InputError, match="releases its heads with noise"):
        run.bundle(tmp_path / "b.zip", head=True)
    assert not (tmp_path / "b.zip").exists()
    done = run.erase("2")
    assert (done.complete, done.records[0].runs[0].bundle) == (True, "")
    assert "no bundle" in next((done.register / done.records[0].reference).glob("bundle*.txt")).read_text()


Parts = dict[str, bytes]


def _ledger(change: Callable[[dict[str, Any]], None]) -> Callable[[Parts], None]:
    """A forgery of the ledger's part, every digest computed again."""

    def apply(parts: Parts) -> None:
        ledger = json.loads(parts[LEDGER])
        change(ledger)
        bodies = [bytes.fromhex(one) for one in ledger["chain"]["bodies"]]
        chain = Chain.from_plain(ledger["chain"])
        for stored in ledger["shown"]:
            place = stored["number"] - chain.start.number - 1
            if not 0 <= place < len(bodies):
                continue
            if len(stored) > 1:
                bodies[place] = bytes.fromhex(entry_of(stored).body)
            chain = replace(chain, bodies=tuple(bodies))
            stored["previous"] = chain.digests[place].hex()
        ledger["chain"] = chain.plain
        parts[LEDGER] = canonical(ledger).encode()

    return apply


def _certificate(change: Callable[[Any], Any]) -> Callable[[Parts], None]:
    """A forgery of the certificate, signed by somebody else, which the ledger then names."""

    def apply(parts: Parts) -> None:
        found, _ = read_certificate(parts["certificate-0002.json"].decode())
        forged = change(found)
        text = certificate_text(forged, signature=sign(signed_bytes(forged), OTHER))
        parts["certificate-0002.json"] = text.encode()

        def name(ledger: dict[str, Any]) -> None:
            ledger["shown"][0]["details"]["certificate"] = forged.digest

        _ledger(name)(parts)

    return apply


def _transition(change: Callable[[dict[str, Any]], None]) -> Callable[[Parts], None]:
    def apply(parts: Parts) -> None:
        found = json.loads(parts[TRANSITIONS])
        change(found[0])
        parts[TRANSITIONS] = canonical(found).encode()

    return apply


def _tensors(name: str, change: Callable[[dict[str, Any]], None]) -> Callable[[Parts], None]:
    def apply(parts: Parts) -> None:
        found = dict(load_tensors(parts[name]))
        change(found)
        parts[name] = save_tensors(found)

    return apply


def _scaled(name: str, by: float) -> Callable[[dict[str, Any]], None]:
    def apply(arrays: dict[str, Any]) -> None:
        arrays[name] = np.ascontiguousarray(arrays[name] * by)

    return apply


def _elsewhere(one: dict[str, Any]) -> dict[str, Any]:
    return {side: {**one[side], "run": "22" * 32} for side in ("before", "after")}


def _bound(by: float) -> Callable[[Any], Any]:
    return lambda one: replace(one, bounds=replace(one.bounds, weights=one.bounds.weights * by))


FORGERIES: Mapping[str, Callable[[Parts], None]] = {
    "the page promises more": lambda parts: parts.update({STATEMENT: parts[STATEMENT] + b"\nNo copies exist.\n"}),
    "the page leaves out what is not shown": lambda parts: parts.update({STATEMENT: parts[STATEMENT][:400]}),
    "another slot": _transition(lambda one: one["changes"][0].update(slot=(one["changes"][0]["slot"] + 1) % 5)),
    "a sibling": _transition(lambda one: one["changes"][0].update(siblings="00" * 96)),
    "fewer siblings": _transition(lambda one: one["changes"][0].update(siblings=one["changes"][0]["siblings"][:64])),
    "more siblings": _transition(
        lambda one: one["changes"][0].update(siblings=one["changes"][0]["siblings"] + "00" * 32)
    ),
    "not emptied": _transition(lambda one: one["changes"][0].update(new="11" * 32)),
    "a transition of another state": _transition(lambda one: one["after"].update(state=3)),
    "no transition": lambda parts: parts.update({TRANSITIONS: b"[]"}),
    "a root of another run": _transition(lambda one: one.update(_elsewhere(one))),
    "the ledger names another root": _ledger(
        lambda ledger: ledger["shown"][0]["outputs"]["root"].update(top="33" * 32)
    ),
    "the ledger names another certificate": _ledger(
        lambda ledger: ledger["shown"][0]["details"].update(certificate="44" * 32)
    ),
    "an entry off the chain": lambda parts: parts.update(
        {LEDGER: parts[LEDGER].replace(b'"number":2', b'"number":3', 1)}
    ),
    "an entry before the chain": _ledger(lambda ledger: ledger["shown"][0].update(number=0)),
    "no entry": _ledger(lambda ledger: ledger["shown"].clear()),
    "an entry that is none": _ledger(lambda ledger: ledger["shown"].append({"number": 2})),
    "a certificate of a smaller distance": _certificate(_bound(1e-9)),
    "a certificate of another head": _certificate(lambda one: replace(one, after={**one.after, "head": "55" * 32})),
    "a certificate without its caveats": _certificate(lambda one: replace(one, caveats=())),
    "another certificate for the state": lambda parts: parts.update(
        {"certificate-0003.json": parts["certificate-0002.json"]}
    ),
    "sums of other rows": _tensors(SUMS, _scaled("moment", 1.5)),
    "sums over fewer rows": _tensors(SUMS, _scaled("counts", 0)),
    "sums that are not finite": _tensors(SUMS, _scaled("gram", float("nan"))),
    "sums with another scale": _tensors(SUMS, _scaled("half", 4000)),
    "sums of another shape": _tensors(SUMS, lambda arrays: arrays.update(gram=arrays["gram"][1:])),
    "sums with something beside them": _tensors(SUMS, lambda arrays: arrays.update(more=np.zeros(1))),
    "sums that are none": lambda parts: parts.update({SUMS: b"none"}),
    "a head that is none": lambda parts: parts.update({WEIGHTS: b"none"}),
    "a head without its config": lambda parts: parts.update({CONFIG: b"{}"}),
    "nested deeply": lambda parts: parts.update({LEDGER: b"[" * 100_000}),
    "no text": lambda parts: parts.update({LEDGER: b"\xff\xfe"}),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_whoever_rewrites_everything_is_caught(whole: Path, tmp_path: Path, name: str) -> None:
    """By somebody who computes every digest again and signs with a key of his own: false, or refused."""
    archive = Archive.read(whole)
    parts = dict(archive.parts)
    FORGERIES[name](parts)
    path = tmp_path / "forged.zip"
    path.write_bytes(Archive(archive.about, parts).signed(OTHER).data)
    assert command(["verify", str(path), "--public-key", str(_pem(tmp_path, PUBLIC))]) == 6
    try:
        found = verdicts(Bundle(path).check(public_key=public_key_of(OTHER)))
    except VerificationError:
        return
    signature = found.pop("signature")  # the certificate's, where that is still the operator's
    assert "false" in found.values() or (name.startswith("a certificate") and signature == "proven")


def _pem(folder: Path, data: bytes) -> Path:
    (folder / "public.pem").write_bytes(data)
    return folder / "public.pem"


def test_a_whole_forgery_is_told_by_its_key_only(whole: Path, tmp_path: Path) -> None:
    """All that a stranger without the operator's key, an anchor or the sums sees of it is intact, not proven."""
    archive = Archive.read(whole)
    parts = {name: one for name, one in archive.parts.items() if name not in (CONFIG, WEIGHTS, SUMS)}
    _certificate(_bound(1e-9))(parts)
    path = tmp_path / "forged.zip"
    bare = Archive(archive.about, parts).signed(OTHER)
    path.write_bytes(bare.data)
    page = Bundle(path).statement
    path.write_bytes(Archive(archive.about, {**parts, STATEMENT: page.encode()}).signed(OTHER).data)
    found = Bundle(path).check()
    assert found.verdict == "not proven"
    assert verdicts(found)["weights"] == "not proven"
    tip = str(Bundle(whole).chain.tip)
    assert verdicts(Bundle(path).check(anchors=[tip]))["anchor"] == "false"


def test_by_command(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("public.pem").write_bytes(PUBLIC)
    line = ["verify", "bundle.zip", "--public-key", "public.pem"]
    assert command(line) == 7
    shown = capsys.readouterr().out
    assert "STATEMENT OF AN ERASURE" in shown
    assert "Nothing is false, but not all is proven." in shown
    assert command([*line, "--require", "signature,transition,chain,weights"]) == 0
    assert command([*line, "--receipt", "two.json", "--client", "2"]) == 0
    assert "Emptied in state 2" in capsys.readouterr().out
    assert command(["verify", "bundle.zip", "--receipt", "three.json"]) == 7
    assert command([*line, "--run", "run"]) == 2
    assert command([*line, "--require", "magic"]) == 2
    assert command(["bundle", "run", "--bundle", "again.zip", "--with-head", "--json"]) == 0
    value = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (value["states"], value["signed_by"]) == ([2], None)
    assert command(["verify", "again.zip"]) == 7
    assert command(["verify", "again.zip", "--public-key", "public.pem"]) == 6
