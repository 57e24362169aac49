"""`probekit method ls`, and what is said of methods that cannot do it: one sentence each."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from probekit import registry
from tests.cli.conftest import Command


@dataclass(frozen=True)
class Stranger:
    """A method from elsewhere."""

    name: ClassVar[str] = "stranger"
    needs: ClassVar[tuple[Any, ...]] = ()
    keeps: ClassVar[tuple[str, ...]] = ("statistics",)
    traits: ClassVar[frozenset[str]] = frozenset()

    gives: str = "nan"

    def unlearn(self, removal: Any) -> Any:
        """Nothing of use."""
        params = np.full_like(removal.params, np.nan) if self.gives == "nan" else removal.params.copy()
        return removal.finish(self, params=params)


def test_the_list_is_computed_and_marks_the_papers_mistakes(command: Command) -> None:
    told = command("method", "ls")
    assert told.code == 0
    assert "* ferrari, history: the paper's table is wrong" in told.out
    rows = {one["name"]: one for one in command("method", "ls", "--json").value["methods"]}
    assert rows["ferrari"]["paper"]["history"] == "yes"
    assert rows["ferrari"]["history"] == "no"
    assert rows["exact"]["paper"] is None
    assert rows["exact"]["seen"] is None
    assert rows["fused"]["source"].startswith("Zhong")


def test_what_was_seen_is_told(command: Command) -> None:
    rows = {one["name"]: one["seen"] for one in command("method", "ls", "--seen", "--json").value["methods"]}
    assert rows["exact"]["rounds"] == 0
    assert rows["ferrari"]["target"]
    assert not rows["ferrari"]["retained"]
    assert "nobody" in command("method", "ls", "--seen").out


def test_one_sentence_for_each_way_of_not_being_a_method(
    command: Command, extracted: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert command("train", extracted, "--clients", 3, "--ridge", 0.05, "--run", "run").code == 0
    monkeypatch.setitem(registry.methods._registered, "stranger", Stranger)
    (tmp_path / "broken_plugin.py").write_text("raise RuntimeError('no licence')\n")
    (notes := tmp_path / "broken_thing-1.0.dist-info").mkdir()
    (notes / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-thing\nVersion: 1.0\n")
    (notes / "entry_points.txt").write_text("[probekit.methods]\nbroken = broken_plugin:Method\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    for name, code, words in (
        ("fussed", 3, "There is no unlearning method 'fussed'. Known and close: fused"),
        ("fedau", 2, "needs what this run does not have: the clients' auxiliary heads: train with"),
        ("broken", 3, "'broken' of broken-thing cannot be imported: RuntimeError: no licence"),
        ("stranger", 2, "Unlearning by stranger must end in finite parameters. Nothing was changed."),
        ("stranger:old", 2, "Unlearning by stranger gave the old head back, bit for bit"),
    ):
        found = command("unlearn", "run", "--client", "1", "--method", name)
        assert found.code == code, found.message
        assert words in found.message
        assert "Traceback" not in found.message
    listed = command("method", "ls")
    assert listed.code == 0
    assert "of broken-thing cannot be imported" in " ".join(listed.out.split())
