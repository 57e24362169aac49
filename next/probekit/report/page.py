"""A page about one run or several: HTML that fetches nothing and runs no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from probekit.errors import InputError
from probekit.files import write_bytes
from probekit.report.tables import (
    ReportData,
    Table,
    bounds_table,
    clients_table,
    costs_table,
    heads_table,
    runs_table,
)

if TYPE_CHECKING:
    import jinja2


@dataclass(frozen=True)
class Section:
    """A part of a page: its table, and its figure where there is one."""

    title: str
    table: Table
    figure: str = ""
    text: str = ""


HEADS_TEXT = (
    "The retrained head is the run's own procedure without the forgotten rows; the minimum is that "
    "of the loss over the retained rows. A head that forgot is like the retrained one: being lower "
    "is a deviation too."
)
BOUNDS_TEXT = (
    "The certified bound is computed from the retained rows. The a-priori bound is known before "
    "anything is computed from them."
)
CLIENTS_TEXT = "On the rows that each client held at training."


def render(runs: Sequence[ReportData]) -> str:
    """The page; the same values give the same bytes."""
    if not runs:
        raise InputError("A report needs a run; found none. Pass the folder of a run.")
    articles = [
        {
            "name": data.name,
            "id": f"run-{number}",
            "summary": data.summary,
            "sections": _sections(data, f"run-{number}"),
            "certificate": data.certificate,
            "facts": data.facts,
        }
        for number, data in enumerate(runs, start=1)
    ]
    comparison = runs_table(runs) if len(runs) > 1 else None
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    template = _environment().get_template("page.html.j2")
    return template.render(title=title, runs=articles, comparison=comparison)


def write_page(runs: Sequence[ReportData], path: Path) -> Path:
    write_bytes(path, render(runs).encode())
    return path


def _sections(data: ReportData, prefix: str) -> list[Section]:
    from probekit.report.figures import draw

    figures: Mapping[str, str] = draw(data, prefix)
    sections = [
        Section(
            "Before and after",
            heads_table(data.evaluation),
            figures.get("heads", ""),
            HEADS_TEXT,
        ),
        Section("Bound and truth", bounds_table(data), figures.get("bounds", ""), BOUNDS_TEXT),
        Section(
            "Clients", clients_table(data.evaluation), figures.get("clients", ""), CLIENTS_TEXT
        ),
        Section("Cost", costs_table(data.costs)),
    ]
    return [section for section in sections if section.table.rows]


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("probekit.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
