"""`probekit demo`: the whole story on an embedded default."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probekit.cli import options as o
from probekit.cli.allocator import keep_freed_memory
from probekit.cli.output import Console, Output, facts, remarks, section

if TYPE_CHECKING:
    from probekit.encoding.extract import ExtractProgress
    from probekit.runs.demo import DemoLine, DemoResult


@o.common
def demo(
    output: Output, runs: Annotated[Path, typer.Option(help="Where the run folders go.")] = Path("runs/demo")
) -> int:
    """Digits, five clients, one of them poisoned: learn the backdoor, forget that client, prove it. No download.

    Takes about a minute the first time and seconds after that: pictures are encoded once. Ends with a table, and a
    page about the three runs.
    """
    keep_freed_memory()
    output.note("Encoding scikit-learn's digits with EfficientNet-Lite0; the first time takes about a minute.")
    from probekit.runs.demo import run_demo

    with output.bar("encoding") as bar:

        def watch(name: str, now: ExtractProgress) -> None:
            bar(now.rows, now.total, f"{name}: {now.reused} reused")

        result = run_demo(output.store, runs, progress=watch)
    output.result(result, lambda console, found: _show(console, found, output.cache))
    return 0 if all(line.verdict != "false" for line in result.lines) else 6


def _show(console: Console, result: DemoResult, cache: Path | None) -> None:
    from probekit.runs.demo import CLIENTS, POISONED, TEST, TRIGGERED_TEST

    where = f" --cache {cache}" if cache is not None else ""
    seen = {
        "pictures": f"{result.encoded} encoded now, {result.reused} were in the cache",
        "clients": f"{CLIENTS}; client {POISONED} pasted a square on its pictures and called them all 0: a backdoor",
        "backdoor": "how often the square makes another digit a 0",
        "as retrained": "test pictures that get the class that retraining without the client gives",
        "proven": "how many of them are certified to, without retraining; the certificate was checked",
        "time": ", ".join(f"{what.replace('_', ' ')} {seconds:.1f} s" for what, seconds in result.seconds.items()),
    }
    facts(console, seen)
    remarks(console, dict.fromkeys(f"{line.head}: {warning}" for line in result.lines for warning in line.warnings))
    rows = [
        (line.head, *(f"{one:.1%}" for one in (line.accuracy, line.backdoor, line.same)), _proven(line, result))
        for line in result.lines
    ]
    headers = ("head", "accuracy", "backdoor", "as retrained", "proven")
    section(console, f"{result.test_rows} test pictures", headers, rows)
    console.print(
        "\nA backdoor that is gone is no evidence that a client is: what counts is how near a head is to retraining.\n"
        f"The page about it, with pictures, ledger and certificates: [bold]{result.page}[/]\n"
        f"Look further: [bold]probekit evaluate {result.runs[0]} {TEST} --triggered {TRIGGERED_TEST}{where}[/] and "
        f"[bold]probekit verify --run {result.runs[0]} --rows --test {TEST} --require weights{where}[/]",
        soft_wrap=True,
    )


def _proven(line: DemoLine, result: DemoResult) -> str:
    if line.certified is None:
        return ""
    return f"{line.certified} of {result.test_rows}" if line.verdict == "proven" else line.verdict
