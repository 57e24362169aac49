"""A run: what was trained, by whom, on which rows, every request since, and what is proven of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from probekit.cache import DiskStore
from probekit.cache.users import register
from probekit.errors import ProbekitError
from probekit.federated.trained import Trained
from probekit.models.heads import Head
from probekit.protocols import Watch, unwatched
from probekit.runs.folder import OpenRun, RunFolder
from probekit.runs.layout import NOTE
from probekit.runs.result import Result

if TYPE_CHECKING:
    from probekit.evaluation.probe_values import Probe
    from probekit.federated.party import Party
    from probekit.report.report import Report
    from probekit.runs.bundling import bundle
    from probekit.runs.duplicates import DuplicatesResult, duplicates
    from probekit.runs.erasing import erase
    from probekit.runs.evaluation import evaluate
    from probekit.runs.exporting import export
    from probekit.runs.influence import influence
    from probekit.runs.membership import MembershipResult
    from probekit.runs.options import TrainOptions
    from probekit.runs.proving import prove
    from probekit.runs.purging import purge
    from probekit.runs.reconstruction import reconstruction
    from probekit.runs.training import TrainResult
    from probekit.runs.unlearning import plan, unlearn
    from probekit.runs.verification import verify


@dataclass(frozen=True)
class AuditResult(Result):
    """What would mislead in a run's rows, and what its heads leak of them."""

    duplicates: DuplicatesResult
    membership: MembershipResult


class Verb:
    """A verb of runs in a module of its own, imported when first used: most commands need one.

    With `small`, a small problem has one BLAS thread meanwhile.
    """

    def __init__(self, module: str, *, small: bool = False) -> None:
        self._module, self._small = f"probekit.runs.{module}", small

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, run: OpenRun | None, owner: type) -> Any:
        verb = getattr(import_module(self._module), self._name)
        return self._sparing(verb).__get__(run, owner) if self._small else verb.__get__(run, owner)

    def _sparing(self, verb: Callable[..., Any]) -> Any:
        @wraps(verb)
        def limited(run: OpenRun, *arguments: Any, **options: Any) -> Any:
            from probekit.linear.threads import threads_for

            try:
                columns = int(run.folder.at().problem["design"]["dimension"])
            except (ProbekitError, KeyError):  # a network, or what the verb itself says more of
                return verb(run, *arguments, **options)
            with threads_for(columns):
                return verb(run, *arguments, **options)

        return limited


class Run(OpenRun):
    """A run folder and the cache that its rows are in. `training` is what training gave, in the `Run` that trained.

    Most verbs are functions in modules of their own, whose first argument is the run.
    """

    if TYPE_CHECKING:
        plan, unlearn, prove, verify, purge = plan, unlearn, prove, verify, purge
        bundle, export, erase = bundle, export, erase
        evaluate, influence, duplicates, reconstruction = evaluate, influence, duplicates, reconstruction
    else:
        plan, unlearn, verify = (Verb("unlearning"), Verb("unlearning", small=True), Verb("verification", small=True))
        prove, bundle, export = map(Verb, ("proving", "bundling", "exporting"))
        erase, reconstruction = Verb("erasing", small=True), Verb("reconstruction", small=True)
        purge, evaluate, influence, duplicates = map(Verb, ("purging", "evaluation", "influence", "duplicates"))

    def __init__(self, folder: RunFolder, store: DiskStore, *, training: TrainResult | None = None) -> None:
        super().__init__(folder, store)
        self.training = training

    @property
    def unfinished(self) -> bool:
        """Whether a purge of it was interrupted: `purge` finishes it."""
        from probekit.runs.purging import unfinished

        return unfinished(self)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, state {self.state})"

    @classmethod
    def train(
        cls,
        path: Path | str,
        embeddings: str | None = None,
        options: TrainOptions | None = None,
        *,
        store: DiskStore | None = None,
        force: bool = False,
        watch: Watch = unwatched,
        note: Callable[[str], None] | None = None,
        client_keys: Mapping[str, bytes] | None = None,
        federation: Party | str | None = None,
        **more: Any,
    ) -> Self:
        """Train on a set of the cache, or across a federation, and keep everything in a new run folder.

        embeddings: the set's name, or how its digest begins; for a whole network also a data set.
        options: or the fields of `TrainOptions` as keywords.
        store: the cache; the user's own where none is given.
        force: replace a finished run in that folder.
        watch, note: told of progress, and of remarks on the way.
        client_keys: the 32 bytes of the public keys of clients that have one, by which they ask to leave.
        federation: clients elsewhere, or a text that names them, instead of `embeddings`.
        """
        from probekit.runs.options import TrainOptions
        from probekit.runs.training import train_run

        chosen = TrainOptions(**more) if options is None else options
        store = store or DiskStore()
        how: Any = {"store": store, "force": force, "watch": watch, "note": note, "client_keys": client_keys}
        result = train_run(Path(path), embeddings, chosen, federation=federation, **how)
        return cls(result.folder, store, training=result)

    @classmethod
    def from_probe(
        cls, path: Path | str, probe: Probe, *, name: str | None = None, store: DiskStore | None = None, **more: Any
    ) -> Self:
        """Split a probe's rows among clients and train the same head across them, to unlearn from; nothing is encoded.

        name: what the cache calls the probe's rows; the run's own name where none is given.
        more: as for `train`, for example clients=20, partition="dirichlet:0.5"; what made the head is the probe's.
        """
        store, recipe = store or DiskStore(), probe.head.recipe
        rows = store.adopt(probe.train, name or Path(path).name)
        same = {what: recipe[what] for what in ("intercept", "fit_view", "class_weight", "scaling")}
        return cls.train(
            path, rows.digest, store=store, **{"ridge": probe.head.ridge, "view": probe.head.view, **same, **more}
        )

    @classmethod
    def open(cls, path: Path | str, *, store: DiskStore | None = None, unfinished: bool = False) -> Self:
        """The run in a folder; `unfinished`: also if a purge was interrupted, to give it again."""
        return cls(RunFolder.open(path, unfinished=unfinished), store or DiskStore(unfinished=unfinished))

    @classmethod
    def list(cls, folder: Path | str, *, store: DiskStore | None = None) -> Sequence[Self]:
        """Every run in a folder, by name."""
        return [cls.open(found.parent, store=store) for found in sorted(Path(folder).glob(f"*/{NOTE}"))]

    def head(self, state: int | None = None) -> Head:
        """The head of a state (None: of the current one)."""
        return self.folder.head(state)

    def trained(self, state: int | None = None) -> Trained:
        """The head of a state with all that the server kept."""
        return self.folder.trained(state)

    def membership(self, **options: Any) -> MembershipResult:
        """Attack every head: are a client's rows (none named: all forgotten ones) told from unseen ones?

        options: client, unseen, most, shadows, seed, as `probekit.runs.membership.membership` has them.
        """
        from probekit.runs.membership import membership  # which needs scipy.stats

        return membership(self, **options)

    def audit(self, *, client: str | None = None, test: str | None = None) -> AuditResult:
        """Duplicates and membership, for one client or for all; `test` is compared with and taken as unseen."""
        return AuditResult(self.duplicates(client=client, test=test), self.membership(client=client, unseen=test))

    def report(self, tests: Sequence[str] = (), **options: Any) -> Report:
        """Everything about the run, its ledger and certificates checked; `.write(folder)` makes pages of it.

        tests: sets to judge on; none: the server's rows.
        options: triggered and target, as for `evaluate`; from_rows: retrain from the cached rows even where statistics
        are kept.
        """
        from probekit.runs.reporting import report  # which draws

        return report(self.folder, self.store, tests, **options)

    def fork(self, path: Path | str, *, force: bool = False) -> Self:
        """A copy of the run as it is now, under another name; with `force` it replaces a run of that name.

        A run that releases its heads with noise is not copied.
        """
        from probekit.runs.noise import refuse_copies

        refuse_copies(self.folder)
        register(self.store.root, Path(path))
        return type(self)(self.folder.fork(Path(path), force=force), self.store)
