"""How to probe."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from probekit.errors import InputError, NotFoundError
from probekit.evaluation.intervals import Sampling
from probekit.evaluation.metrics import METRICS
from probekit.linear.logistic_choice import CRITERIA, Criterion
from probekit.linear.ridge import check_ridge
from probekit.probing.heads import find_fit
from probekit.probing.protocols import PROTOCOLS, Protocol
from probekit.registry import nearest

DEFAULT_TEMPLATES = ("a photo of a {}.",)
NEIGHBORS = 20
NORMALIZATIONS = ("none", "l2", "standardize")
Search = Literal["grid", "coarse-to-fine"]


@dataclass(frozen=True)
class ProbeOptions:
    """How to fit heads and to evaluate them; `of` fills in what a protocol sets.

    heads: of ridge, logistic, lda, nearest-mean, knn (or knn:50) and zero-shot. By default ridge
        and logistic; targets have ridge only.
    protocol: the name of a published probe.
    knn: the number of neighbors (and that head).
    shots, draws: also heads of so few training rows of every class, drawn so often.
    metric: the primary one; None is accuracy, or balanced accuracy where a class has more than half
        of the rows, and for targets average precision or R2.
    ridge: a number, or "auto": exact leave-one-out on the training rows, by groups if there are.
    alpha: the ridge as scikit-learn counts it, times the number of rows; instead of `ridge`.
    C: of the logistic head: a number, or "auto", chosen of Cs (by default the solver's grid) by
        validation rows, else in 5 folds of the training rows.
    search, criterion: in which order Cs are tried, and by what they are compared.
    refit: whether validation rows join the training rows once they have chosen.
    templates, prompt_names: of the zero-shot head, as `zero_shot_head` takes them.
    normalize: "none", "l2", or "standardize" by the training rows; k-NN is by cosine.
    controls: also shuffled labels and random vectors, in which nothing can be found.
    drop_copies: leave training rows out that are also test rows.
    """

    heads: tuple[str, ...] = ()
    protocol: str | None = None
    knn: int | None = None
    shots: tuple[int, ...] = ()
    draws: int = 5
    metric: str | None = None
    ridge: float | str = "auto"
    alpha: float | None = None
    C: float | str = "auto"
    Cs: tuple[float, ...] = ()
    search: Search = "grid"
    criterion: Criterion = "log loss"
    refit: bool = True
    templates: tuple[str, ...] | str = DEFAULT_TEMPLATES
    prompt_names: tuple[str, ...] | str | None = None
    normalize: str = "none"
    confidence: float = 0.95
    controls: bool = True
    drop_copies: bool = False
    seed: int = 0

    @classmethod
    def of(cls, **typed: Any) -> Self:
        """What a person set, and what the protocol sets: where they differ, an error."""
        for name in ("heads", "shots", "Cs"):
            if name in typed:
                typed[name] = as_tuple(typed[name])
        protocol = typed.get("protocol")
        if protocol is None:
            return cls(**typed)
        if protocol not in PROTOCOLS:
            raise NotFoundError(f"Unknown protocol {protocol!r}. {nearest(protocol, [*PROTOCOLS])}")
        return cls(**PROTOCOLS[protocol].merged(protocol, typed))

    def __post_init__(self) -> None:
        object.__setattr__(self, "heads", self._all_heads())
        for name in ("shots", "Cs"):
            object.__setattr__(self, name, as_tuple(getattr(self, name)))
        for head in self.heads:
            find_fit(head)
        _check_choice("metric (--metric)", self.metric or "accuracy", METRICS)
        _check_choice("normalize (--normalize)", self.normalize, NORMALIZATIONS)
        _check_choice("search", self.search, get_args(Search))
        _check_choice("criterion", self.criterion, CRITERIA)
        if self.ridge not in ("auto", "auto:loo"):
            check_ridge(self.ridge)
        for C in (*self.Cs, *([] if self.C == "auto" else [self.C])):
            if isinstance(C, bool | str) or not 0 < C < math.inf:
                raise InputError(
                    f"C (--c, --cs) must be a finite number above 0, or 'auto'; found {C!r}."
                )
        object.__setattr__(self, "Cs", tuple(sorted(set(self.Cs))))
        _check_minimum("shots (--shots)", min(self.shots, default=1), 1)
        _check_minimum("draws (--draws)", self.draws, 1)
        _check_minimum("knn (--knn)", self.neighbors, 1)
        _check_minimum("seed (--seed)", self.seed, 0)
        Sampling(self.confidence)

    def _all_heads(self) -> tuple[str, ...]:
        """Those that were asked for, each once; a protocol says which there are."""
        heads = list(as_tuple(self.heads))
        if self.rules is None:
            added = [] if self.knn is None else ["knn"]
            return tuple(dict.fromkeys([*heads, *added]))
        if self.knn is not None:
            heads.append(f"knn:{self.knn}")
        defined = self.rules.heads
        chosen = []
        for head in heads or defined[:1]:
            meant = [name for name in defined if head in (name, name.partition(":")[0])]
            if not meant:
                raise InputError(
                    f"protocol {self.protocol} evaluates {', '.join(defined)}; found head (--head) "
                    f"{head}. Drop one of the two."
                )
            chosen += meant
        return tuple(dict.fromkeys(chosen))

    @property
    def rules(self) -> Protocol | None:
        return None if self.protocol is None else PROTOCOLS[self.protocol]

    @property
    def neighbors(self) -> int:
        return NEIGHBORS if self.knn is None else self.knn


def as_tuple(value: Any) -> tuple[Any, ...]:
    """Several values as they are, or the only one; None are none."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _check_minimum(name: str, value: int, minimum: int) -> None:
    if value < minimum:
        raise InputError(f"{name} must be at least {minimum}; found {value}.")


def _check_choice(name: str, value: str, choices: Collection[str]) -> None:
    if value not in choices:
        raise InputError(
            f"{name} must be one of {', '.join(choices)}; found {value!r}. "
            f"{nearest(value, list(choices))}"
        )
