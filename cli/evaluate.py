"""`probekit evaluate`: how good a run's head is, beside retraining and the minimum."""

from __future__ import annotations

from pathlib import Path

from probekit.cli.options import CodeFlags, RowFlags, argument, flag, keywords
from probekit.cli.output import CacheOutput


def evaluate(
    run: Path = argument("Folder of a run."),
    data: str = argument("Rows to evaluate on, as for probe; test: the run's own.", "test"),
    confidence: float = flag("Confidence of the intervals.", default=0.95),
    *,
    code: CodeFlags,
    reading: RowFlags,
    output: CacheOutput,
) -> None:
    """Accuracy, backdoor and membership: before, after, retrained and at the minimum."""
    from probekit.probing.probe import reading_options
    from probekit.report.tables import heads_table
    from probekit.runs.evaluate import evaluate_run
    from probekit.runs.run import Run

    evaluation = evaluate_run(
        Run(run, cache=output.open_cache()),
        data,
        confidence=confidence,
        reading=reading_options(keywords(reading)),
        progress=output.progress,
    )
    table = heads_table(evaluation.unlearning)
    output.table(table.headers, table.rows)
    if table.note:
        output.print(table.note)
    output.warn(*evaluation.notes)
    output.result(evaluation.to_dict())
