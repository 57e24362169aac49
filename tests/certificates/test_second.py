"""The verifier's sums: of roots, of many, and of sums that cancel."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from probekit.certificates.bounds import quadratic
from probekit.certificates.doubled import PIECE, Accumulator
from probekit.certificates.second import BLOCK, Sums
from probekit.linear.design import ClientStats, Design
from probekit.linear.roots import RootStats, client_statistics, product
from probekit.linear.statistics import statistics

DRAWN = np.random.default_rng(0)


def clients_of(design: Design, sizes: list[int]) -> tuple[dict[str, ClientStats], Sums]:
    """What clients of so many rows send, and the sums over their rows."""
    held = [
        (DRAWN.standard_normal((size, design.dimension)), DRAWN.integers(0, design.classes, size)) for size in sizes
    ]
    sent = {str(number): client_statistics(*one, design) for number, one in enumerate(held)}
    return sent, Sums.of_rows(design, held)


@pytest.mark.parametrize(
    "design", [Design(16, 3), Design(16, 3, per_class=True), Design(16, 3, view="l2", arithmetic="exact")]
)
def test_roots_and_sums_together_are_the_rows(design: Design) -> None:
    sent, wanted = clients_of(design, [2, 40, 1, 3] + [2] * 300)
    assert {type(one) for one in sent.values()} == {RootStats, ClientStats}
    found = Sums.of_statistics(sent)
    room = (found.error + wanted.error) * float(np.trace(wanted.total.high)) + 1e-12
    for name, power in (("gram", 2), ("moment", 1)):
        mine, other = (np.ldexp(getattr(one, name).high, power * one.half) for one in (found, wanted))
        assert np.abs(mine - other).max() <= (0.0 if design.grid else room)
    assert np.array_equal(found.counts, wanted.counts)
    assert bool(found.error) is not bool(design.grid)


def test_many_roots_are_few_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Gram of each of 10,000 clients took 20 GB."""
    made: list[int] = []

    def counted(roots: Sequence[RootStats]) -> dict[str, Any]:
        made.append(len(roots))
        return product(roots)

    monkeypatch.setattr("probekit.certificates.second.product", counted)
    sent, _ = clients_of(Design(16, 3), [2] * 1000)
    assert Sums.of_statistics(sent).error > 0
    assert len(made) == -(-2000 // BLOCK)


def test_nothing_is_lost_in_the_accumulator() -> None:
    shape = (3, PIECE // 2)
    parts = [DRAWN.standard_normal(shape) * 10.0 ** (exponent - 8) for exponent in range(16)]
    found = Accumulator(shape)
    for part in [*parts, *(-one for one in parts[8:])]:
        found.add(part)
    for place in ((0, 0), (1, 7), (2, PIECE // 2 - 1)):
        wanted = sum(Fraction(float(part[place])) for part in parts[:8])
        got = Fraction(float(found.sum.high[place])) + Fraction(float(found.sum.low[place]))
        assert abs(got - wanted) < Fraction(1, 10**22)


def test_a_bound_knows_what_a_factorisation_rounds() -> None:
    rows, labels = DRAWN.standard_normal((30, 8)), DRAWN.integers(0, 3, 30)
    said = {"ridge": 0.1, "scaling": "mean", "view": "none", "class_weight": None}
    stats = statistics(rows, labels, Design(8, 3))
    plain, rooted = (quadratic(stats, said, roots=roots) for roots in (0, 3))
    assert rooted.curvature_error > plain.curvature_error
    assert rooted.linear_error > plain.linear_error
