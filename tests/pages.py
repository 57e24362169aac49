"""README and the pages in docs/: what they say can be typed, and which files and places they point to."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probekit.cli import main

ROOT = Path(__file__).parent.parent
CONTRIBUTING = ROOT / ".github" / "CONTRIBUTING.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OWN_TESTS = {"erasure.md": "test_erasure_page.py"}
"""Pages that a test of their own runs, on data of its own."""
SLOW, DOWNLOAD, ELSEWHERE = "slow", "download", "elsewhere: "
FENCE = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*) -->\n)?```(?P<kind>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
OFFLINE = 3


@dataclass(frozen=True)
class Block:
    """A fenced block. mark: `slow`, `download` (not found without a network), or `elsewhere: TEST` that runs it."""

    kind: str
    text: str
    mark: str = ""

    @property
    def lines(self) -> list[str]:
        """The command lines, without comments."""
        return [line.partition("  #")[0].strip() for line in self.text.splitlines() if line.strip()]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found = FENCE.finditer(page.read_text())
    return [Block(one["kind"], one["text"], one["mark"] or "") for one in found]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def links(page: Path) -> Iterator[str]:
    """Every target of a link or a picture."""
    yield from LINK.findall(prose(page))


def play(some: Iterable[Block], folder: Path) -> None:
    """Run blocks as printed, in one Python and in this folder, which must be the current one."""
    scope: dict[str, Any] = {"__name__": "page"}
    for block in some:
        if block.kind == "python":
            exec(compile(block.text, "page", "exec", dont_inherit=True), scope)
            continue
        for line in block.lines:
            code = _run(line, folder)
            wanted = OFFLINE if block.mark == DOWNLOAD else 0
            assert code == wanted, f"{line}: exit code {code}, wanted {wanted}"


def _run(line: str, folder: Path) -> int:
    words = shlex.split(line)
    if words[0] == "probekit":
        return main.run(words[1:])
    return subprocess.run(words, cwd=folder, capture_output=True, check=False).returncode
