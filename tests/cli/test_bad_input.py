"""Files of strangers: whatever stands in one that a command reads, it ends with a sentence and exit code 6 or 2."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from probekit import Run
from probekit.cache import DiskStore
from tests.cli.conftest import Command
from tests.shelves import shelve as shelve

VERIFY = ("verify", "certificate.json", "--run", "run", "--rows")
RECEIPT = ("verify", "--receipt", "receipt.json", "--run", "run")
HEAD = ("verify", "certificate.json", "--head", "head")
AUDIT = ("cache", "verify")

HOSTILE: dict[str, bytes] = {
    "deep": b"[" * 100_000,
    "deep and whole": b'{"a":' * 500 + b"1" + b"}" * 500,
    "deeper than read": b"[" * 70 + b"]" * 70,
    "not utf-8": b'{"a": "\xff\xfe"}',
    "half a character": b'{"a": "\\ud800"}',
    "a key twice": b'{"schema": 1, "schema": 2}',
}
"""What no file of ours holds, and what still is JSON, or nearly so."""
LARGE = 100 * 2**20

FILES: dict[str, tuple[str, tuple[str, ...]]] = {
    "certificate": ("certificate.json", VERIFY),
    "receipt": ("receipt.json", RECEIPT),
    "head": ("head/config.json", HEAD),
    "run": ("run/run.json", VERIFY),
    "ledger": ("run/ledger.jsonl", VERIFY),
    "openings": ("run/openings/000002.json", VERIFY),
    "certificate's openings": ("run/openings/certificates/0002.json", VERIFY),
    "transition": ("run/transitions/0002.json", RECEIPT),
    "state": ("run/states/0002/trained.json", VERIFY),
    "environment": ("run/environment.json", ("report", "run")),
    "cache": ("cache/probekit.json", VERIFY),
    "name of a set": ("cache/names/rows.json", ("train", "rows", "--run", "other", "--clients", "3")),
    "set": ("cache/sets/*/set.json", VERIFY),
    "spec": ("cache/rows/*/spec.json", VERIFY),
    "index": ("cache/rows/*/index.json", VERIFY),
    "index, audited": ("cache/rows/*/index.json", AUDIT),
}
HANDED: dict[str, tuple[str, ...]] = {
    "petition.json": ("erase", "run", "--petition", "petition.json", "--yes"),
    "bundle.zip": ("verify", "bundle.zip"),
    "answer.json": ("verify", "answer.json", "--receipt", "receipt.json"),
}
"""Files that somebody hands over, and who reads them."""
TABLES: dict[str, tuple[str, ...]] = {
    "defaults": ("verify", "certificate.json", "--run", "run", "--config", "bad.toml"),
    "backups": ("erase", "run", "--client", "1", "--backups", "bad.toml", "--yes"),
}
"""TOML files, and who reads them."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache, a run of four clients that forgot the third, its certificate and head, the third's receipt."""
    home = tmp_path_factory.mktemp("made")
    shelf = shelve.__wrapped__(DiskStore(home / "cache"))  # type: ignore[attr-defined]
    shelf("rows", rows=160)
    run = Run.train(home / "run", "rows", clients=4, server_share=0.2, ridge=0.01, store=DiskStore(home / "cache"))
    run.prove("2", home / "receipt.json")
    shutil.copy(run.unlearn("2").path, home / "certificate.json")
    run.export(home / "head")
    return home


@pytest.fixture
def here(made: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of all that, to be spoiled."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path


def place(here: Path, pattern: str) -> Path:
    [found] = here.glob(pattern)
    return found


def test_unspoiled_they_are_read(here: Path, command: Command) -> None:
    assert {name: command(*call).code for name, (_, call) in FILES.items()} == {
        **dict.fromkeys(FILES, 7),
        **dict.fromkeys(("receipt", "transition", "environment", "name of a set", "index, audited"), 0),
    }
    assert [name for name, (pattern, _) in FILES.items() if not list(here.glob(pattern))] == []


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("name", FILES)
def test_hostile_texts_are_refused(here: Path, command: Command, name: str, what: str) -> None:
    """C12: a sentence, and no other exit code."""
    pattern, call = FILES[name]
    place(here, pattern).write_bytes(HOSTILE[what] + b"\n")
    done = command(*call)
    assert done.code == 6, done
    assert done.message.endswith((".", "`"))
    assert "Traceback" not in done.err


@pytest.mark.parametrize("what", [*HOSTILE, "large"])
@pytest.mark.parametrize("name", HANDED)
def test_hostile_papers_are_refused(here: Path, command: Command, name: str, what: str) -> None:
    """C12: and nothing was done."""
    before = (here / "run/ledger.jsonl").read_bytes()
    with (here / name).open("wb") as handle:
        handle.write(HOSTILE.get(what, b"{}"))
        if what == "large":
            handle.truncate(LARGE)
    done = command(*HANDED[name])
    assert done.code in (2, 6), done
    assert "Traceback" not in done.err
    assert "unexpected" not in done.err
    assert (here / "run/ledger.jsonl").read_bytes() == before


@pytest.mark.parametrize("name", FILES)
def test_a_hundred_megabytes_are_refused_by_their_size(
    here: Path, command: Command, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C12: before they are read; the file is sparse, and nobody reads it."""
    pattern, call = FILES[name]
    large = place(here, pattern)
    with large.open("r+b") as handle:
        handle.truncate(LARGE)
    read: Callable[[Path], bytes] = Path.read_bytes

    def guarded(path: Path) -> bytes:
        assert path.name != large.name or path.stat().st_size < LARGE
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", guarded)
    done = command(*call)
    assert done.code == 6, done
    assert "bytes" in done.message


@pytest.mark.parametrize("content", [b"a = " + b"[" * 100_000, b"a = '\xff'", b"a = 1\na = 2", b"\0"])
@pytest.mark.parametrize("name", TABLES)
def test_hostile_tables_are_refused(here: Path, command: Command, name: str, content: bytes) -> None:
    (here / "bad.toml").write_bytes(content)
    done = command(*TABLES[name])
    assert (done.code, "Traceback" in done.err) == (2, False), done
    with (here / "bad.toml").open("wb") as handle:
        handle.truncate(LARGE)
    done = command(*TABLES[name])
    assert (done.code, "bytes" in done.message) == (2, True), done


def lengthened(text: str, more: str) -> str:
    """A receipt with other siblings, the one text of what it says."""
    plain = json.loads(text)
    return json.dumps({**plain, "siblings": plain["siblings"] + more}, sort_keys=True, indent=1) + "\n"


def truncated(text: str, less: int) -> str:
    plain = json.loads(text)
    return json.dumps({**plain, "siblings": plain["siblings"][:-less]}, sort_keys=True, indent=1) + "\n"


def of_another_client(text: str, other: str) -> str:
    """The receipt with the salt of another client's."""
    plain, theirs = json.loads(text), json.loads(other)
    plain["leaf"]["salt"] = theirs["leaf"]["salt"]
    return json.dumps(plain, sort_keys=True, indent=1) + "\n"


PROOFS: dict[str, Callable[[str, str], str]] = {
    "truncated": lambda text, _: truncated(text, 64),
    "truncated by a digit": lambda text, _: truncated(text, 1),
    "without any": lambda text, _: truncated(text, len(json.loads(text)["siblings"])),
    "lengthened": lambda text, _: lengthened(text, "00" * 32),
    "lengthened by a byte": lambda text, _: lengthened(text, "00"),
    "another's salt": of_another_client,
}


@pytest.mark.parametrize("how", PROOFS)
def test_proofs_of_another_length_or_salt_are_refused(here: Path, command: Command, how: str) -> None:
    assert command("prove", "run", "--client", "1", "--receipt", "other.json").code == 0
    text = (here / "receipt.json").read_text()
    changed = PROOFS[how](text, (here / "other.json").read_text())
    assert changed != text
    (here / "receipt.json").write_text(changed)
    done = command(*RECEIPT)
    assert (done.code, "Traceback" in done.err) == (6, False), done
    assert done.message.endswith(".")


@pytest.fixture
def other(here: Path, command: Command) -> Path:
    """Another run, of the same rows and the same request."""
    done = command("train", "rows", "--run", "second", "--clients", 4, "--server-share", 0.2, "--ridge", 0.01)
    assert done.code == 0, done
    assert command("prove", "second", "--client", "2", "--receipt", "second.json").code == 0
    assert command("unlearn", "second", "--client", "2").code == 0
    return here / "second"


def test_proofs_of_another_run_are_refused(here: Path, command: Command, other: Path) -> None:
    for call in (
        ("verify", "--receipt", "second.json", "--run", "run"),
        ("verify", "second/states/0002/certificate.json", "--run", "run"),
    ):
        done = command(*call)
        assert (done.code, "another run's" in done.message) == (6, True), done
    for part in ("transitions/0002.json", "openings/000002.json", "states/0002/trained.json", "ledger.jsonl"):
        kept = (here / "run" / part).read_bytes()
        shutil.copy(other / part, here / "run" / part)
        for call in (VERIFY, RECEIPT):
            done = command(*call)
            assert done.code in (4, 6) or (call, part) in UNTOUCHED, (part, done)
            assert "Traceback" not in done.err
        (here / "run" / part).write_bytes(kept)


UNTOUCHED = {(RECEIPT, "states/0002/trained.json")}
"""What a command does not read."""


@pytest.mark.parametrize("anchor", ["0" * 64, "1:" + "0" * 64, "99:{last}", "2:{first}", "{short}", "no anchor", ""])
def test_an_anchor_off_the_chain_or_beyond_its_end_is_refused(here: Path, command: Command, anchor: str) -> None:
    first, last = (json.loads(line)["digest"] for line in (here / "run/ledger.jsonl").read_text().splitlines()[:2])
    given = anchor.format(first=first, last=last, short=last[:8])
    done = command(*VERIFY, "--anchor", given)
    assert (done.code, "Traceback" in done.err) == (6, False), done
    assert "the ledger does not run through it" in " ".join(done.out.split()) or given in ("", "no anchor")
