"""A person's rows inside clients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from probekit.cache import DiskStore
from probekit.cache.audit import verify as sound
from probekit.cache.transfer import bring, export
from probekit.cli.main import run as command
from probekit.custody.columns import matching, salted
from probekit.errors import InputError
from probekit.runs.rows import rows_at
from probekit.runs.run import Run
from probekit.runs.subjects import subject_rows
from tests.shelves import Shelve
from tests.shelves import shelve as shelve

PEOPLE = [f"p{row % 30}" for row in range(120)]


@pytest.fixture
def trained(shelve: Shelve, tmp_path: Path, store: DiskStore) -> Run:
    """A run of four clients; thirty people have four rows each."""
    shelve("rows", rows=120, columns={"patient": salted(PEOPLE), "ward": salted(["w"] * 120)})
    return Run.train(tmp_path / "run", "rows", clients=4, server_share=0.2, ridge=0.01, store=store)


def test_a_persons_rows_are_forgotten_and_no_others(trained: Run, store: DiskStore) -> None:
    before = trained.folder.embeddings(store)
    own = {before.ids[row] for row, person in enumerate(PEOPLE) if person == "p7"}
    assert {one.sample for one in subject_rows(trained.folder, store, "patient=p7")} == own
    done = trained.unlearn(subjects=["patient=p7"])
    assert {one.sample for one in done.request.samples} == own
    left = rows_at(trained.folder, store)
    assert {*before.ids} - {*left.embeddings.ids} == own
    assert trained.verify(rows=True).verdict != "false"
    assert trained.unlearn(subjects=["patient=p7"]).already_done
    assert trained.state == 2


def test_nobody_and_everybody_are_refused(trained: Run) -> None:
    for text, words in (
        ("patient=nobody", "matches nobody"),
        ("patient=P7", "matches nobody"),
        ("ward=w", "matches everybody: all 120 rows"),
        ("p7", "COLUMN=VALUE"),
        ("patient=", "without a value"),
        ("name=p7", "no column 'name'; the set has patient, ward"),
    ):
        with pytest.raises(InputError, match=words):
            trained.unlearn(subjects=[text])
    assert trained.state == 1


def test_one_column_needs_no_name(shelve: Shelve, tmp_path: Path, store: DiskStore) -> None:
    shelve("rows", rows=120, columns={"patient": salted([f"a={one}" for one in PEOPLE])})
    run = Run.train(tmp_path / "run", "rows", clients=4, ridge=0.01, store=store)
    assert subject_rows(run.folder, store, "a=p7") == subject_rows(run.folder, store, "patient=a=p7")
    shelve("bare", rows=90)
    bare = Run.train(tmp_path / "bare", "bare", clients=4, ridge=0.01, store=store)
    with pytest.raises(InputError, match="Extract it again"):
        bare.unlearn(subjects=["p7"])


def test_columns_go_with_their_rows(trained: Run, store: DiskStore, tmp_path: Path) -> None:
    """A purge erases them, and keeps those of the rows that stay; an exported set has them."""
    trained.unlearn(subjects=["patient=p7"])
    erased = [row.tobytes() for row in trained.folder.embeddings(store).columns["patient"][7::30]]
    trained.purge(rows=True)
    left = trained.folder.embeddings(store)
    assert len(left) == 116
    assert [left.ids[row] for row in matching(left.columns["patient"], "p8")]
    files = b"".join(path.read_bytes() for path in store.root.rglob("*") if path.is_file())
    assert not any(one in files or one[32:] in files for one in erased)
    with pytest.raises(InputError, match="matches nobody"):
        trained.unlearn(subjects=["patient=p7"])
    export(store, left.digest, tmp_path / "out")
    other = DiskStore(tmp_path / "elsewhere")
    brought = other.open(bring(other, tmp_path / "out"))
    np.testing.assert_array_equal(brought.columns["patient"], left.columns["patient"])
    assert sound(store)[0] == sound(other)[0] == []


def test_a_column_is_added_to_a_set_that_is_there(shelve: Shelve, store: DiskStore) -> None:
    bare = shelve("rows", rows=120)
    store.seal(replace(bare, columns={"patient": salted(PEOPLE)}))
    first = store.open("rows")
    assert first.digest == bare.digest
    store.seal(replace(bare, columns={"patient": salted(["x"] * 120), "ward": salted(["w"] * 120)}))
    second = store.open("rows")
    np.testing.assert_array_equal(second.columns["patient"], first.columns["patient"])  # what is there stays
    assert len(matching(second.columns["ward"], "w")) == 120
    assert len(list((store.root / "sets" / bare.digest).glob("*.safetensors"))) == 1
    assert sound(store)[0] == []


def test_by_command(trained: Run, tmp_path: Path, store: DiskStore, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["unlearn", str(trained.path), "--cache", str(store.root), "--subject"]
    assert command([*line, "patient=nobody"]) == 2
    assert "matches nobody" in capsys.readouterr().err
    assert command([*line, "patient=p3", "--subject", "patient=p4"]) == 0
    assert "8 samples forgotten" in capsys.readouterr().out


def test_a_person_who_is_all_of_a_client_takes_the_client_along(
    shelve: Shelve, tmp_path: Path, store: DiskStore
) -> None:
    clients = ["small"] * 4 + [f"c{row % 3}" for row in range(86)]
    shelve("rows", rows=90, clients=clients, columns={"patient": salted(["p"] * 5 + ["q"] * 85)})
    run = Run.train(tmp_path / "run", "rows", partition="column:client_id", ridge=0.01, store=store)
    run.unlearn(subjects=["patient=p"])
    assert set(run.trained().counts) == {"c0", "c1", "c2"}
    found = {one.name: one for one in run.verify(rows=True).findings}
    assert {one.verdict for one in found.values()} == {"proven", "not proven"}
    assert "1 emptied, 1 changed" in found["transition"].found
