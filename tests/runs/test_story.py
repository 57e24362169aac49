"""Attacks by somebody who owns every file of a run and computes every digest anew: found, or called not proven."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit import Run
from probekit.cache import DiskStore
from probekit.certificates.certificate import Certificate, certificate_text, read_certificate, signed_bytes
from probekit.certificates.sealing import sealed
from probekit.cli.main import run as command
from probekit.custody.signatures import new_private_key, public_key_of, sign
from probekit.errors import VerificationError
from probekit.runs import ledger
from probekit.runs.folder import RunFolder
from probekit.runs.layout import read_partition, write_partition
from probekit.runs.openings import (
    certificate_openings,
    new_openings,
    openings_path,
    read_openings,
    write_openings,
)
from probekit.runs.verification import verify_head
from probekit.values import Json
from tests.runs.conftest import Opened
from tests.shelves import Shelve
from tests.shelves import shelve as shelve
from tests.verdicts import STORY, false, unproven


@pytest.fixture
def run(shelve: Shelve, tmp_path: Path, store: DiskStore) -> Path:
    """A run of four clients that forgot the third."""
    shelve("rows", rows=160)
    found = Run.train(tmp_path / "run", "rows", clients=4, server_share=0.2, ridge=0.01, store=store)
    found.unlearn("2")
    return tmp_path / "run"


def certificate(run: Path, state: int = 2) -> Path:
    return run / "states" / f"{state:04d}" / "certificate.json"


def rewrite(run: Path, number: int, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Write the ledger anew with one entry changed: every digest after it, and what run.json says, fits."""
    entries, before = [], None
    for entry in RunFolder.open(run).entries():
        fields = dict(vars(entry))
        if entry.number == number:
            fields = change(fields)
            fields["openings"] = new_openings(fields)
            write_openings(openings_path(run, number), fields["openings"])
        before = ledger.LedgerEntry(**{**fields, "previous": before.digest if before else ledger.FIRST})
        entries.append(before)
    (run / "ledger.jsonl").write_bytes(b"".join(one.line for one in entries))
    note = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**note, "ledger": entries[-1].digest}))


def whole(run: Path, state: int = 2) -> Certificate:
    """The certificate of a state with all that stands sealed in it opened."""
    openings = read_openings(certificate_openings(run, state))
    return read_certificate(certificate(run, state).read_text(), openings)[0]


def forge(run: Path, change: Callable[[Certificate], Certificate], details: Mapping[str, Json] | None = None) -> Path:
    """Change the certificate of state 2, and let the ledger say what it says."""
    path = certificate(run)
    forged = sealed(change(replace(whole(run), openings={})))
    path.write_text(certificate_text(forged))
    write_openings(certificate_openings(run, 2), forged.openings)
    more = {"certificate": forged.digest, "request": dict(forged.request), **(details or {})}
    rewrite(run, 2, lambda fields: {**fields, "details": {**fields["details"], **more}})
    return path


def asked_for(**request: Any) -> Callable[[Certificate], Certificate]:
    whole = {"clients": [], "samples": [], "relabelled": [], "added": [], **request}
    return lambda one: replace(one, request=whole)


def test_nothing_is_called_proven_that_was_not_computed_again(run: Path, opened: Opened, store: DiskStore) -> None:
    """C1: without rows, or with the head alone, what is not computed again is named with what would prove it."""
    whole = opened(run).verify(rows=True)
    assert unproven(whole) == STORY
    assert unproven(opened(run).verify()) == STORY | {"retained", "statistics"}
    alone = verify_head(certificate(run), run / "states/0002/head", store=store)
    assert unproven(alone) >= {"weights", "residual", "statistics", "request", "retained"}
    assert all(one.wanted for one in alone.findings if one.verdict == "not proven")
    poisoned = run / "states/0001/head"
    forged = replace(read_certificate(certificate(run).read_text())[0], after={"head": opened(run).head(1).digest})
    (run / "forged.json").write_text(certificate_text(forged))
    assert not verify_head(run / "forged.json", poisoned, store=store).proven


@pytest.mark.parametrize(
    "request_",
    [{"clients": ["7"]}, {"clients": ["2", "3"]}, {"clients": ["2"], "added": ["1"]}, {"clients": ["1"]}],
    ids=["invented", "merged", "returned", "another"],
)
def test_a_request_that_was_not_carried_out_is_false(run: Path, opened: Opened, request_: dict[str, Any]) -> None:
    """C2: the request must lead from the state before to what is retained."""
    path = forge(run, asked_for(**request_))
    assert false(opened(run).verify(path, rows=True)) & {"request", "retained"}


def test_a_retained_sample_or_a_relabelled_one_is_not_forgotten(run: Path, opened: Opened, store: DiskStore) -> None:
    """C2: a sample that is still there, one that never was, and a relabel in place of a removal."""
    folder = RunFolder.open(run)
    embeddings, held = folder.embeddings(store), folder.partition().clients["0"]
    sample, other = embeddings.ids[int(held[0])], embeddings.ids[int(held[1])]
    opened(run).unlearn(samples=[sample])
    assert unproven(opened(run).verify(certificate(run, 3), rows=True)) == STORY
    for request in (
        {"samples": [[other, None]]},
        {"samples": [["f" * 64, None]]},
        {"relabelled": [[sample, 1, None]]},
        {"samples": [[sample, None], [other, None]]},
    ):
        path = certificate(run, 3)
        good = path.read_text()
        forged = asked_for(**request)(read_certificate(good)[0])
        path.write_text(certificate_text(forged))
        more = {"certificate": forged.digest, "request": dict(forged.request)}
        rewrite(run, 3, lambda fields, more=more: {**fields, "details": {**fields["details"], **more}})  # type: ignore[misc]
        try:
            assert false(opened(run).verify(path, rows=True)) & {"request", "statistics", "retained"}, request
        except VerificationError as error:
            assert "nobody in this run holds it" in str(error)  # noqa: PT017


def moved(run: Path) -> None:
    """Give the forgotten client's rows to another, in the partition and in what names it."""
    note = json.loads((run / "run.json").read_text())
    partition, rows = read_partition(run / "partition.safetensors", note["partition"])
    clients = dict(partition.clients)
    clients["0"] = np.concatenate([clients["0"], clients.pop("2")])
    changed = replace(partition, clients={**clients, "2": np.zeros(0, np.int64)})
    written = write_partition(run / "partition.safetensors", changed, rows)
    inputs = {**note["inputs"], "partition": changed.digest}
    (run / "run.json").write_text(json.dumps({**note, "partition": written, "inputs": inputs}))


def test_rows_that_were_moved_to_another_client_are_found(run: Path, opened: Opened) -> None:
    """C3: who held which rows is what the ledger says it was; a ledger written anew is caught by an older anchor."""
    old = opened(run).verify().anchor
    anchor = RunFolder.open(run).entries()[0].digest
    moved(run)
    assert {"partition"} <= false(opened(run).verify(rows=True))
    digest = RunFolder.open(run).inputs["partition"]
    rewrite(run, 1, lambda fields: {**fields, "inputs": {**fields["inputs"], "partition": digest}})
    without = opened(run).verify()
    assert next(one for one in without.findings if one.name == "partition").verdict == "not proven"
    assert "anchor" in next(one for one in without.findings if one.name == "partition").wanted
    for noted in (old, anchor):
        assert "anchor" in false(opened(run).verify(anchors=[str(noted)]))


def test_anchors_prove_the_story(run: Path, opened: Opened) -> None:
    """An anchor older than the request and one since: the whole certificate is proven."""
    first, last = (one.digest for one in RunFolder.open(run).entries())
    found = opened(run).verify(rows=True, anchors=[first, last])
    assert unproven(found) == set()
    assert found.proven
    assert unproven(opened(run).verify(rows=True, anchors=[last])) == {"request", "partition"}
    assert unproven(opened(run).verify(rows=True, anchors=[first[:16]])) == {"method"}
    assert "anchor" in false(opened(run).verify(rows=True, anchors=[first, "0" * 64]))
    assert "anchor" in false(opened(run).verify(rows=True, anchors=[first[:4]]))


def test_another_method_is_found_or_not_proven(run: Path, opened: Opened) -> None:
    """C5: the ledger says by which method; where it was written anew, only an anchor shows it."""
    path = forge(run, lambda one: replace(one, method="retrain"), {"method": "exact"})
    assert "method" in false(opened(run).verify(path))
    rewrite(run, 2, lambda fields: {**fields, "details": {**fields["details"], "method": "retrain"}})
    assert "method" in unproven(opened(run).verify(path))


def test_a_signature_is_checked_against_the_key_it_names(run: Path, opened: Opened) -> None:
    """C6: a signature that is not whole is false without any key; one that is names a signer whom nobody knows."""
    key = new_private_key()
    claims, _ = read_certificate(certificate(run).read_text())
    certificate(run).write_text(certificate_text(claims, signature=sign(signed_bytes(claims), key)))
    found = {one.name: one for one in opened(run).verify().findings}["signature"]
    assert (found.verdict, found.found) == ("not proven", "whole, signer unknown")
    assert "signature" not in unproven(opened(run).verify(public_key=public_key_of(key)))
    other = sign(b"something else", key)
    certificate(run).write_text(certificate_text(claims, signature=other))
    assert "signature" in false(opened(run).verify())
    certificate(run).write_text(certificate_text(claims, signature={"algorithm": "ed25519", "value": "00"}))
    assert "signature" in false(opened(run).verify())


def test_a_certificate_of_a_client_who_came_back_is_out_of_date(run: Path, opened: Opened) -> None:
    """C7: forgotten in state 2, taken back in state 3."""
    opened(run).unlearn(add=["2"])
    found = opened(run).verify(certificate(run))
    assert (found.state, found.current) == (2, False)
    [current] = [one for one in found.findings if one.name == "current"]
    assert (current.verdict, current.found) == ("not proven", "client 2 was taken back in state 3")
    opened(run).unlearn("1")
    [current] = [one for one in opened(run).verify(certificate(run, 3)).findings if one.name == "current"]
    assert current.found == "the run is in state 4"


def test_a_run_rolled_back_is_found_by_an_anchor(run: Path, opened: Opened) -> None:
    """C7: an entry beyond the end of the ledger."""
    opened(run).unlearn("1")
    last = RunFolder.open(run).entries()[-1].digest
    lines = (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (run / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))
    note = json.loads((run / "run.json").read_text())
    digest = json.loads(lines[-2])["digest"]
    (run / "run.json").write_text(json.dumps({**note, "state": 2, "ledger": digest}))
    assert opened(run).verify().intact
    assert "anchor" in false(opened(run).verify(anchors=[last]))


BAD = {
    "deep": b"[" * 100_000,
    "not utf-8": b"\xff\xfe{}",
    "surrogate": b'{"certificate": "\\ud800", "signature": null}',
    "list": b"[]",
    "empty": b"",
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_certificate_exits_6(run: Path, store: DiskStore, name: str) -> None:
    """C12: a sentence, not a traceback."""
    (run / "bad.json").write_bytes(BAD[name])
    assert command(["verify", str(run / "bad.json"), "--run", str(run), "--cache", str(store.root), "--json"]) == 6


def test_a_certificate_of_a_hundred_megabytes_is_not_read(run: Path, opened: Opened) -> None:
    """C12: refused by its size."""
    with (run / "large.json").open("wb") as handle:
        handle.truncate(100 * 2**20)
    with pytest.raises(VerificationError, match="more than the 16777216 that are read"):
        opened(run).verify(run / "large.json")


def test_exit_codes(run: Path, store: DiskStore, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["verify", str(certificate(run)), "--run", str(run), "--cache", str(store.root)]
    assert command([*base, "--json"]) == 7
    assert json.loads(capsys.readouterr().out)["verdict"] == "not proven"
    assert command([*base, "--require", "weights,head"]) == 0
    assert command([*base, "--require", "wheights"]) == 2
    first, last = (one.digest for one in RunFolder.open(run).entries())
    assert command([*base, "--rows", "--anchor", first, "--anchor", last]) == 0
    assert "It is proven." in capsys.readouterr().out
    forge(run, lambda one: replace(one, bounds=replace(one.bounds, weights=1e-30)))
    assert command([*base, "--require", "head"]) == 6
