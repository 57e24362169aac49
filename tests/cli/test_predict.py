"""`probekit predict`: predictions of a saved head, by file and on the terminal."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from probekit.cli.main import run
from probekit.embeddings import EmbeddingSet
from probekit.probing import probe


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's folder, with a head of three classes in `head` and new rows in `new.npz`."""
    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    labels = np.arange(90) % 3
    rows = generator.normal(size=(90, 6))
    rows[np.arange(90), labels] += 4
    names = np.array(["cat", "dog", "owl"])[labels]
    result = probe(EmbeddingSet.from_numpy(rows[:60], names[:60]), controls=False)
    result.heads["ridge"].save(tmp_path / "head")
    np.savez(tmp_path / "new.npz", x=rows[60:], y=names[60:])
    np.save(tmp_path / "bare.npy", rows[60:])
    return tmp_path


def predict(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert run(["predict", *arguments, "--json"]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_predictions_are_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = predict(capsys, "head", "new.npz", "--csv", "out.csv")
    assert document["rows"] == 30
    with (folder / "out.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == ["key", "predicted", "probability", "p(cat)", "p(dog)", "p(owl)"]
    expected = np.array(["cat", "dog", "owl"])[np.arange(60, 90) % 3]
    predicted = np.array([line["predicted"] for line in lines])
    assert (predicted == expected).mean() > 0.9
    for line in lines:
        shares = [float(line[f"p({name})"]) for name in ("cat", "dog", "owl")]
        assert sum(shares) == pytest.approx(1)
        assert float(line["probability"]) == max(shares) == float(line[f"p({line['predicted']})"])


def test_vectors_need_no_labels(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = predict(capsys, "head", "bare.npy")
    assert len(document["predictions"]) == 30
    assert {record["predicted"] for record in document["predictions"]} <= {"cat", "dog", "owl"}


def test_the_terminal_shows_the_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["predict", "head", "new.npz"]) == 0
    text = capsys.readouterr().out
    assert "probability" in text
    assert "p(cat)" not in text
    assert "--csv" in text


def test_pictures_are_encoded_with_the_heads_backbone(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(24):
        pixels = np.random.default_rng(number).integers(0, 120, (6, 6), dtype=np.uint8)
        pixels[:3] += 100 * (number % 2)
        path = folder / "photos" / ["dim", "lit"][number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    arguments = ["photos", "-b", "pixels:4", "--head", "ridge", "--save", "lamp", "-q"]
    assert run(["probe", *arguments]) == 0
    document = predict(capsys, "lamp", "photos")
    records = document["predictions"]
    assert len(records) == 24
    assert all(record["key"].startswith(record["predicted"]) for record in records)
    (folder / "photos" / "dim" / "broken.png").write_bytes(b"no picture")
    broken = predict(capsys, "lamp", "photos", code=5)
    assert broken["skipped"][0]["key"].endswith("broken.png")
    assert any("broken.png" in warning for warning in broken["warnings"])


def test_targets_are_columns(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(60, 6))
    training = EmbeddingSet.from_numpy(
        rows, targets=rows[:, :2] + 1.5, target_names=["age", "size"]
    )
    probe(training, controls=False).heads["ridge"].save(folder / "numbers")
    records = predict(capsys, "numbers", "bare.npy")["predictions"]
    assert set(records[0]) == {"key", "age", "size"}
    expected = np.load(folder / "bare.npy")[0, 0] + 1.5
    assert records[0]["age"] == pytest.approx(expected, abs=0.1)


def test_what_does_not_fit_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert predict(capsys, "nohead", "new.npz", code=3)["error"]["message"].startswith("nohead")
    assert "nosuch" in predict(capsys, "head", "nosuch", code=3)["error"]["message"]
    np.save(folder / "wide.npy", np.ones((3, 7)))
    assert predict(capsys, "head", "wide.npy", code=4)["error"]["kind"] == "MismatchError"
    assert (
        "new.npz"
        in predict(capsys, "head", "new.npz", "-b", "pixels:4", code=2)["error"]["message"]
    )
