"""The tables and pictures of an experiment as files."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from probekit.bench.experiment import Experiment
from probekit.bench.run import Row
from probekit.bench.tables import (
    by_setting,
    cells_csv,
    costs_table,
    extra_tables,
    markdown,
    mean_of,
    ordered,
    overall_tables,
    setting_table,
)
from probekit.files import make_folder, write_bytes
from probekit.report.figures import BLUE, ORANGE, SETTINGS


def write_pages(experiment: Experiment, rows: Sequence[Row], folder: Path) -> list[Path]:
    """results.md, cells.csv and a picture for each setting."""
    make_folder(folder)
    text = [f"# {experiment.title}\n\n{experiment.about}\n"]
    paths = []
    for name, part in by_setting(rows).items():
        picture = folder / f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}.svg"
        write_bytes(picture, draw(part))
        paths.append(picture)
        text.append(f"\n## {name}\n\n![Accuracy and backdoor by method]({picture.name})\n\n")
        tables = [setting_table(part), *extra_tables(part).values(), costs_table(part)]
        text.append("\n".join(markdown(table) for table in tables if table.rows))
    for title, table in overall_tables(rows).items():
        text.append(f"\n## {title[0].upper()}{title[1:]}\n\n{markdown(table)}")
    files = {"results.md": "".join(text), "cells.csv": cells_csv(rows)}
    for name, content in files.items():
        write_bytes(folder / name, content.encode())
        paths.append(folder / name)
    return paths


def draw(rows: Sequence[Row]) -> bytes:
    """Accuracy and backdoor of each method with their intervals; lines are the retrained head's."""
    present = [row for row in ordered(rows) if mean_of(row, "test") is not None][::-1]
    figure = Figure(figsize=(7.5, 1.0 + 0.28 * len(present)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    measures = {"test": ("accuracy, %", BLUE), "backdoor": ("backdoor, %", ORANGE)}
    with rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        for axes, (measure, (title, color)) in zip(panels, measures.items(), strict=True):
            for position, row in enumerate(present):
                mean = mean_of(row, measure)
                if mean is not None:
                    percent = 100 * np.array([mean.value, mean.half])
                    axes.errorbar(percent[0], position, xerr=percent[1], fmt="o", color=color)
                retrained = mean_of(row, f"{measure}, retrained")
            if present and retrained is not None:
                axes.axvline(100 * retrained.value, color="black", linewidth=0.8, linestyle="--")
            axes.set_xlabel(title)
            axes.grid(axis="x", linewidth=0.4)
        panels[0].set_yticks(range(len(present)), [row.chosen for row in present])
        content = BytesIO()
        figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    return content.getvalue()
