"""What a page tells of a run: its evaluation, its newest state and its history."""

from __future__ import annotations

from dataclasses import asdict, replace

from probekit.certificates.bounds import a_priori_distance
from probekit.federated.federation import total_stats
from probekit.federated.state import KeptStatistics
from probekit.linear.model import LinearModel
from probekit.report.tables import ReportData, format_number
from probekit.runs import layout
from probekit.runs.evaluate import RunEvaluation
from probekit.runs.layout import AnyEvent, Erased, Joined, Trained, Unlearned
from probekit.runs.run import Run, RunData

LISTED = 5
NEWTON_STEP = "fedremoval"


def describe_run(evaluation: RunEvaluation) -> ReportData:
    run = evaluation.run
    newest = run.newest
    description = newest.description
    certificate = newest.certificate
    summary = [_sentence(event, run) for event in newest.events]
    if certificate is not None:
        summary.append(certificate.statements[0])
    options = asdict(description.options)
    facts = {name: str(value) for name, value in options.items() if value is not None}
    facts |= {
        "ridge": f"{format_number(newest.state.ridge)} ({description.options.ridge})",
        "data": description.source,
        "backbone": description.read_encoding().backbone,
        "evaluated on": f"{evaluation.evaluated_on} ({evaluation.test_rows:,})",
        "fingerprint F": newest.fingerprint,
        "fingerprint S": newest.state_fingerprint,
        "head digest": newest.head.digest,
        **description.versions,
    }
    return ReportData(
        name=run.folder.name,
        evaluation=evaluation.unlearning,
        summary=(*summary, *evaluation.notes),
        certificate=None if certificate is None else certificate.to_dict(),
        a_priori=_a_priori(run),
        costs=tuple(
            (_title(event), event.cost) for event in newest.events if not isinstance(event, Erased)
        ),
        facts=facts,
    )


def _sentence(event: AnyEvent, run: Run) -> str:
    """An event of a run's history."""
    if isinstance(event, Trained):
        poisoned = "" if event.poison is None else f", with a backdoor: {event.poison}"
        return f"Trained on {run.newest.description.source}{poisoned}."
    if isinstance(event, Joined):
        return f"{event.rows:,} rows joined."
    if isinstance(event, Erased):
        return f"{event.rows:,} rows were erased."
    names = [*event.clients, *(f"sample {sample[:8]}" for sample in event.samples)]
    listed = ", ".join(names[:LISTED])
    if len(names) > LISTED:
        listed += f" and {len(names) - LISTED:,} more"
    return f"Forgotten by {event.method}: {listed} ({event.rows:,} rows)."


def _title(event: Trained | Joined | Unlearned) -> str:
    kind = type(event).__name__.lower()
    return f"{kind}, {event.method}" if isinstance(event, Unlearned) else kind


def _a_priori(run: Run) -> float | None:
    """The bound of one step with the server's curvature, where the newest state is that step."""
    newest = run.newest
    state = newest.state
    last = newest.events[-1]
    kept = state.get(KeptStatistics)
    is_step = isinstance(last, Unlearned) and last.method.partition(":")[0] == NEWTON_STEP
    earlier = newest.number - 1
    if not is_step or kept is None or earlier not in layout.state_numbers(run.folder):
        return None
    before = replace(newest, number=earlier).state
    data = RunData.of(newest.rows, newest.description, run.cache)
    server = data.server(state.model)
    if server is None or before.model != state.model or not isinstance(state.model, LinearModel):
        return None
    return a_priori_distance(
        total_stats(server),
        total_stats(data.federation(state.model, kept)),
        before.params,
        model=state.model,
        ridge=state.ridge,
    )
