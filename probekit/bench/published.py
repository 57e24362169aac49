"""Numbers that others published, by our names of the methods, to stand beside ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from probekit.bench.experiment import Figures
from probekit.errors import InputError, NotFoundError
from probekit.registry import nearest

NAMES = {
    "F2L2": "fedremoval",
    "FedEraser": "federaser",
    "PGA": "pga",
    "EWSGA": "ew-sga",
    "SGA": "sga",
    "CF": "cf",
    "Flipping": "flipping",
    "Ferrari": "ferrari",
    "FUSED": "fused",
    "Retrain": "retrain-fedavg",
    "linear": "nothing",
    "conventional": "nothing",
}
"""The paper's names. Its linear and conventional networks were measured before anything was forgotten."""

Published = dict[str, tuple[tuple[float, float | None], ...]]
"""For each method accuracy and backdoor, in percent, each with its standard error where one was given."""


@cache
def figures() -> Mapping[str, Any]:
    """The paper's tables."""
    found: dict[str, Any] = json.loads((resources.files("probekit.bench") / "figures.json").read_text())
    return found


def published(asked: Figures) -> Published:
    """The numbers of a key or of a table of a person's own."""
    if asked.key:
        return _paper(asked.key)
    return {name: tuple(map(_pair, row)) for name, row in asked.values.items() if _is_row(name, row)}


def source(asked: Figures) -> str:
    """Who says so."""
    return asked.source or (str(figures()["source"]) if asked.key else "")


def beside(key: str) -> dict[str, Any]:
    """A table of the paper that has other columns than methods' accuracy and backdoor, as it stands there."""
    tables = {
        f"{name}.{part}": (value["columns"], rows)
        for name, value in figures().items()
        if isinstance(value, Mapping) and "columns" in value
        for part, rows in value.items()
        if isinstance(rows, list) and isinstance(rows[0], list)
    }
    if key not in tables:
        raise NotFoundError(f"The paper's figures have no table {key!r}. {nearest(key, list(tables))}")
    columns, rows = tables[key]
    return {"key": key, "source": figures()["source"], "columns": columns, "rows": rows}


def _paper(key: str) -> Published:
    """`full_parameter.mnist`; of rows of four columns one kind alone by a last part: `....mnist.linear`."""
    node: Any = figures()
    columns: list[str] = []
    parts = key.split(".")
    for number, part in enumerate(parts):
        if isinstance(node, Mapping):
            columns = node.get("columns", columns)
        if isinstance(node, list) and number == len(parts) - 1:
            return _of_columns(node, columns, only=part)
        if not isinstance(node, Mapping) or part not in node:
            known = list(node) if isinstance(node, Mapping) else [one.split()[0] for one in columns]
            raise NotFoundError(f"The paper's figures have no {key!r}. {nearest(part, known)}")
        node = node[part]
    if isinstance(node, list):
        return _of_columns(node, columns)
    rows = {name: row for name, row in node.items() if name in NAMES}
    if not rows:
        raise NotFoundError(f"The paper's figures have no methods at {key!r}. {nearest(key, list(figures()))}")
    return {NAMES[name]: tuple(map(_pair, row)) for name, row in rows.items()}


def _of_columns(row: list[Any], columns: list[str], only: str = "") -> Published:
    found: dict[str, list[tuple[float, float | None]]] = {}
    for title, value in zip(columns, row, strict=False):
        name = title.split()[0]
        if name in NAMES and (not only or name == only):
            found.setdefault(NAMES[name], []).append(_pair(value))
    return {name: tuple(pairs) for name, pairs in found.items()}


def _is_row(name: str, row: Any) -> bool:
    if not isinstance(row, list) or len(row) not in (1, 2):
        raise InputError(f"published.values.{name} is [accuracy, backdoor] in percent; found {row!r}.")
    return True


def _pair(value: Any) -> tuple[float, float | None]:
    if isinstance(value, list) and len(value) == 2:
        return float(value[0]), float(value[1])
    if isinstance(value, int | float):
        return float(value), None
    raise InputError(f"A published number is a number or [mean, standard error]; found {value!r}.")
