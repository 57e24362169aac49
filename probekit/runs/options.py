"""The options of training and of unlearning: values that are checked once, and that the flags are made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, asdict, dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from probekit.errors import InputError

if TYPE_CHECKING:
    from probekit.custody.accounting import ReleaseNoise
    from probekit.values import Json

WHO, FIT, ROUNDS = "Who holds and keeps what", "The head", "FedAvg (with --method fedavg)"
ATTACK = "A backdoor to try unlearning on"
NOISE = "A guarantee for the released head: (epsilon, delta)"
NETWORK = "A whole network instead of a head: --backend jvp or network"
RENAMED = {"fit_view": "standardise"}
"""Options that trainers have by another name."""
SOLVED = ("fit_view", "class_weight", "normalise_classes")
OF_HEADS = (*SOLVED, "scaling", "intercept", "view", "arithmetic", "grid", "objective_noise")


@dataclass(frozen=True)
class OptionInfo:
    """How an option is explained and offered: by which words, in which group, from which number on, by which names.

    flag: what it is called on the command line, where that is not its name here.
    """

    help: str
    choices: tuple[str, ...] = ()
    panel: str | None = None
    minimum: int | None = None
    aliases: tuple[str, ...] = ()
    flag: str = ""


def info_of(one: Field[Any]) -> OptionInfo:
    """What is known of an option besides its name, type and default."""
    found: OptionInfo = one.metadata["info"]
    return found


def _option(default: Any, text: str, *choices: str, panel: str | None = None, **more: Any) -> Any:
    return field(default=default, metadata={"info": OptionInfo(text, choices, panel, **more)})


_who, _fit, _rounds, _attack, _network, _noise = (
    partial(_option, panel=panel) for panel in (WHO, FIT, ROUNDS, ATTACK, NETWORK, NOISE)
)


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """How a run is trained. Each field is a flag of `probekit train`; None leaves the choice to the method."""

    clients: int | None = _option(
        None, "How many clients (default: 10, or as many as the column or the classes say).", minimum=1
    )
    partition: str = _option(
        "iid", "Who gets which rows: iid, dirichlet:ALPHA, shards:K, column:client_id, classes, groups."
    )
    method: str | None = _option(
        None,
        "closed-form (one round of statistics), fedavg (rounds of local steps), cg (conjugate gradients across the "
        "clients), logistic (no exact unlearning), a plugin's own or py:module:factory; options as NAME:key=value,... "
        "Default: closed-form; jvp: cg; network: fedavg.",
    )
    ridge: float | str | None = _option(
        None,
        "The penalty: a number, auto:loo (leave-one-out), auto:kfold, auto:clients. Default: auto:loo; by groups "
        "auto:clients; logistic 1; jvp 0.01; network 0.",
    )
    seed: int = _option(0, "Random seed.", minimum=0)
    server_share: float = _who(0.0, "The server's own part of the rows; no client gets it.")
    server_choice: str = _who("random", "How the server's part is drawn.", "random", "representative")
    server_set: str | None = _who(None, "Across a federation: a set of this cache, as the server's own rows.")
    at_least: int | None = _who(
        None, "Across a federation: so many clients are enough, others are left out by name (default: all).", minimum=1
    )
    timeout: float | None = _who(
        None, "Across a federation: seconds that a client has to answer a question in.", minimum=0
    )
    keep: str | None = _who(
        None, "Kept of each client (default: statistics; fedavg: gradients).", "statistics", "gradients", "nothing"
    )
    scaling: str = _fit("mean", "mean: penalty = rows x ridge; sum: penalty = ridge.", "mean", "sum")
    intercept: str | None = _fit(None, "The bias: default penalised; logistic: free.", "penalised", "free", "none")
    view: str = _fit("raw", "raw: rows as they are; l2: each of norm 1.", "raw", "l2", flag="normalise")
    fit_view: str = _fit(
        "none",
        "Centre or scale columns by the summed statistics, forgotten with them.",
        "none",
        "centre",
        "standardise",
        flag="standardise",
    )
    class_weight: str | None = _fit(None, "How much rows count: balanced, or one number per class: 1,2,1.")
    normalise_classes: bool = _fit(False, "Each class's column of norm 1.")
    arithmetic: str = _fit("float64", "exact: sums are bit-identical in any order.", "float64", "fast", "exact")
    grid: float | None = _fit(None, "Step of exact arithmetic (default: from the server's rows).")
    objective_noise: float | None = _fit(
        None, "Sigma of a secret linear term in the objective: (epsilon, delta) by perturbation; closed form only."
    )
    release: float | None = _noise(
        None, "Heads leave this run (`probekit export`) only with discrete Gaussian noise of this sigma."
    )
    epsilon: float | None = _noise(None, "The guarantee of all releases together (default: 1).")
    delta: float | None = _noise(None, "The chance that it fails (default: 1e-5).")
    rounds: int | None = _rounds(None, "How many rounds (default: 100).", minimum=1)
    local_steps: int | None = _rounds(None, "Steps of a client in each round (default: 10).", minimum=1)
    local_epochs: int | None = _rounds(None, "Passes over a client's rows, instead of steps.", minimum=1)
    batch_size: int | None = _rounds(None, "Rows in each step (default: all rows of the client).", minimum=1)
    learning_rate: float | None = _rounds(None, "Of the clients' steps (default: 1 / the largest curvature).")
    optimiser: str | None = _rounds(None, "Of the clients' steps (default: sgd).", "sgd", "momentum", "adam")
    weights: str | None = _rounds(None, "A client's share in the average (default: size).", "size", "uniform")
    participation: float | None = _rounds(None, "Share of the clients in each round (default: 1).")
    server_learning_rate: float | None = _rounds(None, "How far a round's average is followed (default: 1).")
    init: str | None = _rounds(None, "Where training starts (default: zeros).", "zeros", "random")
    tolerance: float | None = _rounds(None, "Stop when a round changes less than this.")
    preset: str | None = _rounds(
        None,
        "The paper's own code: Adam forgotten every round, uniform weights, random start, ridge 0.",
        *("f2l2", "f2l2-mnist", "f2l2-fashion-mnist", "f2l2-cifar10"),
    )
    keep_history: bool = _rounds(False, "Keep every round's uploads.")
    poison: str | None = _attack(None, "For trials: this client's rows carry a trigger and the target label.")
    triggered: str | None = _attack(None, "The same set, extracted with --trigger.")
    target: int = _attack(0, "Backdoor target class.", minimum=0)
    poison_fraction: float = _attack(1.0, "How much of the client is poisoned.")
    backend: str = _network(
        "embeddings",
        "embeddings: a head; jvp: a whole network, linearized around pretrained weights; network: the same as it is, "
        "by fedavg with a --learning-rate; a plugin's own.",
    )
    loss: str = _network("cross-entropy", "Of a network that is not linearized.", "cross-entropy", "squared")
    network: str = _network("mlp", "mlp, mlp-large, cnn, lenet, resnet, vit, or py:module:factory.")
    split: str | None = _network(None, "Of a data set that is named instead of a set.")
    subset: str | None = _network(None, "Train these parameters only: a pattern of names, or how many last layers.")
    centre: str = _network(
        "wp", "The ridge pulls to the pretrained weights, or to zero (the paper).", "wp", "zero", aliases=("center",)
    )
    precision: str = _network("float64", "To train in.", "float64", "float32")
    network_weights: str | None = _network(None, "A safetensors file, instead of pretraining.")
    pretrain_epochs: int = _network(
        50, "Passes over the server's rows that pretrain it; 0 (not linearized only): not pretrained.", minimum=0
    )
    pretrain_batch: int = _network(32, "Rows in each of its steps.", minimum=1)
    pretrain_rate: float = _network(1e-3, "Their learning rate.")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """The options in these values; others among them are not looked at."""
        return cls(**{one.name: given[one.name] for one in fields(cls) if one.name in given})

    @classmethod
    def names(cls, panel: str) -> tuple[str, ...]:
        """The options of a group."""
        return tuple(one.name for one in fields(cls) if info_of(one).panel == panel)

    def __post_init__(self) -> None:
        self._check_values()
        self._check_owners()
        if (self.poison is None) != (self.triggered is None):
            found = f"{self.poison!r} and {self.triggered!r}"
            raise InputError(f"Give both `poison`, a client, and `triggered`, the set with a trigger; found {found}.")
        if self.local_steps is not None and self.local_epochs is not None:
            found = f"{self.local_steps} and {self.local_epochs}"
            raise InputError(f"Give `local_steps` or `local_epochs`, one of them; found {found}.")
        if self.objective_noise is not None:
            from probekit.linear.objective import refuse_sigma

            refuse_sigma(self.objective_noise)
            if self.release is not None:
                raise InputError("Noise is in the objective (`objective_noise`) or on what is released, not in both.")
        if self.release is None and (self.epsilon, self.delta) != (None, None):
            raise InputError("`epsilon` and `delta` are what noise on released heads guarantees: give `release` too.")
        _ = self.noise  # which refuses what is no budget

    def _check_values(self) -> None:
        """Every value by itself; a ridge in digits becomes a number."""
        for one in fields(self):
            value, info = getattr(self, one.name), info_of(one)
            if info.choices and value is not None and value not in info.choices:
                raise InputError(f"`{one.name}` is one of {', '.join(info.choices)}; found {value!r}.")
            if info.minimum is not None and value is not None and value < info.minimum:
                raise InputError(f"`{one.name}` is at least {info.minimum}; found {value}.")
        if self.ridge is not None and not self.auto:
            try:
                object.__setattr__(self, "ridge", float(self.ridge))
            except ValueError:
                wanted = "a number, auto, auto:loo, auto:kfold or auto:clients"
                raise InputError(f"A ridge is {wanted}; found {self.ridge!r}.") from None

    def _check_owners(self) -> None:
        """Every option belongs to the backend and the training method that were chosen, or to all."""
        from probekit.federated.training import trainer_named
        from probekit.models.problem import backend_named

        backend = backend_named(self.backend)
        own_options = {*backend.options, "backend"}
        others = tuple(name for name in (*OF_HEADS, *self.names(NETWORK)) if name not in own_options)
        self._refuse(others, lambda name: f"is no option of the backend {self.backend}")
        trainer = trainer_named(self.method or backend.trainer)
        own = {one.name for one in fields(trainer)} | ({"preset"} if hasattr(trainer, "preset") else set())
        others = tuple(name for name in (*self.names(ROUNDS), *SOLVED) if RENAMED.get(name, name) not in own)
        self._refuse(others, lambda name: f"is no option of training by {trainer.name}{_owners(name)}")
        if self.auto and not (backend.ridge is None and "statistics" in trainer.keeps):
            raise InputError(
                f"The ridge of {trainer.name} with the backend {self.backend} is a number; found "
                f'`ridge="{self.ridge}"`. Try 0.01.'
            )
        if self.keep not in (None, "nothing", *trainer.keeps):
            able = ", ".join((*trainer.keeps, "nothing"))
            raise InputError(f"Training by {trainer.name} can keep {able}; found `keep={self.keep}`.")

    def _refuse(self, names: tuple[str, ...], why: Callable[[str], str]) -> None:
        plain = TrainOptions.__dataclass_fields__
        for name in names:
            value = getattr(self, name)
            if value != plain[name].default:
                raise InputError(f"`{name}` {why(name)}; found `{name}={value}`. Leave it out.")

    @property
    def label(self) -> str:
        """What is trained, in a word: the network or, of a head, the method."""
        from probekit.models.problem import backend_named

        backend = backend_named(self.backend)
        name = self.network if "network" in backend.options else self.method or backend.trainer
        return name.replace(":", "-")

    @property
    def auto(self) -> bool:
        """Whether the ridge is to be chosen."""
        return isinstance(self.ridge, str) and self.ridge.startswith("auto")

    @property
    def number(self) -> float | None:
        """The ridge, where one is given and not to be chosen."""
        return None if self.ridge is None or self.auto else float(self.ridge)

    @property
    def noise(self) -> ReleaseNoise | None:
        """The noise on released heads."""
        if self.release is None:
            return None
        from probekit.custody.accounting import ReleaseNoise

        given = {"epsilon": self.epsilon, "delta": self.delta}
        return ReleaseNoise.of(self.release, **{name: value for name, value in given.items() if value is not None})

    @property
    def plain(self) -> dict[str, Json]:
        """All of it in plain values."""
        return dict(asdict(self))


def _owners(name: str) -> str:
    """A clause that says which training methods have an option."""
    from probekit.registry import trainers

    own = RENAMED.get(name, name)
    found = [one for one in trainers.names() if own in getattr(trainers.get(one), "__dataclass_fields__", {})]
    return f"; it belongs to `method={' or '.join(found)}`" if found else ""


@dataclass(frozen=True, kw_only=True)
class UnlearnOptions:
    """How a request is carried out. Each field but the last is a flag of `probekit unlearn`.

    `key`: an Ed25519 private key (PEM) that signs the certificate.
    """

    method: str = _option(
        "auto",
        "auto (exact where statistics are kept, else what comes nearest), or a method by name with its options: exact, "
        "retrain, retrain-fedavg, fedremoval[:cholesky|cg|adam|f2l2], fedremoval-line, fedremoval-pcg:ROUNDS, and the "
        "methods of the literature: cf, federaser, sga, pga, ... (all: `probekit method ls`). A whole network has no "
        "exact, and fedremoval[:dual|pcg|cg|adam|f2l2]; f2l2 repeats the published code, its mistakes included.",
    )
    server_only: bool = _option(False, "Ask no client, not even for a gradient to certify the result.")
    at_least: int | None = _option(
        None, "Across a federation: so many clients are enough, others are forgotten too (default: all).", minimum=1
    )
    timeout: float | None = _option(
        None, "Across a federation: seconds that a client has to answer a question in.", minimum=0
    )
    test: str | None = _option(None, "A set on which to count the certified agreement.")
    epsilon: float | None = _noise(None, "What objective noise is to guarantee of this head (default: 1).")
    delta: float | None = _noise(None, "Default: 1e-5.")
    unreleased: bool = _noise(False, "Forget even where the noise covers it not: the state is never released.")
    key: bytes | None = None
