"""A run: what was trained, by whom, on which rows, every request since, and what is proven of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from probekit.cache import DiskStore
from probekit.evaluation.metrics import Interval
from probekit.federated.trained import Trained
from probekit.models.heads import Head
from probekit.models.serving import save_head
from probekit.protocols import Progress as Progress
from probekit.protocols import Watch as Watch
from probekit.protocols import unwatched
from probekit.runs.duplicates import DuplicatesResult, find_duplicates
from probekit.runs.evaluation import EvaluationOptions, EvaluationResult, evaluate_run
from probekit.runs.folder import RunFolder
from probekit.runs.influence import InfluenceResult, influence_of_clients
from probekit.runs.layout import NOTE
from probekit.runs.membership import MembershipResult, attack_membership
from probekit.runs.options import TrainOptions
from probekit.runs.purging import PurgeResult, purge_run
from probekit.runs.result import Result
from probekit.runs.rows import read_request
from probekit.runs.training import TrainResult, train_run
from probekit.runs.unlearning import UnlearnOptions, UnlearnPlan, UnlearnResult, plan_unlearning, unlearn_run
from probekit.runs.verification import VerifyResult, verify_run
from probekit.unlearning.request import UnlearnRequest

if TYPE_CHECKING:
    from probekit.report.report import Report


@dataclass(frozen=True)
class AuditResult(Result):
    """What would mislead in a run's rows, and what its heads leak of them."""

    duplicates: DuplicatesResult
    membership: MembershipResult


class Run:
    """A run folder and the cache that its rows are in. `training` is what training gave, in the `Run` that trained."""

    def __init__(self, folder: RunFolder, store: DiskStore, *, training: TrainResult | None = None) -> None:
        self.folder, self.store, self.training = folder, store, training

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, state {self.state})"

    @classmethod
    def train(
        cls,
        path: Path | str,
        embeddings: str,
        options: TrainOptions | None = None,
        *,
        store: DiskStore | None = None,
        force: bool = False,
        watch: Watch | None = None,
        note: Callable[[str], None] | None = None,
        **more: Any,
    ) -> Self:
        """Train on a set of the cache and keep everything in a new run folder.

        embeddings: the set's name, or how its digest begins; for a whole network also a data set.
        options: or the fields of `TrainOptions` as keywords.
        store: the cache; the user's own where none is given.
        force: replace a finished run in that folder.
        watch, note: told of progress, and of remarks on the way.
        """
        chosen = TrainOptions(**more) if options is None else options
        store = store or DiskStore()
        folder, result = train_run(
            Path(path), embeddings, chosen, store=store, force=force, watch=watch or unwatched, note=note
        )
        return cls(folder, store, training=result)

    @classmethod
    def open(cls, path: Path | str, *, store: DiskStore | None = None) -> Self:
        """The run in a folder."""
        return cls(RunFolder.open(path), store or DiskStore())

    @classmethod
    def list(cls, folder: Path | str, *, store: DiskStore | None = None) -> Sequence[Self]:
        """Every run in a folder, by name."""
        return [cls.open(found.parent, store=store) for found in sorted(Path(folder).glob(f"*/{NOTE}"))]

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder.path

    @property
    def state(self) -> int:
        """The number of the current state: 1 after training, one more after every request."""
        return self.folder.state

    def head(self, state: int | None = None) -> Head:
        """The head of a state (None: of the current one)."""
        return self.folder.head(state)

    def trained(self, state: int | None = None) -> Trained:
        """The head of a state with all that the server kept."""
        return self.folder.trained(state)

    def plan(
        self,
        client: str | None = None,
        *,
        clients: Sequence[str] = (),
        samples: Sequence[str] = (),
        relabel: Mapping[str, int] | Sequence[str] = (),
        add: Sequence[str] = (),
        method: str = "auto",
        server_only: bool = False,
    ) -> UnlearnPlan:
        """What `unlearn` with the same arguments would do, need and change, and why. Nothing changes."""
        request = _request(client, clients, samples, relabel, add)
        return plan_unlearning(self.folder, self.store, request, UnlearnOptions(method, server_only))

    def unlearn(
        self,
        client: str | None = None,
        *,
        clients: Sequence[str] = (),
        samples: Sequence[str] = (),
        relabel: Mapping[str, int] | Sequence[str] = (),
        add: Sequence[str] = (),
        watch: Watch = unwatched,
        **options: Any,
    ) -> UnlearnResult:
        """Forget clients or samples, put labels right, or take clients back in; gives state and certificate.

        samples: ids, beginnings of ids or names of rows, wherever they are held, or CLIENT/ID.
        relabel: class numbers by sample, or texts ID=NUMBER.
        options: the fields of `UnlearnOptions`: method, server_only, test, key, sigma, epsilon, delta.

        Doing the same again changes nothing. Interrupted, the run is as it was before.
        """
        request = _request(client, clients, samples, relabel, add)
        return unlearn_run(self.folder, self.store, request, UnlearnOptions(**options), watch=watch)

    def release(self, folder: Path | str, *, sigma: float, state: int | None = None) -> None:
        """Write a head with noise of this size on every parameter: what an (epsilon, delta) guarantee is of."""
        from probekit.certificates.privacy import release

        save_head(release(self.head(state), sigma), Path(folder))

    def verify(
        self,
        certificate: Path | str | None = None,
        *,
        rows: bool = False,
        test: str | None = None,
        public_key: bytes | None = None,
    ) -> VerifyResult:
        """Compute again everything that a certificate of this run says (None: the current state's).

        rows: compute the statistics again from the retained clients' cached rows.
        test: the set of the certified agreement.
        public_key: whose signature is wanted (PEM).
        """
        path = None if certificate is None else Path(certificate)
        return verify_run(self.folder, self.store, path, rows=rows, test=test, public_key=public_key)

    def evaluate(
        self,
        *sets: str,
        state: int | None = None,
        knn: int | None = None,
        shots: Sequence[int] = (),
        draws: int = 5,
        triggered: str | None = None,
        target: int = 0,
        confidence: float = 0.95,
        seed: int = 0,
    ) -> EvaluationResult:
        """Accuracy with an interval, per class and client, calibration and confusion on sets of the cache.

        sets: none: the server's rows, else the training rows.
        knn: also a vote of this many nearest training rows.
        shots, draws: also heads of so few training rows of every class, drawn this often.
        triggered, target: also how often a trigger gives this class, here and retrained.
        """
        options = EvaluationOptions(Interval(confidence, seed=seed), knn, shots, draws, triggered, target)
        return evaluate_run(self.folder, self.store, sets, options, state=state)

    def influence(self, *, test: str | None = None, state: int | None = None) -> InfluenceResult:
        """How far the head would move, and how its accuracy would change, without each client."""
        return influence_of_clients(self.folder, self.store, test=test, state=state)

    def duplicates(
        self, *, test: str | None = None, threshold: float = 0.999, client: str | None = None, limit: int = 100_000
    ) -> DuplicatesResult:
        """Samples of one client that (nearly) stand in another's rows, or in a test set."""
        return find_duplicates(self.folder, self.store, test=test, threshold=threshold, client=client, limit=limit)

    def membership(
        self,
        *,
        client: str | None = None,
        unseen: str | None = None,
        most: int = 1000,
        shadows: int = 16,
        seed: int = 0,
    ) -> MembershipResult:
        """Attack every head: are forgotten, and retained, rows told from unseen ones?"""
        return attack_membership(
            self.folder, self.store, client=client, unseen=unseen, most=most, shadows=shadows, seed=seed
        )

    def audit(self, *, client: str | None = None, test: str | None = None) -> AuditResult:
        """Duplicates and membership, for one client or for all; `test` is compared with and taken as unseen."""
        return AuditResult(self.duplicates(client=client, test=test), self.membership(client=client, unseen=test))

    def purge(self, *, rows: bool = False) -> PurgeResult:
        """Remove what was derived from the forgotten; with `rows`, their rows in the cache too."""
        return purge_run(self.folder, self.store if rows else None)

    def report(
        self,
        tests: Sequence[str] = (),
        *,
        triggered: str | None = None,
        target: int | None = None,
        from_rows: bool = False,
    ) -> Report:
        """Everything about the run, its ledger and certificates checked; `.write(folder)` makes pages of it.

        tests: sets to judge on; none: the server's rows.
        from_rows: retrain from the cached rows even where statistics are kept.
        """
        from probekit.runs.reporting import ReportOptions, report_run

        return report_run(self.folder, self.store, ReportOptions(tests, triggered, target, from_rows))

    def fork(self, path: Path | str) -> Self:
        """A copy of the run as it is now, under another name."""
        return type(self)(self.folder.fork(Path(path)), self.store)


def _request(
    client: str | None,
    clients: Sequence[str],
    samples: Sequence[str],
    relabel: Mapping[str, int] | Sequence[str],
    add: Sequence[str],
) -> UnlearnRequest:
    changed = [f"{name}={label}" for name, label in relabel.items()] if isinstance(relabel, Mapping) else relabel
    named = (*clients, *([client] if client is not None else []))
    return read_request(named, samples=samples, relabelled=changed, added=add)
