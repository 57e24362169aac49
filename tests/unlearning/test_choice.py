"""Which method is taken, and by what names methods are found."""

from __future__ import annotations

import importlib
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from probekit import certify, unlearn, verify
from probekit.certificates.verify import Evidence
from probekit.errors import InputError, NotFoundError
from probekit.registry import methods
from probekit.unlearning.choice import choose
from probekit.unlearning.method import REMEDIES, method
from probekit.unlearning.request import UnlearnRequest
from tests.unlearning.conftest import make_run

TABLE = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["entry-points"]


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
    assert all(check.passed for check in verify(certificate, Evidence(exact.trained_after.head)))
    with pytest.raises(InputError, match="did not keep"):
        unlearn(make_run(keep="nothing", server=0.0).trained, request, method="exact")


def test_the_best_that_the_material_allows() -> None:
    by_statistics, by_gradients = make_run(), make_run(keep="gradients")
    by_nothing = make_run(keep="nothing")
    sample = UnlearnRequest.of(samples=["a"])
    assert choose(by_statistics.trained)[0] == "exact"
    assert choose(by_statistics.trained, rows=True, request=sample)[0] == "exact"
    assert choose(by_gradients.trained)[0] == "fedremoval"
    assert "not exact" in choose(by_gradients.trained)[1]
    assert choose(by_gradients.trained, online=True)[0] == "fedremoval-pcg:10"
    assert choose(by_gradients.trained, rows=True)[0] == "retrain"
    assert choose(by_nothing.trained, rows=True)[0] == "retrain"
    assert choose(by_nothing.trained, online=True)[0] == "fedremoval-pcg:10"
    with pytest.raises(InputError, match='keep="statistics"'):
        choose(by_nothing.trained)
    with pytest.raises(InputError, match="server share"):
        choose(replace(by_gradients.trained, server=None))
    with pytest.raises(InputError, match="single samples"):
        choose(by_statistics.trained, request=sample)


def test_every_entry_point_is_an_unlearner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "_registered", {})
    for name, target in TABLE["probekit.methods"].items():
        module, _, attribute = target.partition(":")
        methods.register(name)(getattr(importlib.import_module(module), attribute))
        found = method(name)
        assert found.name.partition(":")[0] == name
        assert found.needs <= set(REMEDIES)
    assert method("fedremoval:f2l2").name == "fedremoval:f2l2"
    assert method("fedremoval-pcg:3").name == "fedremoval-pcg:3"
    with pytest.raises(NotFoundError, match="fedremoval"):
        method("fedremovel")
    with pytest.raises(InputError, match="takes no argument"):
        method("exact:x")
