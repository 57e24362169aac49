"""`probekit extract` from end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from probekit.cache import Cache
from probekit.cli.main import run


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    for number in range(12):
        pixels = np.random.default_rng(number).integers(0, 256, (9, 7, 3), dtype=np.uint8)
        path = folder / ["Train", "Test"][number % 4 == 3] / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return folder


def extract(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert run(["extract", *arguments, "--json"]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_a_folder_with_splits(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = extract(capsys, str(photos), "-b", "pixels:4")
    assert first["sets"][0]["rows"] == 9
    assert any("--split" in warning for warning in first["warnings"])
    test = extract(capsys, str(photos), "-b", "pixels:4", "--split", "test", "--name", "photos-t")
    assert test["sets"][0]["rows"] == 3
    rows = Cache().open("photos-t")
    assert rows.source == str(photos)
    assert rows.class_names == ("a", "b")


def test_the_second_time_nothing_is_encoded(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert extract(capsys, str(photos), "-b", "pixels:4")["encoded"] == 9
    again = extract(capsys, str(photos), "-b", "pixels:4")
    assert (again["encoded"], again["reused"]) == (0, 9)


def test_a_broken_picture_is_skipped_counted_and_named(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "Train" / "a" / "broken.png").write_bytes(b"no picture")
    document = extract(capsys, str(photos), "-b", "pixels:4", code=5)
    assert [Path(item["key"]).name for item in document["skipped"]] == ["broken.png"]
    assert document["sets"][0]["rows"] == 9
    assert run(["extract", str(photos), "-b", "pixels:4", "--on-error", "raise"]) == 2
    assert "broken.png" in capsys.readouterr().err


def test_the_printed_next_command_works(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["extract", str(photos), "-b", "pixels:4"]) == 0
    line = capsys.readouterr().out.strip().splitlines()[-1]
    assert line.startswith("next: probekit ")
    assert run(line.removeprefix("next: probekit ").split()) == 0
