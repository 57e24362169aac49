"""`probekit report`: one HTML page about one run or several."""

from __future__ import annotations

from pathlib import Path

from probekit.cli.options import CodeFlags, RowFlags, argument, flag, keywords
from probekit.cli.output import CacheOutput


def report(
    runs: list[Path] = argument("Folders of runs."),
    out: Path = flag("The page to write.", "--out", "-o", default=Path("report.html")),
    data: str = flag("Rows to evaluate on, as for evaluate.", default="test"),
    *,
    code: CodeFlags,
    reading: RowFlags,
    output: CacheOutput,
) -> None:
    """Write a page: before, after, retrained, minimum; bound and truth; clients; cost."""
    from probekit.probing.probe import reading_options
    from probekit.report.page import write_page
    from probekit.report.run import describe_run
    from probekit.runs.evaluate import evaluate_run
    from probekit.runs.run import Run

    store = output.open_cache()
    options = reading_options(keywords(reading))
    evaluations = [
        evaluate_run(Run(folder, cache=store), data, reading=options, progress=output.progress)
        for folder in runs
    ]
    page = write_page([describe_run(evaluation) for evaluation in evaluations], out)
    output.print(f"wrote {page}")
    output.result({"page": page, "runs": [evaluation.to_dict() for evaluation in evaluations]})
