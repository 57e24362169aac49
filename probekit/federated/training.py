"""Training across clients: who is asked, what is minimised, and the trainer that does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from probekit.errors import CorruptError, InputError
from probekit.federated.choice import Choice, choose
from probekit.federated.federation import Federation, Traffic
from probekit.federated.in_process import InProcess
from probekit.federated.rows import check_rows, design_for, head_problem
from probekit.federated.server import client_weights
from probekit.federated.spill import MANY, Spill
from probekit.federated.trained import Gradients, RoundState, ServerSet, Trained
from probekit.linear.design import ClientStats, Design, Solution
from probekit.linear.plausibility import implausible
from probekit.linear.ridge import penalty_of
from probekit.models.heads import Head
from probekit.protocols import Look, Watch, unwatched
from probekit.registry import configured, trainers
from probekit.values import Array, EmbeddingSet, Indices, Json, Partition

KEEPS = ("statistics", "gradients", "nothing")


@dataclass(eq=False)
class Training:
    """All that a trainer may use. `server` is what the server holds itself; `resume` and `save` go on after a kill."""

    problem: Any
    clients: Federation
    ridge: float
    scaling: str = "mean"
    keep: str = "nothing"
    server: Any = None
    server_rows: Indices | None = None
    objective_noise: float | None = None
    watch: Watch = unwatched
    resume: RoundState | None = None
    save: Callable[[RoundState], None] | None = None
    traffic: dict[str, Traffic] = field(default_factory=dict)
    before: Traffic = field(default_factory=Traffic, init=False)

    def __post_init__(self) -> None:
        if self.resume is not None:  # what was sent before an interruption counts, too
            self.traffic["rounds"] = self.resume.sent

    @property
    def counts(self) -> Mapping[str, int]:
        """Each client's rows."""
        return self.clients.counts

    @property
    def rows(self) -> int:
        """Of all clients."""
        return sum(self.counts.values())

    @property
    def mean_ridge(self) -> float:
        """The ridge in mean scaling."""
        return penalty_of(self.ridge, self.scaling, self.rows) / self.rows

    @contextmanager
    def purpose(self, name: str) -> Iterator[None]:
        """What passes meanwhile is counted for this purpose."""
        self.before = self.clients.traffic
        yield
        self.traffic[name] = self.traffic.get(name, Traffic()) + self.clients.traffic - self.before

    def reached(self, params: Array, rounds: int) -> None:
        """Keep where the rounds have come to, for a training that is interrupted."""
        if self.save is not None:
            earlier = Traffic() if self.resume is None else self.resume.sent
            self.save(RoundState(params, rounds, earlier + self.clients.traffic - self.before))

    def statistics(self) -> dict[str, ClientStats]:
        """Each client's statistics, judged as they arrive."""
        found, spill = {}, Spill(self.problem.stats) if len(self.counts) >= MANY else None
        for answer in self.clients.ask("statistics").each():
            name, one = answer.client, self.problem.stats(answer.arrays)
            if why := implausible(one, self.counts[name]):
                raise CorruptError(f"No rows have the statistics of client {name}: {why}. Ask the client again.")
            found[name] = one if spill is None else spill.add(answer, one)
        return {name: found[name] for name in self.counts}

    def gradients(self, params: Array) -> dict[str, Array]:
        """Each client's gradient of its mean ridge loss at these parameters."""
        extra = self.problem.penalty(self.mean_ridge) * params
        answers = self.clients.ask("gradient", {"params": params})
        found = {one.client: one.arrays["gradient"] / one.count + extra for one in answers.each()}
        return {name: found[name] for name in self.counts}

    def finish(self, head: Head, solution: Solution, *, method: str, weights: str = "size", **more: Any) -> Trained:
        """The outcome, with who it was trained by and what was sent."""
        shares = client_weights(np.array(list(self.counts.values())), weights)
        if self.server is not None and self.server_rows is not None:
            sums = self.server.statistics if "statistics" in self.server.offers else None
            more["server"] = ServerSet(sums, self.server_rows)
        named = dict(zip(self.counts, shares.tolist(), strict=True))
        what = (head, self.problem, method, self.ridge, self.scaling)
        return Trained(*what, dict(self.counts), named, solution, traffic=dict(self.traffic), **more)

    def kept_gradients(self, params: Array, purpose: str = "gradients") -> Gradients | None:
        """The clients' gradients at the end, where they are to be kept."""
        if self.keep != "gradients":
            return None
        with self.purpose(purpose):
            return Gradients(self.gradients(params))


class Trainer(Protocol):
    """A way to train: a frozen value of its options.

    `needs` are pairs of a party and what it must be able to answer or be; `keeps` what it can keep for unlearning.
    `traits`, where it has any: "minimum" (finds the minimum itself, with the run's own linear term).
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[Any, ...]]
    keeps: ClassVar[tuple[str, ...]]

    def train(self, training: Training) -> Trained: ...


def trainer_named(method: Any) -> Any:
    """A trainer by its name and options (`fedavg:rounds=50`), or as it is."""
    return configured(trainers, method) if isinstance(method, str) else method


def train(
    embeddings: EmbeddingSet,
    partition: Partition,
    *,
    ridge: float | str | Choice | None = None,
    method: Any = "closed-form",
    scaling: str = "mean",
    design: Design | None = None,
    problem: Any = None,
    keep: str | None = None,
    objective_noise: float | None = None,
    federation: Federation | None = None,
    seed: int = 0,
    progress: Look | None = None,
    watch: Watch | None = None,
    resume: RoundState | None = None,
    save: Callable[[RoundState], None] | None = None,
) -> Trained:
    """The head of all clients' rows, with what the server keeps for unlearning; the server's rows are not trained on.

    `ridge`: a number, "auto" (or "auto:loo", "auto:kfold", "auto:clients"), or what `choose` gave. `method`: a trainer,
    or its name. `problem`: what is trained (default: a head of these embeddings, by `design`). `keep`: "statistics"
    (exact unlearning), "gradients" (the paper's) or "nothing"; default: the first that the trainer can. FedAvg's
    objective is the mean of the clients' mean ridge losses, each with its share of the rows; ridge in "sum" scaling is
    divided by the number of rows. `objective_noise`: the sigma of a secret linear term that hides what a removal leaves
    behind (closed form only); the term is drawn anew, stands in `Trained.objective` and must be told to nobody.
    `federation`: the clients (default: in this process, from these rows); where the partition names none, theirs are
    other rows, and these are the server's own. `save` is called where every round ended,
    with where to go on from by `resume`.
    """
    trainer = trainer_named(method)
    if objective_noise is not None and "minimum" not in getattr(trainer, "traits", ()):
        raise InputError(
            "Objective noise needs a method that minimises the linear term too, as the closed form does; found method "
            f"{trainer.name}. Change that, or leave the noise out."
        )
    if problem is None:
        weighted = getattr(trainer, "class_weight", None) is not None
        usual = design_for(embeddings, intercept=getattr(trainer, "intercept", "penalised"), per_class=weighted)
        problem = head_problem(embeddings, design or usual)
    _refuse_unable(trainer, "problem", problem.traits.__contains__, f"a {problem.backend} problem")
    if hasattr(trainer, "configure"):
        problem = trainer.configure(problem)
    if "targets" in problem.traits and "minimum" not in getattr(trainer, "traits", ()):
        raise InputError(
            f"Several labels and real targets are trained in closed form; found method {trainer.name}. Leave it out."
        )
    if federation is None or partition.clients:
        check_rows(embeddings, partition, problem)
    clients = federation if federation is not None else InProcess.of(problem, embeddings, partition.clients)
    preset = getattr(trainer, "ridge", None)
    if ridge is None or (preset is not None and preset != ridge):
        if ridge is not None or preset is None:
            raise InputError(f"Training needs one ridge; found {ridge}, and {preset} from the method. Give one number.")
        ridge, scaling = preset, getattr(trainer, "scaling", scaling)
    if isinstance(ridge, str):
        ridge = choose(clients, problem, how=ridge, scaling=scaling, seed=seed)
    number = ridge.ridge if isinstance(ridge, Choice) else ridge
    penalty_of(number, scaling, 1.0)
    own, server = partition.server, None
    if len(own):
        server = problem.hold(embeddings, own, share=len(own) / len(embeddings))
    watch = watch or ((lambda stage: progress) if progress is not None else unwatched)
    keep = _keep(keep, trainer, problem)
    training = Training(
        problem, clients, number, scaling, keep, server, own, objective_noise, watch, resume=resume, save=save
    )
    _refuse_unable(trainer, "clients", clients.offers, "these clients")
    found: Trained = trainer.train(training)
    return found


def _refuse_unable(trainer: Any, party: str, able: Callable[[str], bool], who: str) -> None:
    """Refuse a trainer that needs what the problem is not, or what the clients cannot answer."""
    for one, what, *_ in getattr(trainer, "needs", ()):
        if one == party and not able(what):
            raise InputError(f"Training by {trainer.name} needs {what}, which {who} cannot give. Take another method.")


def _keep(keep: str | None, trainer: Any, problem: Any) -> str:
    able = [one for one in (*trainer.keeps, "nothing") if one != "statistics" or "statistics" in problem.traits]
    keep = keep or able[0]
    if keep not in KEEPS:
        raise InputError(f"What the server keeps is one of {', '.join(KEEPS)}; found {keep!r}.")
    if keep not in able:
        raise InputError(f"Training by {trainer.name} here can keep {', '.join(able)}; found {keep!r}.")
    if keep == "gradients" and "plain" not in problem.traits:
        raise InputError(
            "Gradients belong to a head of classes without feature scaling, class weights or normalised classes; this "
            'one has some. Keep "statistics" or "nothing".'
        )
    return keep


def with_recipe(trained: Trained, more: Mapping[str, Json]) -> Trained:
    """The same with more said of how its head came about."""
    head: Any = trained.head
    return replace(trained, head=replace(head, recipe={**head.recipe, **more}))
