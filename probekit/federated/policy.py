"""What a node's owner allows: a policy file, and nothing that it does not name."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from probekit.errors import InputError, NotFoundError
from probekit.federated.client import QUESTIONS
from probekit.federated.message import SELECTIONS, Ask
from probekit.files import write_text
from probekit.registry import nearest

TEXT = """\
# What this node answers. Nothing that is not named here is answered; the node reads this file before every question.

# Questions: {questions}.
# "statistics" are sums over rows; of fewer rows than dimensions they are as good as the rows. "fit", "gradient",
# "product", "form", "scales" and "importance" are what training and unlearning by rounds need; "evaluate" counts right
# answers. Many answers about chosen heads say more of single rows than one does.
allow = {allow}

# The fewest rows that an answer is given about.
least_rows = {least_rows}

# Which rows may be asked about: "own" (all), "all-but" some samples (to forget them), "only" some. Two answers about
# all rows, and all but one, differ by that row.
rows = {rows}

# What may be trained: "embeddings" are heads, "jvp" networks.
backends = {backends}

# Code of networks that this machine has and that may be run, as py:module:factory.
code = {code}
"""


@dataclass(frozen=True)
class Policy:
    """What a node answers: which questions, about how many rows at least, about which of them, with which code."""

    allow: tuple[str, ...] = ()
    least_rows: int = 1
    rows: tuple[str, ...] = ("own",)
    backends: tuple[str, ...] = ("embeddings",)
    code: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        unknown = [one for one in self.rows if one not in SELECTIONS]
        if unknown:
            raise InputError(f"A policy's `rows` are of {', '.join(SELECTIONS)}; found {unknown[0]!r}.")
        if self.least_rows < 1:
            raise InputError(f"A policy's `least_rows` is 1 or more; found {self.least_rows}.")

    @classmethod
    def read(cls, path: Path) -> Self:
        """The policy in a file."""
        try:
            found = tomllib.loads(path.read_text())
        except FileNotFoundError:
            raise NotFoundError(f"There is no policy {path}, and without one nothing is answered. Write one.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{path} is not TOML: {error}. Put it right; nothing is answered until then.") from error
        known = {one.name: one for one in fields(cls)}
        for name, value in found.items():
            if name not in known:
                raise InputError(f"{path} has an unknown key {name!r}. {nearest(name, list(known))}")
            texts = isinstance(value, list) and all(isinstance(one, str) for one in value)
            if not (type(value) is int if name == "least_rows" else texts):
                wanted = "a whole number" if name == "least_rows" else "a list of texts"
                raise InputError(f"{path}: `{name}` is {wanted}; found {value!r}. Put it right.")
        given: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
        return cls(**given)

    def write(self, path: Path) -> None:
        """Write it with what each line means."""
        listed = {one.name: getattr(self, one.name) for one in fields(self)}
        shown = {name: _toml(value) for name, value in listed.items()}
        write_text(path, TEXT.format(questions=", ".join(sorted(QUESTIONS)), **shown))

    def refusal(self, ask: Ask) -> str:
        """Why a question is refused before anything is computed; empty where it is not."""
        if ask.kind == "define":
            return self._define_refusal(ask.plan)
        if ask.kind not in self.allow:
            return f"this node's policy does not allow {ask.kind!r}."
        if ask.rows.kind not in self.rows:
            return f"this node's policy does not allow questions about {ask.rows.kind!r} rows."
        return ""

    def too_few(self, count: int) -> str:
        """Why an answer about so many rows is not given; empty where it is, as about none."""
        if count == 0 or count >= self.least_rows:
            return ""
        return f"this node answers about {self.least_rows} rows or more, and these are fewer."

    def _define_refusal(self, plan: Any) -> str:
        backend = plan.get("backend")
        if backend not in self.backends:
            return f"this node's policy does not allow the backend {backend!r}."
        foreign = [one for one in _texts(plan) if one.startswith("py:") and one not in self.code]
        return f"this node's policy does not allow the code {foreign[0]}." if foreign else ""


def _texts(value: Any) -> Iterator[str]:
    """Every text in plain values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


def _toml(value: int | tuple[str, ...]) -> str:
    if isinstance(value, int):
        return str(value)
    return "[" + ", ".join('"' + one.replace("\\", "\\\\").replace('"', '\\"') + '"' for one in value) + "]"
