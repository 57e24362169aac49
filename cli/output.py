"""What a person or a program sees: one JSON object on stdout, or text; everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import typer

if TYPE_CHECKING:
    from rich.console import Console as Console

    from probekit.cache import DiskStore
    from probekit.protocols import Progress, Watch
    from probekit.runs.run import Run
else:
    Console = Any  # which only type checkers need

Rows = Sequence[Iterable[object]]
Value = TypeVar("Value")
"""A result with `.plain`, or plain values."""


def fail(message: str, code: int, kind: str, arguments: list[str]) -> int:
    """Say what went wrong; gives the exit code."""
    if "--json" in arguments:  # even where they cannot be parsed
        print(json.dumps({"error": {"kind": kind, "message": message, "exit_code": code}}))
    from rich.console import Console

    Console(stderr=True, soft_wrap=True, emoji=False).print(f"[bold red]error:[/] {_plain(message)}", highlight=False)
    return code


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)


@dataclass(frozen=True)
class Output:
    """Where a command speaks. `result` is said once, at the end, on the `stream` where JSON goes."""

    as_json: bool = False
    quiet: bool = False
    cache: Path | None = None
    stream: IO[str] | None = None

    @cached_property
    def store(self) -> DiskStore:
        """The cache that was named, or the user's own."""
        return self.store_for(finishing=False)

    def store_for(self, *, finishing: bool) -> DiskStore:
        """The same; for commands that finish a removal also if one was interrupted."""
        from probekit.cache import DiskStore

        return DiskStore(self.cache, waiting=self.note, unfinished=finishing)

    def open(self, run: Path, *, finishing: bool = False) -> Run:
        """A run whose rows are in that cache; for commands that finish a purge also if one was interrupted."""
        from probekit.runs.run import Run

        return Run.open(run, store=self.store_for(finishing=finishing), unfinished=finishing)

    def confirm(self, question: str, yes: bool) -> None:
        """Ask a person before something is done for good; a program was asked when it was written."""
        if not yes and not self.as_json:
            typer.confirm(question, abort=True, err=True)

    @cached_property
    def side(self) -> Console:
        """The console for progress and notices."""
        from rich.console import Console

        return Console(stderr=True, quiet=self.quiet, highlight=False, emoji=False)

    def note(self, text: str) -> None:
        """A remark on the way."""
        self.side.print(f"[dim]{_plain(text)}[/]", soft_wrap=True)

    def busy(self, what: str) -> AbstractContextManager[object]:
        """Something that turns while work is done, on a terminal only."""
        return self.side.status(what) if self.side.is_terminal else nullcontext()

    def result(self, value: Value, show: Callable[[Console, Value], None]) -> None:
        """The outcome, as one JSON object or shown to a person."""
        if self.as_json:
            text = json.dumps(getattr(value, "plain", value), ensure_ascii=False, default=str)
            print(text, file=self.stream, flush=True)
        elif not self.quiet:
            from rich.console import Console

            show(Console(highlight=False, emoji=False), value)

    def forms(self, kind: str, rows: Mapping[str, str]) -> None:
        """Names of a kind, and how each is written."""
        value = {kind: [{"name": name, "form": form} for name, form in rows.items()]}
        self.result(value, lambda console, _: console.print(table("", ("name", "how to write it"), rows.items())))

    @contextmanager
    def bar(self, what: str) -> Iterator[Callable[[int, int | None, str], None]]:
        """A progress bar with rate and remaining time, on a terminal only; call it with done, total and a remark."""
        with self.stages() as stages:
            yield stages(what)

    @contextmanager
    def watch(self) -> Iterator[Watch]:
        """Progress bars for stages of rounds or steps."""
        with self.stages() as stages:

            def begin(stage: str) -> Callable[[Progress], None]:
                bar = stages(stage)
                return lambda now: bar(now.done, now.total, _remark(now))

            yield begin

    @contextmanager
    def stages(self) -> Iterator[Callable[[str], Callable[[int, int | None, str], None]]]:
        """Progress bars, one below the other: call it with the name of the next stage for its bar."""
        if self.quiet or not sys.stderr.isatty():
            yield lambda what: lambda done, total, remark: None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        left = ("{task.description}", BarColumn(), MofNCompleteColumn(), "{task.fields[rate]}")
        right = (TimeRemainingColumn(), "[dim]{task.fields[remark]}[/]")
        with Progress(*left, *right, console=self.side) as progress:

            def begin(what: str) -> Callable[[int, int | None, str], None]:
                task = progress.add_task(what, total=None, rate="", remark="")

                def advance(done: int, total: int | None, remark: str) -> None:
                    speed = progress.tasks[progress.task_ids.index(task)].speed
                    rate = f"{speed:.1f}/s" if speed else ""
                    progress.update(task, completed=done, total=total, rate=rate, remark=remark)

                return advance

            yield begin


def _remark(now: Progress) -> str:
    """What else is known of a round; what is not a number is not known."""
    known = {"loss": f"{now.loss:.4g}", "residual": f"{now.residual:.1e}"}
    return ", ".join(f"{name} {value}" for name, value in known.items() if value != "nan")


def table(title: str, headers: Iterable[str], rows: Iterable[Iterable[object]]) -> Any:
    """A rich table of plain values."""
    from rich.table import Table

    made = Table(title=title or None, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for header in headers:
        made.add_column(header, overflow="fold", min_width=max(map(len, header.split()), default=0))
    for row in rows:
        made.add_row(*(_plain(str(cell)) for cell in row))
    return made


def section(
    console: Console, title: str, headers: Iterable[str], rows: Rows, most: int | None = None, which: str = "first"
) -> None:
    """A table of at most so many rows under a line of its own, which is not broken to the table's width."""
    title += f", the {which} {most} of {len(rows)}" if most is not None and len(rows) > most else ""
    console.print(f"\n[bold]{_plain(title)}[/]", soft_wrap=True)
    console.print(table("", headers, rows[:most]))


def remarks(console: Console, lines: Iterable[str]) -> None:
    """What else is to be known, one dim line each."""
    for line in lines:
        console.print(f"- {line}", style="dim", markup=False, soft_wrap=True)


def given(value: float | None, form: str) -> str:
    """A number in this form; nothing where there is none."""
    return "" if value is None else format(value, form)


def facts(console: Console, values: Mapping[str, object]) -> None:
    """Names and values, one pair a line."""
    width = max((len(name) for name in values), default=0)
    for name, value in values.items():
        console.print(f"[bold]{name.replace('_', ' '):<{width}}[/]  {_plain(str(value))}", soft_wrap=True)


def size(count: float) -> str:
    """A number of bytes as people read it."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
