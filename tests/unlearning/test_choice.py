"""Which method is taken, and by what names methods are found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from probekit import certify, unlearn, verify
from probekit.certificates.verify import Evidence
from probekit.errors import InputError, NotFoundError
from probekit.registry import methods, spec_of
from probekit.unlearning.choice import choose
from probekit.unlearning.method import REMEDIES, Material, method
from probekit.unlearning.methods.pcg import FedRemovalPcg
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import UnlearnRequest
from tests.unlearning.conftest import Run, make_run

FORGET = UnlearnRequest.of(["1"])


def answering(run: Run) -> Material:
    return Material(clients=run.online("1"))


def test_the_public_function_does_what_was_chosen() -> None:
    run = make_run()
    request = UnlearnRequest.of(["1"])
    exact = unlearn(run.trained, request)
    assert exact.method == "exact"
    np.testing.assert_allclose(exact.trained_after.params, run.oracle(run.rows_without("1")), atol=1e-10)
    assert unlearn(run.trained, request, method="fedremoval-line").method == "fedremoval-line"
    certificate = certify(run.trained, exact)
    assert certificate.bounds.weights is not None
    assert certificate.bounds.weights < 1e-6
    seen = Evidence(exact.trained_after.head, statistics=exact.trained_after.statistics)
    assert {one.name: one.verdict for one in verify(certificate, seen)}["weights"] == "proven"
    with pytest.raises(InputError, match="does not have: every client's statistics"):
        unlearn(make_run(keep="nothing", server=0.0).trained, request, method="exact")


def test_the_best_that_the_material_allows() -> None:
    by_statistics, by_gradients = make_run(), make_run(keep="gradients")
    by_nothing = make_run(keep="nothing")
    sample = UnlearnRequest.of(samples=[by_statistics.embeddings.ids[int(by_statistics.partition.clients["0"][0])]])
    assert choose(Removal(by_statistics.trained, FORGET))[0] == "exact"
    assert choose(Removal(by_statistics.trained, sample, by_statistics.material))[0] == "exact"
    assert choose(Removal(by_gradients.trained, FORGET))[0] == "fedremoval"
    assert "not exact" in choose(Removal(by_gradients.trained, FORGET))[1]
    assert choose(Removal(by_gradients.trained, FORGET, answering(by_gradients)))[0] == "fedremoval-pcg:10"
    assert choose(Removal(by_gradients.trained, FORGET, by_gradients.material))[0] == "retrain"
    assert choose(Removal(by_nothing.trained, FORGET, by_nothing.material))[0] == "retrain"
    assert choose(Removal(by_nothing.trained, FORGET, answering(by_nothing)))[0] == "fedremoval-pcg:10"
    with pytest.raises(InputError, match='keep="statistics"'):
        choose(Removal(by_nothing.trained, FORGET))
    with pytest.raises(InputError, match="server share"):
        choose(Removal(replace(by_gradients.trained, server=None), FORGET))
    with pytest.raises(InputError, match="single samples"):
        choose(Removal(by_statistics.trained, sample))


def test_one_step_is_chosen_only_where_its_rule_says_that_it_helps() -> None:
    """C17: what was kept allows nothing else, and the server's rows are too few; asked for by name it is taken."""
    few = make_run(keep="gradients", server=0.02)
    with pytest.raises(InputError, match=r"only taken when asked for by name.*fewer than 4 times"):
        choose(Removal(few.trained, FORGET))
    assert unlearn(few.trained, FORGET, method="fedremoval").warnings
    enough = choose(Removal(make_run(keep="gradients").trained, FORGET))
    assert enough[0] == "fedremoval"
    assert "enough for it to help" in enough[1]


def test_every_built_in_method_is_an_unlearner() -> None:
    for name in (point.name for point in methods.built_in):
        found = method(name)
        assert found.name == name
        assert spec_of(found).partition(":")[0] == name
        for need in found.needs:
            first = need[0] if isinstance(need[0], tuple) else need  # which is advised
            assert len(first) == 3 or first in REMEDIES
    assert spec_of(method("fedremoval:f2l2")) == "fedremoval:f2l2"
    assert spec_of(method("fedremoval-pcg:3")) == "fedremoval-pcg:3"
    assert method("fedremoval-pcg:rounds=3,tolerance=1e-3") == FedRemovalPcg(3, 1e-3)
    with pytest.raises(NotFoundError, match="fedremoval"):
        method("fedremovel")
    with pytest.raises(InputError, match="It takes none"):
        method("exact:x")
