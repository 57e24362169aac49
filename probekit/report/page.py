"""Reports as pages: one HTML file for all runs, Markdown for one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probekit.files import storing, write_text
from probekit.pages.formats import one_line, words
from probekit.pages.pictures import Picture
from probekit.pages.probe_page import figures_of
from probekit.pages.render import image, render
from probekit.report import summary
from probekit.report.run_table import run_table

SHOWN = 50
"""So many clients and classes stand in a table; JSON has all."""

Plain = Mapping[str, Any]
Drawn = tuple[Plain, Sequence[Picture], Mapping[str, bytes]]
"""A plain report, its pictures, and small pictures of rows by id."""


def write_page(made: Sequence[Drawn], path: Path | str) -> list[Plain]:
    """Write one page about runs, which needs no other file. Gives their plain values."""
    path = Path(path).absolute()
    with storing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, report_page(made))
    return [value for value, _, _ in made]


def report_page(made: Sequence[Drawn]) -> str:
    """The page about these runs."""
    table = run_table([value for value, _, _ in made])
    places = {value["run"]: f"r{place}" for place, (value, _, _) in enumerate(made, start=1)}
    runs = [_run(place, *one) for place, one in enumerate(made, start=1)]
    return render("report.html.j2", runs=runs, table=table, places=places)


def markdown(report: Plain) -> str:
    """A report as Markdown, with its pictures beside it."""
    text = render("report.md.j2", **_words(report))
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _words(report: Plain) -> dict[str, Any]:
    pages = [
        {
            **page,
            "facts": summary.certificate_facts(page, report["run"]),
            "caveats": summary.caveats(page),
            "concentration": summary.concentration(page),
        }
        for page in report["certificates"]
    ]
    proven, claimed = summary.claims(report)
    said: Plain = {"sentences": summary.sentences(report), "proven": proven, "claimed": claimed}
    said = {**said, "rebuilt": summary.rebuilt(report)}
    sources = sorted({one["source"] for one in report["stages"] if one["source"]})
    return {"report": report, "pages": pages, "shown": SHOWN, "sources": sources, **said}


def _run(place: int, report: Plain, pictures: Sequence[Picture], thumbnails: Mapping[str, bytes]) -> dict[str, Any]:
    """What the page's template is given of a run."""
    prefix = f"r{place}"
    return {
        **_words(report),
        "id": prefix,
        "config": [summary.Fact(name, one_line(one)) for name, one in report["config"].items() if one is not None],
        "environment": [summary.Fact(name, one_line(one)) for name, one in report["environment"].items()],
        "inputs": [summary.Fact(words(name), one_line(one), exact=True) for name, one in report["inputs"].items()],
        "name": Path(report["run"]).name or report["run"],
        **figures_of(pictures, prefix),
        "thumbnails": {row: image(content) for row, content in thumbnails.items()},
    }
