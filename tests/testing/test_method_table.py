"""The table of methods: computed, explained wherever the paper's says otherwise, and held against what is seen."""

from __future__ import annotations

import pytest

from probekit.registry import methods
from probekit.testing.method_table import OURS, PAPER, WRONG, MethodFacts, disagreements, method_table


@pytest.fixture(scope="module")
def found() -> dict[str, MethodFacts]:
    return {one.name: one for one in method_table(seen=True)}


def test_every_method_is_in_it_and_every_difference_is_explained(found: dict[str, MethodFacts]) -> None:
    assert {point.name for point in methods.built_in} <= found.keys()
    differing = {(one.name, column) for one in found.values() for column in one.differs}
    assert [why for one in found.values() for why in one.differs.values() if "not explained" in why] == []
    here = {pair for pair in (*WRONG, *OURS) if pair[0] in found}
    assert here == differing
    assert {name for name, _ in WRONG} <= PAPER.keys()


def test_what_is_seen_was_declared(found: dict[str, MethodFacts]) -> None:
    table = tuple(one for one in found.values() if one.name in {point.name for point in methods.built_in})
    assert [one.name for one in table if one.seen is None] == []
    assert list(disagreements(table)) == []
    for one in table:
        assert one.seen is not None
        silent = not (one.seen.target or one.seen.retained)
        assert silent == (one.seen.rounds == 0)
        if one.communication == "no":
            assert silent


def test_some_rows_are_known(found: dict[str, MethodFacts]) -> None:
    columns = ("communication", "target", "retained", "history")
    names = ("exact", "ferrari", "fused", "fedau", "guo", "fedremoval")
    rows = {name: tuple(getattr(found[name], one) for one in columns) for name in names}
    assert rows == {
        "exact": ("no", "no", "no", "no"),
        "ferrari": ("yes", "yes", "no", "no"),
        "fused": ("yes", "no", "yes", "no"),
        "fedau": ("no", "no", "no", "yes"),
        "guo": ("yes", "yes", "yes", "no"),
        "fedremoval": ("unless kept", "no", "unless kept", "no"),
    }
    certificates = {name: found[name].certificate for name in ("exact", "guo", "fedremoval", "ferrari")}
    assert certificates == {"exact": "exact", "guo": "(epsilon, delta)", "fedremoval": "distance", "ferrari": "no"}
    assert "paper's table is wrong" in found["ferrari"].differs["history"]


def test_a_published_method_says_its_source_and_what_can_be_tuned(found: dict[str, MethodFacts]) -> None:
    for one in found.values():
        if one.source:
            assert one.settings >= 6 or one.settings == 1, one.name  # or nothing to tune
