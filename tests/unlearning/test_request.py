"""Requests say what shall hold afterwards, and refuse what cannot."""

from __future__ import annotations

import pytest

from probekit.errors import InputError
from probekit.unlearning.request import Relabelled, SampleRef, UnlearnRequest, known_clients
from tests.unlearning.conftest import Run


def test_an_unknown_client_is_refused_with_those_there_are(run: Run) -> None:
    with pytest.raises(InputError, match=r"Cannot forget client 7: this run has clients 0 to 4\."):
        UnlearnRequest.of(["7"]).remaining(run.trained)
    assert known_clients(["a", "b"]) == "this run has clients a, b"
    assert known_clients(["0", "2"]) == "this run has clients 0, 2"


def test_an_empty_rest_and_an_empty_request_are_refused(run: Run) -> None:
    with pytest.raises(InputError, match="Cannot forget all 5 clients"):
        UnlearnRequest.of(list("01234")).remaining(run.trained)
    with pytest.raises(InputError, match="must name something"):
        UnlearnRequest()


def test_contradictions_are_refused(run: Run) -> None:
    with pytest.raises(InputError, match="forgotten and added"):
        UnlearnRequest(("1",), added=("1",))
    with pytest.raises(InputError, match="forgotten and relabelled"):
        UnlearnRequest(samples=(SampleRef("a"),), relabelled=(Relabelled("a", 1),))
    with pytest.raises(InputError, match="two labels"):
        UnlearnRequest(relabelled=(Relabelled("a", 1), Relabelled("a", 2)))
    with pytest.raises(InputError, match="has it already"):
        UnlearnRequest(added=("1",)).remaining(run.trained)


def test_order_and_repetition_do_not_matter_and_plain_values_come_back() -> None:
    one = UnlearnRequest(
        ("2", "1", "2"), (SampleRef("b"), SampleRef("a", "3"), SampleRef("a")), (Relabelled("c", 1),), ("9",)
    )
    other = UnlearnRequest(
        ("1", "2"), (SampleRef("a"), SampleRef("a", "3"), SampleRef("b")), (Relabelled("c", 1),), ("9",)
    )
    assert one == other
    assert one.digest == other.digest
    assert UnlearnRequest.from_plain(one.plain) == one
    assert one.digest != UnlearnRequest(("1",)).digest
