"""The leaderboard is sane."""

from __future__ import annotations

import pytest

from probekit.bench.leaderboard import GONE, NEAR, deceptive, ranked
from tests.bench.conftest import Bench

METHODS = ["sga", "cf", "flipping", "pga", "not", "fedremoval", "fedremoval-line", "fedremoval-pcg"]


def test_exact_is_first_nothing_never_and_sga_forgets_the_trigger_alone(bench: Bench) -> None:
    rows = bench(methods=METHODS, seeds=[0, 1], data={"rows": None, "test_rows": None}).of("small")
    known = {row.method: row for row in rows}
    order = ranked(rows)
    first = order[0].mean("distance")
    exact, nothing, sga, goal = (known[name] for name in ("exact", "nothing", "sga", "retrain-fedavg"))
    assert first is not None
    assert exact.mean("distance") == pytest.approx(first, abs=1e-9)
    assert order[0].method != "nothing"
    far, hits, clean = nothing.mean("distance"), sga.mean("backdoor"), goal.mean("backdoor")
    assert far is not None
    assert hits == pytest.approx(clean, abs=GONE)
    assert sga.mean("distance") == pytest.approx(far, rel=NEAR)
    assert "sga" in deceptive(rows)
    assert "exact" not in deceptive(rows)
    assert "nothing" not in deceptive(rows)
