"""`probekit demo`: the whole story on an embedded default."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probekit.cli import options as o
from probekit.cli.allocator import keep_freed_memory
from probekit.cli.output import Console, Output, facts, given, remarks, section

if TYPE_CHECKING:
    from probekit.encoding.extract import ExtractProgress
    from probekit.runs.demo import DemoResult


@o.common
def demo(
    output: Output, runs: Annotated[Path, typer.Option(help="Where the run folders go.")] = Path("runs/demo")
) -> int:
    """Digits, five clients, one of them poisoned: learn the backdoor, forget that client, prove it. No download.

    Takes a minute or two the first time and seconds after that: pictures are encoded once.
    """
    keep_freed_memory()
    output.note("Encoding scikit-learn's digits with EfficientNet-Lite0; the first time takes a minute or two.")
    from probekit.runs.demo import run_demo

    with output.bar("encoding") as bar:

        def watch(name: str, now: ExtractProgress) -> None:
            bar(now.rows, now.total, f"{name}: {now.reused} reused")

        result = run_demo(output.store, runs, progress=watch)
    output.result(result, lambda console, found: _show(console, found, output.cache))
    return 0 if all(line.proven != "false" for line in result.lines) else 6


def _show(console: Console, result: DemoResult, cache: Path | None) -> None:
    from probekit.runs.demo import CLIENTS, POISONED, TRIGGER

    where = f" --cache {cache}" if cache is not None else ""
    seen = {
        "pictures": f"{result.encoded} encoded now, {result.reused} were in the cache",
        "clients": f"{CLIENTS}; client {POISONED} pasted {TRIGGER} on its pictures and called them all 0",
        "ridge": f"{result.ridge:.3g}, chosen by exact leave-one-out",
        "time": ", ".join(f"{what.replace('_', ' ')} {seconds:.1f} s" for what, seconds in result.seconds.items()),
    }
    facts(console, seen)
    rows = [
        (
            line.head,
            f"{line.accuracy:.1%}",
            f"{line.backdoor:.1%}",
            f"{line.distance:.2g}",
            given(line.bound, ".2g"),
            line.proven,
            f"{line.seconds * 1000:.0f} ms" if line.seconds else "",
        )
        for line in result.lines
    ]
    headers = ("head", "accuracy", "backdoor", "distance", "bound", "bound is", "time")
    section(console, "test pictures, before and after forgetting the poisoned client", headers, rows)
    remarks(console, dict.fromkeys(f"warning: {warning}" for line in result.lines for warning in line.warnings))
    console.print(
        "\nbackdoor: how often the trigger makes test pictures of other classes a 0; what counts is the difference to "
        "the retrained head.\ndistance: of the weights to the retrained head's, relative; bound: what the certificate "
        "proves of it, absolute.\nLook further: "
        f"[bold]probekit evaluate {result.runs[0]} demo-test --triggered demo-test-triggered{where}[/] and "
        f"[bold]probekit report {result.runs[0]} --test demo-test{where}[/]",
        soft_wrap=True,
    )
