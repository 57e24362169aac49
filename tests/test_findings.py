"""Every finding about custody (C1 to C22) has a test that names it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

FINDINGS = {f"C{number}" for number in range(1, 23)}
RANGE = re.compile(r"\bC(\d+)(?: to C(\d+))?\b")


def named(text: str) -> set[str]:
    """The findings that a text names, singly or as a range."""
    pairs = [(int(first), int(last or first)) for first, last in RANGE.findall(text)]
    return {f"C{number}" for first, last in pairs for number in range(first, last + 1)}


def test_every_finding_is_named_by_a_test() -> None:
    found: dict[str, list[str]] = {}
    for path in sorted(Path(__file__).parent.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.FunctionDef) and getattr(node, "name", "test_").startswith("test_"):
                for finding in named(ast.get_docstring(node) or "") if path.name != Path(__file__).name else ():
                    found.setdefault(finding, []).append(path.name)
    assert sorted(FINDINGS - set(found)) == []
