"""Whose rows are looked for in which heads, and how well they are found: the work of `probekit audit membership`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError, NotFoundError
from probekit.evaluation.membership import RATES, Shadows, judge, likelihood_scores, loss_scores
from probekit.federated.trained import Trained
from probekit.linear.statistics import statistics
from probekit.models.heads import Head, NetworkHead
from probekit.models.serving import predict
from probekit.registry import nearest
from probekit.runs.evaluation import TRAINING, Judge
from probekit.runs.folder import RunFolder
from probekit.runs.snapshot import snapshot
from probekit.runs.unlearning import UNLEARN, Rows, rows_at
from probekit.unlearning.exact import refit
from probekit.unlearning.request import UnlearnRequest
from probekit.unlearning.tree import StatisticsTree
from probekit.values import EmbeddingSet

if TYPE_CHECKING:
    from probekit.cache import DiskStore

PARTS, DRAW_STREAM = 16, 61
ATTACKS = ("loss", "likelihood ratio")
RETRAINED = "retrained without"
LEAST = 2 * PARTS
USED_ROWS = (
    "FedRemoval took its step with the server's rows, so its heads have seen something of them. Name another set as "
    "unseen."
)

Indices = NDArray[np.int64]


def refuse_network(trained: Trained) -> None:
    """Refuse a head that no shadow can be solved for."""
    if isinstance(trained.head, NetworkHead):
        raise InputError(
            "The attack compares with shadow heads in closed form, and a whole network has none. `probekit report` "
            "tells how far the network is from the retrained one."
        )


@dataclass(frozen=True, eq=False)
class Groups:
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


def groups(
    run: RunFolder, store: DiskStore, client: str | None, *, unseen: str | None = None, most: int = 1000, seed: int = 0
) -> Groups:
    """Forgotten, retained and unseen rows of a run, at most so many of each."""
    what, forgotten, purged = _forgotten(run, store, client)
    embeddings, partition = rows_at(run, store, run.state)
    stay = [partition.clients[name] for name in run.trained().counts if name in partition.clients and name != client]
    if not stay:
        raise InputError("No other client is retained to compare with.")
    name, others, seen = _unseen(run, store, unseen, (embeddings, partition))
    generator = np.random.Generator(np.random.PCG64([seed, DRAW_STREAM]))

    def some(rows: EmbeddingSet) -> EmbeddingSet:
        chosen = generator.permutation(len(rows))[:most]
        return rows.select(np.sort(chosen).astype(np.int64))

    retained = embeddings.select(np.sort(np.concatenate(stay)))
    stepped = unseen is None and any(run.trained(number).method.startswith("fedremoval") for number in run.states())
    return Groups(
        what, some(forgotten), some(retained), some(others), name, purged, seen, note=USED_ROWS if stepped else ""
    )


def _forgotten(run: RunFolder, store: DiskStore, client: str | None) -> tuple[str, EmbeddingSet, tuple[str, ...]]:
    """The rows of a client or, where none is named, of all that was forgotten; and whose are purged."""
    embeddings, partition, counts = run.embeddings(store), run.partition(), run.trained().counts
    asked = _requests(run)
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


def _requests(run: RunFolder) -> list[UnlearnRequest]:
    plain: list[Any] = [entry.details["request"] for entry in run.entries() if entry.action == UNLEARN]
    return [UnlearnRequest.from_plain(one) for one in plain]


def _unseen(run: RunFolder, store: DiskStore, name: str | None, held: Rows) -> tuple[str, EmbeddingSet, int]:
    """Rows that were never trained on, and how many of a named set were."""
    embeddings, partition = held
    if name is None:
        if not len(partition.server):
            raise InputError(
                f"The server of {run.path} has no rows, so unseen ones are missing. Name a set with `unseen`."
            )
        return "the server's own", embeddings.select(partition.server), 0
    subject = Judge(run, store, run.trained()).named(name)
    if subject.kind == TRAINING:
        raise InputError(f"{name} is what {run.path} was trained on: nothing of it is unseen. Name another set.")
    predict(run.head(), subject.rows)  # embeddings of another encoding are refused
    whole = run.embeddings(store)
    known = {whole.ids[int(row)] for rows in run.partition().clients.values() for row in rows}
    fresh = np.array([row for row, sample in enumerate(subject.rows.ids) if sample not in known], dtype=np.int64)
    if not len(fresh):
        raise InputError(f"Every row of {name} is a sample that {run.path} was trained on. Name another set.")
    return name, subject.rows.select(fresh), len(subject.rows) - len(fresh)


def heads(run: RunFolder, store: DiskStore, found: Groups, client: str | None) -> Iterator[tuple[str, Head, int]]:
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
        yield RETRAINED, refit(here.trained, StatisticsTree.of(rest).total)[0], 0


@dataclass(frozen=True, eq=False)
class Attack:
    """Both attacks on these rows. The shadows' data are all rows of the three groups, dealt into parts."""

    groups: Groups
    rows: NDArray[Any]
    labels: Indices
    part_of: Indices
    shadows: Shadows

    @classmethod
    def on(cls, found: Groups, trained: Trained, *, shadows: int = 16, seed: int = 0) -> Attack:
        """The attacks for a run's design and ridge."""
        sets = (found.forgotten, found.retained, found.unseen)
        rows = np.concatenate([one.to_numpy() for one in sets])
        labels = np.concatenate([one.labels for one in sets])
        if len(rows) < LEAST:
            raise InputError(f"An attack needs at least {LEAST} rows in all; found {len(rows)}. Name a larger set.")
        dealt = np.random.Generator(np.random.PCG64([seed, DRAW_STREAM, 1])).permutation(len(rows)) % PARTS
        design = replace(trained.design, arithmetic="float64", grid=0.0, per_class=False)
        parts = [statistics(rows[dealt == part], labels[dealt == part], design) for part in range(PARTS)]
        ridge = trained.ridge
        return cls(found, rows, labels, dealt, Shadows(parts, ridge, trained.scaling, count=shadows, seed=seed))

    def judge_all(self, every: Iterable[tuple[str, Head, int]]) -> list[dict[str, Any]]:
        """Every head judged, beside the last one if that is the retrained one."""
        found = [
            {"head": name, "digest": head.digest, "forgotten rows in training": members, **self.judge(head)}
            for name, head, members in every
        ]
        last = found[-1] if found[-1]["head"] == RETRAINED else None
        for one in found:
            for attack in ATTACKS:
                area = one[attack]["forgotten"]["auc"]
                apart = None if last is None else abs(area - last[attack]["forgotten"]["auc"])
                one[attack]["difference to retraining"] = apart
        return found

    def judge(self, head: Head) -> dict[str, Any]:
        """How well forgotten and retained rows are told from unseen ones, by each attack."""
        ratio = likelihood_scores(head, self.rows, self.labels, shadows=self.shadows, part_of=self.part_of)
        return {
            ATTACKS[0]: self._told(loss_scores(head, self.rows, self.labels)),
            ATTACKS[1]: self._told(ratio),
        }

    def _told(self, scores: NDArray[np.float64]) -> dict[str, Any]:
        sizes = [len(one) for one in (self.groups.forgotten, self.groups.retained)]
        forgotten, retained, unseen = np.split(scores, np.cumsum(sizes))
        rates: Sequence[float] = [rate for rate in RATES if rate * len(unseen) >= 1] or RATES[-1:]
        return {
            name: asdict(judge(members, unseen, rates=rates))
            for name, members in (("forgotten", forgotten), ("retained", retained))
        }
