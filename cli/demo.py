"""`probekit demo`: a backdoor that one client planted, and that client forgotten."""

from __future__ import annotations

from pathlib import Path

from probekit.cli.options import argument, flag
from probekit.cli.output import CacheOutput

PAGE = "report.html"


def demo(
    folder: Path = argument("Where the runs are written.", Path("probekit-demo")),
    backbone: str = flag(
        "Encode with this, packaged:efficientnet-lite0 for example.",
        "--backbone",
        "-b",
        default="pixels:8",
    ),
    *,
    output: CacheOutput,
) -> None:
    """Train on digits with a poisoned client, see its backdoor, forget the client, see it gone."""
    from probekit.report.page import write_page
    from probekit.report.run import describe_run
    from probekit.report.tables import format_bound, format_number
    from probekit.runs.demo import CLIENTS, DATA, POISON, POISONED, run_demo

    output.print(f"{DATA} across {CLIENTS} clients; {POISON}")
    result = run_demo(
        folder, backbone=backbone, cache=output.open_cache(), progress=output.progress
    )
    distances = ("distance to the minimum", "certified: at most", "verify")
    headers = ("head", "accuracy", "backdoor", *distances)
    rows = [
        (
            line.head,
            f"{line.accuracy:.1%}",
            f"{line.backdoor:.1%}",
            format_number(line.distance),
            format_bound(line.certified),
            "" if line.verified is None else f"exit {line.verified}",
        )
        for line in result.lines
    ]
    output.table(headers, rows)
    page = write_page(
        [describe_run(evaluation) for evaluation in result.evaluations], folder / PAGE
    )
    output.print(f"wrote {page}")
    output.print(f"next: probekit verify {folder / 'exact'} --forgot client={POISONED}")
    output.result({**result.to_dict(), "page": page})
