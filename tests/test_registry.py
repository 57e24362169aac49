"""Names with options: read, refused, described."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from typing import Any

import pytest

from probekit import registry
from probekit.cli.described import described
from probekit.errors import InputError, NotFoundError


@dataclass(frozen=True)
class Taking:
    """Takes options of several types."""

    steps: int = 3
    rate: float | None = None
    loud: bool = False


def test_options_have_the_types_of_their_fields() -> None:
    found: Any = registry.options_in(Taking, "taking", "5,rate=none,loud=yes")
    assert Taking(**found) == Taking(5, None, True)
    assert registry.options_in(Taking, "taking", "rate=0.5,loud=0") == {"rate": 0.5, "loud": False}
    for bad, said in (("loud=perhaps", "loud"), ("colour=red", "has no option"), ("steps=many", "steps")):
        with pytest.raises(InputError, match=said):
            registry.options_in(Taking, "taking", bad)


def test_empty_and_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match="names nothing"):
        registry.parse("  ")
    with pytest.raises(NotFoundError, match="There is no"):
        registry.configured(registry.trainers, "closed-fork")


def test_a_factory_anywhere_is_configured() -> None:
    found = registry.configured(registry.trainers, "py:tests.test_registry:Taking:4")
    assert (found.steps, type(found).__name__) == (4, "Taking")


def test_what_cannot_be_read_is_described_by_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        metadata.EntryPoint("gone", "no.such.module:Thing", "g"),
        metadata.EntryPoint("taking", "tests.test_registry:Taking", "g"),
        metadata.EntryPoint("function", "tests.test_registry:test_empty_and_unknown_names_are_refused", "g"),
    ]
    monkeypatch.setattr(metadata, "entry_points", lambda group: points)
    kinds = registry.Registry("g", "thing", {"ours": "no.such.module:Thing"})
    found = described(kinds)
    assert found["ours"] == ""
    assert found["gone"] == found["function"] == ""
    assert found["taking"] == "Takes options of several types: steps=3, rate=None, loud=False"


def test_a_plugin_cannot_take_a_name_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = [metadata.EntryPoint(name, "tests.test_registry:Taking", "g") for name in ("ours", "theirs")]
    monkeypatch.setattr(metadata, "entry_points", lambda group: theirs)
    kinds = registry.Registry("g", "thing", {"ours": "registry:parse"})
    assert kinds.names() == ["ours", "theirs"]
    assert kinds.get("ours") is registry.parse
    assert kinds.get("theirs") is Taking


def test_a_plugin_that_lacks_what_it_names_is_named_with_its_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [metadata.EntryPoint("theirs", "tests.test_registry:Nothing", "g")]
    monkeypatch.setattr(metadata, "entry_points", lambda group: broken)
    with pytest.raises(NotFoundError, match="thing 'theirs' of an unknown distribution cannot be imported"):
        registry.Registry("g", "thing", {}).get("theirs")
