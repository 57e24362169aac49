"""Draws against their exact distribution, from a seeded stream in place of the operating system's bytes."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate
from math import factorial

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chisquare

from probekit.custody.discrete_gaussian import LARGEST_SCALE, draw, exponential_coins, uniform
from probekit.errors import InputError

RARE = 1e-3
"""How unlikely a true sampler's counts may be; the stream is fixed, so they are the same in every run."""


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of a fixed stream in place of the operating system's."""
    monkeypatch.setattr(secrets, "token_bytes", np.random.default_rng(20).bytes)


def exponential(power: Fraction) -> Fraction:
    """exp(-power), as a fraction that is right to 1e-30."""
    halvings = max(0, int(power).bit_length() + 1)
    small = power / 2**halvings
    found = sum((-small) ** k / factorial(k) for k in range(40))
    for _ in range(halvings):
        found = Fraction(round(found**2 * 10**60), 10**60)
    return Fraction(found)


def probabilities(scale: int, largest: int) -> dict[int, Fraction]:
    """The exact distribution on -largest..largest, beyond which next to nothing lies."""
    weights = {n: exponential(Fraction(n * n, 2 * scale * scale)) for n in range(-largest, largest + 1)}
    total = sum(weights.values())
    return {n: weight / total for n, weight in weights.items()}


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("scale", [1, 2, 3, 7])
def test_small_scales_have_their_exact_probabilities(scale: int) -> None:
    count, expected = 300_000, probabilities(scale, 12 * scale)
    found = draw(scale, count)
    seldom = [n for n, share in expected.items() if count * share < 10]
    often = [n for n in expected if n not in seldom]
    shares = [float(count * expected[n]) for n in often]
    counts = [int((found == n).sum()) for n in often]
    assert len(often) > 5 * scale
    assert chisquare([*counts, count - sum(counts)], [*shares, count - sum(shares)]).pvalue > RARE


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("scale", [100, 2**20 + 1, 2**29 + 12345, LARGEST_SCALE])
def test_large_scales_have_the_normal_shape(scale: int) -> None:
    """In 60 bins of equal weight; beyond scale 100 the discrete and the continuous bins differ by less than chance."""
    from scipy.special import ndtri

    count, edges = 200_000, ndtri(np.arange(1, 60) / 60)
    fuzzed = draw(scale, count) + np.random.default_rng(0).uniform(-0.5, 0.5, count)
    counts = np.bincount(np.searchsorted(edges, fuzzed / scale), minlength=60)
    assert chisquare(counts).pvalue > RARE


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize(("a", "b"), [(0, 1), (1, 1), (1, 2), (3, 7), (2**61, 2**62 + 1), (2**62 + 1, 2**62 + 1)])
def test_coins_fall_heads_as_often_as_the_exponential_says(a: int, b: int) -> None:
    count, share = 200_000, float(exponential(Fraction(a, b)))
    heads = int(exponential_coins(np.full(count, a, np.uint64), b).sum())
    assert abs(heads - count * share) <= 4 * (count * share * (1 - share)) ** 0.5


@pytest.mark.parametrize("bound", [1, 2, 3, 5, 8, 200, 256])
def test_every_number_below_a_bound_has_as_many_words(bound: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All words of a byte, once each: each number is found once per word that means it, and no word means two."""
    bits = (bound - 1).bit_length()
    words = np.arange(2**bits, dtype="<u8") << np.uint64(64 - bits) if bits else np.empty(0, "<u8")
    stream = words.tobytes()
    taken = 0

    def every_word(size: int) -> bytes:
        nonlocal taken
        taken += size
        return stream[taken - size : taken]

    monkeypatch.setattr(secrets, "token_bytes", every_word)
    found = uniform(bound, min(bound, 2**bits) if bits else 1)
    assert sorted(found.tolist()) == list(range(bound))


@pytest.mark.usefixtures("seeded")
def test_draws_are_independent_of_their_place_and_of_each_other() -> None:
    found = draw(50, 120_000).astype(np.float64) / 50
    halves = found[:60_000], found[60_000:]
    for one in (halves[0] * halves[1], found[:-1] * found[1:], np.sign(found[:-1]) * found[1:] ** 2):
        assert abs(float(one.mean())) < 4 * float(one.std()) / len(one) ** 0.5


def test_there_is_no_seed() -> None:
    """C10: numbers come from the operating system, whatever NumPy's or Python's own generators are set to."""
    import random

    def seeded_draw() -> NDArray[np.int64]:
        random.seed(1)
        np.random.seed(1)
        return draw(10**6, 20)

    assert not np.array_equal(seeded_draw(), seeded_draw())


@pytest.mark.parametrize("scale", [0, -1, LARGEST_SCALE + 1])
def test_scales_beyond_words_are_refused(scale: int) -> None:
    with pytest.raises(InputError, match="whole scale"):
        draw(scale, 1)
    assert draw(5, 0).shape == (0,)


@pytest.mark.usefixtures("seeded")
def test_a_sampler_without_one_of_its_coins_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: a mutant that forgets the coins beyond three scales has too many far draws."""
    from probekit.custody import discrete_gaussian

    def tail(of: Callable[[int, int], NDArray[np.int64]]) -> float:
        return float((np.abs(of(3, 300_000)) >= 9).mean())

    shares = probabilities(3, 40)
    exact = float(list(accumulate(shares[n] for n in range(9, 41)))[-1] * 2)
    assert tail(draw) == pytest.approx(exact, rel=0.1)
    monkeypatch.setattr(discrete_gaussian, "_toss", lambda *_: None)
    assert tail(draw) > 2 * exact
