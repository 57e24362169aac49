"""Centring and scaling at fit time, done on statistics, and the way back to embeddings as they are stored.

Whatever the intercept, weights and scale, fitting comes down to one system in which every column is penalised,
(gram + penalty I) value = moment, and an affine map from its value to the head's parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.linear.design import ClientStats, Design
from probekit.linear.targets import TargetStats

Array = NDArray[np.float64]
STANDARDISATIONS = ("none", "centre", "standardise")
ClassWeight = str | Sequence[float] | Array | None


@dataclass(frozen=True, eq=False)
class Standardisation:
    """New coordinates for an embedding: (embedding - centre) / scale."""

    name: str
    centre: Array
    scale: Array


def standardisation_of(stats: ClientStats, name: str) -> Standardisation:
    """The standardisation that these statistics (all clients' sum, or the server's own) define."""
    if name not in STANDARDISATIONS:
        raise InputError(f"`standardise` must be one of {', '.join(STANDARDISATIONS)}; found {name!r}.")
    size = stats.design.dimension
    if name == "none":
        return Standardisation(name, np.zeros(size), np.ones(size))
    if stats.count == 0:
        raise InputError(f"To {name} takes at least one row to know the mean of; found none.")
    if isinstance(stats, TargetStats):
        if stats.design.intercept == "none":
            raise InputError(f"To {name} rows with real targets takes an intercept. Leave one of the two out.")
        mean = stats.gram[:size, -1] / stats.count
    else:
        # one-hot targets add to one, so the moments add to the sum of the rows even without a column of ones
        mean = stats.moment[:size].sum(axis=1) / stats.count
    if name == "centre":
        return Standardisation(name, mean, np.ones(size))
    square = np.einsum("ii->i", stats.total_gram)[:size] / stats.count
    variance = square - mean**2
    constant = variance <= stats.count * np.finfo(np.float64).eps * square
    return Standardisation(name, mean, np.sqrt(np.where(constant, 1.0, variance)))


@dataclass(frozen=True, eq=False)
class System:
    """(gram + penalty I) value = moment, and what leads from its value to the parameters of a head.

    `weight` is the total weight of the rows (their number, unless classes are weighted). A row's target is
    `targets[1]` for its own class and `targets[0]` for the others; `energy` is the sum of their squares.
    """

    gram: Array
    moment: Array
    weight: float
    class_weights: Array
    design: Design
    standardisation: Standardisation
    mean_target: Array
    targets: tuple[float, float]
    energy: float = 0.0

    def lift(self, value: Array) -> Array:
        """The (d+1, k) parameters, bias last, that act on embeddings as the row view gives them."""
        size = self.design.dimension
        coefficients = value[:size] / self.standardisation.scale[:, None]
        bias = value[size] if self.design.intercept == "penalised" else self.mean_target
        return np.vstack([coefficients, bias - self.standardisation.centre @ coefficients])

    def perturbed(self, objective: Array) -> System:
        """The system with the linear term <objective, W> in what is minimised; only where W is solved for itself."""
        plain = self.standardisation.name == "none" and self.design.intercept != "free"
        if not plain or (self.class_weights != 1).any() or objective.shape != self.moment.shape:
            raise InputError(
                "A linear term belongs to a head without scaling, class weights or free intercept, with one number for "
                f"each of its {self.moment.shape} parameters; found {objective.shape}. Take the run's own term."
            )
        return replace(self, moment=self.moment - objective)

    def columns(self, block: Array) -> Array:
        """The system's columns of some rows."""
        seen = (block - self.standardisation.centre) / self.standardisation.scale
        return np.hstack([seen, np.ones((len(seen), 1))]) if self.design.intercept == "penalised" else seen

    def of(self, stats: ClientStats) -> System:
        """Other rows' statistics in the coordinates of this system, with the same targets taken off."""
        if isinstance(stats, TargetStats):
            return _target_transformed(self, stats)
        return _transformed(self, *_augmented(stats, self.class_weights))


def system_of(
    stats: ClientStats,
    *,
    standardise: str | Standardisation = "none",
    class_weight: ClassWeight = None,
    targets: tuple[float, float] = (0.0, 1.0),
) -> System:
    """The system to solve for these statistics. A standardisation by name is taken from them."""
    if stats.count == 0:
        raise InputError("A head cannot be fitted to no rows. Give at least one client with rows.")
    if isinstance(stats, TargetStats):
        return _target_system(stats, standardise, class_weight)
    weights = class_weights(stats, class_weight)
    gram, moment, counts = _augmented(stats, weights)
    total = float(counts.sum())
    chosen = standardise if isinstance(standardise, Standardisation) else standardisation_of(stats, standardise)
    low, high = targets
    mean_target = np.zeros(stats.design.classes)
    if stats.design.intercept == "free":
        # an intercept without penalty takes the means out of both sides; what remains is penalised throughout
        chosen = replace(chosen, centre=moment.sum(axis=1) / total)
        mean_target = low + (high - low) * counts / total
    empty = np.empty((0, 0))
    frame = System(empty, empty, total, weights, stats.design, chosen, mean_target, targets)
    return _transformed(frame, gram, moment, counts)


def _target_system(stats: TargetStats, standardise: str | Standardisation, class_weight: ClassWeight) -> System:
    """The system of rows that all know the same real targets."""
    if class_weight is not None:
        raise InputError("Class weights belong to classes; these rows have several labels or real targets.")
    design, size = stats.design, stats.design.dimension
    chosen = standardise if isinstance(standardise, Standardisation) else standardisation_of(stats, standardise)
    mean_target = np.zeros(design.classes)
    if design.intercept == "free":
        chosen = replace(chosen, centre=stats.gram[:size, size] / stats.count)
        mean_target = stats.moment[size] / stats.count
    empty, ones = np.empty((0, 0)), np.ones(design.classes)
    frame = System(empty, empty, float(stats.count), ones, design, chosen, mean_target, (0.0, 1.0))
    return _target_transformed(frame, stats)


def _target_transformed(frame: System, stats: TargetStats) -> System:
    """The frame with its system filled in from the statistics of rows that all know the same real targets."""
    size, total, mean = stats.design.dimension, float(stats.count), frame.mean_target
    centre, scale = frame.standardisation.centre, frame.standardisation.scale
    gram, moment, energy = stats.gram[:size, :size], stats.moment[:size], stats.energy
    if stats.design.intercept != "none":
        sums, target_sums = stats.gram[:size, size], stats.moment[size]
        shift = np.outer(sums, centre)
        gram = gram - (shift + shift.T) + total * np.outer(centre, centre)
        moment = moment - np.outer(centre, target_sums) - np.outer(sums - total * centre, mean)
        sums = (sums - total * centre) / scale
        energy = energy - 2 * mean * target_sums + total * mean**2
    gram, moment = gram / np.outer(scale, scale), moment / scale[:, None]
    if stats.design.intercept == "penalised":
        gram = np.block([[gram, sums[:, None]], [sums[None], np.array([[total]])]])
        moment = np.vstack([moment, target_sums])
    return replace(frame, gram=gram, moment=moment, weight=total, energy=float(energy.sum()))


def class_weights(stats: ClientStats, class_weight: ClassWeight) -> Array:
    """One weight per class. "balanced" gives every class that has rows the same total weight."""
    classes = stats.design.classes
    if class_weight is None:
        return np.ones(classes)
    if not stats.design.per_class:
        raise InputError(
            "Class weights need one Gram per class; these statistics have one for all. Use Design(per_class=True)."
        )
    if isinstance(class_weight, str):
        if class_weight != "balanced":
            raise InputError(f'Class weights must be "balanced" or numbers; found {class_weight!r}.')
        counts = stats.class_counts.astype(np.float64)
        each = counts.sum() / np.count_nonzero(counts)
        return np.asarray(np.divide(each, counts, out=np.zeros(classes), where=counts > 0))
    weights = np.asarray(class_weight, dtype=np.float64)
    if weights.shape != (classes,) or not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
        raise InputError(f"Each of the {classes} classes needs one weight, 0 or more; found {class_weight!r}.")
    return weights


def _augmented(stats: ClientStats, weights: Array) -> tuple[Array, Array, Array]:
    """Weighted E^T E, E^T Y and class counts, without the column of ones (it is in the other two)."""
    size = stats.design.dimension
    gram = stats.total_gram if (weights == 1).all() else np.tensordot(weights, stats.gram, axes=1)
    return gram[:size, :size], stats.moment[:size] * weights, stats.class_counts * weights


def _transformed(frame: System, gram: Array, moment: Array, counts: Array) -> System:
    """The frame with its system filled in from E^T E, E^T Y and class counts."""
    centre, scale = frame.standardisation.centre, frame.standardisation.scale
    low, high = frame.targets
    sums, total = moment.sum(axis=1), float(counts.sum())
    if centre.any():
        shift = np.outer(sums, centre)
        gram = gram - (shift + shift.T) + total * np.outer(centre, centre)
        moment = moment - np.outer(centre, counts)
        sums = sums - total * centre
    if (scale != 1).any():
        gram, moment, sums = gram / np.outer(scale, scale), moment / scale[:, None], sums / scale
    # X^T Y for targets low + (high - low) onehot - mean_target
    moment = (high - low) * moment + np.outer(sums, low - frame.mean_target)
    if frame.design.intercept == "penalised":
        gram = np.block([[gram, sums[:, None]], [sums[None], np.array([[total]])]])
        moment = np.vstack([moment, (high - low) * counts + low * total])
    # of each class: the squares of a row's targets, all but its own being `low`
    lows, highs = low - frame.mean_target, high - frame.mean_target
    each = np.square(lows).sum() - np.square(lows) + np.square(highs)
    return replace(frame, gram=gram, moment=moment, weight=total, energy=float(counts @ each))
