"""A page about one run or several: HTML that fetches nothing and runs no script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from probekit.errors import InputError
from probekit.files import write_bytes
from probekit.report import tables
from probekit.report.tables import ReportData


def render(runs: Sequence[ReportData]) -> str:
    """The page; the same values give the same bytes."""
    from probekit.report.figures import draw

    if not runs:
        raise InputError("A report needs a run; found none. Pass the folder of a run.")
    articles = [
        {
            "data": data,
            "heads": tables.heads_table(data.evaluation),
            "bounds": tables.bounds_table(data),
            "clients": tables.clients_table(data.evaluation),
            "costs": tables.costs_table(data.costs),
            "figures": draw(data),
        }
        for data in runs
    ]
    comparison = tables.runs_table(runs) if len(runs) > 1 else None
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    return render_template("page.html.j2", title=title, articles=articles, comparison=comparison)


def render_template(name: str, **values: Any) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("probekit.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name).render(**values)


def write_page(runs: Sequence[ReportData], path: Path) -> Path:
    write_bytes(path, render(runs).encode())
    return path
