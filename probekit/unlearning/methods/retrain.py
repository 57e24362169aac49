"""The references: training anew on the rows that remain, to the minimum or by the run's own FedAvg."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from probekit.errors import InputError
from probekit.federated.federation import Federation
from probekit.federated.methods.cg import FederatedCg
from probekit.federated.methods.closed_form import ClosedForm
from probekit.federated.methods.fedavg import FedAvg
from probekit.federated.summation import StatisticsTree
from probekit.federated.trained import Trained
from probekit.federated.training import Training, trainer_named
from probekit.linear.design import ClientStats
from probekit.protocols import Watch, unwatched
from probekit.unlearning.method import FROM_ROWS, Unlearned
from probekit.unlearning.methods.exact import closed_form_work
from probekit.unlearning.removal import Removal

CLOSE = {"float64": FederatedCg(rounds=2000, tolerance=1e-8), "float32": FederatedCg(rounds=500, tolerance=1e-5)}
"""How near to the minimum retraining by rounds goes, by the numbers that the run was trained in."""
RENEWED = ("statistics", "gradients", "history", "rounds", "losses", "learning_rate")
"""What training anew makes anew."""
ANEW = "Trained anew on the remaining rows."


def minimum_trainer(problem: Any) -> Any:
    """What finds the minimum of a problem: its own trainer, its closed form, else conjugate gradients."""
    if "trainer" in problem.traits:
        return trainer_named(problem.trainer)
    if "statistics" in problem.traits:
        return ClosedForm(problem.standardise, problem.class_weight, problem.normalise_classes)
    return CLOSE[problem.precision]


def trained_anew(
    before: Trained, clients: Federation, trainer: Any, *, server: Any = None, watch: Watch = unwatched
) -> Trained:
    """The outcome of a trainer on these clients, from where the run's own training began."""
    if not clients.clients:
        raise InputError("Cannot retrain on nothing: every sample of every client is to be forgotten.")
    wanted = next((name for name in ("statistics", "gradients") if before.has(name)), "nothing")
    keep = wanted if wanted in trainer.keeps else "nothing"
    given = (before.problem, clients, before.ridge, before.scaling, keep, server)
    found: Trained = trainer.train(Training(*given, watch=lambda stage: watch("retraining")))
    return found


@dataclass(frozen=True)
class Retrain:
    """The minimum of the remaining rows' loss, found anew: the head that all others are measured by."""

    name: ClassVar[str] = "retrain"
    needs: ClassVar[tuple[Any, ...]] = (
        (("problem", "quadratic"), ("problem", "trainer")),
        (("online", "gradient"), ("problem", "targets")),
        (("online", "statistics"), ("online", "product"), ("online", "fit")),
    )
    keeps: ClassVar[tuple[str, ...]] = ("statistics", "gradients")
    traits: ClassVar[frozenset[str]] = frozenset({"minimum", FROM_ROWS})

    def unlearn(self, removal: Removal) -> Unlearned:
        """The head of the remaining rows."""
        before, problem, rows = removal.before, removal.problem, removal.rows
        if "statistics" in problem.traits:
            parts = {one.client: problem.stats(one.arrays) for one in removal.online.ask("statistics").each()}
            tree = StatisticsTree.of({name: parts[name] for name in removal.counts}, keep_sums=False)
            head, solution = before.minimum(tree.total)
            flops, kept = closed_form_work(rows, *problem.shape), self._kept(removal, parts)
            return removal.finish(self, solution, head=head, flops=flops, note=ANEW, statistics=kept)
        server, own = removal.server if removal.available("server", "rows") else None, "trainer" in problem.traits
        options = removal.material.options
        same = own and getattr(options, "name", "") == problem.trainer
        trainer = options if same else minimum_trainer(problem)
        found = trained_anew(before, removal.online, trainer, server=server, watch=removal.watch)
        again: dict[str, Any] = {"objective": found.objective, "kept": found.kept} if own else {}
        return removal.finish(
            self,
            found.solution,
            params=found.params,
            head=before.named(found.head) if own else None,
            flops=8 * found.rounds * rows * problem.shape[0],
            note=ANEW if own else f"{ANEW[:-1]}, from the same w_p, which knows the server's rows only.",
            gradients=found.gradients,
            **again,
        )

    def _kept(self, removal: Removal, parts: Mapping[str, ClientStats]) -> StatisticsTree | None:
        """As the run had them where the request changed nothing: threads may round sums of the same rows otherwise."""
        before = removal.before.statistics
        if before is None:
            return None
        stay = {name: before[name] for name in removal.counts if name in before and name not in removal.changed}
        return StatisticsTree.of({name: stay.get(name, parts[name]) for name in removal.counts}, keep_sums=True)


@dataclass(frozen=True)
class RetrainFedAvg:
    """The run's own FedAvg, from its start, on the clients that remain."""

    name: ClassVar[str] = "retrain-fedavg"
    needs: ClassVar[tuple[Any, ...]] = (
        ("online", "fit"),
        (("online", "scales"), ("trainer", "learning_rate")),
        (("online", "gradient"), ("online", "statistics")),
        ("trainer", "local_steps"),
    )
    keeps: ClassVar[tuple[str, ...]] = ("statistics", "gradients")
    traits: ClassVar[frozenset[str]] = frozenset({FROM_ROWS})

    def unlearn(self, removal: Removal) -> Unlearned:
        """The head that FedAvg comes to without the forgotten."""
        options: FedAvg = removal.material.options
        found = trained_anew(removal.before, removal.online, replace(options, ridge=None), watch=removal.watch)
        d, k = removal.problem.shape
        steps, clients = options.local_steps or options.local_epochs or 1, len(removal.counts)
        batch = options.batch_size or removal.rows // clients
        return removal.finish(
            self,
            found.solution,
            head=removal.before.named(found.head),
            flops=found.rounds * clients * steps * 4 * batch * d * k,
            note="FedAvg with several local steps settles beside the minimum of the retained loss.",
            **{name: getattr(found, name) for name in RENEWED},
        )
