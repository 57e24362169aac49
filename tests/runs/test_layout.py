"""A run's folder is read strictly: what is not as it was written is refused, whatever it is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit import Run
from probekit.errors import CacheError, CorruptError, MismatchError, ProbekitError
from probekit.runs.layout import (
    Cost,
    Erased,
    Trained,
    Unlearned,
    dump_events,
    forgotten,
    read_events,
    retained,
)
from tests.runs.examples import make_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = make_run(tmp_path / "run", server_share=0.1)
    run.unlearn(client="north")
    return run


def read_everything(folder: Path) -> None:
    run = Run(folder)
    newest = run.newest
    _ = (run.to_dict(), newest.events, newest.state.kept, newest.rows.counts())


def files_of(run: Run) -> list[Path]:
    newest = [path for path in run.newest.folder.rglob("*") if path.is_file()]
    top = [path for path in run.folder.iterdir() if path.is_file() and path.name != ".lock"]
    return sorted(path for path in (*newest, *top) if path.suffix != ".md")


def test_events_say_what_is_forgotten(run: Run) -> None:
    newest = run.newest
    trained, unlearned = newest.events
    assert isinstance(trained, Trained)
    assert trained.fingerprint == run.fingerprint
    assert isinstance(unlearned, Unlearned)
    assert unlearned.clients == ("north",)
    assert unlearned.rows == forgotten(newest.all_rows, newest.events).sum()
    assert len(retained(newest.all_rows, newest.events)) == len(newest.rows)
    assert not forgotten(newest.all_rows, [trained]).any()


EVENTS = [
    Trained("2026-01-01", "f" * 64, Cost(1, 2, 3, 0.5)),
    Unlearned("2026-01-02", ("a", "b"), (), 3, "exact", Cost()),
    Unlearned("2026-01-02", (), ("0" * 64,), 3, "exact", Cost()),
    Erased("2026-01-03", 3, "token"),
]


def test_a_history_is_a_line_for_each_event(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_bytes(dump_events(EVENTS))
    assert read_events(tmp_path) == tuple(EVENTS)
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == [
        *("trained", "unlearned", "unlearned", "erased")
    ]


@pytest.mark.parametrize(
    "events",
    [
        [],
        EVENTS[1:],
        [EVENTS[0], EVENTS[0]],
        [EVENTS[0], Unlearned("", ("b", "a"), (), 3, "exact", Cost())],
        [EVENTS[0], Unlearned("", ("a", "a"), (), 3, "exact", Cost())],
        [EVENTS[0], Unlearned("", (), ("xyz",), 3, "exact", Cost())],
    ],
)
def test_histories_of_no_run_are_refused(tmp_path: Path, events: list[Any]) -> None:
    (tmp_path / "history.jsonl").write_bytes(dump_events(events))
    with pytest.raises(CorruptError):
        read_events(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"null\n",
        b'{"event":"trained"}\n',
        b'{"event": "erased","date":"","rows":1,"token":""}\n',
        b'{"event":"erased","date":"","rows":1,"token":"","more":1}\n',
        b'{"event":"erased","date":"","rows":1,"rows":1,"token":""}\n',
        b'{"event":"erased","date":"\\ud800","rows":1,"token":""}\n',
        b"[" * 100_000,
    ],
)
def test_lines_that_are_no_events_are_refused(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "history.jsonl").write_bytes(dump_events(EVENTS[:1]) + line)
    with pytest.raises(CorruptError):
        read_events(tmp_path)


def test_no_mutation_of_bytes_gives_a_traceback(run: Run) -> None:
    generator = np.random.default_rng(0)
    refused = 0
    for path in files_of(run):
        content = path.read_bytes()
        for _ in range(25):
            mutated = bytearray(content)
            for place in generator.integers(0, min(len(content), 3000), 2):
                mutated[place] = generator.integers(0, 256)
            path.write_bytes(mutated)
            try:
                read_everything(run.folder)
            except ProbekitError:
                refused += 1
        path.write_bytes(content)
    assert refused > 100
    read_everything(run.folder)


def replacements(value: Any) -> list[Any]:
    return [None, -1, 10**30, 0.5, "x", [], {}, [value], True]


def mutations(tree: Any) -> list[Any]:
    """The tree with each of its values in turn replaced, dropped or doubled in a list."""
    found: list[Any] = []
    if isinstance(tree, dict):
        for key, value in tree.items():
            others = [*replacements(value), *mutations(value)]
            found += [{**tree, key: other} for other in others]
            found.append({name: item for name, item in tree.items() if name != key})
        found.append({**tree, "unknown": 1})
    elif isinstance(tree, list):
        for place, value in enumerate(tree):
            found += [[*tree[:place], other, *tree[place + 1 :]] for other in mutations(value)]
    return found


@pytest.mark.parametrize("name", ["run.json", "certificate.json", "head/config.json"])
def test_no_mutation_of_fields_gives_a_traceback(run: Run, name: str) -> None:
    folder = run.folder if name == "run.json" else run.newest.folder
    content = (folder / name).read_bytes()
    others = mutations(json.loads(content))
    refused = 0
    for other in others:
        (folder / name).write_text(json.dumps(other, indent=1) + "\n")
        try:
            read_everything(run.folder)
        except ProbekitError:
            refused += 1
    assert len(others) > refused > 80  # some are other values that a run may have


def test_truncated_and_missing_files_are_refused(run: Run) -> None:
    for path in files_of(run):
        content = path.read_bytes()
        for part in (b"", content[: len(content) // 2]):
            path.write_bytes(part)
            with pytest.raises(CacheError):
                read_everything(run.folder)
        path.unlink()
        with pytest.raises(ProbekitError):
            read_everything(run.folder)
        path.write_bytes(content)
    read_everything(run.folder)


def replaced_by_link(path: Path) -> None:
    elsewhere = path.with_name(f"elsewhere-{path.name}")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def replaced_by_pipe(path: Path) -> None:
    path.rename(path.with_name(f"elsewhere-{path.name}"))
    os.mkfifo(path)


@pytest.mark.parametrize("replace", [replaced_by_link, replaced_by_pipe])
@pytest.mark.parametrize(
    "name",
    ["partition.safetensors", "states", "states/0002", "states/0001", "states/0002/history.jsonl"],
)
def test_links_and_pipes_are_refused(run: Run, name: str, replace: Callable[[Path], None]) -> None:
    replace(run.folder / name)
    with pytest.raises(CorruptError):
        Run(run.folder, cache=run.cache)


def test_another_format_is_refused(run: Run) -> None:
    path = run.folder / "run.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(MismatchError):
        Run(run.folder)


def test_a_link_to_a_run_is_a_name_of_it(run: Run, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(run.folder)
    assert Run(tmp_path / "latest", cache=run.cache).folder == run.folder
