"""Margins bounded by measured products: never less than what the retrained minimum does, whatever was measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.certificates.bounds import Known, asked_residual
from probekit.certificates.rounds import RoundsBound, TwoSided, product_errors
from probekit.certificates.rounds_rows import ask_again
from probekit.errors import InputError
from probekit.models.problem import ScoredRows
from probekit.unlearning.products import Products

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A ridge loss with its minimum, a head near it, rows to judge, and products measured in some precision."""

    rows: Array
    targets: Array
    ridge: float
    head: Array
    products: Products
    test: Array

    @property
    def curvature(self) -> Array:
        return self.rows.T @ self.rows / len(self.rows) + self.ridge * np.eye(self.rows.shape[1])

    def gradient(self, params: Array) -> Array:
        return np.asarray(self.rows.T @ (self.rows @ params - self.targets) / len(self.rows) + self.ridge * params)

    @property
    def problem(self) -> Any:
        return SimpleNamespace(shape=self.head.shape, arithmetic="float64")

    @property
    def scales(self) -> dict[str, float]:
        return {"energy": float(np.square(self.rows).sum()), "target_energy": float(np.square(self.targets).sum())}

    @property
    def known(self) -> Known:
        slope = self.gradient(self.head)
        about: Any = {"problem": self.problem, "ridge": self.ridge, "counts": [len(self.rows)], "scales": self.scales}
        return Known(asked_residual(slope, self.head, **about), None, gradient=slope)

    def bound(self, products: Products | None = None) -> RoundsBound:
        used = products or self.products
        errors, most = product_errors(used, self.problem, [len(self.rows)], self.scales)
        hidden = np.array(self.known.residual.rounding_by_class)
        return RoundsBound(TwoSided.of(used, errors, most), self.gradient(self.head), hidden)

    def ask_again(self, products: Products) -> None:
        errors, _ = product_errors(products, self.problem, [len(self.rows)], self.scales)
        answers: Any = SimpleNamespace(gradient=self.gradient)
        ask_again(products, errors, answers, self.head, self.known)

    def moved(self) -> tuple[Array, Array]:
        """By how much each class's lead really shrinks on the way to the minimum; and the leads at the head."""
        scores = self.test @ self.head
        left: Array = self.test @ np.linalg.solve(self.curvature, self.gradient(self.head))
        top = scores.argmax(axis=1)[:, None]
        ahead, best = (np.take_along_axis(one, top, axis=1) for one in (left, scores))
        return np.asarray(ahead - left), np.asarray(best - scores)


@cache
def case(seed: int, precision: str = "float64") -> Case:
    """A random problem; directions are nearly dependent, or those of a descent, or random ones."""
    random = np.random.default_rng(seed)
    size, classes, count = int(random.integers(4, 40)), int(random.integers(2, 6)), int(random.integers(20, 120))
    ridge = 10.0 ** random.uniform(-5, -1)
    if precision == "float32":
        ridge = 10.0 ** random.uniform(-2.5, -1)
    scales = np.geomspace(1.0, 10.0 ** -random.uniform(0, 3), size)
    rows = (random.standard_normal((count, size)) * scales / np.sqrt(size)).astype(np.float32).astype(np.float64)
    targets = np.eye(classes)[random.integers(0, classes, count)]
    kind = np.float32 if precision == "float32" else np.float64

    def asked(params: Array) -> Array:
        near, own, wanted = params.astype(kind), rows.astype(kind), targets.astype(kind)
        found = own.T @ (own @ near - wanted)
        return np.asarray(np.asarray(found, np.float64) / count + ridge * params)

    start = random.standard_normal((size, classes))
    minimum = np.linalg.solve(rows.T @ rows / count + ridge * np.eye(size), rows.T @ targets / count)
    head = minimum + 10.0 ** -random.uniform(0, 4) * random.standard_normal((size, classes))
    many = int(random.integers(1, size + 1))
    directions = random.standard_normal((size, many))
    match random.integers(3):
        case 0:
            directions = directions[:, :1] + 10.0 ** -random.uniform(0, 10) * directions
        case 1:
            directions = np.linalg.qr(directions)[0]
    images, reach, lever = np.empty_like(directions), np.empty(many), np.empty(many)
    before = asked(start)
    for place, one in enumerate(directions.T):
        scale = float(np.linalg.norm(start[:, 0]) / np.linalg.norm(one))
        moved = start.copy()
        moved[:, 0] += scale * one
        images[:, place] = (asked(moved) - before)[:, 0] / scale
        reach[place] = (np.linalg.norm(start[:, 0]) + np.linalg.norm(moved[:, 0])) / scale
        lever[place] = 1 / scale
    coarse = np.full(many, precision != "float64")
    products = Products(directions, images, reach, lever, coarse, precision, ridge, {"a": count})
    return Case(rows, targets, ridge, head, products, random.standard_normal((30, size)) * scales / np.sqrt(size))


def needed(one: Case, products: Products | None = None) -> Array:
    return one.bound(products).needed(ScoredRows(one.test @ one.head, one.test))


def violated(one: Case, leads: Array) -> bool:
    """Whether a lead shrinks by more than is allowed for, beyond what the solve here can tell."""
    moved, at_head = one.moved()
    size = 1e-9 * (np.abs(moved).max() + np.abs(at_head).max())
    return bool((moved > leads + size).any())


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_no_margin_moves_further_than_products_allow(precision: str) -> None:
    usable = narrow = 0
    for seed in range(200):
        one = case(seed, precision)
        try:
            found = needed(one)
        except InputError:
            continue
        usable += 1
        assert not violated(one, found), seed
        plain = np.linalg.norm(one.test, axis=1).max() * np.linalg.norm(one.gradient(one.head)) / one.ridge
        narrow += bool(found.max() < plain / 2)
    assert usable >= (190 if precision == "float64" else 30)
    assert narrow >= usable // 2


@pytest.mark.parametrize("how", ["nothing sure", "not finite", "no basis"])
def test_products_that_say_nothing_are_refused(how: str) -> None:
    one = case(3).products
    match how:
        case "nothing sure":
            one = replace(one, reach=one.reach * 1e15)
        case "not finite":
            one = replace(one, images=one.images * np.nan)
        case "no basis":
            one = replace(one, directions=one.directions * 0)
    with pytest.raises(InputError, match=r"rounds|finite|basis"):
        needed(case(3), one)


def planted(one: Case, how: str, seed: int) -> Products:
    """The case's products, with some of them false."""
    random, products = np.random.default_rng(seed), one.products
    images = products.images.copy()
    place = int(random.integers(images.shape[1]))
    match how:
        case "scaled":
            images[:, place] *= 1.5
        case "all scaled":
            images = 2 * images - products.ridge * products.directions
        case "flipped":
            images[:, place] *= -1
        case "another's":
            other = random.standard_normal(one.rows.shape)
            images = other.T @ (other @ products.directions) / len(other) + products.ridge * products.directions
        case "noise":
            images[:, place] += random.standard_normal(len(images)) * np.linalg.norm(images[:, place])
    return replace(products, images=images)


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("how", ["nothing", "scaled", "all scaled", "flipped", "another's", "noise"])
def test_false_products_are_noticed_or_do_no_harm(how: str, precision: str) -> None:
    noticed = usable = 0
    for seed in range(200):
        one = case(seed, precision)
        try:
            needed(one)
        except InputError:
            continue
        usable += 1
        false = planted(one, how, seed)
        try:
            found = needed(one, false)
            one.ask_again(false)
        except InputError:
            noticed += 1
            continue
        assert not violated(one, found), seed
    assert noticed == 0 if how == "nothing" else noticed >= 0.9 * usable
