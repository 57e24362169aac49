"""`probekit unlearn`: the head of a run without clients, samples, or rows by a column."""

from __future__ import annotations

import shlex
from pathlib import Path

from probekit.cli.options import CodeFlags, RequestFlags, argument, flag
from probekit.cli.output import CacheOutput

MAX_LIST_BYTES = 1 << 28


def unlearn(
    run: Path = argument("Folder of a run."),
    *,
    request: RequestFlags,
    method: str = flag(
        "auto, or a method with its options: exact, cf:rounds=20, ... (probekit method ls).",
        default="auto",
    ),
    code: CodeFlags,
    output: CacheOutput,
) -> None:
    """Forget clients or samples: the next state of a run, certified."""
    from probekit.runs.run import Run

    opened = Run(run, cache=output.open_cache())
    done = opened.unlearn(
        client=request.client or (),
        sample=listed_ids(request.sample),
        where=request.where,
        method=method,
        dry_run=request.dry_run,
        progress=output.progress,
    )
    output.warn(*done.notes)
    if done.plans:
        headers = ("method", "promises", "rounds at most", "bytes at most", "needs")
        rows = [
            (item.name, item.promise, item.rounds, f"{item.bytes:,}", ", ".join(item.missing))
            for item in done.plans
        ]
        output.table(headers, rows)
        output.warn(*(f"{item.name}: {item.warning}" for item in done.plans if item.warning))
    if done.method:
        verb = "Forgot" if done.changed else "Would forget"
        output.print(f"{verb} {done.rows:,} rows by {done.method}. {done.reason}")
    if done.facts is not None:
        facts = done.facts
        output.print(f"retained loss: {facts.loss_before:.6g} before, {facts.loss_after:.6g} after")
        if facts.server_rows:
            output.print(
                f"server rows: {facts.server_rows:,}, effective dimension "
                f"{facts.effective_dimension:.1f}"
            )
        output.warn(*facts.warnings)
    if not request.dry_run:
        output.print("\n".join(opened.summary()))
        words = ["next:", "probekit", "verify", str(run)]
        if code.network is not None:
            words += ["--network", code.network]
        output.print(shlex.join(words))
    output.result(done.to_dict())


def listed_ids(texts: list[str] | None) -> list[str]:
    """The ids in @FILE, one a line; any other text as it is."""
    from probekit.errors import NotFoundError
    from probekit.files import read_limited

    ids = []
    for text in texts or ():
        path = Path(text.removeprefix("@")).expanduser()
        if not text.startswith("@"):
            ids.append(text)
        elif path.is_file():
            ids += read_limited(path, MAX_LIST_BYTES).decode(errors="replace").split()
        else:
            raise NotFoundError(f"No file {path} with ids of samples. Check the path.")
    return ids
