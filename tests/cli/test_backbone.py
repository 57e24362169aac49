"""`probekit backbone ls` and `check`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from probekit.cli.main import run
from tests.backbones.texts import save_model


def test_schemes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["backbone", "ls", "--json"]) == 0
    schemes = json.loads(capsys.readouterr().out)["schemes"]
    assert {"open_clip", "hf", "timm", "packaged", "pixels", "py"} <= set(schemes)


def test_search_finds_names_of_open_clip_and_timm(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["backbone", "ls", "--search", "DINOv2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["backbones"]
    assert "timm:vit_small_patch14_dinov2.lvd142m" in found
    assert run(["backbone", "ls", "--search", "laion2b_s34b_b79k", "--json"]) == 0
    assert (
        "open_clip:ViT-B-32/laion2b_s34b_b79k" in json.loads(capsys.readouterr().out)["backbones"]
    )


def test_a_search_without_a_match_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["backbone", "ls", "--search", "nosuchmodel"]) == 0
    assert "nosuchmodel" in capsys.readouterr().out


def test_check_prints_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["backbone", "check", "pixels:8"]) == 0
    lines = dict(line.split(": ", 1) for line in capsys.readouterr().out.strip().splitlines())
    assert (lines["backbone"], lines["views"]) == ("pixels:8", "gray 64")
    assert float(lines["batch difference"]) < 1e-4
    assert "resize squash" in lines["identity"]


def test_check_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["backbone", "check", "packaged:efficientnet-lite0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["views"] == {"pooled": 1280}
    assert found["other_views"] == ["#pooled"]
    assert found["device"]
    assert found["identity"]["preprocessing"]["size"] == [224, 224]
    assert 0 <= found["batch_difference"] < 1e-4
    assert found["samples_per_second"] > 0


def test_check_takes_the_tower_and_the_options_of_texts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"hf:{save_model('clip', tmp_path / 'clip')}"
    flags = ["--kind", "text", "--prompt", "a ", "--max-length", "9", "--json"]
    assert run(["backbone", "check", name, *flags]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["views"]) == ("text", {"proj": 16})
    tokens = document["identity"]["preprocessing"]
    assert (tokens["prompt"], tokens["max_length"]) == ("a ", 9)
    assert run(["backbone", "check", "pixels", "--prompt", "a "]) == 2


@pytest.mark.parametrize(
    ("name", "code"),
    [("hf:./no/such/folder", 3), ("packaged:efficientnet", 3), ("nosuch:x", 3), ("pixels#no", 3)],
)
def test_an_unknown_name_is_refused(name: str, code: int) -> None:
    assert run(["backbone", "check", name]) == code
