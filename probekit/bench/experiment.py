"""What an experiment is: settings of data, clients, poison, request, model and training, and the methods on them.

An experiment is a TOML file. Tables that all settings share stand at the top; `[[settings]]` change single keys of
them, `[sweep]` gives one key several values, `[quick]` and `[full]` (at the top or in a setting) change keys again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from probekit.datasets.triggers import trigger
from probekit.errors import InputError
from probekit.evaluation.shadows import CALLED, CLOSED
from probekit.federated.partition import parse_scheme
from probekit.federated.training import trainer_named
from probekit.registry import methods as known_methods
from probekit.registry import nearest, problems
from probekit.unlearning.method import method

KINDS = {"head": "embeddings"}
"""The words of experiments for backends that are called otherwise."""
REQUESTS = ("client", "samples", "class")
CHOICES = ("random", "high-influence")
AIMS = ("oracle", "blind")
ALL = "all"
BASELINES = ("exact", "retrain", "retrain-fedavg", "neggrad")
"""Methods that stand in every table, where they are known and can be carried out."""
METRICS = (
    *("utility", "distance", "divergence", "clients", "certified", "certified-rounds", "membership", "shadows"),
    *("relearn", "curvature"),
)
USUAL_METRICS = ("utility", "distance", "divergence", "clients")


def one_of(what: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse a word that is not among the known ones."""
    if value not in known:
        raise InputError(f"{what} is one of {', '.join(known)}; found {value!r}. {nearest(value, list(known))}")


@dataclass(frozen=True)
class DataPart:
    """Which rows: sets of the cache (`cached`, `cached_test`, and `cached_triggered` ones), or a data set to encode.

    `rows`, `test_rows`: a number, or a share of all up to 1; drawn at random by `draw`. `test`: the split of test
    rows, or a share to hold out of a set that has no such split. `validation`: the share of test rows that tuning
    sees, and the tables do not.
    """

    set: str = "digits"
    backbone: str = "pixels"
    split: str | None = "train"
    test: str | float = "test"
    rows: float | None = None
    test_rows: float | None = None
    validation: float = 0.4
    draw: int = 0
    cached: str | None = None
    cached_test: str | None = None
    cached_triggered: str | None = None
    cached_test_triggered: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.validation < 1:
            raise InputError(f"data.validation is a share between 0 and 1; found {self.validation}.")
        for name in ("rows", "test_rows"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"data.{name} is a number of rows, or a share up to 1; found {value}.")
        if (self.cached is None) != (self.cached_test is None):
            raise InputError("data.cached and data.cached_test name the sets to train on and to test; give both.")


@dataclass(frozen=True)
class ClientsPart:
    """Who holds the rows."""

    number: int = 5
    partition: str = "iid"
    server_share: float = 0.1

    def __post_init__(self) -> None:
        if self.number < 2:
            raise InputError(f"clients.number must be 2 or more: one leaves; found {self.number}.")
        parse_scheme(self.partition)


@dataclass(frozen=True)
class PoisonPart:
    """One client's backdoor: a trigger on all its rows, which it calls `label`. An empty trigger: no poison."""

    trigger: str = "square:size=5"
    label: int = 0

    def __post_init__(self) -> None:
        if self.trigger:
            trigger(self.trigger)


@dataclass(frozen=True)
class RequestPart:
    """What is forgotten: a client (the poisoned one, where there is one), `size` samples of it, or a class.

    `stream`: so many requests one after the other, of as many clients, or of `size` samples each.
    """

    what: str = "client"
    choice: str = "random"
    size: int = 10
    stream: int = 1

    def __post_init__(self) -> None:
        one_of("request.what", self.what, REQUESTS)
        one_of("request.choice", self.choice, CHOICES)
        if self.size < 1 or self.stream < 1:
            raise InputError(f"request.size and request.stream are 1 or more; found {self.size} and {self.stream}.")
        if self.what == "class" and self.stream > 1:
            raise InputError("A stream of requests forgets clients or samples; found a class. Set request.stream to 1.")


@dataclass(frozen=True)
class ModelPart:
    """What is trained, by which trainer: a head, a network linearized (`jvp`), or a conventional one (`network`).

    `removal_ridge`: another ridge in the removal than in training. `options`: of the backend, as `probekit train`
    takes them.
    """

    kind: str = "head"
    trainer: str = "fedavg:rounds=50,local_steps=10"
    ridge: float = 0.01
    removal_ridge: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        one_of("model.kind", self.kind, ("head", *(name for name in problems.names() if name not in KINDS.values())))
        trainer_named(self.trainer)
        if not (0 <= self.ridge < math.inf and 0 <= (self.removal_ridge or 0) < math.inf):
            raise InputError(f"A ridge is 0 or more; found {self.ridge} and {self.removal_ridge}.")

    @property
    def backend(self) -> str:
        """The backend's registered name."""
        return KINDS.get(self.kind, self.kind)


@dataclass(frozen=True)
class TunePart:
    """How many settings of each method are tried on validation rows, its defaults among them, and what is wanted.

    "oracle": to predict as retraining does; "blind": what an operator sees who has not retrained. `reused`: what such
    a budget has chosen before, by setting and method; `source` says where. Nothing is tried of these.
    """

    budget: int = 1
    aim: str = "oracle"
    reused: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self) -> None:
        one_of("tune.aim", self.aim, AIMS)
        if self.budget < 1:
            raise InputError(f"tune.budget counts the defaults, so it is 1 or more; found {self.budget}.")


@dataclass(frozen=True)
class Figures:
    """Published numbers to stand beside: a key into the paper's tables, or values by method, with their source.

    `values`: for each method [accuracy, backdoor] in percent, perhaps each as [mean, standard error].
    """

    key: str = ""
    source: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.values and not self.source:
            raise InputError("published.values need published.source: who says so, and where.")


@dataclass(frozen=True)
class BenchSetting:
    """One column block of a table: all that determines a trained state but the seed."""

    name: str
    data: DataPart = DataPart()
    clients: ClientsPart = ClientsPart()
    poison: PoisonPart = PoisonPart()
    request: RequestPart = RequestPart()
    model: ModelPart = ModelPart()
    published: Figures = Figures()
    methods: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    x: float | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """What determines the numbers; names and published figures do not."""
        whole = asdict(self)
        return {name: whole[name] for name in ("data", "clients", "poison", "request", "model")}


@dataclass(frozen=True)
class Experiment:
    """Settings, methods, seeds and what is measured. `sweep`: the key that settings differ by, for curves.

    `shadows`, `closed_shadows`: how many are called, and how many are taken where there is a closed form. `beside`:
    tables of the paper that stand below.
    """

    name: str
    title: str
    settings: tuple[BenchSetting, ...]
    about: str = ""
    methods: tuple[str, ...] = (ALL,)
    without: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2)
    metrics: tuple[str, ...] = USUAL_METRICS
    tune: TunePart = TunePart()
    sweep: str = ""
    kind: str = "comparison"
    shadows: int = CALLED
    closed_shadows: int = CLOSED
    scale: str = "usual"
    beside: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.settings:
            raise InputError(f"The experiment {self.name} has no settings. Give one, or leave `settings` out.")
        if not self.seeds or min(self.seeds) < 0:
            raise InputError(f"seeds are whole numbers, 0 or more, at least one; found {list(self.seeds)}.")
        for name in self.metrics:
            one_of("metrics", name, METRICS)
        names = [one.name for one in self.settings]
        if len(set(names)) < len(names):
            raise InputError(f"Two settings of {self.name} are called {max(names, key=names.count)!r}. Rename one.")
        for one in (*self.methods, *(name for setting in self.settings for name in setting.methods or ())):
            if one != ALL:
                method(one)  # unknown names and options are refused here, before hours of work

    def methods_of(self, setting: BenchSetting) -> tuple[str, ...]:
        """The methods of a setting in the order of its table, baselines first."""
        asked = setting.methods or self.methods
        every = [name for name in known_methods.names() if name not in (*self.without, *setting.without)]
        given = [name for one in asked for name in (every if one == ALL else [one])]
        named = {one.partition(":")[0] for one in given}
        first = [name for name in BASELINES if name in known_methods.names() and (name in given or name not in named)]
        return tuple(dict.fromkeys([*first, *given]))

    def left_out(self, setting: BenchSetting) -> list[str]:
        """The known methods that a setting does not run."""
        there = {one.partition(":")[0] for one in self.methods_of(setting)}
        return [name for name in known_methods.names() if name not in there]
