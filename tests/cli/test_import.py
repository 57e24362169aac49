"""`probekit import` from end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from probekit.cache import Cache
from probekit.cli.main import run


def write_rows(path: Path, count: int, seed: int = 0, dtype: str = "float32") -> Path:
    X = np.random.default_rng(seed).normal(size=(count, 4)).astype(dtype)
    np.savez(path, x=X, y=np.where(X[:, 0] > 0, "yes", "no"))
    return path


def import_json(
    capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0
) -> dict[str, Any]:
    assert run(["import", *map(str, arguments), "--json"]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_the_set_is_kept_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_rows(tmp_path / "my rows.npz", 20)
    (described,) = import_json(capsys, path, "--name", "mine")["sets"]
    assert [described[key] for key in ("name", "rows", "width", "classes")] == ["mine", 20, 4, 2]
    rows = Cache().open("mine")
    np.testing.assert_array_equal(rows.to_numpy(), np.load(path)["x"])
    assert rows.source == str(path)
    assert import_json(capsys, path)["sets"][0]["name"] == "my-rows"


def test_two_imports_of_other_dtypes_are_probed_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path / "train.npz", 60)
    test = np.load(write_rows(tmp_path / "test.npz", 30, seed=1))
    X = test["x"].astype(np.float16)
    X[3] = 0
    np.save(tmp_path / "test.npy", X)
    np.save(tmp_path / "labels.npy", test["y"])
    assert run(["import", str(tmp_path / "train.npz")]) == 0
    labels = ["--labels", str(tmp_path / "labels.npy")]
    assert run(["import", str(tmp_path / "test.npy"), *labels]) == 0
    capsys.readouterr()
    assert run(["probe", "train", "--test", "test", "--no-controls", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cells"]


def test_splits_become_sets_and_the_next_command_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = np.load(write_rows(tmp_path / "rows.npz", 60))
    frame = pd.DataFrame({"embedding": list(arrays["x"]), "label": arrays["y"]})
    frame["split"] = ["train", "train", "test"] * 20
    frame.to_parquet(tmp_path / "rows.parquet")
    assert run(["import", str(tmp_path / "rows.parquet"), "--name", "rows"]) == 0
    assert [len(Cache().open(f"rows-{split}")) for split in ("train", "test")] == [40, 20]
    line = capsys.readouterr().out.strip().splitlines()[-1]
    assert line == "next: probekit probe rows"
    assert run([*line.removeprefix("next: probekit ").split(), "--no-controls"]) == 0


def test_a_set_that_is_replaced_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(write_rows(tmp_path / "rows.npz", 60))
    other = str(write_rows(tmp_path / "other.npz", 30, seed=1))
    for path, is_replaced in ((file, False), (file, False), (other, True)):
        assert run(["import", path, "--name", "rows"]) == 0
        captured = capsys.readouterr()
        assert ("was replaced: it had 60 rows" in captured.out + captured.err) == is_replaced


def test_skipped_rows_are_named_and_the_exit_code_is_5(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    X = np.eye(6)
    X[4, 0] = np.nan
    np.savez(tmp_path / "rows.npz", x=X, y=[0, 1] * 3)
    assert run(["import", str(tmp_path / "rows.npz")]) == 2
    assert "--on-error skip" in capsys.readouterr().err
    document = import_json(capsys, tmp_path / "rows.npz", "--on-error", "skip", code=5)
    assert [item["key"] for item in document["skipped"]] == ["4"]
    assert document["sets"][0]["rows"] == 5


def test_vectors_without_labels_are_kept_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "rows.npy", np.eye(6))
    document = import_json(capsys, tmp_path / "rows.npy")
    assert any("--labels" in warning for warning in document["warnings"])
    assert "rows" in Cache()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["nowhere.npy"], 3),
        (["rows.npz", "--name", "no/name"], 2),
        (["rows.npz", "--label-column", "nothing"], 2),
        (["rows.npz", "--join", "key"], 2),
        (["rows.npz", "--on-error", "ignore"], 2),
    ],
)
def test_bad_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.npz", 6)
    assert run(["import", *arguments]) == code
    assert Cache().names() == []
