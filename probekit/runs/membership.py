"""Whose rows are looked for in which heads, and how well they are found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from probekit.runs.folder import RunFolder
from probekit.runs.result import Result
from probekit.runs.rows import RunRows, requests, rows_at
from probekit.runs.snapshot import snapshot
from probekit.values import EmbeddingSet

if TYPE_CHECKING:
    from probekit.runs.run import Run

PARTS, DRAW_STREAM = 16, 61
RETRAINED = "retrained without"
LEAST = 2 * PARTS
MEANS = (
    "0.5 means that members and others cannot be told apart, 1 that they always can. Far below 0.5 they are told "
    "apart, too, as rows that fit worse.",
    "After unlearning, what counts is the difference to the retrained head, which never saw the forgotten. It need not "
    "be at 0.5: a client's pictures may be unlike the unseen ones.",
)
USED_ROWS = (
    "FedRemoval took its step with the server's rows, so its heads have seen something of them. Name another set as "
    "unseen."
)

Indices = NDArray[np.int64]


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


@dataclass(frozen=True)
class MembershipResult(Result):
    """Every head of a run under attack. `forgotten` and `unseen` say what these rows are, `rows` how many there are of
    each kind. `purged`: clients whose rows are no longer there to be looked for; `seen`: how many unseen rows were left
    out because they were trained on."""

    run: Path
    forgotten: str
    unseen: str
    rows: Mapping[str, int]
    purged: tuple[str, ...]
    seen: int
    heads: tuple[HeadMembership, ...]
    meaning: tuple[str, ...]


def membership(
    run: Run,
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
    if "statistics" not in trained.problem.traits:
        raise InputError(
            "The attack compares with shadow heads in closed form, and a whole network has none. `probekit report` "
            "tells how far the network is from the retrained one."
        )
    found = _groups(folder, store, client, unseen=unseen, most=most, seed=seed)
    attack = _Attack.on(found, trained, shadows=shadows, seed=seed)
    return MembershipResult(
        run.path,
        found.what,
        found.unseen_name,
        {name: len(getattr(found, name)) for name in ("forgotten", "retained", "unseen")},
        found.purged,
        found.seen,
        attack.judge_all(_heads(folder, store, found, client)),
        (*MEANS, *([found.note] if found.note else [])),
    )


@dataclass(frozen=True, eq=False)
class _Groups:
    """The rows that are looked for, rows that are certainly in, and rows that are certainly not.

    `purged`: clients whose rows are no longer there to be looked for. `seen`: how many unseen rows were left out
    because they were trained on. `note` says what is wrong with the unseen rows.
    """

    what: str
    forgotten: EmbeddingSet
    retained: EmbeddingSet
    unseen: EmbeddingSet
    unseen_name: str
    purged: tuple[str, ...] = ()
    seen: int = 0
    note: str = ""


def _groups(
    run: RunFolder, store: DiskStore, client: str | None, *, unseen: str | None = None, most: int = 1000, seed: int = 0
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
        chosen = generator.permutation(len(rows))[:most]
        return rows.select(np.sort(chosen).astype(np.int64))

    retained = embeddings.select(np.sort(np.concatenate(stay)))
    stepped = unseen is None and any(run.trained(number).method.startswith("fedremoval") for number in run.states())
    return _Groups(
        what, some(forgotten), some(retained), some(others), name, purged, seen, note=USED_ROWS if stepped else ""
    )


def _forgotten(run: RunFolder, store: DiskStore, client: str | None) -> tuple[str, EmbeddingSet, tuple[str, ...]]:
    """The rows of a client or, where none is named, of all that was forgotten; and whose are purged."""
    embeddings, partition, counts = run.embeddings(store), run.partition(), run.trained().counts
    asked = requests(run)
    named = {name for one in asked for name in one.clients}
    purged = tuple(sorted(name for name in named if name not in partition.clients))
    if client is not None:
        if client in purged:
            raise NotFoundError(f"The rows of client {client} were purged: they are not available to be looked for.")
        if client not in partition.clients:
            raise NotFoundError(f"{run.path} has no client {client!r}. {nearest(client, list(partition.clients))}")
        return f"client {client}", embeddings.select(partition.clients[client]), ()
    if not asked:
        raise InputError(
            f"Nothing was unlearned in {run.path} yet, so there are no forgotten rows. Name a `client` to "
            "see how well it can be told now."
        )
    gone = [name for name in partition.clients if name not in counts]
    samples = {(one.sample, one.client) for request in asked for one in request.samples}
    rows = [partition.clients[name] for name in gone]
    for name in partition.clients:
        if name not in gone and samples:
            held = partition.clients[name]
            rows.append(
                held[[(embeddings.ids[i], None) in samples or (embeddings.ids[i], name) in samples for i in held]]
            )
    every = np.sort(np.concatenate([np.empty(0, np.int64), *rows]))
    if not len(every):
        why = f"those of client {', '.join(purged)} were purged" if purged else "no request took any out"
        raise NotFoundError(f"The forgotten rows are not available: {why}. Name a `client` that is still there.")
    what = [f"client {name}" for name in gone] + (["single samples"] if samples else [])
    return " and ".join(what), embeddings.select(every), purged


def _unseen(run: RunFolder, store: DiskStore, name: str | None, held: RunRows) -> tuple[str, EmbeddingSet, int]:
    """Rows that were never trained on, and how many of a named set were."""
    embeddings, partition = held
    if name is None:
        if not len(partition.server):
            raise InputError(
                f"The server of {run.path} has no rows, so unseen ones are missing. Name a set with `unseen`."
            )
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
    here = snapshot(run, store, run.state)
    if here.statistics is not None:
        rest = {name: one for name, one in here.statistics.items() if name != client}
        yield RETRAINED, here.trained.minimum(StatisticsTree.of(rest).total)[0], 0


@dataclass(frozen=True, eq=False)
class _Attack:
    """Both attacks on these rows. The shadows' data are all rows of the three groups, dealt into parts."""

    groups: _Groups
    rows: NDArray[Any]
    labels: Indices
    part_of: Indices
    shadows: Shadows

    @classmethod
    def on(cls, found: _Groups, trained: Trained, *, shadows: int = 16, seed: int = 0) -> _Attack:
        """The attacks for a run's design and ridge."""
        sets = (found.forgotten, found.retained, found.unseen)
        rows = np.concatenate([one.to_numpy() for one in sets])
        labels = np.concatenate([one.labels for one in sets])
        if len(rows) < LEAST:
            raise InputError(f"An attack needs at least {LEAST} rows in all; found {len(rows)}. Name a larger set.")
        dealt = np.random.Generator(np.random.PCG64([seed, DRAW_STREAM, 1])).permutation(len(rows)) % PARTS
        design = replace(trained.problem.design, arithmetic="float64", grid=0.0, per_class=False)
        parts = [statistics(rows[dealt == part], labels[dealt == part], design) for part in range(PARTS)]
        ridge = trained.ridge
        return cls(found, rows, labels, dealt, Shadows(parts, ridge, trained.scaling, count=shadows, seed=seed))

    def judge_all(self, every: Iterable[tuple[str, Head, int]]) -> tuple[HeadMembership, ...]:
        """Every head judged, beside the last one if that is the retrained one."""
        found = [self.judge(*one) for one in every]
        best = found[-1]
        if best.head != RETRAINED:
            return tuple(found)
        return tuple(
            replace(
                one,
                loss=one.loss.beside(best.loss),
                likelihood_ratio=one.likelihood_ratio.beside(best.likelihood_ratio),
            )
            for one in found
        )

    def judge(self, name: str, head: Head, members: int) -> HeadMembership:
        """How well forgotten and retained rows are told from unseen ones, by each attack."""
        ratio = likelihood_scores(head, self.rows, self.labels, shadows=self.shadows, part_of=self.part_of)
        loss = loss_scores(head, self.rows, self.labels)
        return HeadMembership(name, head.digest, members, self._outcome(loss), self._outcome(ratio))

    def _outcome(self, scores: NDArray[np.float64]) -> AttackOutcome:
        sizes = [len(one) for one in (self.groups.forgotten, self.groups.retained)]
        forgotten, retained, unseen = np.split(scores, np.cumsum(sizes))
        rates: Sequence[float] = [rate for rate in RATES if rate * len(unseen) >= 1] or RATES[-1:]
        return AttackOutcome(judge(forgotten, unseen, rates=rates), judge(retained, unseen, rates=rates))
