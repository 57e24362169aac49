"""The options of a training run, checked against each other, and the library's own objects made from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self

from probekit.errors import InputError
from probekit.values import Json

if TYPE_CHECKING:
    from probekit.federated.fedavg import FedAvg
    from probekit.federated.task import ClosedForm
    from probekit.linear.design import Design
    from probekit.values import EmbeddingSet, Partition

METHODS = ("closed-form", "cg", "fedavg", "logistic")
BACKENDS = ("embeddings", "jvp")
ROUNDS = (
    "rounds",
    "local_steps",
    "local_epochs",
    "batch_size",
    "learning_rate",
    "weights",
    "participation",
    "server_learning_rate",
    "init",
    "tolerance",
    "optimiser",
    "preset",
    "keep_history",
)
SOLVED = ("fit_view", "class_weight", "normalise_classes")
OF_HEADS = (*SOLVED, "scaling", "intercept", "view", "arithmetic", "grid", "keep_history", "objective_noise")
OF_NETWORKS = (
    "network",
    "split",
    "subset",
    "centre",
    "precision",
    "network_weights",
    "pretrain_epochs",
    "pretrain_batch",
    "pretrain_rate",
)
NETWORK_RIDGE = 0.01
DEFAULT_CLIENTS = 10


@dataclass(frozen=True)
class TrainOptions:
    """What `probekit train` was asked for. None: the method's own default."""

    embeddings: str
    clients: int | None = None
    partition: str = "iid"
    server_share: float = 0.0
    server_choice: str = "random"
    seed: int = 0
    method: str = "closed-form"
    ridge: str | None = None
    scaling: str = "mean"
    intercept: str | None = None
    view: str = "raw"
    fit_view: str = "none"
    class_weight: str | None = None
    normalise_classes: bool = False
    arithmetic: str = "float64"
    grid: float | None = None
    keep: str | None = None
    objective_noise: float | None = None
    rounds: int | None = None
    local_steps: int | None = None
    local_epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    optimiser: str | None = None
    weights: str | None = None
    participation: float | None = None
    server_learning_rate: float | None = None
    init: str | None = None
    tolerance: float | None = None
    preset: str | None = None
    keep_history: bool = False
    poison: str | None = None
    triggered: str | None = None
    target: int = 0
    poison_fraction: float = 1.0
    backend: str = "embeddings"
    network: str = "mlp"
    split: str | None = None
    subset: str | None = None
    centre: str = "wp"
    precision: str = "float64"
    network_weights: str | None = None
    pretrain_epochs: int = 50
    pretrain_batch: int = 32
    pretrain_rate: float = 1e-3

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """The config in these values; others among them are not looked at."""
        return cls(**{field.name: given[field.name] for field in fields(cls) if field.name in given})

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError(f"A method is one of {', '.join(METHODS)}; found {self.method!r}.")
        self._check_backend()
        if self.method != "fedavg":
            rounds = tuple(name for name in ROUNDS if self.method != "cg" or name not in ("rounds", "tolerance"))
            self._refuse(rounds, "belongs to rounds of local steps: add --method fedavg, or leave it out")
        if self.method != "closed-form":
            self._refuse(SOLVED, "is done on statistics: only --method closed-form has it")
        if self.method == "logistic" and (self.keep not in (None, "nothing") or self.auto):
            raise InputError(
                "A logistic head has no statistics to keep or to choose a ridge from; found keep "
                f"{self.keep!r} and ridge {self.ridge!r}. Give --ridge a number and leave --keep out."
            )
        if (self.poison is None) != (self.triggered is None):
            raise InputError(
                "Poisoning needs both the client (--poison) and the same set extracted with a trigger (--triggered); "
                f"found {self.poison!r} and {self.triggered!r}."
            )
        if self.local_steps is not None and self.local_epochs is not None:
            raise InputError(
                f"Give --local-steps or --local-epochs, one of them; found {self.local_steps} and {self.local_epochs}."
            )
        if not self.auto and self.ridge is not None:
            self.number()
        self._refuse_unhidden()

    def _refuse_unhidden(self) -> None:
        if self.objective_noise is None:
            return
        from probekit.linear.objective import refuse_sigma, refuse_unhidden

        refuse_sigma(self.objective_noise)
        refuse_unhidden(
            method=self.method,
            ridge=None if self.auto or self.ridge is None else self.number(),
            intercept=self.intercept or "penalised",
            arithmetic=self.arithmetic,
            fit_view=self.fit_view,
            weighted=self.class_weight is not None,
            normalised=self.normalise_classes,
            keep=self.keep,
        )

    def _check_backend(self) -> None:
        if self.backend not in BACKENDS:
            raise InputError(f"A backend is one of {', '.join(BACKENDS)}; found {self.backend!r}.")
        if self.backend == "jvp":
            self._check_network()
            return
        self._refuse(OF_NETWORKS, "is about a whole network: add --backend jvp, or leave it out")
        if self.method == "cg":
            raise InputError("--method cg is for whole networks: add --backend jvp. A head has a closed form.")

    def _check_network(self) -> None:
        """A whole network has rounds, not a closed form, and a ridge that is a number."""
        if self.method == "closed-form":
            object.__setattr__(self, "method", "cg")
        if self.method == "logistic":
            raise InputError("A whole network is trained by --method cg or fedavg; found logistic.")
        self._refuse(OF_HEADS, "is about heads of embeddings; a whole network (--backend jvp) has no such thing")
        if self.auto:
            raise InputError(f"The ridge of a whole network is a number; found --ridge {self.ridge}. Try 0.01.")
        if self.keep == "statistics":
            raise InputError("A whole network has no statistics to keep. Keep gradients, or nothing.")
        if self.preset is not None:
            raise InputError("--preset f2l2 is for heads. For a network give --optimiser adam --batch-size 32.")

    def _refuse(self, names: tuple[str, ...], why: str) -> None:
        plain = TrainOptions.__dataclass_fields__
        for name in names:
            value = getattr(self, name)
            if value != plain[name].default:
                given = "" if value is True else f" {value}"
                option = f"--{name.replace('_', '-')}"
                raise InputError(f"{option} {why}; found {option}{given} with --method {self.method}.")

    @property
    def auto(self) -> bool:
        """Whether the ridge is to be chosen."""
        return self.ridge is not None and self.ridge.startswith("auto")

    def number(self) -> float:
        """The ridge as a number."""
        try:
            return float(self.ridge or "")
        except ValueError:
            raise InputError(
                f"A ridge is a number, auto, auto:loo, auto:kfold or auto:clients; found {self.ridge!r}."
            ) from None

    def plain(self) -> dict[str, Json]:
        """All of it in plain values."""
        return dict(asdict(self))


def method_of(config: TrainOptions) -> ClosedForm | FedAvg:
    """The library's method with these options; of a network trained by conjugate gradients, an idle one."""
    from probekit.federated.fedavg import FedAvg
    from probekit.federated.optimiser import Optimiser
    from probekit.federated.task import ClosedForm

    if config.method != "fedavg":
        weight = config.class_weight
        parsed = weight if weight in (None, "balanced") else _numbers(str(weight))
        return ClosedForm(config.fit_view, parsed, config.normalise_classes)
    base = FedAvg.preset(config.preset) if config.preset else FedAvg()
    names = [name for name in ROUNDS if name not in ("optimiser", "preset", "keep_history")]
    given: dict[str, Any] = {name: getattr(config, name) for name in names if getattr(config, name) is not None}
    if config.local_steps is not None:
        given["local_epochs"] = None
    if config.local_epochs is not None:
        given["local_steps"] = None
    if config.optimiser is not None:
        given["optimiser"] = Optimiser(config.optimiser)
    if config.ridge is not None:
        given["ridge"] = None  # the preset's own gives way
    return replace(base, seed=config.seed, keep_history=config.keep_history, **given)


def design_of(config: TrainOptions, embeddings: EmbeddingSet, partition: Partition) -> Design:
    """How rows become columns. The step of an exact grid comes from the server's rows: nobody's who may leave."""
    from probekit.federated.task import design_for
    from probekit.linear.grid import step_for

    grid = config.grid or 0.0
    if config.arithmetic == "exact" and config.view == "raw" and not grid:
        if not len(partition.server):
            raise InputError(
                "Exact arithmetic on raw rows needs the step of its grid, and the server has no rows to take it from. "
                "Add --server-share 0.1, --view l2 (which needs none) or --grid with a power of two."
            )
        grid = step_for(embeddings.embeddings[partition.server])
    return design_for(
        embeddings,
        view=config.view,
        intercept=config.intercept or ("free" if config.method == "logistic" else "penalised"),
        arithmetic=config.arithmetic,
        per_class=config.class_weight is not None,
        grid=grid,
    )


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            f'Class weights are "balanced" or one number per class with commas between; found {text!r}.'
        ) from None
