"""Whose rows are looked for in which heads, and how well they are found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from probekit.cache import DiskStore
from probekit.errors import InputError, NotFoundError
from probekit.evaluation.membership import RATES, AttackResult, Shadows, judge, likelihood_scores, loss_scores
from probekit.federated.summation import StatisticsTree
from probekit.federated.trained import Trained
from probekit.linear.statistics import statistics
from probekit.models.heads import Head
from probekit.models.serving import predict
from probekit.registry import nearest
from probekit.runs.evaluation import TRAINING, Evaluator
from probekit.runs.folder import OpenRun, RunFolder
from probekit.runs.result import Result
from probekit.runs.rows import UNLEARN, RunRows, requests, rows_at
from probekit.runs.snapshot import snapshot
from probekit.unlearning.method import choices_of, method
from probekit.values import EmbeddingSet

PARTS, DRAW_STREAM = 16, 61
RETRAINED = "retrained without"
LEAST = 2 * PARTS
MEANS = (
    "0.5 means that members and others cannot be told apart, 1 that they always can. Far below 0.5 they are told "
    "apart, too, as rows that fit worse.",
    "After unlearning, what counts is the difference to the retrained head, which never saw the forgotten. It need not "
    "be at 0.5: a client's pictures may be unlike the unseen ones.",
)
USED_ROWS = "A removal used the server's rows, so its heads have seen something of them. Name another set as unseen."


@dataclass(frozen=True)
class AttackOutcome:
    """How well forgotten and retained rows are told from unseen ones; None: there is no retrained head."""

    forgotten: AttackResult
    retained: AttackResult
    difference_to_retraining: float | None = None

    def beside(self, retrained: AttackOutcome) -> AttackOutcome:
        """The same with the difference to the retrained head."""
        return replace(self, difference_to_retraining=abs(self.forgotten.auc - retrained.forgotten.auc))


@dataclass(frozen=True)
class HeadMembership:
    """Both attacks on a head, and how many of the forgotten rows it was trained on."""

    head: str
    digest: str
    forgotten_rows_in_training: int
    loss: AttackOutcome
    likelihood_ratio: AttackOutcome

    def beside(self, retrained: HeadMembership) -> HeadMembership:
        """The same with the differences to the retrained head."""
        ratio = self.likelihood_ratio.beside(retrained.likelihood_ratio)
        return replace(self, loss=self.loss.beside(retrained.loss), likelihood_ratio=ratio)


@dataclass(frozen=True)
class MembershipResult(Result):
    """Every head of a run under attack. `forgotten` and `unseen` say what these rows are, `rows` how many there are of
    each kind. `purged`: requests whose rows are not there to be looked for; `seen`: how many unseen rows were left out
    because they were trained on."""

    run: Path
    forgotten: str
    unseen: str
    rows: Mapping[str, int]
    purged: int
    seen: int
    heads: tuple[HeadMembership, ...]
    meaning: tuple[str, ...]


def membership(
    run: OpenRun,
    *,
    client: str | None = None,
    unseen: str | None = None,
    most: int = 1000,
    shadows: int = 16,
    seed: int = 0,
) -> MembershipResult:
    """Attack every head: are a client's rows (None: all forgotten ones), and retained ones, told from unseen ones?

    By the loss of a row, and by the likelihood ratio of its errors with and without it, beside retraining.
    unseen: a set that was never trained on; none: the server's rows.
    most: at most this many rows of each kind, drawn at random.
    """
    folder, store = run.folder, run.store
    trained = folder.trained()
    if "targets" in trained.problem.traits:
        raise InputError("The attack goes by errors of classes; this head has several labels or real targets.")
    if "statistics" not in trained.problem.traits:
        raise InputError("The attack compares with heads in closed form; this model has none. See `probekit report`.")
    found = _groups(folder, store, client, unseen=unseen, most=most, seed=seed)
    heads = _heads(folder, store, found, client)
    judged = _attack(found, trained, heads, shadows=shadows, seed=seed)
    rows = {name: len(getattr(found, name)) for name in ("forgotten", "retained", "unseen")}
    meaning = (*MEANS, *([found.note] if found.note else []))
    return MembershipResult(run.path, found.what, found.unseen_name, rows, found.purged, found.seen, judged, meaning)


@dataclass(frozen=True, eq=False)
class _Groups:
    """The rows that are looked for, rows that are certainly in, and rows that are certainly not.

    `purged`: requests whose rows are no longer there to be looked for. `seen`: how many unseen rows were left out
    because they were trained on. `note` says what is wrong with the unseen rows.
    """

    what: str
    forgotten: EmbeddingSet
    retained: EmbeddingSet
    unseen: EmbeddingSet
    unseen_name: str
    purged: int = 0
    seen: int = 0
    note: str = ""


def _groups(
    run: RunFolder, store: DiskStore, client: str | None, *, unseen: str | None, most: int, seed: int
) -> _Groups:
    """Forgotten, retained and unseen rows of a run, at most so many of each."""
    what, forgotten, purged = _forgotten(run, store, client)
    embeddings, partition = rows_at(run, store)
    stay = [partition.clients[name] for name in run.trained().counts if name in partition.clients and name != client]
    if not stay:
        raise InputError("No other client is retained to compare with.")
    name, others, seen = _unseen(run, store, unseen, RunRows(embeddings, partition))
    generator = np.random.Generator(np.random.PCG64([seed, DRAW_STREAM]))

    def some(rows: EmbeddingSet) -> EmbeddingSet:
        return rows.select(np.sort(generator.permutation(len(rows))[:most]).astype(np.int64))

    retained = embeddings.select(np.sort(np.concatenate(stay)))
    done = [one for one in run.entries() if one.action == UNLEARN and one.state in run.states()]
    note = USED_ROWS if unseen is None and any(_uses_server(str(one.details["method"])) for one in done) else ""
    return _Groups(what, some(forgotten), some(retained), some(others), name, purged, seen, note)


def _uses_server(name: str) -> bool:
    """Whether a method declares that it needs the server's rows."""
    try:
        needs = method(name).needs
    except NotFoundError:  # a plugin's own that is not installed here
        return False
    return any(one[:2] == ("server", "rows") for need in needs for one in choices_of(need))


def _forgotten(run: RunFolder, store: DiskStore, client: str | None) -> tuple[str, EmbeddingSet, int]:
    """The rows of a client or, where none is named, of all that was forgotten; and how many requests' are purged."""
    embeddings, partition, counts = run.embeddings(store), run.partition(), run.trained().counts
    asked = requests(run)
    done = sum(one.action == UNLEARN for one in run.entries())
    purged = done - sum(all(name in partition.clients for name in one.clients) for one in asked)
    if client is not None:
        if client not in partition.clients:
            why = "The rows of forgotten clients were purged. " if purged else ""
            raise NotFoundError(f"{run.path} has no client {client!r}. {why}{nearest(client, list(partition.clients))}")
        return f"client {client}", embeddings.select(partition.clients[client]), 0
    if not done:
        raise InputError(f"Nothing was unlearned in {run.path} yet. Name a `client` to see how well it is told now.")
    gone = [name for name in partition.clients if name not in counts]
    samples = {(one.sample, one.client) for request in asked for one in request.samples}
    rows = [
        row
        for name, held in partition.clients.items()
        for row in held.tolist()
        if name in gone or not samples.isdisjoint({(embeddings.ids[row], None), (embeddings.ids[row], name)})
    ]
    every = np.array(sorted(rows), np.int64)
    if not len(every):
        why = f"those of {purged} requests were purged" if purged else "no request took any out"
        raise NotFoundError(f"The forgotten rows are not available: {why}. Name a `client` that is still there.")
    what = [f"client {name}" for name in gone] + (["single samples"] if samples else [])
    return " and ".join(what), embeddings.select(every), purged


def _unseen(run: RunFolder, store: DiskStore, name: str | None, held: RunRows) -> tuple[str, EmbeddingSet, int]:
    """Rows that were never trained on, and how many of a named set were."""
    embeddings, partition = held
    if name is None:
        if not len(partition.server):
            raise InputError(f"The server of {run.path} has no rows to take as unseen. Name a set with `unseen`.")
        return "the server's own", embeddings.select(partition.server), 0
    subject = Evaluator(run, store, run.trained()).named(name)
    if subject.kind == TRAINING:
        raise InputError(f"{name} is what {run.path} was trained on: nothing of it is unseen. Name another set.")
    predict(run.head(), subject.rows)  # embeddings of another encoding are refused
    whole = run.embeddings(store)
    known = {whole.ids[int(row)] for rows in run.partition().clients.values() for row in rows}
    fresh = np.array([row for row, sample in enumerate(subject.rows.ids) if sample not in known], dtype=np.int64)
    if not len(fresh):
        raise InputError(f"Every row of {name} is a sample that {run.path} was trained on. Name another set.")
    return name, subject.rows.select(fresh), len(subject.rows) - len(fresh)


def _heads(run: RunFolder, store: DiskStore, found: _Groups, client: str | None) -> Iterator[tuple[str, Head, int]]:
    """Every head that is still there, then the retrained one; and how many forgotten rows it was trained on."""
    for number in run.states():
        trained = run.trained(number)
        embeddings, partition = rows_at(run, store, number)
        rows = (row for name in trained.counts for row in partition.clients.get(name, ()))
        known = {embeddings.ids[int(row)] for row in rows}
        yield f"state {number}, {trained.method}", trained.head, sum(one in known for one in found.forgotten.ids)
    here = snapshot(run, store)
    if here.statistics is not None:
        rest = {name: one for name, one in here.statistics.items() if name != client}
        yield RETRAINED, here.trained.minimum(StatisticsTree.of(rest).total)[0], 0


def _attack(
    found: _Groups, trained: Trained, heads: Iterable[tuple[str, Head, int]], *, shadows: int, seed: int
) -> tuple[HeadMembership, ...]:
    """Both attacks on every head, beside the last one if that is the retrained one.

    The shadows' data are all rows of the three groups, dealt into parts.
    """
    sets = (found.forgotten, found.retained, found.unseen)
    rows, labels = np.concatenate([one.to_numpy() for one in sets]), np.concatenate([one.labels for one in sets])
    if len(rows) < LEAST:
        raise InputError(f"An attack needs at least {LEAST} rows in all; found {len(rows)}. Name a larger set.")
    dealt = np.random.Generator(np.random.PCG64([seed, DRAW_STREAM, 1])).permutation(len(rows)) % PARTS
    design = replace(trained.problem.design, arithmetic="float64", grid=0.0, per_class=False)
    parts = [statistics(rows[dealt == part], labels[dealt == part], design) for part in range(PARTS)]
    models = Shadows(parts, trained.ridge, trained.scaling, count=shadows, seed=seed)
    rates: Sequence[float] = [rate for rate in RATES if rate * len(found.unseen) >= 1] or RATES[-1:]

    def outcome(scores: NDArray[np.float64]) -> AttackOutcome:
        forgotten, retained, unseen = np.split(scores, np.cumsum([len(one) for one in sets[:2]]))
        return AttackOutcome(judge(forgotten, unseen, rates=rates), judge(retained, unseen, rates=rates))

    judged = []
    for name, head, members in heads:
        loss = outcome(loss_scores(head, rows, labels))
        ratio = outcome(likelihood_scores(head, rows, labels, shadows=models, part_of=dealt))
        judged.append(HeadMembership(name, head.digest, members, loss, ratio))
    best = judged[-1]
    return tuple(one.beside(best) if best.head == RETRAINED else one for one in judged)
