"""What an unlearning method must do, tried on small runs of every kind of training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from probekit.arrays import hex_id
from probekit.embeddings import EmbeddingSet
from probekit.federated.federation import Federation, InProcess, Transport, collect_stats
from probekit.federated.local import LocalPlan, Sgd
from probekit.federated.state import State, Trainer
from probekit.federated.training.closed_form import ClosedForm
from probekit.federated.training.fedavg import FedAvg
from probekit.federated.training.knot import KnotTraining
from probekit.federated.training.lbfgs import LbfgsRounds
from probekit.federated.transports.kept import KeptFirst
from probekit.federated.transports.loopback import Loopback
from probekit.linear.model import LinearModel
from probekit.linear.ridge import Intercept
from probekit.objective import CrossEntropy, Loss, Squares
from probekit.records import dump, walk
from probekit.registry import configured
from probekit.testing.backbones import ConformanceError
from probekit.unlearning.choice import plan_of
from probekit.unlearning.removal import Removal, Request, Unlearner, missing, unlearn

LEAVER = "the-client-that-leaves"
CLIENTS = {"north": 24, "south": 31, LEAVER: 20, "west": 27}
WIDTH = 5
CLASSES = 3
RIDGE = 0.1
EVERYTHING = frozenset({"statistics", "gradients", "history"})

LOCAL = FedAvg(4, LocalPlan(0.03, steps=2), keep=EVERYTHING)
BATCHES = LocalPlan(0.03, epochs=1, batch_size=8, optimizer=Sgd(momentum=0.5))
TRAINERS: dict[str, tuple[Trainer, Loss, Intercept]] = {
    "closed form": (ClosedForm(frozenset({"statistics", "gradients"})), Squares(), "free"),
    "fedavg": (LOCAL, Squares(), "penalized"),
    "fedavg of samples of clients, by batches": (
        FedAvg(5, BATCHES, participation=0.75, keep=frozenset({"history"})),
        CrossEntropy(),
        "penalized",
    ),
    "lbfgs": (LbfgsRounds(keep=frozenset({"gradients"})), CrossEntropy(), "penalized"),
    "knot": (KnotTraining(2, replace(LOCAL, keep=frozenset())), Squares(), "penalized"),
}


@dataclass(frozen=True, eq=False)
class ExampleRun:
    """Clients, the server's rows, and a state that was trained on the former."""

    name: str
    clients: Mapping[str, EmbeddingSet]
    server: Federation
    state: State

    def removal(
        self,
        request: Request,
        *,
        transport: Transport | None = None,
        online: Callable[[str], bool] = lambda name: True,
        state: State | None = None,
        server: bool = True,
    ) -> Removal:
        federation = Federation.of(transport or InProcess(self.clients), self.state.model)
        federation = federation.only([name for name in federation.clients if online(name)])
        return Removal.of(
            state or self.state, request, federation, server=self.server if server else None
        )


@cache
def example_run(name: str) -> ExampleRun:
    """A run by one of the trainers."""
    trainer, loss, intercept = TRAINERS[name]
    generator = np.random.default_rng(0)
    centers = generator.normal(size=(CLASSES, WIDTH))

    def rows(count: int) -> EmbeddingSet:
        labels = np.arange(count) % CLASSES
        vectors = generator.normal(size=(count, WIDTH)) + centers[labels] + 0.5
        names = [f"class {number}" for number in range(CLASSES)]
        return EmbeddingSet.from_numpy(vectors.astype(np.float32), labels, class_names=names)

    clients = {client: rows(count) for client, count in CLIENTS.items()}
    model = LinearModel(WIDTH, CLASSES, loss, intercept)
    state = trainer.train(Federation.of(InProcess(clients), model), ridge=RIDGE)
    server = Federation.of(InProcess({"server": rows(60)}), model)
    return ExampleRun(name, clients, server, state)


def example_requests(run: ExampleRun) -> dict[str, Request]:
    ids = run.clients[LEAVER].ids
    samples = {LEAVER: frozenset({hex_id(ids[0]), hex_id(ids[7])})}
    return {"a client": Request(frozenset({LEAVER})), "samples": Request(samples=samples)}


def example_removal() -> Removal:
    """As in the paper: a FedAvg run that kept everything, a server with rows, one client leaves."""
    run = example_run("fedavg")
    return run.removal(example_requests(run)["a client"])


@dataclass(frozen=True)
class MethodCoverage:
    """The example runs that a method was tried on, and what it lacked for the others."""

    tried: tuple[str, ...]
    lacking: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def check_method(
    method: Unlearner | str, runs: Iterable[ExampleRun] | None = None
) -> MethodCoverage:
    """Raise ConformanceError for the first thing that removals rely on and is not so.

    method: a method, or its name as after --method.
    runs: what it is tried on, with a client LEAVER; None: heads that every trainer trained.
    """
    unlearner = configured(method) if isinstance(method, str) else method
    tried = []
    lacking = {}
    for run in runs or map(example_run, TRAINERS):
        for target, request in example_requests(run).items():
            title = f"{target} of {run.name}"
            needed = missing(unlearner, run.removal(request))
            if needed:
                lacking[title] = tuple(needed)
                continue
            _Trial(unlearner, run, request, title).check()
            tried.append(title)
    if not tried:
        raise ConformanceError(
            f"{type(unlearner).__name__} must be possible for some of {len(lacking)} example "
            f"removals; for each it needs more, such as {next(iter(lacking.values()))}."
        )
    return MethodCoverage(tuple(tried), lacking)


@dataclass(frozen=True, eq=False)
class _Trial:
    """A method, tried on one removal."""

    method: Unlearner
    run: ExampleRun
    request: Request
    title: str

    def require(self, holds: bool, must: str, actual: object) -> None:
        if not holds:
            name = type(self.method).__name__
            raise ConformanceError(f"{name} must {must} (forgetting {self.title}); found {actual}.")

    def check(self) -> None:
        before = dump(self.run.state)
        removal = self.run.removal(self.request)
        after = self.unlearned_as_planned(removal)
        params = after.params
        self.require(
            params.shape == after.model.shape and bool(np.isfinite(params).all()),
            f"end with finite parameters of shape {after.model.shape}",
            f"shape {params.shape}, from {params.min()} to {params.max()}",
        )
        moved = not np.array_equal(params, self.run.state.params)
        self.require(moved, "change the parameters", "the old ones")
        self.require(
            dict(after.clients) == dict(removal.clients),
            f"end with the clients {dict(removal.clients)} (removal.finish does)",
            dict(after.clients),
        )
        unchanged = dump(self.run.state) == before
        self.require(unchanged, "leave the state before as it was", "that it changed it")
        self.check_kept(after)
        self.check_bits(dump(after))
        self.check_needs()

    def unlearned_as_planned(self, removal: Removal) -> State:
        """The state after, with no more asked than `questions` say."""
        planned = plan_of("", self.method, removal)
        traffic = removal.retained.traffic
        before = replace(traffic)
        after = self.unlearned(removal)
        rounds = traffic.rounds - before.rounds
        size = traffic.sent + traffic.received - before.sent - before.received
        self.require(
            rounds <= planned.rounds and size <= planned.bytes,
            f"ask no more than questions() say: {planned.rounds} rounds, {planned.bytes} bytes",
            f"{rounds} rounds, {size} bytes",
        )
        return after

    def unlearned(self, removal: Removal) -> State:
        try:
            return unlearn(self.method, removal)
        except Exception as error:  # whatever somebody else's method raises
            raise ConformanceError(
                f"{type(self.method).__name__} must forget {self.title}; it raised "
                f"{type(error).__name__}: {error}. Declare what it needs, if that is missing."
            ) from error

    def check_kept(self, after: State) -> None:
        """What is kept can be read by others, and has forgotten."""
        for item in after.kept:
            module = type(item).__module__
            self.require(
                module.startswith("probekit.") or module == type(after.trainer).__module__,
                "keep what every reader of a run knows: probekit's kinds, or its trainer's",
                type(item).__name__,
            )
        if self.request.clients:
            has_name = LEAVER.encode() in dump(after)
            self.require(not has_name, "keep nothing of who left", "the client's name")
        by_client = (item for item in walk(self.run.state.kept) if isinstance(item, Mapping))
        forgotten = [_arrays(item[LEAVER]) for item in by_client if LEAVER in item]
        leaked = set().union(*forgotten) & _arrays(after.kept)
        must = "keep nothing that was computed from forgotten rows"
        self.require(not leaked, must, f"{len(leaked)} arrays from before")

    def check_bits(self, bits: bytes) -> None:
        again = dump(self.unlearned(self.run.removal(self.request)))
        self.require(again == bits, "give the same state twice", "two (draw by the run's seed)")
        loopback = self.run.removal(self.request, transport=Loopback(self.run.clients))
        self.require(
            dump(self.unlearned(loopback)) == bits,
            "give the same state when questions and answers are bytes",
            "another (keep arrays in C order, and all that a query needs in its record)",
        )

    def check_needs(self) -> None:
        """Where nothing is declared missing, it must work."""
        for absent, removal in _reduced(self.run, self.request).items():
            if not missing(self.method, removal):
                try:
                    self.method.unlearn(removal)
                except Exception as error:  # whatever a method does where it lacks something
                    must = f"declare what it needs; it was tried without {absent}"
                    self.require(False, must, error)


def _reduced(run: ExampleRun, request: Request) -> dict[str, Removal]:
    """The same removal with one thing missing."""
    removals = {
        "retained clients": run.removal(request, online=lambda name: name == LEAVER),
        "rows on the server": run.removal(request, server=False),
        "anything kept": run.removal(request, state=replace(run.state, kept=())),
    }
    if isinstance(run.state.model, LinearModel):
        parts = collect_stats(Federation.of(InProcess(run.clients), run.state.model))
        retained = {name: part for name, part in parts.items() if name != LEAVER}
        statistics = KeptFirst(retained, InProcess({LEAVER: run.clients[LEAVER]}))
        removals["retained clients with rows"] = run.removal(request, transport=statistics)
    if request.clients:
        removals["the forgotten client"] = run.removal(request, online=lambda name: name != LEAVER)
        removals["anybody"] = run.removal(request, online=lambda name: False)
    for item in run.state.kept:
        kept = tuple(other for other in run.state.kept if other is not item)
        state = replace(run.state, kept=kept)
        removals[type(item).__name__] = run.removal(request, state=state)
    return removals


def _arrays(value: object) -> set[bytes]:
    """The content of every array inside a record."""
    return {item.tobytes() for item in walk(value) if isinstance(item, np.ndarray)}
