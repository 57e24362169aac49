"""How to probe."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from probekit.errors import InputError
from probekit.evaluation.intervals import Sampling
from probekit.linear.ridge import check_ridge
from probekit.probing.heads import HEADS
from probekit.registry import nearest

METRICS = ("accuracy", "balanced_accuracy", "top5", "auroc", "average_precision", "r2")
NEIGHBORS = 20


@dataclass(frozen=True)
class ProbeOptions:
    """How to fit heads and to evaluate them.

    heads: one or several of "ridge" and "knn"; knn: the number of neighbors (and that head).
    shots, draws: also heads of so few training rows of every class, drawn so often.
    metric: the primary one; None is accuracy, or balanced accuracy where a class has more than half
        of the rows, and for targets average precision or R2.
    ridge: a number, or "auto": exact leave-one-out on the training rows, by groups if there are.
    normalize: rows of the ridge head, "none" or "l2"; k-NN is by cosine.
    controls: also shuffled labels and random vectors, in which nothing can be found.
    drop_copies: leave training rows out that are also test rows.
    """

    heads: tuple[str, ...] = ("ridge",)
    knn: int | None = None
    shots: tuple[int, ...] = ()
    draws: int = 5
    metric: str | None = None
    ridge: float | str = "auto"
    normalize: str = "none"
    confidence: float = 0.95
    controls: bool = True
    drop_copies: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        heads = as_tuple(self.heads)
        if self.knn is not None:
            heads = (*heads, "knn")
        object.__setattr__(self, "heads", tuple(dict.fromkeys(heads)))
        object.__setattr__(self, "shots", as_tuple(self.shots))
        for head in self.heads or ("",):
            _check_choice("heads (--head)", head, HEADS)
        _check_choice("metric (--metric)", self.metric or "accuracy", METRICS)
        _check_choice("normalize (--normalize)", self.normalize, ("none", "l2"))
        if self.ridge not in ("auto", "auto:loo"):
            check_ridge(self.ridge)
        minimums = {
            "shots (--shots)": (min(self.shots, default=1), 1),
            "draws (--draws)": (self.draws, 1),
            "knn (--knn)": (self.neighbors, 1),
            "seed (--seed)": (self.seed, 0),
        }
        for name, (value, minimum) in minimums.items():
            if value < minimum:
                raise InputError(f"{name} must be at least {minimum}; found {value}.")
        Sampling(self.confidence)

    @property
    def neighbors(self) -> int:
        return NEIGHBORS if self.knn is None else self.knn


def as_tuple(value: Any) -> tuple[Any, ...]:
    """Several values as they are, or the only one."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _check_choice(name: str, value: str, choices: Collection[str]) -> None:
    if value not in choices:
        raise InputError(
            f"{name} must be one of {', '.join(choices)}; found {value!r}. "
            f"{nearest(value, list(choices))}"
        )
