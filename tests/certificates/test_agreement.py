"""Certified rows need a sure curvature and the head's own encoding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from probekit.certificates.agreement import agreement
from probekit.certificates.certify import known_at, objective_of
from probekit.errors import InputError, MismatchError
from tests.unlearning.conftest import embedding_set, make_run


def test_without_curvature_or_with_another_encoding_nothing_is_counted() -> None:
    run = make_run()
    trained, test = run.trained, embedding_set(20, seed=4)
    known = known_at(trained.params, objective_of(trained), trained.problem, statistics=trained.statistics)
    assert known is not None
    assert agreement(trained.head, test, known=known).rows == 20
    with pytest.raises(InputError, match="sure curvature"):
        agreement(trained.head, test, known=replace(known, curvature=None))
    head: Any = trained.head
    with pytest.raises(MismatchError):
        agreement(replace(head, spec_digest="1" * 64), test, known=known)
