"""From a run and a request to its next state, with a certificate: the work of `probekit unlearn`, without printing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probekit.certificates.certificate import Certificate, certificate_text, signed_bytes
from probekit.certificates.certify import certify
from probekit.certificates.privacy import check_budget, guarantee
from probekit.custody.signatures import sign
from probekit.errors import InputError, MismatchError, NotFoundError
from probekit.federated.trained import Trained, Watch, unwatched
from probekit.linear.objective import SIGMA
from probekit.models.heads import Head, NetworkHead
from probekit.runs.fitting import method_of
from probekit.runs.folder import RunFolder
from probekit.runs.ledger import Event, LedgerEntry
from probekit.runs.options import TrainOptions
from probekit.unlearning.choice import choose
from probekit.unlearning.method import Material, Unlearned, method, require
from probekit.unlearning.remainder import remaining_rows
from probekit.unlearning.request import Held, Relabelled, UnlearnRequest
from probekit.unlearning.retained import LocalClients, answering
from probekit.values import EmbeddingSet, Json, Partition

if TYPE_CHECKING:
    from probekit.cache import DiskStore

CERTIFICATE = "certificate.json"
UNLEARN, PURGE = "unlearn", "purge"

Rows = tuple[EmbeddingSet, Partition]


@dataclass(frozen=True)
class Noise:
    """The guarantee that noise is to give: by `sigma`, fixed in advance, or by the run's own linear term."""

    sigma: float | None = None
    epsilon: float = 1.0
    delta: float = 1e-5


NO_NOISE = Noise()


@dataclass(frozen=True)
class UnlearnOptions:
    """How a request is to be carried out. `ask`: may the retained clients be asked (here: their cached rows)?"""

    method: str = "auto"
    ask: bool = True
    evaluation: EmbeddingSet | None = None
    key: bytes | None = None
    noise: Noise = NO_NOISE


@dataclass(frozen=True, eq=False)
class UnlearnResult:
    """A request that was carried out, now or earlier."""

    state: int
    certificate: Certificate
    path: Path
    request: UnlearnRequest
    why: str = ""
    unlearned: Unlearned | None = None

    @property
    def earlier(self) -> bool:
        """Whether there was nothing left to do."""
        return self.unlearned is None


def read_request(
    clients: Sequence[str] = (),
    *,
    samples: Sequence[str] = (),
    relabelled: Sequence[str] = (),
    added: Sequence[str] = (),
) -> UnlearnRequest:
    """The request in these texts: a sample is ID or CLIENT/ID, a relabelled one ID=LABEL or CLIENT/ID=LABEL."""
    held = [Held(*_held(text)) for text in samples]
    changed = []
    for text in relabelled:
        name, equals, label = text.rpartition("=")
        if not equals or not label.isdecimal():
            raise InputError(f"A relabelled sample is written ID=NUMBER; found {text!r}.")
        sample, client = _held(name)
        changed.append(Relabelled(sample, int(label), client))
    return UnlearnRequest(tuple(clients), tuple(held), tuple(changed), tuple(added))


def _held(text: str) -> tuple[str, str | None]:
    client, slash, sample = text.rpartition("/")
    return sample, client if slash else None


def full_ids(request: UnlearnRequest, embeddings: EmbeddingSet) -> UnlearnRequest:
    """The request with beginnings of ids and names of rows made into ids."""
    known = set(embeddings.ids)
    named = dict(zip(embeddings.names or (), embeddings.ids, strict=False))

    def full(text: str) -> str:
        if text in known:
            return text
        matches = {sample for sample in known if len(text) >= 8 and sample.startswith(text.lower())} or {
            named[name] for name in (text,) if name in named
        }
        if len(matches) != 1:
            raise InputError(
                f"{text!r} means {len(matches)} samples of this run; give a full id (`probekit cache info SET --rows`)."
            )
        return matches.pop()

    samples = tuple(Held(full(one.sample), one.client) for one in request.samples)
    changed = tuple(Relabelled(full(one.sample), one.label, one.client) for one in request.relabelled)
    return UnlearnRequest(request.clients, samples, changed, request.added)


def rows_now(run: RunFolder, store: DiskStore) -> Rows:
    """The run's rows as they stand."""
    return rows_at(run, store, run.state)


def rows_at(run: RunFolder, store: DiskStore, number: int) -> Rows:
    """The run's rows as they stood in a state: the cached set without the samples that were taken out until then.

    A client that was forgotten still holds its rows there: a state's `counts` say whose it was trained on.
    """
    embeddings, partition, trained, entries = run.embeddings(store), run.partition(), run.trained(number), run.entries()
    rebased = max((n for n, one in enumerate(entries) if one.action == PURGE and one.details["cache"]), default=-1)
    for entry in entries[rebased + 1 :]:
        if entry.action != UNLEARN or _number(entry.outputs["state"]) > number:
            continue
        request = UnlearnRequest.from_plain(_plain(entry))
        if request.by_row:
            rows_only = UnlearnRequest((), request.samples, request.relabelled)
            everyone = replace(trained, counts={name: len(held) for name, held in partition.clients.items()})
            rest = remaining_rows(everyone, rows_only, Material(embeddings, partition))
            embeddings, partition = rest.embeddings, rest.partition
    return embeddings, partition


def requests_since_purge(entries: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    """The unlearning entries whose traces were not yet removed."""
    last = max((place for place, entry in enumerate(entries) if entry.action == PURGE), default=-1)
    return [entry for entry in entries[last + 1 :] if entry.action == UNLEARN]


def _plain(entry: LedgerEntry) -> Any:
    return entry.details["request"]


def _number(value: Any) -> int:
    return int(value)


def unlearn_run(
    run: RunFolder, store: DiskStore, request: UnlearnRequest, wanted: UnlearnOptions, *, watch: Watch = unwatched
) -> UnlearnResult:
    """Make the run's next state without the forgotten, and certify it: the run is the old one or the new one."""
    with run.lock():
        before = run.trained()
        refuse_logistic(before)
        _refuse_both(before, wanted.noise)
        rows = _rows_if_any(run, store)
        if rows is not None and request.by_row:
            request = full_ids(request, rows[0])
        done = _earlier(run, before, request)
        if done is not None:
            return done
        request.remaining(before)
        name, why = wanted.method, "Asked for."
        whole = isinstance(before.head, NetworkHead)
        if name == "auto":
            online = whole and wanted.ask and rows is not None
            name, why = choose(before, online=online, rows=request.by_row and rows is not None, request=request)
        needed = whole or request.by_row or bool(request.added) or _asks(name) or wanted.ask
        material = replace(_material(run, rows, needed=needed), watch=watch)
        unlearner = method(name)
        require(unlearner, before, material)
        unlearned = unlearner.unlearn(before, request, material)
        clients = _clients(unlearned, request, before, material) if wanted.ask else None
        certificate = certify(before, unlearned, clients=clients, evaluation=wanted.evaluation)
        certificate = _covered(certificate, wanted.noise)
        signature = None if wanted.key is None else sign(signed_bytes(certificate), wanted.key)
        event = Event(UNLEARN, _inputs(run, before), _details(request, unlearned, certificate, why))
        text = certificate_text(certificate, signature=signature)
        number = run.write_state(unlearned.trained_after, event, texts={CERTIFICATE: text})
        return UnlearnResult(number, certificate, certificate_path(run, number), request, why, unlearned)


def _refuse_both(before: Trained, noise: Noise) -> None:
    if before.objective is not None and noise.sigma is not None:
        raise InputError(
            "This run was trained with objective noise, whose guarantee the certificate states; noise on the head too "
            "(`sigma`) would be another. Leave `sigma` out: the head is released as it is."
        )


def _covered(certificate: Certificate, noise: Noise) -> Certificate:
    """The certificate with its (epsilon, delta); what is too large for the noise is refused, and nothing changes."""
    if SIGMA in certificate.objective:
        return replace(certificate, privacy=guarantee(certificate, epsilon=noise.epsilon, delta=noise.delta).plain)
    if noise.sigma is None:
        return certificate
    bound = certificate.bounds.weights
    if bound is None:
        raise InputError(f"(epsilon, delta) needs a certified distance, and there is none. {certificate.bounds.why}")
    budget = check_budget(bound, noise.sigma, epsilon=noise.epsilon, delta=noise.delta)
    return replace(certificate, privacy=budget.plain)


def refuse_logistic(trained: Trained) -> None:
    """Refuse a head that no method here can take a client out of."""
    if trained.method == "logistic":
        from probekit.linear.logistic import NO_EXACT_UNLEARNING

        raise InputError(f"{NO_EXACT_UNLEARNING} Train a ridge head (`method=closed-form`) to be able to unlearn.")


def certificate_path(run: RunFolder, state: int) -> Path:
    """Where the certificate of a state stands."""
    return run.path / "states" / f"{state:04d}" / CERTIFICATE


def _asks(name: str) -> bool:
    return name.startswith(("fedremoval-", "retrain"))


def _rows_if_any(run: RunFolder, store: DiskStore) -> Rows | None:
    try:
        return rows_now(run, store)
    except (NotFoundError, MismatchError):
        return None


def _material(run: RunFolder, rows: Rows | None, *, needed: bool) -> Material:
    options = method_of(TrainOptions.of({**run.config, "ridge": None, "method": run.config["method"]}))
    if rows is None or not needed:
        return Material(options=options)
    return Material(rows[0], rows[1], options=options)


def _clients(unlearned: Unlearned, request: UnlearnRequest, before: Trained, material: Material) -> LocalClients | None:
    """The retained clients, to be asked for a gradient at the new head; None where their rows are not at hand."""
    after = unlearned.trained_after
    if after.statistics is not None or material.embeddings is None or material.partition is None:
        return None
    rest = remaining_rows(before, request, material)
    return answering(after.head, rest.embeddings, rest.partition.clients, after.design)


def _earlier(run: RunFolder, before: Trained, request: UnlearnRequest) -> UnlearnResult | None:
    """The request as it was carried out before, if what it asks for still holds."""
    undone = any(name in before.counts for name in request.clients) or any(
        name not in before.counts for name in request.added
    )
    for entry in reversed(run.entries()):
        if entry.action == UNLEARN and entry.details["request digest"] == request.digest and not undone:
            state = _number(entry.outputs["state"])
            path = certificate_path(run, state)
            if not path.exists():
                raise InputError(f"This was done in state {state}, which was purged since. The ledger says so.")
            from probekit.certificates.certificate import read_certificate

            return UnlearnResult(state, read_certificate(path.read_text())[0], path, request)
    return None


def _inputs(run: RunFolder, before: Trained) -> dict[str, Json]:
    return {"state": run.state, "head": before.head.digest}


def _details(request: UnlearnRequest, unlearned: Unlearned, certificate: Certificate, why: str) -> dict[str, Json]:
    return {
        "request": request.plain,
        "request digest": request.digest,
        "method": unlearned.method,
        "why": why,
        "cost": asdict(unlearned.cost),
        "warnings": list(unlearned.warnings),
        "certificate": certificate.digest,
    }


def distance(one: Head, other: Head) -> float:
    """The relative Frobenius distance of two heads."""
    return float(np.linalg.norm(one.params - other.params) / np.linalg.norm(other.params))
