"""Exact draws of the discrete Gaussian: the whole number n with probability proportional to exp(-n^2 / (2 s^2)).

Canonne, Kamath and Steinke (NeurIPS 2020), algorithms 1 to 3, for a whole scale s. A candidate has |n| = u + s v: u
below s stays with probability exp(-u/s), v counts coins of exp(-1), and the sign is a coin (-0 is drawn again); that
is the discrete Laplace distribution. It is accepted with probability exp(-(|n| - s)^2 / (2 s^2)). Written out in u and
v the exponent is

    (s - u)^2 / (2 s^2)                                       where v = 0,
    u^2 / (2 s^2) + (v - 1) u / s + (v - 1)^2 / 2             elsewhere,

so that every coin has probability exp(-a/b) with whole a <= b < 2^63, and nothing is ever rounded. All randomness is
the operating system's: there is no seed.
"""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError

LARGEST_SCALE = 2**31 - 1
"""Its square, doubled, fits a word."""

Words = NDArray[np.uint64]
Coins = NDArray[np.bool_]


def draw(scale: int, count: int) -> NDArray[np.int64]:
    """So many independent draws."""
    if not 1 <= scale <= LARGEST_SCALE:
        raise InputError(f"A discrete Gaussian has a whole scale from 1 to {LARGEST_SCALE}; found {scale}.")
    found, missing = np.empty(count, np.int64), np.arange(count)
    while len(missing):
        candidates, accepted = _candidates(scale, len(missing))
        found[missing[accepted]] = candidates[accepted]
        missing = missing[~accepted]
    return found


def _candidates(scale: int, count: int) -> tuple[NDArray[np.int64], Coins]:
    """Draws of a discrete Laplace distribution, and which of them are accepted."""
    rest = uniform(scale, count)
    accepted = exponential_coins(rest, scale)
    whole, heads = np.zeros(count, np.int64), np.arange(count)
    while len(heads):
        heads = heads[exponential_coins(np.ones(len(heads), np.uint64), 1)]
        whole[heads] += 1
    size, negative = rest.astype(np.int64) + scale * whole, uniform(2, count) == 1
    accepted &= (size > 0) | ~negative
    accepted &= exponential_coins(np.where(whole == 0, scale - rest, rest) ** 2, 2 * scale**2)
    further = np.maximum(whole - 1, 0)
    _toss(accepted, further, rest, scale)
    _toss(accepted, further**2, np.ones(count, np.uint64), 2)
    return np.where(negative, -size, size), accepted


def _toss(accepted: Coins, times: NDArray[np.int64], numerators: Words, denominator: int) -> None:
    """Accept only what falls heads so many times, each with probability exp(-numerator / denominator)."""
    turn = 0
    while len(left := np.flatnonzero(accepted & (times > turn))):
        accepted[left] = exponential_coins(numerators[left], denominator)
        turn += 1


def exponential_coins(numerators: Words, denominator: int) -> Coins:
    """Heads with probability exp(-a / b), for each a <= b.

    Coins of a / (b k), k = 1, 2, ... are tossed to the first tails: k is odd then with probability exp(-a / b).
    """
    heads, tossing, k = np.zeros(len(numerators), np.bool_), np.arange(len(numerators)), 1
    while len(tossing):
        on = (uniform(denominator, len(tossing)) < numerators[tossing]) & (uniform(k, len(tossing)) == 0)
        heads[tossing[~on]] = k % 2 == 1
        tossing, k = tossing[on], k + 1
    return heads


def uniform(bound: int, count: int) -> Words:
    """Whole numbers below a bound, all equally likely: words of as many bits as it takes; too large ones again."""
    bits = (bound - 1).bit_length()
    found, missing = np.zeros(count, np.uint64), np.arange(count if bits else 0)
    while len(missing):
        words = np.frombuffer(secrets.token_bytes(8 * len(missing)), "<u8") >> np.uint64(64 - bits)
        below = words < bound
        found[missing[below]] = words[below]
        missing = missing[~below]
    return found
