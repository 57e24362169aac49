"""KLoM and U-LiRA by 200 shadow heads on 2,000 rows of 1,280 columns: CPU seconds against a minute of one core."""

from __future__ import annotations

import time

import numpy as np
from _measure import finish, report

from probekit.evaluation.shadow_attacks import klom, likelihood_attack
from probekit.evaluation.shadows import KernelShadows, draws_around, masks, random_draws
from probekit.linear.design import Design

ROWS, COLUMNS, CLASSES, PUBLIC, FORGOTTEN = 2_000, 1_280, 10, 400, 100
MINUTE = 60


def main() -> None:
    """Rows with the falling spectrum of embeddings, of norm 1."""
    random = np.random.default_rng(0)
    labels, scales = random.integers(0, CLASSES, ROWS), 1 / np.sqrt(1 + np.arange(COLUMNS))
    centres = 0.6 * random.normal(size=(CLASSES, COLUMNS))
    rows = (centres[labels] + 2 * random.normal(size=(ROWS, COLUMNS))) * scales
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    began = time.process_time()
    shadows = KernelShadows(rows, labels, Design(COLUMNS, CLASSES), 1e-3, public=np.arange(PUBLIC))
    draws, seen = random_draws(ROWS), {}
    for method, margins in shadows.margins(draws).items():
        found = likelihood_attack(margins, masks(draws, ROWS)).attack
        seen[f"U-LiRA {method}"] = {"area": found.auc, "found at 1 %": found.found[0][1].value}
    gone = np.arange(ROWS - FORGOTTEN, ROWS)
    one = shadows.margins(draws_around(ROWS, gone))
    retrained = shadows.margins(draws_around(ROWS, gone, again=True), ("exact",))["exact"]
    for method, margins in one.items():
        result = klom(margins, retrained, again=one["exact"], rows=gone)
        seen[f"KLoM {method}"] = {"mean": result.mean, "floor": result.floor}
    report("200 shadows, CPU seconds", time.process_time() - began, MINUTE, bar=1, better="lower", **seen)
    finish()


if __name__ == "__main__":
    main()
