"""From a run folder to the values of its report: the work of `probekit report`, without pictures or printing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from probekit.cache import DiskStore
from probekit.certificates.certify import Known, known_at, objective_of
from probekit.certificates.margins import margins
from probekit.errors import InputError, MismatchError, NotFoundError
from probekit.evaluation.backdoor import backdoor_success
from probekit.evaluation.metrics import accuracy, accuracy_by_class, confusion
from probekit.files import read_json, sha256_file
from probekit.models.heads import Head
from probekit.models.serving import predict
from probekit.report.report import AFTER, BEFORE, RETRAINED, TRAINED, Judged, Measured, Page, Report, StateReport
from probekit.runs import proofs
from probekit.runs.evaluation import Judge, Subject
from probekit.runs.folder import RunFolder
from probekit.runs.layout import NOTE
from probekit.runs.snapshot import Snapshot, snapshot
from probekit.runs.training import usable
from probekit.runs.unlearning import UNLEARN, rows_at
from probekit.unlearning.triage import Influence, influences
from probekit.values import EmbeddingSet, Json

NO_ROWS = "No test set was named and the server has no rows of its own"
NO_BOUND = "The ridge is 0 or rounding is as large as the smallest curvature: no bound holds."
JUDGED = "accuracy, margins and classes"


@dataclass(frozen=True)
class ReportOptions:
    """What a report is to be judged on; `from_rows`: retrain from the cached rows even where statistics are kept."""

    tests: Sequence[str] = ()
    triggered: str | None = None
    target: int | None = None
    from_rows: bool = False


@dataclass(frozen=True, eq=False)
class Yardstick:
    """The rows that every head is judged on, and the triggered pictures with the class they are to be given."""

    subjects: Sequence[Subject]
    triggered: EmbeddingSet | None = None
    target: int = 0

    def measure(self, head: Head) -> Measured:
        """How good a head is on all of them."""
        shares = {one.name: accuracy(predict(head, one.rows), one.rows.labels) for one in self.subjects}
        if self.triggered is None:
            return Measured(head.digest, shares)
        return Measured(head.digest, shares, backdoor_success(head, self.triggered, target=self.target))


@dataclass(frozen=True, eq=False)
class Examined:
    """A state, its retrained head, what is known of the loss at its own head, and all that as told."""

    stage: Snapshot
    retrained: Head | None
    known: Known | None
    told: StateReport
    page: Page | None


def gather(run: RunFolder, store: DiskStore, wanted: ReportOptions) -> Report:
    """All that can be told of a run. Its ledger and certificates are checked on the way."""
    entries, left_out = run.entries(), dict[str, str]()
    yardstick = Yardstick(subjects(run, store, wanted, left_out), *_triggered(run, store, wanted, left_out))
    first = last = None
    told: list[StateReport] = []
    pages: list[Page] = []
    for number in run.states():
        here = snapshot(run, store, number, from_rows=wanted.from_rows)
        sets = [one.rows for one in yardstick.subjects]
        last = _examine(here, yardstick, proofs.page(run, here, entries, sets=sets))
        first = first or last
        told.append(last.told)
        pages += [last.page] if last.page is not None else []
    assert first is not None
    assert last is not None
    gone = [one for one in entries if one.action == UNLEARN and one.outputs.get("state") not in run.states()]
    if gone:
        left_out["purged states"] = f"{len(gone)} states that requests made are purged; the ledger still names them."
    return Report(
        run=str(run.path),
        inputs=_inputs(run, store, yardstick, wanted),
        config=run.config,
        environment=read_json(run.path / "environment.json"),
        stages=told,
        judged=[_judged(one, first, last) for one in yardstick.subjects],
        influence=_influence(first.stage, left_out),
        influence_state=first.stage.number,
        pages=pages,
        ledger=[proofs.told(entry) for entry in entries],
        left_out=left_out,
    )


def subjects(run: RunFolder, store: DiskStore, wanted: ReportOptions, left_out: dict[str, str]) -> list[Subject]:
    """The test sets or, where none is named, the server's rows, where there are any."""
    if wanted.tests:
        judge = Judge(run, store, run.trained())
        return [judge.named(name) for name in dict.fromkeys(wanted.tests)]
    try:
        embeddings, partition = rows_at(run, store, run.state)
    except (NotFoundError, MismatchError) as error:
        left_out[JUDGED] = f"No test set was named, and the run's own rows are not at hand. {error}"
        return []
    if not len(partition.server):
        left_out[JUDGED] = f"{NO_ROWS}. Name a set: `probekit report {run.path} --test SET`."
        return []
    return [Subject.server("the server's rows", embeddings.select(partition.server), run.trained())]


def _triggered(
    run: RunFolder, store: DiskStore, wanted: ReportOptions, left_out: dict[str, str]
) -> tuple[EmbeddingSet | None, int]:
    """The triggered pictures and the class they are to be given: the one named or, in a poisoned run, that run's."""
    target = wanted.target
    if target is None and run.config.get("poison") is not None:
        target = run.config["target"]
    if wanted.triggered is None and wanted.target is None:
        left_out["backdoor success"] = (
            "No triggered pictures were named (`triggered`, and `target` with the number of its class)."
        )
        return None, 0
    if wanted.triggered is None or target is None:
        raise InputError("Backdoor success needs both: `triggered`, a set, and `target` with the number of its class.")
    rows, _ = usable(store.open(wanted.triggered))
    if rows.spec.trigger is None:
        raise MismatchError(
            f"{wanted.triggered} holds pictures without a trigger, on which a backdoor cannot show. Extract the test "
            "pictures with `trigger`."
        )
    return rows, target


def _examine(here: Snapshot, yardstick: Yardstick, page: Page | None) -> Examined:
    """A state beside the head that retraining on its rows gives."""
    trained, (retrained, missing) = here.trained, here.retrained()
    known, unbounded = _known(here, trained.head)
    bound = known.weights if known is not None else None
    if page is not None:
        bound, unbounded = page.certificate.bounds.weights, page.certificate.bounds.why
    told = StateReport(
        here.number,
        trained.method,
        trained.counts,
        yardstick.measure(trained.head),
        bound=bound,
        why=" ".join(dict.fromkeys(part for part in (missing, unbounded) if part)),
    )
    if retrained is not None:
        own, _ = _known(here, retrained)
        distance = float(np.linalg.norm(trained.head.params - retrained.params))
        told = replace(
            told,
            retrained=yardstick.measure(retrained),
            source=here.source,
            distance=distance,
            relative=distance / float(np.linalg.norm(retrained.params)),
            own_bound=own.weights if own is not None else None,
        )
    return Examined(here, retrained, known, told, page)


def _known(here: Snapshot, head: Head) -> tuple[Known | None, str]:
    """What is known of the retained loss at a head; or why nothing is."""
    if here.statistics is None and here.clients is None:
        return None, here.why
    design = here.trained.design
    try:
        objective = objective_of(here.trained)
    except InputError as error:
        return None, str(error)
    found = known_at(
        head.params[: design.columns],
        objective,
        design,
        statistics=here.statistics,
        clients=here.clients,
        term=here.trained.objective,
    )
    return (found, "") if found is not None and found.weights is not None else (None, NO_BOUND)


def _judged(subject: Subject, first: Examined, last: Examined) -> Judged:
    """The classes by head, and the current head's confusion and margins."""
    rows, head = subject.rows, last.stage.trained.head
    heads: dict[str, Head | None] = {AFTER: head, RETRAINED: last.retrained}
    if first is not last:
        heads = {BEFORE: first.stage.trained.head, **heads}
    elif last.stage.number == 1:
        heads = {TRAINED: head, RETRAINED: last.retrained}
    found = None
    if last.known is not None:
        found = margins(head, rows, design=last.stage.trained.design, known=last.known)
    return Judged(
        subject.name,
        rows.digest,
        subject.meaning,
        len(rows),
        subject.left_out,
        {
            label: accuracy_by_class(predict(one, rows), rows.labels, classes=head.classes)
            for label, one in heads.items()
            if one is not None
        },
        confusion(predict(head, rows), rows.labels, classes=head.classes),
        found,
        last.told.why if found is None else "",
    )


def _influence(here: Snapshot, left_out: dict[str, str]) -> tuple[Influence, ...]:
    """How much each client of the first state that is still there matters."""
    try:
        if here.why and here.trained.gradients is None:
            raise InputError(here.why)
        return influences(here.with_statistics)
    except InputError as error:
        left_out["influence of each client"] = str(error)
        return ()


def _inputs(run: RunFolder, store: DiskStore, yardstick: Yardstick, wanted: ReportOptions) -> dict[str, Json]:
    """The digests of all that the report was made from."""
    found: dict[str, Json] = {
        NOTE: sha256_file(run.path / NOTE),
        "ledger": run.entries()[-1].digest,
        "training set": run.inputs["set"],
        "partition": run.inputs["partition"],
    }
    for number in run.states():
        made: Any = [
            one.outputs for one in run.entries() if one.outputs.get("state") == number and "trained" in one.outputs
        ]
        found[f"state {number}"] = made[-1]["trained"]
    found |= {f"rows of {one.name}": one.rows.digest for one in yardstick.subjects}
    if yardstick.triggered is not None:
        found[f"triggered pictures of {wanted.triggered}"] = yardstick.triggered.digest
    return found
