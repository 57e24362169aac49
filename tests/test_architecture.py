"""docs/architecture.md: its picture, its walks and its examples are true."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from probekit.cli.main import run
from tests.test_layers import BELOW, GROUND, all_below

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
STEP = re.compile(r"\| \d+ \| \[`([^`]+)`\]\(\.\./\1\) \| `([^`]+)` \|")
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
Step = tuple[str, str]


@dataclass(frozen=True)
class Section:
    """What stands under a heading, and its blocks of code by language."""

    title: str
    text: str

    @property
    def blocks(self) -> dict[str, str]:
        return dict(BLOCK.findall(self.text))


def sections(heading: str) -> list[Section]:
    """The sections one level below a heading."""
    text = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    parts = [part.partition("\n") for part in text.split("\n### ")[1:]]
    return [Section(title, body) for title, _, body in parts]


WALKS = sections("Three walks")
ADDITIONS = sections("Add something")


def test_the_picture_has_every_room_above_what_it_imports() -> None:
    picture = PAGE.split("<!-- rooms -->")[1].split("```")[1]
    level = {
        word: number
        for number, line in enumerate(picture.splitlines())
        for word in re.findall(r"\w+", line)
    }
    for room in BELOW.keys() - {"__main__"}:
        for lower in all_below(room) | GROUND:
            assert level[room] < level[lower], f"{room} imports {lower}"


@contextmanager
def entered_functions() -> Iterator[dict[Step, int]]:
    """Our functions as (file, name) with the order in which they are first entered."""
    order: dict[Step, int] = {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            step = (frame.f_code.co_filename, frame.f_code.co_qualname)
            order.setdefault(step, len(order))

    functions: dict[Step, int] = {}
    previous = sys.getprofile()
    sys.setprofile(note)
    try:
        yield functions
    finally:
        sys.setprofile(previous)
        for (file, name), number in order.items():
            path = Path(file).resolve()
            if path.is_relative_to(ROOT):
                functions[str(path.relative_to(ROOT)), name] = number


def test_walks_are_what_the_commands_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [walk.title for walk in WALKS] == ["extract", "train", "unlearn"]
    for walk in WALKS:
        program, *arguments = shlex.split(walk.blocks["bash"])
        assert program == "probekit"
        with entered_functions() as functions:
            assert run(arguments) == 0
        steps: list[Step] = STEP.findall(walk.text)
        assert 5 <= len(steps) <= 10
        assert [step for step in steps if step not in functions] == [], walk.title
        assert steps == sorted(steps, key=functions.__getitem__), walk.title


@pytest.mark.parametrize("addition", ADDITIONS, ids=lambda addition: addition.title)
def test_what_is_added_by_one_file_works(addition: Section, tmp_path: Path) -> None:
    blocks = addition.blocks
    match = re.match(r"# (\w+\.py)\n", blocks["py"])
    assert match is not None
    (tmp_path / match[1]).write_text(blocks["py"])
    if "toml" in blocks:
        install(tomllib.loads(blocks["toml"])["project"]["entry-points"], tmp_path)
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    process = subprocess.run(
        ["bash", "-ec", blocks["sh"]],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        text=True,
        capture_output=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr


def install(entry_points: dict[str, dict[str, str]], folder: Path) -> None:
    """What an installer leaves in a folder of packages for these entry points."""
    information = folder / "plugin-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    lines = []
    for group, points in entry_points.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (information / "entry_points.txt").write_text("\n".join(lines))


def test_everything_that_can_be_added_is_there() -> None:
    titles = {addition.title.split()[-1] for addition in ADDITIONS}
    assert titles == {"backbone", "dataset", "head", "method", "trainer", "transport"}
