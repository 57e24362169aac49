"""Attacks on membership: laws of their statistics, and exact unlearning beside doing nothing."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from probekit.bench.shadows import draw_shadows, klom, membership, u_lira
from tests.bench.conftest import Bench

SHADOWS = 16


def test_heads_that_do_not_depend_on_a_row_do_not_betray_it() -> None:
    generator = np.random.default_rng(0)
    was_member = generator.random((200, 60)) < 0.5
    auc, hits = u_lira(generator.normal(size=(200, 60)), was_member)
    assert abs(auc - 0.5) < 0.02
    assert hits < 0.02


def test_the_attack_is_as_strong_as_the_likelihood_ratio_of_its_gaussians() -> None:
    generator = np.random.default_rng(1)
    was_member = generator.random((300, 80)) < 0.5
    shift = 1.5
    level = 10 * generator.normal(size=80)
    auc, _ = u_lira(level + generator.normal(size=(300, 80)) + shift * was_member, was_member)
    assert auc == pytest.approx(norm.cdf(shift / np.sqrt(2)), abs=0.01)


def test_klom_is_the_divergence_of_two_gaussians() -> None:
    generator = np.random.default_rng(2)
    ours = np.stack([generator.normal(size=50), generator.normal(1, 2, size=50)], axis=1)
    theirs = np.stack([generator.normal(0.5, 1.5, size=50), generator.normal(size=50)], axis=1)

    def divergence(row: int) -> float:
        p = norm(ours[:, row].mean(), ours[:, row].std(ddof=1))
        q = norm(theirs[:, row].mean(), theirs[:, row].std(ddof=1))
        value, _ = quad(lambda x: p.pdf(x) * (p.logpdf(x) - q.logpdf(x)), -12, 12)
        return float(value)

    assert klom(ours, theirs) == pytest.approx((divergence(0) + divergence(1)) / 2, rel=1e-6)
    assert klom(ours, ours) == 0


def test_exact_unlearning_is_nearer_to_retraining_than_doing_nothing(bench: Bench) -> None:
    (setting,) = bench.experiment.settings
    training = bench.folders.training(setting, 0)
    shadows = draw_shadows(training, ("nothing", "retrain"), count=SHADOWS)
    assert shadows.retrained.shape == (SHADOWS, len(shadows.forgotten) + len(shadows.test))
    assert np.array_equal(shadows.unlearned["retrain"], shadows.retrained)
    table = membership(shadows)
    distances = {name: values["KLoM, forgotten rows"] for name, values in table.items()}
    assert distances["retrain"] < distances["nothing"]  # type: ignore[operator]
    assert abs(shadows.was_member.mean() - 0.5) < 0.02
