"""FedAvg (the paper's Algorithm 1): broadcast, local steps, weighted average."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol, Self, TypeVar, get_args

import numpy as np

from probekit.arrays import Array
from probekit.errors import Failure, InputError, MissingClients
from probekit.federated.federation import Answer, Federation, read_each
from probekit.federated.local import LocalPlan, LossRecipe, Sgd, TrainingLoss, check_positive
from probekit.federated.queries import Curvature, LocalFit, Weight
from probekit.federated.state import (
    History,
    Ridge,
    Round,
    State,
    Upload,
    check_keep,
    collect_and_choose,
    kept_by,
)
from probekit.objective import Model
from probekit.progress import Progress, Step, silent
from probekit.records import record

R = TypeVar("R")
Start = Literal["model", "random"]
PARTICIPATION_STREAM = 23
MAX_HISTORY = 4 << 30
CURVATURE_OUTLIER = 1e4
ROUNDING = 1e-6


class Resume(Protocol):
    """What remembers the rounds that are done, so that a killed training goes on with them."""

    def read(self) -> tuple[int, Array] | None:
        """How many, and the parameters after them."""

    def write(self, rounds: int, params: Array) -> None: ...


@record("trainer/fedavg")
@dataclass(frozen=True)
class FedAvg:
    """`rounds` of local training by a plan.

    uniform: clients weigh 1/C in the average, not n_c/n.
    participation: the share of the clients that are drawn for each round.
    at_least: the share of the drawn clients that must answer.
    start: the model's own start (0 for a head), or random parameters as PyTorch draws them.
    """

    rounds: int
    plan: LocalPlan
    uniform: bool = False
    participation: float = 1.0
    at_least: float = 1.0
    start: Start = "model"
    keep: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        check_keep(self.keep, ("statistics", "gradients", "history"), "fedavg")
        check_positive(self, "rounds")
        if self.start not in get_args(Start):
            raise InputError(f"start must be 'model' or 'random'; found {self.start!r}.")
        shares = {"participation": self.participation, "at_least": self.at_least}
        for name, share in shares.items():
            if not 0 < share <= 1:
                raise InputError(f"{name} must be above 0 and at most 1; found {share:g}.")

    def train(
        self,
        federation: Federation,
        *,
        ridge: Ridge,
        progress: Progress = silent,
        resume: Resume | None = None,
    ) -> State:
        """Rounds from the start; a rate that was left open is in the state's trainer.

        resume: goes on after the rounds that it has; not where the history is kept.
        """
        if "history" in self.keep:
            self._check_history(federation)
            resume = None
        statistics, choice = collect_and_choose(
            ridge, federation, collect="statistics" in self.keep, progress=progress
        )
        trainer = self.with_rate(federation, ridge=choice.value)
        weights = trainer.weights(federation)
        done = None if resume is None else resume.read()
        first, params = done or (0, trainer.start_params(federation.model))
        rounds: list[Round] = []
        for number in range(first, self.rounds):
            drawn = trainer.draw(federation, number)
            uploads = trainer.uploads(federation, params, number, ridge=choice.value, clients=drawn)
            if "history" in self.keep:
                rounds.append(Round(params, dict(uploads)))
                uploads = iter(rounds[-1].uploads.items())
            params = trainer.step(params, uploads, weights)
            progress(Step("rounds", number + 1, self.rounds))
            if resume is not None:
                resume.write(number + 1, params)
        kept = kept_by(self.keep, federation, params, statistics)
        if "history" in self.keep:
            kept = (*kept, History(tuple(rounds), params))
        clients = dict(federation.clients)
        return State(params, federation.model, choice, clients, trainer, self.rounds, kept)

    def continued(
        self, federation: Federation, params: Array, numbers: range, *, ridge: float
    ) -> Array:
        """The parameters after the rounds of these numbers."""
        weights = self.weights(federation)
        for number in numbers:
            drawn = self.draw(federation, number)
            uploads = self.uploads(federation, params, number, ridge=ridge, clients=drawn)
            params = self.step(params, uploads, weights)
        return params

    def with_rate(self, federation: Federation, *, ridge: float) -> Self:
        """The same with a rate: as given, else 1 / the largest curvature of any client's loss."""
        if self.plan.rate is not None:
            return self
        if not isinstance(self.plan.optimizer, Sgd):
            name = type(self.plan.optimizer).__name__
            raise InputError(f"{name} needs a rate; found none. Pass one (fedavg:rate=1e-3).")
        of_rows = self.plan.batch_size is not None
        bound = largest_curvature(federation, of_rows=of_rows, at_least=self.at_least)
        curvature = bound * federation.model.loss.largest_curvature + ridge
        return replace(self, plan=replace(self.plan, rate=1 / curvature))

    def start_params(self, model: Model) -> Array:
        return model.start() if self.start == "model" else model.random_start(self.plan.seed)

    def draw(self, federation: Federation, number: int) -> frozenset[str]:
        """The clients of a round: all, or a share of them, each as likely as any other."""
        names = list(federation.clients)
        if self.participation == 1:
            return frozenset(names)
        size = max(1, round(self.participation * len(names)))
        seeds = [self.plan.seed, PARTICIPATION_STREAM, number]
        generator = np.random.Generator(np.random.PCG64(seeds))
        drawn = generator.choice(len(names), size, replace=False)
        return frozenset(names[position] for position in drawn)

    def weights(self, federation: Federation) -> dict[str, float] | None:
        """Of all clients, which a sample's average needs; None where all are asked."""
        if self.participation == 1:
            return None
        if self.uniform:
            return dict.fromkeys(federation.clients, 1.0)
        answers = enough(federation.ask(Weight()), len(federation.clients), self.at_least)
        weights = {name: float(rows) for name, rows in federation.clients.items()}
        return weights | {answer.client: float(answer.arrays["weight"][0]) for answer in answers}

    def uploads(
        self,
        federation: Federation,
        params: Array,
        number: int,
        *,
        ridge: float,
        recipe: LossRecipe | None = None,
        clients: Collection[str] | None = None,
    ) -> Iterator[tuple[str, Upload]]:
        """What clients send back in round `number`, from their training loss or a recipe's."""
        query = LocalFit(params, replace(self.plan, round=number), recipe or TrainingLoss(ridge))
        expected = len(federation.clients if clients is None else clients)
        for answer in enough(federation.ask(query, clients), expected, self.at_least):
            weight = float(answer.arrays["weight"][0])
            yield answer.client, Upload(answer.arrays["params"], weight)

    def step(
        self,
        params: Array,
        uploads: Iterable[tuple[str, Upload]],
        weights: Mapping[str, float] | None = None,
    ) -> Array:
        """params + sum p_c (upload_c - params) with p_c = n_c / n, or 1 / C where `uniform`.

        n is the weight of those who answered: this is their mean. Of a sample of m clients
        (`weights`: of all C) it is that of all clients, and the sum is scaled by C / m: then the
        mean over all samples is the mean of all clients.
        """
        moved = np.zeros_like(params)
        total = 0.0
        count = 0
        for name, upload in uploads:
            weight = 1.0 if self.uniform else upload.weight
            if weights is not None:
                weight = weights[name]
            moved += weight * (upload.params - params)
            total += weight
            count += 1
        if weights is not None:
            return params + len(weights) / count * moved / sum(weights.values())
        return params + moved / total

    def _check_history(self, federation: Federation) -> None:
        drawn = len(self.draw(federation, 0))
        size = 8 * self.rounds * (drawn + 1) * int(np.prod(federation.model.shape))
        if size > MAX_HISTORY:
            raise InputError(
                f"A history of at most {MAX_HISTORY >> 30} GiB is kept; {self.rounds} rounds of "
                f"{drawn} clients are {size / (1 << 30):.1f} GiB. Lower the rounds or the "
                "participation, or keep gradients (--keep gradients)."
            )


def enough(answers: Iterable[R], expected: int, at_least: float) -> Iterator[R]:
    """The answers that come; MissingClients where they are less than this share of the expected."""
    present = 0
    try:
        for answer in answers:
            present += 1
            yield answer
    except MissingClients:
        if present < max(1, at_least * expected):
            raise


def largest_curvature(federation: Federation, *, of_rows: bool, at_least: float = 1.0) -> float:
    """The largest curvature of squares of any client; who reports an impossible one is named."""
    columns = federation.model.shape[0]

    def read(answer: Answer) -> tuple[str, float, float]:
        curvature = float(answer.arrays["curvature"][0])
        trace = float(answer.arrays["trace"][0])
        least = max(1.0, trace / min(answer.rows, columns))  # of the ones in z alone it is 1
        largest = trace * answer.rows if of_rows else trace
        if not (1 - ROUNDING) * least <= curvature <= (1 + ROUNDING) * largest:
            raise InputError(
                f"A curvature of {least:.3g} to {largest:.3g} was expected of {answer.rows} rows "
                f"with a mean square of {trace:.3g}; found {curvature:.3g}."
            )
        return answer.client, curvature, trace

    expected = len(federation.clients)
    answers = read_each(federation.ask(Curvature(of_rows)), read)
    reports = list(enough(answers, expected, at_least))
    median = sorted(trace for _, _, trace in reports)[(len(reports) - 1) // 2]
    strange = {
        name: Failure("garbage", f"a mean square of {trace:.3g}, the median is {median:.3g}")
        for name, _, trace in reports
        if trace > CURVATURE_OUTLIER * median
    }
    if strange:
        raise MissingClients(strange)
    return max(curvature for _, curvature, _ in reports)
