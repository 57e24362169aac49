"""What a command prints: results on stdout, progress and warnings on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click
import typer

from probekit.cli.options import common_flag, read_config
from probekit.progress import Step

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

    from probekit.cache import Cache
    from probekit.embeddings import EmbeddingSet, Skipped

SECONDS_BETWEEN_LINES = 30.0
SHOWN_ITEMS = 10
SKIPPED = 5
"""The exit code where samples were left out."""


@dataclass
class Output:
    """Where a command writes, with the flags for that. `result` is called once, at the end."""

    config: Path | None = common_flag("TOML file of options.", callback=read_config, is_eager=True)
    json: bool = common_flag("Print exactly one JSON object.", "--json", default=False)
    quiet: bool = common_flag("Print nothing but errors.", "--quiet", "-q", default=False)
    verbose: bool = common_flag("Show tracebacks of errors.", "--verbose", "-v", default=False)

    def __post_init__(self) -> None:
        self.warnings: list[str] = []
        self.bars: RichProgress | None = None
        self.line_printed = monotonic()

    def print(self, text: str = "") -> None:
        if not self.json and not self.quiet:
            self._finish_bars()
            print(text, flush=True)

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Left-aligned columns of plain text."""
        cells = [list(headers), *([str(cell) for cell in row] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for row in cells:
            padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            self.print("  ".join(padded).rstrip())

    def fields(self, values: Mapping[str, Any]) -> None:
        """A line for every value."""
        for name, value in values.items():
            self.print(f"{name.replace('_', ' ')}: {_one_line(value)}")

    def warn(self, *texts: str) -> None:
        self.warnings += texts
        if not self.quiet:
            self._finish_bars()
            for text in texts:
                print(text, file=sys.stderr, flush=True)

    def confirm(self, question: str) -> None:
        """Ask before something is removed; with --json there is nobody to ask."""
        if self.json:
            raise click.UsageError(f"{question} --json does not ask: pass --yes, or --dry-run.")
        typer.confirm(question, abort=True, err=True)

    def result(
        self, value: Mapping[str, Any], *, skipped: Sequence[Skipped] = (), exit_code: int = 0
    ) -> None:
        """Print JSON if asked for, name the samples that were left out, and exit."""
        self.warn(*(f"skipped {item.key}: {item.reason}" for item in skipped[:SHOWN_ITEMS]))
        if len(skipped) > SHOWN_ITEMS:
            self.warn(f"... and {len(skipped) - SHOWN_ITEMS:,} more skipped")
        self._finish_bars()
        if self.json:
            document = {**value, "warnings": self.warnings}
            print(json.dumps(document, ensure_ascii=False, default=_to_json), flush=True)
        if exit_code or skipped:
            raise typer.Exit(exit_code or SKIPPED)

    def progress(self, step: Step) -> None:
        """A bar on a terminal; else a line on stderr every 30 seconds."""
        if self.quiet:
            return
        if sys.stderr.isatty():
            self._draw(step)
        elif monotonic() - self.line_printed >= SECONDS_BETWEEN_LINES:
            self.line_printed = monotonic()
            total = "" if step.total is None else f" of {step.total:,}"
            note = f" ({step.note})" if step.note else ""
            with suppress(OSError):
                print(f"{step.stage}: {step.done:,}{total}{note}", file=sys.stderr, flush=True)

    def _draw(self, step: Step) -> None:
        if self.bars is None:
            self.bars = _new_bars()
            self.bars.start()
            click.get_current_context().call_on_close(self._finish_bars)  # also after an error
        tasks = {task.description: task.id for task in self.bars.tasks}
        if step.stage not in tasks:
            tasks[step.stage] = self.bars.add_task(step.stage, note="")
        self.bars.update(tasks[step.stage], completed=step.done, total=step.total, note=step.note)

    def _finish_bars(self) -> None:
        if self.bars is not None:
            self.bars.stop()
            self.bars = None


@dataclass
class CacheOutput(Output):
    """Of a command that uses the cache; what the cache warns of is printed too."""

    cache: Path | None = common_flag("Cache folder (default: PROBEKIT_CACHE, else your own).")

    def open_cache(self, *, during_erasure: bool = False) -> Cache:
        from probekit.cache import Cache

        return Cache(self.cache, notify=self.warn, during_erasure=during_erasure)

    def describe_set(self, name: str, rows: EmbeddingSet) -> dict[str, Any]:
        """Print a line about a set; returns what --json says of it."""
        outcome = f"{len(rows.class_names)} classes" if rows.class_names else "no labels"
        if rows.target_names:
            outcome = f"{len(rows.target_names)} targets"
        size = f"{len(rows):,} x {rows.width} {rows.encoding.dtype}"
        self.print(f"{name}: {size}, {outcome}, {rows.encoding.backbone}")
        return {
            "name": name,
            "rows": len(rows),
            "width": rows.width,
            "dtype": rows.encoding.dtype,
            "backbone": rows.encoding.backbone,
            "encoding": rows.encoding.digest,
            "classes": len(rows.class_names),
            "targets": rows.target_names,
            "source": rows.source,
        }


def _new_bars() -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    note = TextColumn("{task.fields[note]}", markup=False)
    return RichProgress(*columns, TimeRemainingColumn(), note, console=Console(stderr=True))


def _one_line(value: Any) -> str:
    if isinstance(value, Mapping):
        value = [f"{key} {item}" for key, item in value.items()]
    if not isinstance(value, list | tuple):
        return str(value)
    shown = [str(item) for item in value[:SHOWN_ITEMS]]
    if len(value) > SHOWN_ITEMS:
        shown.append(f"... {len(value):,} in all")
    return ", ".join(shown) or "none"


def _to_json(value: Any) -> object:
    is_record = is_dataclass(value) and not isinstance(value, type)
    return asdict(value) if is_record else str(value)
