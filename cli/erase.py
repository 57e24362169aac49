"""`probekit erase`: clients or samples out of runs and cache, for good."""

from __future__ import annotations

from pathlib import Path

from probekit.cli.options import CodeFlags, RequestFlags, argument, flag
from probekit.cli.output import CacheOutput
from probekit.cli.unlearn import listed_ids


def erase(
    run: Path = argument("Folder of a run."),
    *,
    request: RequestFlags,
    gone: list[str] | None = flag("Id of a run that is lost, and need not be found."),
    yes: bool = flag("Do not ask.", "--yes", "-y", default=False),
    code: CodeFlags,
    output: CacheOutput,
) -> None:
    """Remove clients or samples from every run that has them and from the cache, for good.

    Killed at any moment, the same command finishes; other commands on this cache wait for that.
    """
    from probekit.runs.erase import NOT_PROMISED, erase_rows, plan_erasure

    plan = plan_erasure(
        run,
        cache=output.open_cache(during_erasure=True),
        clients=request.client or (),
        samples=listed_ids(request.sample),
        where=request.where,
        gone=gone or (),
        dry_run=request.dry_run,
        progress=output.progress,
    )
    for name, rows in plan.same_samples.items():
        output.warn(f"{rows:,} rows of client {name} are the same samples: they are erased, too.")
    if not request.dry_run and not plan.finished:
        if not yes:
            runs = ", ".join(f"{folder} ({count:,} rows)" for folder, count in plan.rows.items())
            question = f"Erase {len(plan.samples):,} samples from the cache and from {runs}?"
            output.confirm(question)
            yes = True
        plan = erase_rows(plan, others=yes, progress=output.progress)
    verb = "Erased" if plan.finished else "Would erase"
    output.print(f"{verb} {len(plan.samples):,} samples.")
    for folder, count in plan.rows.items():
        output.print(f"{folder}: {count:,} rows" if count else f"{folder}: finished")
    output.print(NOT_PROMISED)
    output.result(plan.to_dict())
