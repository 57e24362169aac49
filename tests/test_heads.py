"""Heads at work, in folders, on a pretended Hub, and where nothing but NumPy can be imported."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import HfApi, ModelCard
from numpy.typing import NDArray

from probekit.embeddings import EmbeddingSet, Encoding
from probekit.errors import (
    CorruptError,
    InputError,
    MismatchError,
    NotFoundError,
    OfflineError,
    StorageError,
)
from probekit.heads import Head, load_head, task_of
from tests.oracles import random_set

ENCODING = Encoding("hf:org/name@abc#cls", {"weights": "aa", "view": "cls", "size": 224})
NAMES = ("cat", "dög", 'a "b"')


def linear_head(**changes: Any) -> Head:
    generator = np.random.default_rng(0)
    options: dict[str, Any] = {
        "weights": generator.standard_normal((5, 3)),
        "intercept": generator.standard_normal(3),
        "names": NAMES,
        "temperature": 0.3,
        "encoding": ENCODING,
        "fit": {"ridge": 0.1, "ridge_choice": "leave-one-out"},
        "dataset": "./photos",
        "metrics": {"accuracy": 0.75},
    }
    return Head(**(options | changes))


def labels_head() -> Head:
    return linear_head(task="labels")


HEADS = [linear_head, labels_head]


@pytest.fixture
def rows() -> NDArray[np.float32]:
    return np.random.default_rng(1).standard_normal((7, 5)).astype(np.float32)


def encoded(rows: NDArray[Any], encoding: Encoding = ENCODING) -> EmbeddingSet:
    return replace(EmbeddingSet.from_numpy(rows), encoding=encoding)


@pytest.mark.parametrize("normalize", ["none", "l2"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_scores_are_the_affine_map(
    rows: NDArray[np.float32], normalize: str, dtype: type[np.floating]
) -> None:
    head = linear_head(normalize=normalize)
    rows = rows.astype(dtype)
    scores = head.decision(encoded(rows))
    for row, score in zip(rows.astype(np.float64), scores, strict=True):
        seen = row / np.linalg.norm(row) if normalize == "l2" else row
        assert np.allclose(score, seen @ head.weights + head.intercept)
    assert head.predict(rows).tolist() == scores.argmax(axis=1).tolist()


def test_torch_tensors_and_lists_are_rows_too(rows: NDArray[np.float32]) -> None:
    import torch

    head = linear_head()
    expected = head.decision(rows)
    assert np.allclose(head.decision(rows.tolist()), expected)
    assert np.allclose(head.decision(torch.from_numpy(rows).bfloat16()), expected, atol=0.1)
    assert head.decision(rows[:0]).shape == (0, 3)


def test_probabilities_are_the_softmax_at_the_temperature(rows: NDArray[np.float32]) -> None:
    head = linear_head()
    powers = np.exp(head.decision(rows) / 0.3)
    assert np.allclose(head.predict_proba(rows), powers / powers.sum(axis=1, keepdims=True))
    labels = labels_head().predict_proba(rows)
    assert np.allclose(labels, 1 / (1 + np.exp(-(2 * head.decision(rows) - 1) / 0.3)))
    assert np.array_equal(labels > 0.5, labels_head().predict(rows) == 1)
    sure = linear_head(temperature=1e-6).predict_proba(rows)
    assert np.allclose(sure.max(axis=1), 1)
    for changes in ({"task": "numbers"}, {"temperature": None}):
        with pytest.raises(InputError, match="temperature"):
            linear_head(**changes).predict_proba(rows)


def test_numbers_are_predicted_as_they_are(rows: NDArray[np.float32]) -> None:
    head = linear_head(task="numbers")
    assert np.array_equal(head.predict(rows), head.decision(rows))


def test_from_params_takes_names_and_encoding_from_the_rows() -> None:
    embeddings = random_set(10, 4, 3)
    params = np.random.default_rng(0).normal(size=(5, 3))
    head = Head.from_params(params, embeddings, normalize="l2", fit={"ridge": 0.1})
    assert head.names == embeddings.class_names
    assert (head.encoding, head.dataset) == (embeddings.encoding, "arrays")
    assert np.array_equal(head.weights, params[:-1])
    assert np.array_equal(head.intercept, params[-1])
    targets = np.array([[0.0, 1.0], [1.0, 1.0]])
    assert task_of(EmbeddingSet.from_numpy(np.eye(2), targets)) == "labels"
    assert task_of(EmbeddingSet.from_numpy(np.eye(2), targets / 3)) == "numbers"


@pytest.mark.parametrize("make", HEADS)
def test_a_head_comes_back_from_its_folder(
    make: Any, tmp_path: Path, rows: NDArray[np.float32]
) -> None:
    head: Head = make()
    folder = head.save(tmp_path / "deep" / "head")
    again = load_head(folder)
    assert again.digest == head.digest
    assert again.encoding == head.encoding
    assert again.encoding.backbone == head.encoding.backbone
    assert (again.dataset, again.metrics, again.fit) == (head.dataset, head.metrics, head.fit)
    assert np.array_equal(again.decision(rows), head.decision(rows))
    assert np.array_equal(again.predict_proba(rows), head.predict_proba(rows))
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["README.md", "config.json", "model.safetensors"]
    assert [path.name for path in folder.parent.iterdir()] == ["head"]


@pytest.mark.parametrize("make", HEADS)
def test_the_card_is_one_that_the_hub_reads(make: Any, tmp_path: Path) -> None:
    head = make()
    card = ModelCard.load(head.save(tmp_path / "head") / "README.md")
    assert card.data.library_name == "probekit"
    assert card.data.base_model == "org/name"
    assert "linear-probe" in card.data.tags
    assert card.data.eval_results[0].task_type == "tabular-classification"
    (result,) = card.data.eval_results
    assert (result.dataset_name, result.metric_type, result.metric_value) == (
        "./photos",
        "accuracy",
        0.75,
    )
    assert head.digest in card.text
    bare = ModelCard.load(replace(head, metrics={}).save(tmp_path / "bare") / "README.md")
    assert bare.data.eval_results is None


@pytest.mark.parametrize(
    ("backbone", "base"),
    [
        ("open_clip:hf-hub:org/clip", "org/clip"),
        ("timm:resnet50", "timm/resnet50"),
        ("open_clip:ViT-B-32/laion2b", None),
        ("hf:/home/model", None),
        ("hf:./model", None),
        ("arrays", None),
    ],
)
def test_a_base_model_is_named_where_the_hub_has_it(
    tmp_path: Path, backbone: str, base: str | None
) -> None:
    head = linear_head(encoding=replace(ENCODING, backbone=backbone))
    card = ModelCard.load(head.save(tmp_path / "head") / "README.md")
    assert card.data.base_model == base


def test_saving_replaces_a_head_and_nothing_else(tmp_path: Path) -> None:
    linear_head().save(tmp_path / "head")
    labels_head().save(tmp_path / "head")
    assert load_head(tmp_path / "head").task == "labels"
    assert [path.name for path in tmp_path.iterdir()] == ["head"]
    (tmp_path / "empty").mkdir()
    linear_head().save(tmp_path / "empty")
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "bert"}')
    for place in (other, other / "config.json"):
        with pytest.raises(StorageError, match="other"):
            linear_head().save(place)
    assert [path.name for path in other.iterdir()] == ["config.json"]


def test_a_failed_save_leaves_the_old_head_and_nothing_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear_head().save(tmp_path / "head")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="full"):
        labels_head().save(tmp_path / "head")
    assert load_head(tmp_path / "head").task == "classes"
    assert [path.name for path in tmp_path.iterdir()] == ["head"]


def test_a_folder_without_a_head_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"config\.json"):
        load_head(tmp_path)
    folder = linear_head().save(tmp_path / "head")
    (folder / "model.safetensors").unlink()
    with pytest.raises(NotFoundError, match=r"model\.safetensors"):
        load_head(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_damage_is_seen(tmp_path: Path, name: str) -> None:
    path = linear_head().save(tmp_path / "head") / name
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"{}", b"[]", b'{"names": 3}'):
        path.write_bytes(damaged)
        with pytest.raises(CorruptError, match="head"):
            load_head(tmp_path / "head")


@pytest.mark.parametrize(
    "change",
    [
        {"names": ["cat", "dog", "cow"]},
        {"normalize": "l2"},
        {"task": "labels"},
        {"temperature": 0.4},
        {"encoding": {**ENCODING.to_dict(), "identity": {"weights": "bb"}}},
        {"encoding": None},
    ],
)
def test_changed_fields_are_seen(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = linear_head().save(tmp_path / "head")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(CorruptError, match="digest"):
        load_head(folder)


def test_changed_numbers_are_seen(tmp_path: Path) -> None:
    path = linear_head().save(tmp_path / "head") / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptError, match="digest"):
        load_head(tmp_path / "head")


def test_another_format_is_refused_with_the_versions(tmp_path: Path) -> None:
    folder = linear_head().save(tmp_path / "head")
    config = json.loads((folder / "config.json").read_text())
    newer = config | {"format": 7, "probekit": "9.1"}
    (folder / "config.json").write_text(json.dumps(newer))
    with pytest.raises(MismatchError, match=rf"7.*9\.1.*{config['probekit']}.*1"):
        load_head(folder)


@pytest.mark.parametrize("make", HEADS)
def test_embeddings_of_another_encoding_are_refused(make: Any, rows: NDArray[np.float32]) -> None:
    head = make()
    other = replace(ENCODING, identity={"weights": "bb", "view": "mean", "size": 224})
    with pytest.raises(MismatchError, match=r"differ in weights, view\b"):
        head.predict(encoded(rows, other))
    expected = head.decision(rows)
    triggered = replace(ENCODING, identity={**ENCODING.identity, "trigger": "square"})
    assert np.array_equal(head.decision(encoded(rows, triggered)), expected)
    renamed = replace(ENCODING, backbone="hf:other/name", dtype="float16")
    assert np.array_equal(head.decision(encoded(rows, renamed)), expected)
    free = replace(head, encoding=None)
    assert np.array_equal(free.decision(encoded(rows, other)), expected)


@pytest.mark.parametrize("make", HEADS)
def test_rows_that_are_not_finite_or_of_another_width_are_named(
    make: Any, rows: NDArray[np.float32]
) -> None:
    rows[4, 2] = np.nan
    rows[6] = np.inf
    with pytest.raises(InputError, match=r"2 hold.*\[4, 6\]"):
        make().predict(rows)
    with pytest.raises(InputError, match=r"\(n, 5\).*\(7, 4\)"):
        make().predict(rows[:, :4])
    with pytest.raises(InputError, match=r"\(5,\)"):
        make().predict(rows[0])


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({"weights": np.ones((5, 2))}, r"\(5, 2\)"),
        ({"intercept": np.ones(2)}, r"\(2,\)"),
        ({"weights": np.full((5, 3), np.nan)}, "NaN"),
        ({"temperature": 0.0}, "0.0"),
        ({"normalize": "L2"}, "L2"),
        ({"task": "regression"}, "regression"),
        ({"names": ()}, r"\(5, 3\)"),
    ],
)
def test_heads_that_cannot_be_are_refused(changes: dict[str, Any], value: str) -> None:
    with pytest.raises(InputError, match=value):
        linear_head(**changes)


class Hub:
    """Remembers what it was asked to do."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.files: dict[str, bytes] = {}

    def create_repo(self, **options: Any) -> None:
        self.calls.append(("create_repo", options))

    def upload_folder(self, *, folder_path: str, **options: Any) -> str:
        self.calls.append(("upload_folder", options))
        self.files = {path.name: path.read_bytes() for path in Path(folder_path).iterdir()}
        return "https://hub/org/head"


@pytest.mark.parametrize("make", HEADS)
def test_a_head_is_pushed_as_it_is_saved(make: Any, tmp_path: Path) -> None:
    hub = Hub()
    address = make().push_to_hub("org/head", private=True, api=hub)
    assert address == "https://hub/org/head"
    assert hub.calls == [
        ("create_repo", {"repo_id": "org/head", "private": True, "exist_ok": True}),
        ("upload_folder", {"repo_id": "org/head", "commit_message": "Upload head"}),
    ]
    for name, content in hub.files.items():
        (tmp_path / name).write_bytes(content)
    assert load_head(tmp_path).digest == make().digest


def test_the_real_client_of_the_hub_takes_these_calls() -> None:
    inspect.signature(HfApi.create_repo).bind(None, repo_id="a/b", private=True, exist_ok=True)
    upload = inspect.signature(HfApi.upload_folder)
    upload.bind(None, repo_id="a/b", folder_path=".", commit_message="x")


def test_a_head_on_the_hub_is_downloaded_or_said_to_be_out_of_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    with pytest.raises(OfflineError, match="hf:org/missing"):
        load_head("hf:org/missing")
    folder = linear_head().save(tmp_path / "head")
    calls = []

    def download(repo: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        calls.append((repo, revision, allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert load_head("hf:org/head@v1").digest == linear_head().digest
    assert calls == [("org/head", "v1", ["config.json", "model.safetensors"])]


def test_a_head_predicts_where_only_numpy_can_be_imported(
    tmp_path: Path, rows: NDArray[np.float32]
) -> None:
    folder = linear_head().save(tmp_path / "head")
    np.save(tmp_path / "rows.npy", rows)
    script = """
import sys
blocked = "torch transformers datasets sklearn scipy pandas faiss huggingface_hub"
for name in blocked.split():
    sys.modules[name] = None
import numpy as np
from probekit.heads import load_head
head = load_head(sys.argv[1])
rows = np.load(sys.argv[2])
print([head.predict(rows).tolist(), head.predict_proba(rows).tolist()])
head.save(sys.argv[1] + "-again")
assert not any(name.startswith("probekit.linear") for name in sys.modules)
"""
    command = [sys.executable, "-c", script, str(folder), str(tmp_path / "rows.npy")]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.stderr == ""
    labels, probabilities = json.loads(process.stdout)
    assert labels == linear_head().predict(rows).tolist()
    assert np.allclose(probabilities, linear_head().predict_proba(rows))
    assert load_head(tmp_path / "head-again").digest == linear_head().digest
