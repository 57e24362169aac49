"""FedAvg on a ridge head (the paper's FLT, algorithm 1): rounds of local steps and weighted averages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from probekit.errors import InputError, MissingClientsError, NotFoundError
from probekit.federated.federation import Answers
from probekit.federated.loss import CommonLoss, LossWatch
from probekit.federated.methods.cg import training_recipe
from probekit.federated.server import WEIGHTS, average, client_weights, participants, taking
from probekit.federated.trained import Gradients, HistoryRecorder, Trained
from probekit.federated.training import Training
from probekit.linear.design import Solution
from probekit.models.fitting import FitPlan
from probekit.models.optimiser import Optimiser
from probekit.protocols import Progress
from probekit.registry import nearest
from probekit.values import Array, frozen

INIT_STREAM = 20
INITS = ("zeros", "random")
HISTORY_LIMIT = 4 << 30
NOTE = "The residual is that of the common loss; FedAvg with several local steps settles elsewhere."
POSITIVE = (
    *("rounds", "local_steps", "local_epochs", "batch_size"),
    *("learning_rate", "server_learning_rate", "participation"),
)
PLAIN = Optimiser("sgd")
F2L2_ROUNDS = {"f2l2": 200, "f2l2-mnist": 400, "f2l2-fashion-mnist": 800, "f2l2-cifar10": 800}
"""The rounds of the published code; the first is that of its probes."""


@dataclass(frozen=True)
class FedAvg:
    """The options of FedAvg. A client starts every round from the global parameters and with fresh optimiser
    state.

    `local_steps` or `local_epochs`: exactly one. `batch_size` None: all rows of the client in every step.
    `learning_rate` None: 1 / (largest curvature), for full batches of any client's loss, for minibatches of
    any single row's; Adam has no such rule and needs a number. `weights`: "size" (n_c / n) or "uniform". With
    `participation` below 1 a round is right on average over who is drawn. `tolerance` ends the rounds when
    the parameters change by less than this share. `ridge` belongs to a preset; None leaves it to the caller.
    """

    name: ClassVar[str] = "fedavg"
    needs: ClassVar[tuple[Any, ...]] = (("clients", "fit"), ("clients", "gradient"))
    keeps: ClassVar[tuple[str, ...]] = ("gradients", "statistics", "history")
    presets: ClassVar[tuple[str, ...]] = tuple(F2L2_ROUNDS)

    rounds: int = 100
    local_steps: int | None = 10
    local_epochs: int | None = None
    batch_size: int | None = None
    drop_last: bool = False
    learning_rate: float | None = None
    optimiser: Optimiser = PLAIN
    weights: str = "size"
    participation: float = 1.0
    server_learning_rate: float = 1.0
    init: str = "zeros"
    seed: int = 0
    keep_history: bool = False
    tolerance: float = 0.0
    ridge: float | None = None

    def __post_init__(self) -> None:
        for name in POSITIVE:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name} must be a number above 0; found {value}.")
        if self.participation > 1:
            raise InputError(f"participation is a share of the clients, at most 1; found {self.participation}.")
        if (self.local_steps is None) == (self.local_epochs is None):
            raise InputError(
                f"Give local_steps or local_epochs, one of them; found {self.local_steps} and {self.local_epochs}."
            )
        for name, known in (("weights", WEIGHTS), ("init", INITS)):
            if getattr(self, name) not in known:
                raise InputError(f"{name} must be one of {', '.join(known)}; found {getattr(self, name)!r}.")
        if self.optimiser.name == "adam" and self.learning_rate is None:
            raise InputError("Adam needs a learning_rate; none was given. The paper's code uses 1e-4.")
        if self.seed < 0 or self.tolerance < 0:
            raise InputError(f"seed and tolerance must be 0 or more; found {self.seed} and {self.tolerance}.")

    @classmethod
    def preset(cls, name: str) -> Self:
        """The options of a published implementation, its mistakes included.

        "f2l2": the paper's own code. What departs from the paper there: Adam instead of SGD, its state lost
        every round (so its schedule never decays); uniform weights instead of n_c / n; a random start instead
        of the pretrained one; ridge 0, where the theorem needs it above 0; the last short batch of every
        epoch is dropped, so some rows are not seen. Its loss is a mean over rows and classes, 2 / k of ours:
        without a ridge Adam does not notice (but for epsilon). "f2l2-mnist" and the others differ in their rounds.
        """
        if name not in cls.presets:
            raise NotFoundError(f"There is no FedAvg preset {name!r}. {nearest(name, list(cls.presets))}")
        local: Any = {"local_steps": None, "local_epochs": 1, "batch_size": 32, "drop_last": True}
        adam = Optimiser("adam")
        return cls(
            F2L2_ROUNDS[name], **local, learning_rate=1e-4, optimiser=adam, weights="uniform", init="random", ridge=0.0
        )

    def train(self, training: Training) -> Trained:
        """Broadcast, local steps, weighted average, again."""
        problem, names = training.problem, training.clients.clients
        self._check_history(len(names), problem.shape)
        if self.init != "zeros" and "start" in problem.traits and not hasattr(problem, "random_start"):
            raise InputError('This problem has a start of its own: init must be "zeros".')
        if self.learning_rate is None and not training.clients.offers("scales"):
            raise InputError(
                f"A learning rate follows from the largest curvature, and a {problem.kind} has none. Give "
                "`learning_rate`, say 0.01 (with Adam 1e-3)."
            )
        rate = self.learning_rate or 1 / self._largest_curvature(training)
        common = CommonLoss(training.clients, problem, training.mean_ridge)
        with training.purpose("residual"):
            begin, bound = common.gradient_and_loss(problem.start)
        scale = float(np.linalg.norm(begin)) or 1.0
        with training.purpose("rounds"):
            watch = LossWatch(rate, problem.start, bound, lambda: self._remedy(training, rate))
            params, rounds, last, recorder = self._rounds(training, rate, watch)
        with training.purpose("residual"):
            end, loss = common.gradient_and_loss(params)
        watch.look(params, loss)
        watch.judge()
        solution = Solution(params, float(np.linalg.norm(end)) / scale, rounds, self.name, NOTE)
        recipe = {**training_recipe(training, solution), "learning_rate": rate}
        head = problem.head(params, ridge=training.ridge, recipe=recipe)
        kept = self._kept(training, params, last)
        if recorder is not None:
            kept["history"] = recorder.history(frozen(params))
        how: Any = {"method": self.name, "weights": self.weights, "rounds": rounds, "learning_rate": rate}
        return training.finish(head, solution, **how, losses=tuple(watch.losses), **kept)

    def _rounds(
        self, training: Training, rate: float, watch: LossWatch
    ) -> tuple[Array, int, dict[str, Array], HistoryRecorder | None]:
        """Where the rounds ended, after how many, the last uploads, and the history."""
        names, ridge, problem = training.clients.clients, training.mean_ridge, training.problem
        weights = client_weights(np.array([training.counts[name] for name in names]), self.weights)
        params = self.initial(problem) if training.resume is None else training.resume.params
        first = 0 if training.resume is None else min(training.resume.rounds, self.rounds - 1)
        watch.best, penalty, progress = params, problem.penalty(ridge), training.watch("rounds")
        means = [problem.blocks[name] for name in getattr(problem, "averaged", ())]
        recorder = HistoryRecorder() if self.keep_history else None
        local = (self.local_steps, self.local_epochs, self.batch_size, self.drop_last, self.optimiser)
        for number in range(first, self.rounds):
            chosen = participants(len(names), self.participation, round_number=number, seed=self.seed)
            before, share, many, who = params, weights[chosen], len(weights), [names[c] for c in chosen]
            plan = FitPlan(*local, rate, ridge, seed=self.seed, round=number).plain
            with np.errstate(over="ignore", invalid="ignore"):  # the watch below refuses what is not finite
                answers = training.clients.ask("fit", {"params": params}, plan, clients=who)
                uploads, loss = _received(answers, who, watch)
                loss += float((penalty * params * params).sum()) / 2
                watch.look(params, loss)
                params = average(before, uploads, share, clients=many, rate=self.server_learning_rate, means=means)
            if recorder is not None:
                recorder.add(before, tuple(who), tuple(share.tolist()), uploads)
            progress(Progress(number + 1, self.rounds, loss))
            training.reached(params, number + 1)
            if np.linalg.norm(params - before) <= self.tolerance * np.linalg.norm(params):
                break
        return params, number + 1, dict(zip(who, uploads, strict=True)), recorder

    def initial(self, problem: Any) -> Array:
        """The first global parameters: the problem's start or random ones; a network's as it is made, a head's uniform
        in +-1 / sqrt(columns) as layers usually are."""
        if self.init == "zeros":
            return np.asarray(problem.start)
        generator = np.random.Generator(np.random.PCG64([self.seed, INIT_STREAM]))
        if hasattr(problem, "random_start"):
            return np.asarray(problem.random_start(int(generator.integers(2**62))))
        return np.asarray(generator.uniform(-1, 1, problem.shape) / math.sqrt(problem.shape[0]))

    def _largest_curvature(self, training: Training) -> float:
        """Of any client's loss or, with minibatches, of any row's."""
        plan = {"ridge": training.mean_ridge, "batch": self.batch_size}
        with training.purpose("scales"):
            answers = training.clients.ask("scales", plan=plan, precision=training.problem.precision)
            return max(one.values["curvature"] for one in answers.each())

    def _remedy(self, training: Training, rate: float) -> str:
        """Which learning rate would not diverge."""
        stable = self.optimiser.largest_rate(1.0)
        if stable is None or not training.clients.offers("scales"):
            return f"try {rate / 10:.3g}"
        stable /= self._largest_curvature(training)
        if rate < stable:
            return f"it is below the stable {stable:.6g}, so lower server_learning_rate or raise participation"
        return f"rates below {stable:.6g} are stable here"

    def _kept(self, training: Training, params: Array, last: dict[str, Array]) -> dict[str, Any]:
        """What unlearning will need: gradients at the end and at the last uploads, or statistics."""
        if training.keep == "statistics":
            with training.purpose("statistics"):
                return {"statistics": training.statistics()}
        if training.keep != "gradients":
            return {}
        with training.purpose("gradients at the head"):
            at_head = training.gradients(params)
        extra, own = training.problem.penalty(training.mean_ridge), dict[str, Array]()
        with training.purpose("gradients at local weights"):
            for name, upload in last.items():
                [answer] = training.clients.ask("gradient", {"params": upload}, clients=[name]).each()
                own[name] = answer.arrays["gradient"] / answer.count + extra * upload
        return {"gradients": Gradients(at_head, own)}

    def _check_history(self, clients: int, shape: tuple[int, int]) -> None:
        many = taking(clients, self.participation)
        size = self.rounds * (many + 1) * shape[0] * shape[1] * np.float64().nbytes
        if self.keep_history and size > HISTORY_LIMIT:
            raise InputError(
                f"The history of {self.rounds} rounds with {many} clients takes {size / 2**30:.1f} GiB, more than "
                f"{HISTORY_LIMIT / 2**30:.0f}. Ask for fewer rounds, a smaller participation, or no history."
            )


def _received(answers: Answers, names: list[str], watch: LossWatch) -> tuple[Array, float]:
    """The uploads in the order of names, and the participants' mean loss at the start of the round."""
    try:
        found = {one.client: one for one in answers.each()}
    except MissingClientsError:
        if [one.reason for one in answers.missing.values()] == ["garbage"] * len(names):
            watch.refuse()  # nobody's steps ended in finite numbers
        raise
    rows = sum(one.count for one in found.values())
    loss = sum(found[name].values["loss"] for name in names) / rows
    return np.stack([found[name].arrays["params"] for name in names]), loss
