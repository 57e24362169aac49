"""From a run folder to the values of its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from probekit.cache import DiskStore
from probekit.certificates.agreement import margins
from probekit.certificates.bounds import Known
from probekit.certificates.certify import known_at, objective_of
from probekit.certificates.rounds import RoundsBound
from probekit.certificates.rounds_rows import bound_of
from probekit.certificates.verdicts import FALSE
from probekit.custody.seals import opened
from probekit.encoding.thumbnails import thumbnails
from probekit.errors import InputError, MismatchError, ProbekitError, VerificationError
from probekit.evaluation.backdoor import backdoor_success
from probekit.evaluation.left_out import most_wrong
from probekit.evaluation.metrics import accuracy, accuracy_by_class, confusion
from probekit.evaluation.reconstruction import RebuiltRequest
from probekit.files import read_json, sha256_file
from probekit.models.heads import Head
from probekit.models.serving import predict, scores
from probekit.report.report import (
    AFTER,
    BEFORE,
    RETRAINED,
    TRAINED,
    Judged,
    Measured,
    Page,
    Report,
    StateReport,
    compared,
)
from probekit.runs.evaluation import EvaluationSet, find_sets
from probekit.runs.folder import RunFolder
from probekit.runs.layout import NOTE
from probekit.runs.ledger import LedgerEntry
from probekit.runs.noise import EXPORT, NOISE
from probekit.runs.reconstruction import public_columns, rebuilt_requests
from probekit.runs.rows import PURGE, UNLEARN, usable
from probekit.runs.snapshot import Snapshot, snapshot
from probekit.runs.story import story_of
from probekit.runs.verification import certificate_of, evidence_for
from probekit.unlearning.influence import Influence, influences
from probekit.unlearning.products import Products
from probekit.unlearning.request import asked
from probekit.values import EmbeddingSet, Json

NO_BOUND = "The ridge is 0 or rounding is as large as the smallest curvature: no bound holds."


@dataclass(frozen=True, eq=False)
class _TestData:
    """The rows that every head is judged on, and the triggered pictures with the class they are to be given."""

    subjects: Sequence[EvaluationSet]
    triggered: EmbeddingSet | None = None
    target: int = 0

    def measure(self, head: Head) -> Measured:
        """How good a head is on all of them."""
        shares = {one.name: accuracy(predict(head, one.rows), one.rows.labels) for one in self.subjects}
        rows = self.triggered
        return Measured(head.digest, shares, None if rows is None else backdoor_success(head, rows, target=self.target))


@dataclass(frozen=True, eq=False)
class _Examined:
    """A state, its retrained head, what is known of the loss at its own head, and what the report says."""

    snapshot: Snapshot
    retrained: Head | None
    known: Known | None
    report: StateReport
    page: Page | None


def report(
    run: RunFolder,
    store: DiskStore,
    tests: Sequence[str] = (),
    *,
    triggered: str | None = None,
    target: int | None = None,
    from_rows: bool = False,
) -> Report:
    """Everything about a run. Its ledger and certificates are checked on the way."""
    entries, left_out = run.entries(), dict[str, str]()
    sets, why = find_sets(run, store, tests)
    if why:
        left_out["evaluation"] = why
    data = _TestData(sets, *_triggered(run, store, triggered, target, left_out))
    heres = (snapshot(run, store, number, from_rows=from_rows) for number in run.states())
    states: list[_Examined] = []
    for here in heres:
        before = states[-1].snapshot.trained.head if states and states[-1].snapshot.number == here.number - 1 else None
        states.append(_examine(here, data, _page(here, [one.rows for one in sets]), before))
    first, last = states[0], states[-1]
    gone = [one for one in entries if one.action == UNLEARN and one.state not in run.states()]
    if gone:
        left_out["purged_states"] = f"{len(gone)} states that requests made are purged; the ledger still names them."
    return Report(
        run=str(run.path),
        inputs=_inputs(run, data, triggered),
        config=run.config,
        environment=read_json(run.path / "environment.json"),
        stages=[one.report for one in states],
        judged=[_judged(one, first, last) for one in data.subjects],
        influence=_influence(first.snapshot, left_out),
        influence_state=first.snapshot.number,
        pages=[one.page for one in states if one.page is not None],
        ledger=[_ledger_line(entry) for entry in entries],
        rebuilt=_rebuilt(run, store, left_out),
        left_out=left_out,
    )


def _triggered(
    run: RunFolder, store: DiskStore, name: str | None, target: int | None, left_out: dict[str, str]
) -> tuple[EmbeddingSet | None, int]:
    """The triggered pictures and the class they are to be given: the one named or, in a poisoned run, that run's."""
    if name is None and target is None:
        left_out["backdoor_success"] = "No triggered pictures were named."
        return None, 0
    if target is None and run.config.get("poison") is not None:
        target = run.config["target"]
    if name is None or target is None:
        raise InputError("Backdoor success needs both: `triggered`, a set, and `target` with the number of its class.")
    rows, _ = usable(store.open(name))
    if rows.spec.trigger is None:
        raise MismatchError(f"{name} holds pictures without a trigger. Extract the test pictures with `trigger`.")
    return rows, target


def _examine(here: Snapshot, data: _TestData, page: Page | None, before: Head | None) -> _Examined:
    """A state beside the head that retraining on its rows gives; `before`: the head of the state before, if there."""
    trained, (retrained, missing) = here.trained, here.retrained()
    known, unbounded = _known(here, trained.head)
    bound = known.weights if known is not None else None
    if page is not None:
        bound, unbounded = page.certificate.bounds.weights, page.certificate.bounds.why
    why = " ".join(dict.fromkeys(part for part in (missing, unbounded) if part))
    now = data.measure(trained.head)
    found = StateReport(here.number, trained.method, trained.counts, now, bound=bound, why=why)
    if retrained is not None:
        own, _ = _known(here, retrained)
        distance = float(np.linalg.norm(trained.head.params - retrained.params))
        earlier = None if before is None else float(np.linalg.norm(before.params - retrained.params))
        relative = distance / float(np.linalg.norm(retrained.params))
        found = replace(found, retrained=data.measure(retrained), source=here.source, distance=distance)
        found = replace(found, distance_before=earlier)
        found = replace(found, relative=relative, own_bound=own.weights if own is not None else None)
    return _Examined(here, retrained, known, found, page)


def _known(here: Snapshot, head: Head) -> tuple[Known | None, str]:
    """What is known of the retained loss at a head; or why nothing is."""
    if here.statistics is None and here.clients is None:
        return None, here.why
    problem, term = here.trained.problem, here.trained.objective
    try:
        objective = objective_of(here.trained)
    except InputError as error:
        return None, str(error)
    sums, clients = here.statistics, here.clients
    found = known_at(problem.params(head), objective, problem, statistics=sums, clients=clients, term=term)
    return (found, "") if found is not None and found.weights is not None else (None, NO_BOUND)


def _rounds(state: _Examined) -> RoundsBound | None:
    """What kept products say of margins, where they are needed and true."""
    trained, clients, known = state.snapshot.trained, state.snapshot.clients, state.known
    if clients is None or known is None or known.gradient is None or (products := Products.of(trained)) is None:
        return None
    try:
        return bound_of(trained, products, known=known, clients=clients)
    except InputError:
        return None


def _judged(subject: EvaluationSet, first: _Examined, last: _Examined) -> Judged:
    """The classes by head, and the current head's confusion and margins."""
    rows, head = subject.rows, last.snapshot.trained.head
    heads: dict[str, Any] = {BEFORE: first.snapshot.trained.head, AFTER: head, TRAINED: head, RETRAINED: last.retrained}
    found = None
    if last.known is not None:
        found = margins(head, rows, known=last.known, problem=last.snapshot.trained.problem, rounds=_rounds(last))
    by_class = {
        label: accuracy_by_class(predict(heads[label], rows), rows.labels, classes=head.classes)
        for label in compared([first.report, last.report])
    }
    given = scores(head, rows)
    confused = confusion(np.argmax(given, axis=1), rows.labels, classes=head.classes)
    wrong = most_wrong(given, replace(rows, class_names=head.classes))
    about = (subject.name, rows.digest, subject.meaning, len(rows), subject.left_out)
    why = last.report.why if found is None else ""
    return Judged(*about, by_class, confused, found, why, wrong, thumbnails(rows, [one.row for one in wrong]))


def _influence(here: Snapshot, left_out: dict[str, str]) -> tuple[Influence, ...]:
    """How much each client of the first state that is still there matters."""
    try:
        if here.why and here.trained.gradients is None:
            raise InputError(here.why)
        return influences(here.with_statistics)
    except InputError as error:
        left_out["influence"] = str(error)
        return ()


def _rebuilt(run: RunFolder, store: DiskStore, left_out: dict[str, str]) -> tuple[RebuiltRequest, ...]:
    """What the heads before and after each request tell of the deleted rows."""
    if not any(entry.action == UNLEARN for entry in run.entries()):
        return ()
    try:
        return rebuilt_requests(run, store, public=public_columns(run, store)[1])[0]
    except ProbekitError as error:  # a report tells what is there
        left_out["reconstruction"] = str(error)
        return ()


def _inputs(run: RunFolder, data: _TestData, triggered: str | None) -> dict[str, Json]:
    """The digests of all that the report was made from."""
    made = run.made()
    found: dict[str, Json] = {
        "run": sha256_file(run.path / NOTE),
        "ledger": run.entries()[-1].digest,
        "training_set": "with the clients" if "federation" in run.inputs else run.inputs["set"],
        "partition": run.inputs["partition"],
        "states": {str(number): made[number] for number in run.states()},
        "test_sets": {one.name: one.rows.digest for one in data.subjects},
    }
    if data.triggered is not None:
        found["triggered"] = {str(triggered): data.triggered.digest}
    return found


def _page(here: Snapshot, sets: Sequence[EmbeddingSet]) -> Page | None:
    """The certificate of a state, checked with all that is at hand; None where nothing was unlearned in it.

    One that does not hold, or is not the ledger's, is refused: a report of it would lend it weight.
    """
    run, found = here.run, certificate_of(here.run, here.number)
    if found is None:
        return None
    claims = found.certificate
    wanted = claims.agreement.set_digest if claims.agreement is not None else None
    evaluation = next((one for one in sets if one.digest == wanted), None)
    evidence = evidence_for(run, here.number, here.trained, claims, here.rows, evaluation)
    findings = found.check(evidence, story=story_of(run, here.number, claims, store=None)).findings
    for one in findings:
        if one.verdict == FALSE:
            raise VerificationError(
                f"The certificate of state {here.number} does not hold: {one.name} is claimed to be {one.claimed}, "
                f"found {one.found}. `probekit verify {found.path} --run {run.path}` tells more."
            )
    return Page(here.number, claims, found.signature, findings)


def _ledger_line(entry: LedgerEntry) -> dict[str, Json]:
    """An entry of the ledger as a line of a table."""
    details: Any = entry.details
    inputs, what = entry.inputs, ""
    if entry.action == "train":
        what = f"set {inputs.get('name')}, {inputs.get('count')} rows"
    elif entry.action == UNLEARN:
        request = details["request"]
        what = f"{asked(request) if opened(request) else 'erased since'}, by {details['method']}"
    elif entry.action == PURGE:
        removed = details["removed"]  # names, in runs of earlier versions
        count = removed if isinstance(removed, int) else len(removed)
        what = f"{count} files removed" + (", rows in the cache too" if details["cache"] else "")
    elif entry.action == NOISE:
        what = "noise on all releases, fixed before training"
    elif entry.action == EXPORT:
        what = (
            f"head of state {details['state']}{' with noise' * details['noise']}, for {details['to'] or 'nobody named'}"
        )
    names = ("number", "time", "action", "state", "digest", "previous")
    return {**{name: getattr(entry, name) for name in names}, "what": what}
