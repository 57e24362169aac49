"""What new users stumbled over when they brought vectors, labels and data of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import probekit
from probekit.cache import Cache
from probekit.cli.main import run
from probekit.errors import InputError
from probekit.registry import LISTED

Call = Callable[..., dict[str, Any]]
COUNT = 60
LABELS = np.array(["no", "yes"])[np.arange(COUNT) % 2]
X = np.random.default_rng(0).normal(size=(COUNT, 6)).astype(np.float32)
X[:, 0] += 4 * (LABELS == "yes")
FAST = ("--no-controls", "--head", "ridge")


@pytest.fixture
def call(
    tmp_path: Path, own_cache: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Call:  # fmt: skip
    """Run a command with --json in an empty folder; of an error the document is its "error"."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str, code: int = 0) -> dict[str, Any]:
        found = run([*arguments, "--json"])
        captured = capsys.readouterr()
        assert found == code, captured.err
        document: dict[str, Any] = json.loads(captured.out)
        return document.get("error", document)

    return command


def accuracy(document: dict[str, Any]) -> float:
    return float(document["cells"][0]["evaluation"]["metrics"]["accuracy"]["value"])


def frame(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"embedding": list(X), "label": LABELS, **columns})


@pytest.mark.parametrize("command", [("import",), ("probe", *FAST)])
def test_one_of_many_arrays_is_chosen_and_ten_names_are_shown(
    call: Call, command: tuple[str, ...]
) -> None:
    np.savez("rows.npz", y=LABELS, **{f"layer{number}": X + number for number in range(40)})
    message = call(*command, "rows.npz", code=2)["message"]
    assert "--vector-column" in message
    assert message.count("layer") == LISTED
    call(*command, "rows.npz", "--vector-column", "layer7")


def test_512_columns_of_numbers_are_a_pattern(call: Call) -> None:
    many = np.random.default_rng(1).normal(size=(COUNT, 512))
    table = pd.DataFrame(many, columns=[f"f{number}" for number in range(512)])
    table.assign(label=LABELS).to_parquet("rows.parquet")
    message = call("import", "rows.parquet", code=2)["message"]
    assert "--vector-columns 'f*'" in message
    assert sum(f"f{number}" in message.split() for number in range(512)) <= LISTED
    (described,) = call("import", "rows.parquet", "--vector-columns", "f*")["sets"]
    assert described["width"] == 512
    np.testing.assert_array_equal(Cache().open("rows").to_numpy(), many)


def test_rows_with_nan_are_counted_and_may_be_left_out(call: Call) -> None:
    rows = X.copy()
    rows[[5, 9, 11, 40]] = np.nan
    np.savez("rows.npz", x=rows, y=LABELS)
    for command in (("import",), ("probe", *FAST)):
        message = call(*command, "rows.npz", code=2)["message"]
        assert "4 of 60" in message
        assert "5, 9, 11)" in message
        assert "--on-error skip" in message
    assert len(call("import", "rows.npz", "--on-error", "skip", code=5)["skipped"]) == 4
    cell = call("probe", "rows.npz", *FAST, "--on-error", "skip", code=5)["cells"][0]
    assert (cell["train_rows"], cell["skipped"]) == (56, 4)


def test_a_split_column_is_used_or_named(call: Call) -> None:
    splits = np.where(np.arange(COUNT) % 3, "train", "test")
    frame(split=splits).to_parquet("rows.parquet")
    cell = call("probe", "rows.parquet", *FAST)["cells"][0]
    assert (cell["train_rows"], cell["test_rows"], cell["evaluated_on"]) == (40, 20, "test rows")
    frame(split=np.arange(COUNT) % 3).to_parquet("rows.parquet")
    document = call("probe", "rows.parquet", *FAST)
    assert any("--split-column split" in note for note in document["notes"])
    frame(fold=splits).to_parquet("rows.parquet")
    cell = call("probe", "rows.parquet", *FAST, "--split-column", "fold")["cells"][0]
    assert cell["evaluated_on"] == "test rows"


def test_vectors_without_labels_say_how_to_give_them(call: Call) -> None:
    np.save("rows.npy", X)
    np.save("labels.npy", LABELS)
    assert "--labels" in call("probe", "rows.npy", *FAST, code=2)["message"]
    assert any("--labels" in warning for warning in call("import", "rows.npy")["warnings"])
    assert "--labels" in call("probe", "rows", *FAST, code=2)["message"]
    assert accuracy(call("probe", "rows.npy", "--labels", "labels.npy", *FAST)) > 0.9


def test_labels_by_position_are_not_those_of_the_test_rows(call: Call) -> None:
    np.save("train.npy", X[:40])
    np.save("test.npy", X[40:])
    np.save("labels.npy", LABELS[:40])
    flags = ("--labels", "labels.npy", "--test", "test.npy")
    message = call("probe", "train.npy", *flags, *FAST, code=2)["message"]
    assert "labels.npy" in message
    assert "20" in message
    assert "40" in message
    assert "--join" in message


def test_labels_of_half_of_the_rows(call: Call) -> None:
    keys = [f"k{row}" for row in range(COUNT)]
    frame(key=keys).drop(columns="label").to_parquet("rows.parquet")
    pd.DataFrame({"key": keys, "label": LABELS})[:30].to_csv("half.csv", index=False)
    flags = ("--labels", "half.csv", "--join", "key")
    message = call("import", "rows.parquet", *flags, code=2)["message"]
    assert "30 of 60" in message
    assert "k30" in message
    assert "--on-error skip" in message
    document = call("import", "rows.parquet", *flags, "--on-error", "skip", code=5)
    assert document["sets"][0]["rows"] == 30
    assert len(document["skipped"]) == 30


def test_shuffled_labels_with_a_shared_key_are_never_taken_by_position(call: Call) -> None:
    keys = [f"k{row}" for row in range(COUNT)]
    frame(key=keys).drop(columns="label").to_parquet("rows.parquet")
    table = pd.DataFrame({"key": keys, "label": LABELS}).sample(frac=1, random_state=0)
    table.to_csv("labels.csv", index=False)
    message = call("import", "rows.parquet", "--labels", "labels.csv", code=2)["message"]
    assert "labels.csv" in message
    assert "--join key" in message
    call("import", "rows.parquet", "--labels", "labels.csv", "--join", "key")
    assert accuracy(call("probe", "rows", *FAST)) > 0.9


def test_train_and_test_come_as_two_files(call: Call) -> None:
    zero = X[40:].astype(np.float16)
    zero[3] = 0
    np.savez("train.npz", x=X[:40], y=LABELS[:40])
    np.savez("test.npz", x=zero, y=LABELS[40:])
    call("import", "train.npz")
    call("import", "test.npz")
    assert call("probe", "train", "--test", "test", *FAST)["cells"][0]["test_rows"] == 20
    sets = call("import", "train.npz", "test.npz", "--name", "mine")["sets"]
    assert [described["name"] for described in sets] == ["mine-train", "mine-test"]
    np.savez("wide.npz", x=np.eye(20, 9), y=LABELS[40:])
    message = call("probe", "train", "--test", "wide.npz", *FAST, code=4)["message"]
    assert "6" in message
    assert "9" in message


def test_two_files_of_one_name_are_refused(call: Call) -> None:
    for folder in ("a", "b"):
        Path(folder).mkdir()
        np.savez(f"{folder}/rows.npz", x=X, y=LABELS)
    message = call("import", "a/rows.npz", "b/rows.npz", code=2)["message"]
    assert "rows" in message
    assert "--name" in message


def test_the_printed_command_of_two_files(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("train.npz", x=X[:40], y=LABELS[:40])
    np.savez("test.npz", x=X[40:], y=LABELS[40:])
    assert run(["import", "test.npz", "train.npz", "--name", "mine"]) == 0
    line = capsys.readouterr().out.strip().splitlines()[-1]
    assert line == "next: probekit probe mine"
    assert call(*line.split()[2:], *FAST)["cells"][0]["test_rows"] == 20


def test_train_and_test_in_one_file(call: Call) -> None:
    np.savez("both.npz", X_train=X[:40], y_train=LABELS[:40], X_test=X[40:], y_test=LABELS[40:])
    cell = call("probe", "both.npz", *FAST)["cells"][0]
    assert (cell["train_rows"], cell["test_rows"]) == (40, 20)
    call("import", "both.npz")
    assert call("probe", "both-train", "--test", "both-test", *FAST)["cells"][0]["test_rows"] == 20


def test_tiles_are_pooled_into_slides(call: Call) -> None:
    Path("tiles").mkdir()
    generator = np.random.default_rng(2)
    names = [f"slide-{number:02d}" for number in range(20)]
    for number, name in enumerate(names):
        tiles = generator.normal(size=(number + 1, 4)) + 3 * (number % 2)
        with h5py.File(f"tiles/{name}.h5", "w") as file:
            file["features"] = tiles.astype(np.float32)
    table = {"slide_id": names, "label": ["no", "yes"] * 10, "patient": np.arange(20) // 2}
    pd.DataFrame(table).sample(frac=1, random_state=0).to_csv("slides.csv", index=False)
    flags = ("--labels", "slides.csv", "--join", "slide_id", "--pool", "mean")
    document = call("probe", "tiles", *flags, "--group", "patient", *FAST)
    assert document["cells"][0]["train_rows"] == 20
    assert "grouped" in document["cells"][0]["evaluated_on"]
    assert accuracy(document) > 0.9
    (described,) = call("import", "tiles", *flags)["sets"]
    assert described["rows"] == 20
    assert "--by" in call("probe", "tiles", "--by", "slide_id", code=2)["message"]
    bad = call("import", "tiles", "--labels", "slides.csv", "--join", "slide", code=2)
    assert "slide_id" in bad["message"]


@pytest.mark.parametrize("flags", [(), ("--client-column", "site")])
def test_clients_are_a_column_of_the_vectors(call: Call, flags: tuple[str, ...]) -> None:
    frame(site=np.array(["a", "b", "c"])[np.arange(COUNT) % 3]).to_parquet("rows.parquet")
    document = call("train", "rows.parquet", "--clients", "site", *flags, "--run", "run")
    assert document["clients"] == {"a": 20, "b": 20, "c": 20}


def test_equal_folders_keep_the_names_that_were_typed(call: Call) -> None:
    for folder in ("first", "second"):
        for number in range(8):
            path = Path(folder, "ab"[number % 2], f"{number}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (4, 4), 30 * number).save(path)
    for folder in ("first", "./second"):
        assert call("probe", folder, "-b", "pixels:4", *FAST)["cells"][0]["data"] == folder


def test_a_dataset_of_the_hub_without_a_network_is_one_sentence(call: Call) -> None:
    error = call("probe", "hf:org/name", "-b", "pixels:4", *FAST, code=3)
    assert "hf:org/name" in error["message"]
    assert "\n" not in error["message"]


@pytest.mark.parametrize(
    "backbone", ["hf:org/name", "open_clip:ViT-B-32/laion2b_s34b_b79k", "timm:resnet50.a1_in1k"]
)
def test_a_backbone_of_the_hub_without_a_network_is_one_sentence(call: Call, backbone: str) -> None:
    error = call("probe", "packaged:digits", "-b", backbone, *FAST, code=3)
    assert backbone in error["message"]
    assert "network" in error["message"]
    assert "\n" not in error["message"]


BATCH = torch.from_numpy(X)


@pytest.mark.parametrize(
    ("rows", "labels"),
    [
        (X, LABELS),
        (X.tolist(), LABELS.tolist()),
        (BATCH.bfloat16(), torch.from_numpy((LABELS == "yes").astype(np.int64))),
        (BATCH.requires_grad_(), LABELS.astype(object)),
        (pd.DataFrame(X), pd.Series(LABELS, index=range(100, 100 + COUNT))),
        (X.astype(np.int64), (LABELS == "yes")),
    ],
    ids=["numpy", "lists", "bfloat16", "objects", "pandas", "integers"],
)
def test_rows_and_labels_of_any_kind(own_cache: Path, rows: Any, labels: Any) -> None:
    train = slice(0, 40)
    test = slice(40, None)
    result = probekit.probe(
        (rows[train], labels[train]),
        test=(rows[test], labels[test]),
        heads="ridge",
        controls=False,
    )
    assert result.accuracy > 0.85
    assert result.cells[0].test_rows == 20


@pytest.mark.parametrize(
    "data",
    [
        {"train": (X[:40], LABELS[:40]), "test": (X[40:], LABELS[40:])},
        {"X_train": X[:40], "y_train": LABELS[:40], "X_test": X[40:], "y_test": LABELS[40:]},
        {"x": BATCH, "y": LABELS, "split": ["train"] * 40 + ["test"] * 20},
        {"train": frame()[:40], "test": frame()[40:]},
        frame(split=["train"] * 40 + ["test"] * 20),
    ],
    ids=["pairs", "arrays", "columns", "frames", "frame"],
)
def test_splits_in_memory(own_cache: Path, data: Any) -> None:
    result = probekit.probe(data, heads="ridge", controls=False)
    assert (result.cells[0].train_rows, result.cells[0].test_rows) == (40, 20)
    assert result.accuracy > 0.85


def test_labels_that_cannot_be_are_refused_with_their_cure(own_cache: Path) -> None:
    mixed = LABELS.astype(object)
    mixed[3] = 7
    with pytest.raises(InputError, match=r"7 among texts.*Convert"):
        probekit.probe((X, mixed), heads="ridge")
    with pytest.raises(InputError, match="59"):
        probekit.probe((X, LABELS[1:]), heads="ridge")
