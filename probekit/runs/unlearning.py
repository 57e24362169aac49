"""From a run and a request to its next state, with a certificate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from probekit.cache import DiskStore
from probekit.certificates.certificate import Certificate, certificate_text, read_certificate, signed_bytes
from probekit.certificates.certify import certify
from probekit.certificates.sealing import sealed
from probekit.certificates.stripping import read_stripped
from probekit.custody.petitions import Petition
from probekit.custody.seals import opened
from probekit.custody.signatures import sign
from probekit.errors import InputError, MismatchError, NotFoundError
from probekit.federated.attendance import ClientsLeft
from probekit.federated.federation import Missing
from probekit.federated.party import Party
from probekit.federated.trained import Trained
from probekit.linear.objective import SIGMA
from probekit.protocols import Watch, unwatched
from probekit.runs.folder import OpenRun, RunFolder
from probekit.runs.layout import CERTIFICATE, next_state, state_folder
from probekit.runs.ledger import Event
from probekit.runs.noise import covered
from probekit.runs.openings import certificate_openings, read_openings
from probekit.runs.options import UnlearnOptions
from probekit.runs.preparing import by_statistics, people, prepare, row_ids
from probekit.runs.result import Result, to_plain
from probekit.runs.retained import RetainedClients
from probekit.runs.rows import UNLEARN, RunRows, full_ids, read_request, rows_at
from probekit.runs.state_writing import writing
from probekit.unlearning.choice import carried_out
from probekit.unlearning.distance import Distance, distance_to_retraining
from probekit.unlearning.method import Cost, Unlearned, missing, needs_in_words
from probekit.unlearning.method import method as find_method
from probekit.unlearning.request import UnlearnRequest, asked
from probekit.values import EmbeddingSet, Json


@dataclass(frozen=True)
class UnlearnPlan(Result):
    """What a request would do: by which method and why, what that needs, what of it is missing, who stays."""

    run: Path
    state: int
    request: UnlearnRequest
    already_done: bool
    method: str
    why: str
    needs: tuple[str, ...]
    missing: tuple[str, ...]
    retained: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class UnlearnResult(Result):
    """A request that was carried out, now or earlier: then nothing was `unlearned` and nothing changed.

    `digest` is the certificate's as it was given: a purge strips those of earlier states. `distance` to retraining,
    before and after, is told and not kept: whoever has the retained rows could look for the forgotten ones by it.
    `missing` clients elsewhere did not answer: they were forgotten with the others.
    """

    run: Path
    state: int
    request: UnlearnRequest
    certificate: Certificate
    path: Path
    digest: str
    cost: Cost
    why: str = ""
    unlearned: Unlearned | None = None
    distance: Distance | None = None
    missing: Mapping[str, Missing] = field(default_factory=dict)

    @property
    def asked(self) -> str:
        """The request in words."""
        return asked(self.request.plain)

    @property
    def already_done(self) -> bool:
        """Whether there was nothing left to do."""
        return self.unlearned is None

    @property
    def plain(self) -> dict[str, Any]:
        """What was done and what is proven of it."""
        claims: Any = self.certificate.plain
        value: dict[str, Any] = {
            "run": str(self.run),
            "state": self.state,
            "already_done": self.already_done,
            "request": self.request.plain,
            "why": self.why,
            **{name: claims[name] for name in ("method", "retained", "bounds", "residual", "agreement", "rounds")},
            **{name: claims[name] for name in ("privacy", "checkable_by", "warnings")},
            "certificate": str(self.path),
            "certificate_digest": self.digest,
            "head": self.certificate.after.get("head"),
            "cost": to_plain(self.cost),
            "distance": to_plain(self.distance),
            "missing": to_plain(self.missing),
            "note": "" if self.unlearned is None else self.unlearned.note,
        }
        return value


def plan(
    run: OpenRun,
    client: str | None = None,
    *,
    method: str = "auto",
    server_only: bool = False,
    federation: Party | str | None = None,
    **others: Any,
) -> UnlearnPlan:
    """What `unlearn` with the same arguments would do, need and change, and why; nothing changes.

    others: clients, samples, relabel and add, as `unlearn` has them.
    """
    with closing(RetainedClients(run.folder, run.store, federation)) as online:
        return _planned(run, online, online.checked(read_request(client, **others)), method, server_only)


def _planned(
    run: OpenRun, online: RetainedClients, request: UnlearnRequest, method: str, server_only: bool
) -> UnlearnPlan:
    before, rows, request, done = _look(run.folder, run.store, request, method)
    if done is not None:
        said = done.certificate
        return UnlearnPlan(run.path, done.state, request, True, said.method, "", (), (), tuple(said.retained))
    options = UnlearnOptions(method=method, server_only=server_only)
    name, why, removal = prepare(online, before, request, options, rows, unwatched)
    unlearner = find_method(name)
    lacking, needs = missing(unlearner, removal), needs_in_words(unlearner)
    lacks = (lacking,) if lacking else ()
    return UnlearnPlan(run.path, run.state, request, False, name, why, needs, lacks, removal.left)


def unlearn(
    run: OpenRun,
    client: str | None = None,
    *,
    clients: Sequence[str] = (),
    samples: Sequence[str] = (),
    relabel: Mapping[str, int] | Sequence[str] = (),
    add: Sequence[str] = (),
    subjects: Sequence[str] = (),
    asked: Sequence[Petition] = (),
    reference: str | None = None,
    federation: Party | str | None = None,
    watch: Watch = unwatched,
    **options: Any,
) -> UnlearnResult:
    """Forget clients or samples, put labels right, or take clients back in: the next state, with a certificate.

    samples: ids, beginnings of ids or names of rows, wherever they are held; or CLIENT/ID.
    relabel: class numbers by sample, or texts ID=NUMBER.
    subjects: people inside clients, COLUMN=VALUE, by a column that `extract` kept.
    asked: petitions of clients who asked for it themselves; none: the operator asks.
    reference: the operator's for the request, which the ledger keeps; not a name.
    federation: where the run's clients are now, if they were trained elsewhere and moved since.
    options: the fields of `UnlearnOptions`: method, server_only, at_least, timeout, test, key, epsilon, ...

    Doing the same again changes nothing. Interrupted, the run is as it was before.
    """
    chosen, folder = UnlearnOptions(**options), run.folder
    online = RetainedClients(folder, run.store, federation)
    named = [*samples, *(one.text for one in sorted(people(run, subjects), key=str))]
    asked_for = read_request(client, clients=clients, samples=named, relabel=relabel, add=add, asked=asked)
    asked_for = online.checked(asked_for)
    evaluation = run.store.open(chosen.test) if chosen.test is not None else None
    if evaluation is not None and evaluation.targets is not None:
        raise InputError("Only classes can be certified to agree; the test set has other targets. Leave `test` out.")
    with folder.lock(), closing(online):
        before, rows, request, done = _look(folder, run.store, asked_for, chosen.method)
        if before.objective is None and (chosen.epsilon, chosen.delta) != (None, None):
            raise InputError(
                "`epsilon` and `delta` are asked of objective noise, and this run has none. Leave them out: noise on "
                "released heads has the budget that was fixed when it was trained."
            )
        if done is not None:
            return done
        if request.asked:
            from probekit.runs.asking import refuse_strangers

            refuse_strangers(folder, request)
        digest = request.digest
        while True:
            try:
                work = _Work(run, online, before, request, chosen, rows, watch)
                return work.done(evaluation, {"request digest": digest, "reference": reference})
            except ClientsLeft as error:
                request = online.without(request, error.missing)


@dataclass(frozen=True, eq=False)
class _Work:
    """A request, from what it may use to the next state."""

    run: OpenRun
    online: RetainedClients
    before: Trained
    request: UnlearnRequest
    options: UnlearnOptions
    rows: RunRows | None
    watch: Watch

    def done(self, evaluation: EmbeddingSet | None, known: Mapping[str, Json]) -> UnlearnResult:
        """The state, written with its certificate; `known` is told to the ledger."""
        folder, before, request, chosen = self.run.folder, self.before, self.request, self.options
        name, why, removal = prepare(self.online, before, request, chosen, self.rows, self.watch)
        unlearned = carried_out(removal, name)
        after = unlearned.trained_after
        with writing(next_state(folder.path), after) as begun:
            answering = after.statistics is None and removal.online.offers("gradient")
            clients = removal.online if answering else None
            certificate = certify(before, unlearned, clients=clients, evaluation=evaluation)
            certificate = sealed(_covered(folder, certificate, unlearned, chosen))
            distance = distance_to_retraining(removal, unlearned, certificate.bounds.weights)
            signature = None if chosen.key is None else sign(signed_bytes(certificate), chosen.key)
            details: Mapping[str, Json] = {
                "request": request.plain,
                "method": unlearned.method,
                "why": why,
                "cost": asdict(unlearned.cost),
                "warnings": list(unlearned.warnings),
                "certificate": certificate.digest,
                **{name: value for name, value in known.items() if value is not None},
                **({"missing": to_plain(self.online.missing)} if self.online.missing else {}),
            }
            event = Event(UNLEARN, {"state": folder.state, "head": before.head.digest}, details)
            text = certificate_text(certificate, signature=signature)
            committed = folder.commit(after, row_ids(removal), self.online.keys(request))
            given: Any = {"committed": committed, "openings": certificate.openings, "begun": begun.result()}
            number = folder.write_state(after, event, texts={CERTIFICATE: text}, **given)
        self.online.finish()
        path, cost, digest = certificate_path(folder, number), unlearned.cost, certificate.digest
        found = (certificate, path, digest, cost, why, unlearned, distance, self.online.missing)
        return UnlearnResult(self.run.path, number, request, *found)


def _look(
    run: RunFolder, store: DiskStore, request: UnlearnRequest, method: str
) -> tuple[Trained, RunRows | None, UnlearnRequest, UnlearnResult | None]:
    """The run as it is, its rows where they are at hand, the request with full ids, and whether it was done before."""
    before = run.trained()
    rows = None
    if not by_statistics(before, request, method):
        with suppress(NotFoundError, MismatchError):
            rows = rows_at(run, store, joining=request.added)
    if rows is not None and request.by_row:
        request = full_ids(request, run.embeddings(store))  # which has those that are forgotten already
    return before, rows, request, _earlier(run, before, request)


def _covered(run: RunFolder, found: Certificate, unlearned: Unlearned, options: UnlearnOptions) -> Certificate:
    """The certificate with its (epsilon, delta); what is too large for the noise is refused, and nothing changes."""
    bounded = "quadratic" in unlearned.trained_after.problem.traits  # of others the method itself states a budget
    if SIGMA in found.objective and bounded and not options.unreleased:
        asked = {"epsilon": options.epsilon, "delta": options.delta}
        wanted = {name: value for name, value in asked.items() if value is not None}
        from probekit.certificates.privacy import guarantee

        return replace(found, privacy=guarantee(found, **wanted).plain)
    parameters = unlearned.trained_after.head.params.size
    return covered(run, found, parameters=parameters, unreleased=options.unreleased)


def certificate_path(run: RunFolder, state: int) -> Path:
    """Where the certificate of a state stands."""
    return state_folder(run.path, state) / CERTIFICATE


def _earlier(run: RunFolder, before: Trained, request: UnlearnRequest) -> UnlearnResult | None:
    """The request as it was carried out before, if what it asks for still holds."""
    undone = not before.counts.keys().isdisjoint(request.clients) or not before.counts.keys() >= {*request.added}
    for entry in reversed(run.entries()):
        if entry.action == UNLEARN and entry.details["request digest"] == request.digest and not undone:
            path = certificate_path(run, entry.state)
            if not path.exists():
                raise InputError(f"This was done in state {entry.state}, which was purged since. The ledger says so.")
            cost: Any = entry.details["cost"] if opened(entry.details["cost"]) else {}
            openings = read_openings(certificate_openings(run.path, entry.state))
            text, given = path.read_text(), str(entry.details["certificate"])
            claims = read_stripped(text) or read_certificate(text, openings)[0]
            return UnlearnResult(run.path, entry.state, request, claims, path, given, Cost(**cost))
    return None
