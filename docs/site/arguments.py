"""Docstrings here name their arguments in lines of `name: what it is`. On the site these lines are a list."""

from __future__ import annotations

import re
from typing import Any

import griffe

ARGUMENT = re.compile(r"^(\w+(?:, \w+)*): ")


class Arguments(griffe.Extension):
    """Makes list items of lines that name arguments; lines that go on stay with theirs."""

    def on_object(self, *, obj: griffe.Object, **others: Any) -> None:
        """Called by griffe for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)


def listed(text: str) -> str:
    """The text with its arguments as a list."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        found = ARGUMENT.match(line)
        if found:
            names = ", ".join(f"`{name}`" for name in found[1].split(", "))
            lines += [] if inside else [""]
            lines.append(f"- {names}: {line[found.end() :]}")
        elif inside and line.startswith("Gives "):
            lines += ["", line]
        else:
            lines.append(f"  {line}" if inside and line.strip() else line)
        inside = bool(found) or (inside and bool(line.strip()) and not line.startswith("Gives "))
    return "\n".join(lines)
