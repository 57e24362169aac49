"""From a run and a request to its next state, with a certificate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
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
from probekit.federated.trained import Trained
from probekit.linear.objective import SIGMA
from probekit.protocols import Watch, unwatched
from probekit.runs.commitments import row_ids_of
from probekit.runs.folder import OpenRun, RunFolder
from probekit.runs.layout import CERTIFICATE, next_state, state_folder
from probekit.runs.ledger import Event
from probekit.runs.noise import covered
from probekit.runs.openings import certificate_openings, read_openings
from probekit.runs.options import TrainOptions, UnlearnOptions
from probekit.runs.result import Result, to_plain
from probekit.runs.rows import UNLEARN, RunRows, full_ids, read_request, rows_at
from probekit.runs.state_writing import writing
from probekit.unlearning.choice import carried_out, choose
from probekit.unlearning.distance import Distance, distance_to_retraining
from probekit.unlearning.method import Cost, Material, Unlearned, missing, needs_in_words
from probekit.unlearning.method import method as find_method
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import SampleRef, UnlearnRequest, asked
from probekit.values import Json


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
            **{name: claims[name] for name in ("method", "retained", "bounds", "residual", "agreement", "privacy")},
            **{name: claims[name] for name in ("checkable_by", "warnings")},
            "certificate": str(self.path),
            "certificate_digest": self.digest,
            "head": self.certificate.after.get("head"),
            "cost": to_plain(self.cost),
            "distance": to_plain(self.distance),
            "note": "" if self.unlearned is None else self.unlearned.note,
        }
        return value


def plan(
    run: OpenRun, client: str | None = None, *, method: str = "auto", server_only: bool = False, **others: Any
) -> UnlearnPlan:
    """What `unlearn` with the same arguments would do, need and change, and why; nothing changes.

    others: clients, samples, relabel and add, as `unlearn` has them.
    """
    request = read_request(client, **others)
    before, rows, request, done = _look(run.folder, run.store, request, method)
    if done is not None:
        said = done.certificate
        return UnlearnPlan(run.path, done.state, request, True, said.method, "", (), (), tuple(said.retained))
    options = UnlearnOptions(method=method, server_only=server_only)
    name, why, removal = _prepare(run.folder, before, request, options, rows, unwatched)
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
    watch: Watch = unwatched,
    **options: Any,
) -> UnlearnResult:
    """Forget clients or samples, put labels right, or take clients back in: the next state, with a certificate.

    samples: ids, beginnings of ids or names of rows, wherever they are held; or CLIENT/ID.
    relabel: class numbers by sample, or texts ID=NUMBER.
    subjects: people inside clients, COLUMN=VALUE, by a column that `extract` kept.
    asked: petitions of clients who asked for it themselves; none: the operator asks.
    reference: the operator's for the request, which the ledger keeps; not a name.
    options: the fields of `UnlearnOptions`: method, server_only, test, key, epsilon, delta, unreleased.

    Doing the same again changes nothing. Interrupted, the run is as it was before.
    """
    chosen, folder = UnlearnOptions(**options), run.folder
    people = _people(run, subjects)
    named = [*samples, *(one.text for one in sorted(people, key=str))]
    asked_for = read_request(client, clients=clients, samples=named, relabel=relabel, add=add, asked=asked)
    evaluation = run.store.open(chosen.test) if chosen.test is not None else None
    if evaluation is not None and evaluation.targets is not None:
        raise InputError("Only classes can be certified to agree; the test set has other targets. Leave `test` out.")
    with folder.lock():
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
        name, why, removal = _prepare(folder, before, request, chosen, rows, watch)
        unlearned = carried_out(removal, name)
        after = unlearned.trained_after
        with writing(next_state(folder.path), after) as begun:
            answering = after.statistics is None and removal.online.offers("gradient")
            online = removal.online if answering else None
            certificate = certify(before, unlearned, clients=online, evaluation=evaluation)
            certificate = sealed(_covered(folder, certificate, unlearned, chosen))
            distance = distance_to_retraining(removal, unlearned, certificate.bounds.weights)
            signature = None if chosen.key is None else sign(signed_bytes(certificate), chosen.key)
            details: Mapping[str, Json] = {
                "request": request.plain,
                "request digest": request.digest,
                "method": unlearned.method,
                "why": why,
                "cost": asdict(unlearned.cost),
                "warnings": list(unlearned.warnings),
                "certificate": certificate.digest,
                **({} if reference is None else {"reference": reference}),
            }
            event = Event(UNLEARN, {"state": folder.state, "head": before.head.digest}, details)
            text = certificate_text(certificate, signature=signature)
            committed = folder.commit(after, _row_ids(removal))
            given: Any = {"committed": committed, "openings": certificate.openings, "begun": begun.result()}
            number = folder.write_state(after, event, texts={CERTIFICATE: text}, **given)
        path, cost = certificate_path(folder, number), unlearned.cost
        given = certificate.digest
        return UnlearnResult(run.path, number, request, certificate, path, given, cost, why, unlearned, distance)


def _row_ids(removal: Removal) -> dict[str, bytes]:
    """A digest of the row ids of every client whose rows change, or that joins with rows."""
    material, request = removal.material, removal.request
    if request.by_row:
        return row_ids_of(removal.rest.embeddings, removal.rest.partition, removal.changed)
    if material.embeddings is None or material.partition is None:
        return {}
    return row_ids_of(material.embeddings, material.partition, request.added)


def _look(
    run: RunFolder, store: DiskStore, request: UnlearnRequest, method: str
) -> tuple[Trained, RunRows | None, UnlearnRequest, UnlearnResult | None]:
    """The run as it is, its rows where they are at hand, the request with full ids, and whether it was done before."""
    before = run.trained()
    if "quadratic" not in before.problem.traits:
        why = before.problem.no_unlearning
        raise InputError(f"{why} Train a ridge head (`method=closed-form`) to be able to unlearn.")
    rows = None
    if not _by_statistics(before, request, method):
        with suppress(NotFoundError, MismatchError):
            rows = rows_at(run, store, joining=request.added)
    if rows is not None and request.by_row:
        request = full_ids(request, run.embeddings(store))  # which has those that are forgotten already
    return before, rows, request, _earlier(run, before, request)


def _by_statistics(before: Trained, request: UnlearnRequest, method: str) -> bool:
    """Whether a request takes nothing but the statistics that were kept: no row is then looked for."""
    leaving = not request.by_row and not request.added and before.server is None and before.gradients is None
    return leaving and before.statistics is not None and method in ("auto", "exact")


def _prepare(
    run: RunFolder, before: Trained, request: UnlearnRequest, how: UnlearnOptions, rows: RunRows | None, watch: Watch
) -> tuple[str, str, Removal]:
    """The method, why it is taken, and all that it may use: what was kept, and the cached rows."""
    request.remaining(before)
    trainer = None if _by_statistics(before, request, how.method) else _trainer(run)
    # without rows, it only says whose the server's were
    embeddings, partition = rows if rows is not None else (None, run.partition() if before.server else None)
    material = Material(embeddings, partition, options=trainer, server_only=how.server_only, watch=watch)
    removal = Removal(before, request, material)
    name, why = choose(removal) if how.method == "auto" else (how.method, "Asked for.")
    return name, why, removal


def _trainer(run: RunFolder) -> Any:
    from probekit.runs.fitting import trainer_of

    return trainer_of(TrainOptions.of({**run.config, "ridge": None, "keep": None}))


def _people(run: OpenRun, subjects: Sequence[str]) -> set[SampleRef]:
    """The samples of all these people."""
    if not subjects:
        return set()
    from probekit.runs.subjects import subject_rows

    return {one for text in subjects for one in subject_rows(run.folder, run.store, text)}


def _covered(run: RunFolder, found: Certificate, unlearned: Unlearned, options: UnlearnOptions) -> Certificate:
    """The certificate with its (epsilon, delta); what is too large for the noise is refused, and nothing changes."""
    if SIGMA in found.objective and not options.unreleased:
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
