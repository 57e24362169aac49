"""An outcome on disk: one JSON, three kinds of table, pictures twice. Written from cells alone."""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib import rc_context

from probekit.bench.pictures import figures, png
from probekit.bench.results import FILE, BenchResult
from probekit.bench.tables import comma_separated, latex, markdown
from probekit.files import make_folder, write_bytes, write_text
from probekit.pages.pictures import SETTINGS, drawn


def write(result: BenchResult, folder: Path) -> list[Path]:
    """Write everything into a folder; gives the files."""
    make_folder(folder)
    texts = {
        FILE: json.dumps(result.plain, indent=1, sort_keys=True, ensure_ascii=False) + "\n",
        "tables.md": markdown(result),
        "tables.csv": comma_separated(result),
        "tables.tex": latex(result),
    }
    for name, text in texts.items():
        write_text(folder / name, text)
    with rc_context(SETTINGS):
        made = list(figures(result))
    for picture, (key, _, figure) in zip(drawn(made), made, strict=True):
        write_text(folder / f"{key}.svg", picture.svg)
        write_bytes(folder / f"{key}.png", png(figure))
    return [
        *(folder / name for name in texts),
        *(folder / f"{key}.{kind}" for key, *_ in made for kind in ("svg", "png")),
    ]
