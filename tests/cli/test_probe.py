"""`probekit probe` from end to end, and what new users stumbled over."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from probekit.cli.main import run
from probekit.embeddings import EmbeddingSet
from probekit.probing.heads import HEADS
from probekit.probing.options import ProbeOptions

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def probe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Run `probe ... --json`; an error's document is its "error"."""
    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, code: int = 0, controls: bool = False) -> dict[str, Any]:
        switch = [] if controls else ["--no-controls"]
        if "--head" not in arguments and "--protocol" not in arguments:
            switch += ["--head", "ridge"]
        exit_code = run(["probe", *arguments, *switch, "--json"])
        captured = capsys.readouterr()
        assert exit_code == code, captured.err
        document: dict[str, Any] = json.loads(captured.out)
        return document.get("error", document)

    return call


def picture(path: Path, seed: int, bright: bool) -> None:
    pixels = np.random.default_rng(seed).integers(0, 120, (8, 8, 3), dtype=np.uint8)
    pixels[:4] += 100 * bright
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """48 pictures of two classes, 12 of them in Test."""
    folder = tmp_path / "photos"
    for number in range(48):
        split = "Test" if number % 4 == 3 else "Train"
        bright = bool(number // 4 % 2)
        picture(folder / split / ["dim", "lit"][bright] / f"{number}.png", number, bright)
    return folder


def vectors(path: Path, rows: int, seed: int = 0, dtype: str = "float32") -> Path:
    generator = np.random.default_rng(seed)
    labels = np.arange(rows) % 3
    matrix = generator.normal(size=(rows, 10))
    matrix[np.arange(rows), labels] += 3
    np.savez(path, x=matrix.astype(dtype), y=labels)
    return path


def test_folders_called_train_and_test_are_splits(probe: Run, photos: Path) -> None:
    result = probe("photos", "-b", "pixels:4", controls=True)
    cell = result["cells"][0]
    assert (cell["train_rows"], cell["test_rows"]) == (36, 12)
    assert (cell["data"], cell["evaluated_on"]) == ("photos", "test rows")
    assert cell["evaluation"]["metrics"]["accuracy"]["value"] > 0.9
    assert any("Test" in warning for warning in result["warnings"])
    assert [cell["control"] for cell in result["cells"]] == [
        "",
        "shuffled labels",
        "random vectors",
    ]
    again = probe("./photos", "-b", "pixels:4")
    assert again["cells"][0]["data"] == "./photos"


def test_everything_at_once(probe: Run, photos: Path, tmp_path: Path) -> None:
    arguments = ["-b", "pixels:4", "-b", "pixels:2", "--head", "ridge,knn", "--knn", "3"]
    outputs = ["--csv", str(tmp_path / "t.csv"), "--save", str(tmp_path / "heads")]
    result = probe("photos", *arguments, "--shots", "1,4", "--draws", "2", *outputs)
    cells = [(cell["backbone"], cell["head"]) for cell in result["cells"]]
    assert cells == [(name, head) for name in ("pixels:4", "pixels:2") for head in ("ridge", "knn")]
    assert [shot["shots"] for shot in result["cells"][0]["few_shot"]] == [1, 4]
    assert len(result["heads"]) == 2
    assert all((Path(folder) / "config.json").is_file() for folder in result["heads"])
    with (tmp_path / "t.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 4 * 3


def test_lines_are_printed_as_soon_as_they_are_computed(
    probe: Run,
    photos: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printed: list[str] = []
    nearest_mean = HEADS["nearest-mean"]

    def fit(train: EmbeddingSet, options: ProbeOptions) -> Any:
        printed.append(capsys.readouterr().out)
        return nearest_mean(train, options)

    monkeypatch.setitem(HEADS, "nearest-mean", fit)
    assert run(["probe", "photos", "-b", "pixels:4", "--head", "ridge,nearest-mean"]) == 0
    header, *lines = printed[0].splitlines()
    assert header.split()[:4] == ["data", "backbone", "view", "head"]
    (line,) = lines
    assert line.startswith("photos  pixels:4")
    assert "ridge" in line
    assert "leave-one-out" in line
    assert "nearest-mean" in capsys.readouterr().out


def test_the_table_can_be_written_as_markdown(probe: Run, photos: Path) -> None:
    probe("photos", "-b", "pixels:4", "--markdown", "table.md")
    text = Path("table.md").read_text()
    assert text.startswith("| data ")
    assert "leave-one-out" in text
    assert "test rows" in text


def test_a_broken_picture_is_skipped_counted_and_named(probe: Run, photos: Path) -> None:
    (photos / "Train" / "lit" / "broken.png").write_bytes(b"not a picture")
    result = probe("photos", "-b", "pixels:4", code=5)
    assert result["cells"][0]["skipped"] == 1
    assert any("broken.png" in warning for warning in result["warnings"])
    assert result["cells"][0]["evaluation"]["metrics"]["accuracy"]["value"] > 0.9
    error = probe("photos", "-b", "pixels:4", "--on-error", "raise", code=2)
    assert "broken.png" in error["message"]


def test_a_class_missing_in_the_test_split(probe: Run, photos: Path) -> None:
    picture(photos / "Test" / "odd" / "0.png", 99, True)
    picture(photos / "Train" / "rare" / "0.png", 98, True)
    picture(photos / "Train" / "rare" / "1.png", 97, True)
    cell = probe("photos", "-b", "pixels:4")["cells"][0]
    assert cell["unknown_classes"] == {"odd": 1}
    assert cell["missing_classes"] == ["rare"]


def test_test_pictures_among_the_training_pictures(probe: Run, photos: Path) -> None:
    for path in sorted((photos / "Test").rglob("*.png")):
        copy = photos / "Train" / path.parent.name / f"copy-{path.name}"
        copy.write_bytes(path.read_bytes())
    result = probe("photos", "-b", "pixels:4")
    assert result["cells"][0]["copies"] == 12
    assert any("--drop-copies" in warning for warning in result["warnings"])
    dropped = probe("photos", "-b", "pixels:4", "--drop-copies")
    assert dropped["cells"][0]["train_rows"] == 36


def test_files_of_vectors(probe: Run, tmp_path: Path) -> None:
    vectors(tmp_path / "train.npz", 60)
    vectors(tmp_path / "test.npz", 30, seed=1, dtype="float16")
    cell = probe("train.npz", "--test", "test.npz")["cells"][0]
    assert (cell["train_rows"], cell["test_rows"], cell["width"]) == (60, 30, 10)
    assert probe("train.npz")["cells"][0]["evaluated_on"].startswith("training rows")


def test_too_many_shots_and_neighbors_keep_the_accuracy(probe: Run, tmp_path: Path) -> None:
    vectors(tmp_path / "train.npz", 60)
    result = probe("train.npz", "--shots", "2,500", "--knn", "5000", code=5)
    assert "500" in result["cells"][0]["few_shot"][1]["error"]
    assert result["cells"][0]["evaluation"]["metrics"]["accuracy"]["value"] > 0.8
    assert result["cells"][1]["fit"] == {"k": 60}


def test_a_shuffled_file_of_labels_must_be_joined(probe: Run, tmp_path: Path) -> None:
    import pandas

    generator = np.random.default_rng(0)
    keys = [f"k{row}" for row in range(60)]
    labels = np.arange(60) % 2
    matrix = generator.normal(size=(60, 4))
    matrix[:, 0] += 4 * labels
    frame = pandas.DataFrame({"key": keys, "embedding": list(matrix)})
    frame.to_parquet(tmp_path / "rows.parquet")
    table = pandas.DataFrame({"key": keys, "label": labels}).sample(frac=1, random_state=0)
    table.to_csv(tmp_path / "labels.csv", index=False)
    error = probe("rows.parquet", "--labels", "labels.csv", code=2)
    assert "--join" in error["message"]
    result = probe("rows.parquet", "--labels", "labels.csv", "--join", "key")
    assert result["cells"][0]["evaluation"]["metrics"]["accuracy"]["value"] > 0.9


def test_a_group_column(probe: Run, tmp_path: Path) -> None:
    import pandas

    generator = np.random.default_rng(0)
    frame = pandas.DataFrame(generator.normal(size=(60, 3)), columns=["f0", "f1", "f2"])
    frame["label"] = np.where(np.arange(60) % 2, "x", "y")
    frame["patient"] = np.arange(60) // 4
    frame.to_parquet(tmp_path / "rows.parquet")
    result = probe("rows.parquet", "--vector-columns", "f*", "--group", "patient")
    cell = result["cells"][0]
    assert "grouped" in cell["evaluated_on"]
    assert cell["fit"]["ridge_choice"] == "leave-groups-out"


def test_real_targets_print_decimals(
    probe: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pandas

    generator = np.random.default_rng(0)
    frame = pandas.DataFrame(generator.normal(size=(80, 3)), columns=["f0", "f1", "f2"])
    frame["price"] = frame["f0"] + 0.1 * generator.normal(size=80)
    frame.to_parquet(tmp_path / "rows.parquet")
    arguments = ["probe", "rows.parquet", "--vector-columns", "f*", "--target-column", "price"]
    assert run(arguments) == 0
    text = capsys.readouterr().out
    assert " r2 " in text
    assert " 0.9" in text


def test_a_column_that_is_not_called_label(probe: Run, tmp_path: Path) -> None:
    lines = ["text,sentiment", *(f"some words {row},{'ab'[row % 2]}" for row in range(20))]
    (tmp_path / "reviews.csv").write_text("\n".join(lines))
    error = probe("reviews.csv", "-b", "pixels:4", code=2)
    assert "--label-column" in error["message"]
    assert "sentiment" in error["message"]


@pytest.mark.parametrize(
    ("arguments", "code", "shown"),
    [
        (["nosuch", "-b", "pixels:4"], 3, "nosuch"),
        (["./missing-folder", "-b", "pixels:4"], 3, "missing-folder"),
        (["train.npz", "--test", "nosuch"], 3, "nosuch"),
        (["train.npz", "-b", "pixels:4", "--head", "rigde"], 2, "ridge"),
        (["train.npz", "--ridge", "nan"], 2, "nan"),
        (["train.npz", "--ridge", "inf"], 2, "inf"),
        (["train.npz", "--ridge", "1e400"], 2, "1e400"),
        (["train.npz", "--ridge", "-1"], 2, "-1"),
        (["train.npz", "--ridge", "best"], 2, "best"),
        (["train.npz", "--confidence", "95"], 2, "95"),
        (["train.npz", "--c", "0"], 2, "--c"),
        (["train.npz", "--cs", "1,x"], 2, "1,x"),
        (["train.npz", "--normalize", "max"], 2, "max"),
        (["train.npz", "--shots", "few"], 2, "few"),
        (["train.npz", "--metric", "acc"], 2, "accuracy"),
        (["photos"], 2, "-b"),
        (["photos", "-b", "pixles:4"], 3, "pixels"),
    ],
)
def test_where_nothing_is_computed_the_exit_code_is_the_errors(
    arguments: list[str], code: int, shown: str, probe: Run, tmp_path: Path, photos: Path
) -> None:
    vectors(tmp_path / "train.npz", 60)
    assert shown in probe(*arguments, code=code)["message"]


def test_a_cached_set_refuses_a_backbone_and_is_suggested(probe: Run, photos: Path) -> None:
    assert run(["extract", "photos", "-b", "pixels:4", "--name", "food-train", "-q"]) == 0
    assert "food-train" in probe("food-train", "-b", "pixels:4", code=2)["message"]
    assert "food-train" in probe("food-trian", code=3)["message"]
    assert probe("food-train")["cells"][0]["data"] == "food-train"


def test_a_protocol_and_what_conflicts_with_it(probe: Run, tmp_path: Path) -> None:
    vectors(tmp_path / "train.npz", 90)
    vectors(tmp_path / "test.npz", 30, seed=1)
    rows = ["train.npz", "--test", "test.npz", "--protocol"]
    result = probe(*rows, "dinov3", "--head", "logistic,knn")
    assert result["protocol"] == "dinov3"
    assert [cell["head"] for cell in result["cells"]] == [
        *("logistic", "knn:10", "knn:20", "knn:100", "knn:200")
    ]
    assert any("arXiv" in sentence for sentence in result["legend"])
    for flags, shown in {
        ("--normalize", "l2"): "none",
        ("--c", "1"): "auto",
        ("--cs", "0.1,1"): "45 values",
        ("--head", "lda"): "logistic",
        ("--shots", "3"): "(8,)",
    }.items():
        protocol = "mteb" if "--shots" in flags else "dinov3"
        message = probe(*rows, protocol, *flags, code=2)["message"]
        assert protocol in message
        assert flags[0] in message
        assert shown in message
    assert "dinov3" in probe(*rows, "dinov4", code=3)["message"]


def test_differences_a_record_and_a_page(
    probe: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vectors(tmp_path / "train.npz", 90)
    outputs = ["--record", "r.jsonl", "--report", "page.html"]
    arguments = ["train.npz", "--head", "ridge,nearest-mean", "--against", "ridge", *outputs]
    result = probe(*arguments)
    (difference,) = result["differences"]
    assert (difference["head"], difference["baseline"]) == ("nearest-mean", "ridge")
    assert len((tmp_path / "r.jsonl").read_text().splitlines()) == 2
    assert "nearest-mean" in (tmp_path / "page.html").read_text()
    assert probe(*arguments)["cells"] == result["cells"]
    assert len((tmp_path / "r.jsonl").read_text().splitlines()) == 2
    assert run(["probe", *arguments, "--no-controls"]) == 0
    assert "less" in capsys.readouterr().out
    assert "--against" in probe("train.npz", "--against", "rigde", code=2)["message"]


def test_others_go_on_where_one_fails(probe: Run, tmp_path: Path) -> None:
    vectors(tmp_path / "train.npz", 60)
    result = probe("train.npz", "nosuch", code=5)
    assert result["cells"][0]["evaluation"]["metrics"]["accuracy"]["value"] > 0.8
    assert "nosuch" in result["cells"][1]["error"]


def test_the_line_of_a_failed_cell_ends_with_the_remedy(
    probe: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vectors(tmp_path / "train.npz", 60)
    assert run(["probe", "train.npz", "--head", "zero-shot,ridge", "--no-controls"]) == 5
    _, failed, fitted, *_ = capsys.readouterr().out.splitlines()
    assert failed.endswith("(-b open_clip:ViT-B-32/laion2b_s34b_b79k#proj).")
    assert "accuracy" in fitted


def test_a_config_file_sets_options(probe: Run, tmp_path: Path) -> None:
    vectors(tmp_path / "train.npz", 60)
    settings = ["ridge = 0.5", "normalize = 'l2'", "label-column = 'y'", "shots = '1,2'"]
    (tmp_path / "probe.toml").write_text("\n".join(["[probe]", *settings]))
    cell = probe("train.npz", "--config", "probe.toml")["cells"][0]
    assert cell["fit"] == {"ridge": 0.5, "ridge_choice": "manual"}
    assert cell["normalize"] == "l2"
    assert [shot["shots"] for shot in cell["few_shot"]] == [1, 2]
    (tmp_path / "probe.toml").write_text("target-column = ['no']\ngroup = 'no'\n")
    assert "'no'" in probe("train.npz", "--config", "probe.toml", code=2)["message"]


def test_columns_stand_under_their_headings_and_folds_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vectors(tmp_path / "a.npz", 60)
    cache = ["--cache", str(tmp_path / "cache")]
    assert run(["import", str(tmp_path / "a.npz"), "--name", "a", *cache]) == 0
    capsys.readouterr()
    assert run(["probe", "a", "--head", "ridge", *cache]) == 0
    printed = capsys.readouterr().out
    heading, first = printed.splitlines()[:2]
    assert heading.index("head") == first.index("ridge")
    assert heading.index("test rows") == first.index("5 stratified folds")
    assert "counted twice" in printed


def test_an_error_of_all_heads_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "nowhere"]) == 3
    captured = capsys.readouterr()
    assert (captured.out + captured.err).count("Not found: nowhere") == 1
