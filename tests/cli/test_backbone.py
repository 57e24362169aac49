"""`probekit backbone`: the list and the conformance tests."""

from __future__ import annotations

import pytest

from probekit.registry import backbones
from tests.cli.conftest import Command


def test_ls_names_every_kind_and_plugins(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbones, "_registered", {"a-plugin": object})
    listed = {row["name"]: row["form"] for row in command("backbone", "ls", "--json").value["backbones"]}
    assert {"open_clip", "hf", "timm", "packaged", "py", "a-plugin"} <= listed.keys()
    assert listed["a-plugin"] == "a plugin's own"
    shown = command("backbone", "ls").out
    assert "hf:ORG/NAME[@REVISION][#VIEW]" in shown


def test_ls_finds_models_whose_weights_are_published(command: Command) -> None:
    found = [row["name"] for row in command("backbone", "ls", "laion2B_s34B_b79k", "--json").value["backbones"]]
    assert "open_clip:ViT-B-32/laion2b_s34b_b79k" in found
    assert all("laion2b_s34b_b79k" in name for name in found)
    timm = [row["name"] for row in command("backbone", "ls", "timm:resnet18", "--json").value["backbones"]]
    assert "timm:resnet18.a1_in1k" in timm
    assert command("backbone", "ls", "no such model", "--json").value["backbones"] == []


def test_check_passes_a_sound_backbone(command: Command, backbone: str) -> None:
    outcome = command("backbone", "check", backbone, "--json")
    assert outcome.code == 0
    assert outcome.value["passed"] is True
    assert {check["name"] for check in outcome.value["checks"]} >= {"shape", "frozen", "deterministic", "batch size"}
    shown = command("backbone", "check", backbone).out
    assert "FAILED" not in shown
    assert "samples/s" in shown


def test_check_fails_a_backbone_that_breaks_a_promise(command: Command, backbone: str) -> None:
    outcome = command("backbone", "check", "py:tiny_cells:Forgetful", "--json")
    assert outcome.code == 6
    failed = {check["name"] for check in outcome.value["checks"] if not check["passed"]}
    assert "deterministic" in failed
    assert "FAILED" in command("backbone", "check", "py:tiny_cells:Forgetful").out


def test_check_of_a_backbone_that_crashes(command: Command, backbone: str) -> None:
    outcome = command("backbone", "check", "py:tiny_cells:Broken", "--json")
    assert outcome.code == 6
    assert "a bug of its own" in outcome.value["checks"][0]["detail"]


@pytest.mark.parametrize(
    ("name", "said"), [("opnclip:x", "open_clip"), ("packaged:x", "efficientnet-lite0"), ("py:nowhere:x", "nowhere")]
)
def test_check_of_an_unknown_backbone(command: Command, name: str, said: str) -> None:
    outcome = command("backbone", "check", name, "--json")
    assert outcome.code == 3
    assert said in outcome.value["error"]["message"]
