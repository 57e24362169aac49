"""The cache's list of runs: paths that move with it, strictly read."""

from __future__ import annotations

from pathlib import Path

import pytest

from probekit.cache import Cache
from probekit.cache.runs import NotedRun, note_run, noted_runs
from probekit.errors import CorruptError


def test_runs_are_noted_by_their_place_beside_the_cache(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "old" / "cache")
    assert noted_runs(cache) == {}
    note_run(cache, "one", tmp_path / "old" / "runs" / "a", done=False)
    note_run(cache, "two", tmp_path / "old" / "runs" / "b", done=True)
    note_run(cache, "one", tmp_path / "old" / "runs" / "a", done=True)
    assert noted_runs(cache) == {
        "one": NotedRun("../runs/a", done=True),
        "two": NotedRun("../runs/b", done=True),
    }
    (tmp_path / "old").rename(tmp_path / "new")
    moved = Cache(tmp_path / "new" / "cache")
    assert noted_runs(moved)["one"].folder(moved) == tmp_path / "new" / "runs" / "a"


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"a": 1}', b'{"a": {"path": 1, "done": true}}', b"\xff", b"[" * 99999]
)
def test_a_damaged_list_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "runs.json").write_bytes(content)
    with pytest.raises(CorruptError):
        noted_runs(Cache(tmp_path))
