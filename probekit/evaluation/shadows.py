"""Shadow heads of unlearning: what many trainings on random rows, with some forgotten, answer.

A ridge head has no randomness but that of its rows, so a shadow is a random subset of them, of which some are then
forgotten. In closed form a shadow is W = Z_S^T a with (K_SS + penalty I) a = Y_S, K = Z Z^T: one kernel serves every
shadow, and what it answers anywhere is K a. Methods without a closed form are called, shadow by shadow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from probekit.errors import InputError
from probekit.linear.design import Design
from probekit.linear.ridge import penalty_of
from probekit.linear.statistics import checked_labels, columns_of
from probekit.values import Rows

DRAW_STREAM = 62
CLOSED, CALLED = 200, 64
"""How many shadows are usual: in closed form, and by calls of a method."""
LARGEST_KERNEL = 12_000
CLOSED_FORMS = ("nothing", "exact", "one-step")

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ShadowDraw:
    """The rows that a shadow is trained on, and those of them that it then forgets."""

    trained: Indices
    forgotten: Indices

    @property
    def retained(self) -> Indices:
        """What is left."""
        return np.setdiff1d(self.trained, self.forgotten)


def random_draws(
    rows: int, *, count: int = CLOSED, share: float = 0.5, forget: float = 0.1, seed: int = 0
) -> list[ShadowDraw]:
    """For the likelihood ratio: each shadow is trained on a share of the rows and forgets a share of these.

    With the usual shares a row is forgotten by one shadow in twenty and unknown to half of them.
    """
    if rows < 4 or count < 4 or not (0 < share < 1 and 0 < forget < 1):
        raise InputError(
            f"Draws need 4 rows, 4 shadows, and shares between 0 and 1; found {rows}, {count}, {share} and {forget}."
        )
    draws = []
    for order in _orders(rows, count, seed, 0):
        taken = order[: max(2, round(share * rows))]
        draws.append(ShadowDraw(np.sort(taken), np.sort(taken[: max(1, round(forget * len(taken)))])))
    return draws


def draws_around(
    rows: int, forgotten: Indices, *, count: int = CLOSED, share: float = 0.5, seed: int = 0, again: bool = False
) -> list[ShadowDraw]:
    """For KLoM: every shadow is trained on a share of the other rows and on these, which it forgets.

    again: draws of the same kind that share nothing with the first ones: what retraining is compared with itself by.
    """
    rest = np.setdiff1d(np.arange(rows), forgotten)
    if not len(forgotten) or len(rest) < 2 or count < 4 or not 0 < share < 1:
        raise InputError(
            "Draws need forgotten rows, two others, 4 shadows and a share between 0 and 1; found "
            f"{len(forgotten)}, {len(rest)}, {count} and {share}."
        )
    taken = max(1, round(share * len(rest)))
    parts = (rest[order[:taken]] for order in _orders(len(rest), count, seed, 2 if again else 1))
    return [ShadowDraw(np.union1d(part, forgotten), np.unique(forgotten)) for part in parts]


def _orders(rows: int, count: int, seed: int, kind: int) -> Iterator[Indices]:
    generator = np.random.Generator(np.random.PCG64([seed, DRAW_STREAM, kind]))
    for _ in range(count):
        yield generator.permutation(rows)


def margins(scores: Array, labels: Indices) -> Array:
    """Each row's score for its own class minus the best of the others; the last axes of the scores are (n, k)."""
    own = np.take_along_axis(scores, np.broadcast_to(labels[:, None], (*scores.shape[:-1], 1)), axis=-1)
    others = np.array(scores)
    np.put_along_axis(others, np.broadcast_to(labels[:, None], (*scores.shape[:-1], 1)), -np.inf, axis=-1)
    return np.asarray(own[..., 0] - others.max(axis=-1))


@dataclass(frozen=True, eq=False)
class KernelShadows:
    """Ridge heads on subsets of some rows, and what they answer for all of them, from one kernel.

    rows, labels: of everything that is trained on or asked about.
    ridge, scaling: of the head.
    public: numbers of the rows whose curvature one step uses; they need not be trained on.
    """

    rows: Rows
    labels: Indices
    design: Design
    ridge: float
    scaling: str = "mean"
    public: Indices | None = None
    kernel: Array = field(init=False, repr=False)
    targets: Array = field(init=False, repr=False)
    _curvature: dict[float, tuple[Array, bool]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.ridge <= 0 or self.design.intercept == "free":
            raise InputError(
                "Shadows in closed form need a ridge above 0 and an intercept that is penalised or none; found "
                f"{self.ridge} and {self.design.intercept!r}. Call the method on draws instead."
            )
        if len(self.rows) > LARGEST_KERNEL:
            raise InputError(
                f"A kernel of shadows holds at most {LARGEST_KERNEL} rows; found {len(self.rows)}. Draw some of them."
            )
        labels = checked_labels(self.labels, len(self.rows), self.design.classes)
        seen = columns_of(self.rows, replace(self.design, arithmetic="float64", grid=0.0))
        object.__setattr__(self, "kernel", seen @ seen.T)
        object.__setattr__(self, "targets", np.eye(self.design.classes)[labels])

    def fit(self, rows: Indices) -> Array:
        """The dual coefficients (all rows, k) of the head of these rows; 0 elsewhere."""
        matrix = self.kernel[np.ix_(rows, rows)]
        matrix[np.diag_indices(len(rows))] += penalty_of(self.ridge, self.scaling, len(rows))
        factor = linalg.cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)
        dual = np.zeros_like(self.targets)
        dual[rows] = linalg.cho_solve(factor, self.targets[rows], check_finite=False)
        return dual

    def one_step(self, dual: Array, retained: Indices) -> Array:
        """One Newton step of the retained loss from a head, with the curvature of the public rows.

        The gradient is Z^T g, g = (Z W - Y) / n on the retained rows plus mu a; the inverse of Z_p^T Z_p / m + mu I is
        (I - Z_p^T (K_pp + m mu I)^-1 Z_p) / mu (Woodbury).
        """
        if self.public is None or not len(self.public):
            raise InputError("One step needs the curvature of public rows; found none. Give `public`, or use exact.")
        public, count = self.public, len(retained)
        mu = self.ridge if self.scaling == "mean" else self.ridge / count
        if mu not in self._curvature:
            matrix = self.kernel[np.ix_(public, public)] + len(public) * mu * np.eye(len(public))
            self._curvature[mu] = linalg.cho_factor(matrix, lower=True)
        gradient = mu * dual
        gradient[retained] += (self.kernel[retained] @ dual - self.targets[retained]) / count
        step = gradient / mu
        step[public] -= linalg.cho_solve(self._curvature[mu], self.kernel[public] @ gradient) / mu
        return np.asarray(dual - step)

    def scores(self, dual: Array) -> Array:
        """What a head answers for every row."""
        return np.asarray(self.kernel @ dual)

    def margins(self, draws: Sequence[ShadowDraw], methods: Sequence[str] = CLOSED_FORMS) -> dict[str, Array]:
        """Every row's margin under every shadow, (shadows, rows), after forgetting by each of these methods."""
        unknown = [name for name in methods if name not in CLOSED_FORMS]
        if unknown:
            known = ", ".join(CLOSED_FORMS)
            raise InputError(f"Shadows in closed form are {known}; found {unknown[0]!r}. Call it on draws instead.")
        found = {name: np.empty((len(draws), len(self.rows))) for name in methods}
        for number, draw in enumerate(draws):
            start = self.fit(draw.trained) if {"nothing", "one-step"} & found.keys() else None
            for name, table in found.items():
                if name == "exact":
                    dual = self.fit(draw.retained)
                else:
                    assert start is not None
                    dual = start if name == "nothing" else self.one_step(start, draw.retained)
                table[number] = margins(self.scores(dual), self.labels)
        return found


def called_margins(
    draws: Sequence[ShadowDraw],
    unlearn: Callable[[ShadowDraw], Array],
    score: Callable[[Array], Array],
    labels: Indices,
) -> Array:
    """Every row's margin under every shadow of any method, (shadows, rows).

    unlearn: trains on a draw's rows, forgets those to forget, and gives the parameters.
    score: the scores (rows, k) of all rows at parameters.
    """
    return np.stack([margins(score(unlearn(draw)), labels) for draw in draws])


def masks(draws: Sequence[ShadowDraw], rows: int) -> Mapping[str, Mask]:
    """Which rows each shadow forgot, and which it never knew, (shadows, rows)."""
    forgotten, unseen = np.zeros((len(draws), rows), bool), np.ones((len(draws), rows), bool)
    for number, draw in enumerate(draws):
        forgotten[number, draw.forgotten] = True
        unseen[number, draw.trained] = False
    return {"forgotten": forgotten, "unseen": unseen}
