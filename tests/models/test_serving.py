"""Heads in folders, on a pretended Hub, and at work without torch."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.errors import CorruptError, InputError, MismatchError, NotFoundError, StorageError
from probekit.models.heads import LinearHead
from probekit.models.serving import load_head, predict, push_to_hub, save_head, scores
from probekit.values import EmbeddingSet, EncodingSpec, Json, content_id

SPEC = EncodingSpec("hf:org/name@abc#cls", "aa", {"size": 224}, "cls")


def made(*, view: str = "raw", spec: EncodingSpec | None = SPEC) -> LinearHead:
    """A head of three classes on five numbers."""
    params = np.random.default_rng(0).standard_normal((6, 3))
    recipe: dict[str, Json] = {"head": "ridge", "exact_unlearning": True, "backbone": SPEC.backbone}
    recipe |= {"spec": spec.identity} if spec else {}
    digest = spec.digest if spec else ""
    return LinearHead(params, ("cat", "dög", 'a "b"'), 0.1, view=view, spec_digest=digest, recipe=recipe)


def encoded(rows: NDArray[Any], *, spec: EncodingSpec = SPEC) -> EmbeddingSet:
    """Rows as an embedding set."""
    ids = [content_id("test", str(number).encode()) for number in range(len(rows))]
    return EmbeddingSet(spec, rows, np.full(len(rows), -1), ids)


@pytest.fixture
def rows() -> NDArray[np.float32]:
    """Seven embeddings."""
    return np.random.default_rng(1).standard_normal((7, 5)).astype(np.float32)


@pytest.mark.parametrize("view", ["raw", "l2"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_scores_are_the_affine_map(rows: NDArray[np.float32], view: str, dtype: type) -> None:
    head, rows = made(view=view), rows.astype(dtype)
    found = scores(head, encoded(rows))
    for row, score in zip(rows.astype(np.float64), found, strict=True):
        seen = row / np.linalg.norm(row) if view == "l2" else row
        assert np.allclose(score, [*seen, 1] @ head.params)
    assert predict(head, rows).tolist() == found.argmax(axis=1).tolist()


def test_a_head_comes_back_from_its_folder(tmp_path: Path, rows: NDArray[np.float32]) -> None:
    head = made(view="l2")
    folder = save_head(head, tmp_path / "deep" / "head")
    back = load_head(folder)
    assert back.digest == head.digest
    assert back.recipe == head.recipe
    assert back.ridge == head.ridge
    assert np.array_equal(scores(back, rows), scores(head, rows))
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert [path.name for path in folder.parent.iterdir()] == ["head"]


def test_the_card_has_the_front_matter_that_the_hub_reads(tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    card = ModelCard.load(save_head(made(), tmp_path / "head") / "README.md")
    assert card.data.library_name == "probekit"
    assert card.data.base_model == "org/name"
    assert "linear-probe" in (card.data.tags or [])
    assert made().digest in card.text


@pytest.mark.parametrize(
    ("backbone", "base"),
    [
        ("open_clip:hf-hub:org/clip", "org/clip"),
        ("timm:resnet50", "timm/resnet50"),
        ("open_clip:ViT-B-32/laion2b", None),
        ("hf:/home/somebody/model", None),
        ("", None),
    ],
)
def test_a_base_model_is_named_where_the_hub_has_it(tmp_path: Path, backbone: str, base: str | None) -> None:
    from huggingface_hub import ModelCard

    head = dataclasses.replace(made(), recipe={"backbone": backbone})
    card = ModelCard.load(save_head(head, tmp_path / "head") / "README.md")
    assert card.data.base_model == base


def test_saving_again_replaces_a_head_and_nothing_else(tmp_path: Path) -> None:
    save_head(made(), tmp_path / "head")
    save_head(made(view="l2"), tmp_path / "head")
    assert load_head(tmp_path / "head").view == "l2"
    assert [path.name for path in tmp_path.iterdir()] == ["head"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("years of work")
    with pytest.raises(StorageError, match="holds no head"):
        save_head(made(), tmp_path / "other")
    assert (tmp_path / "other" / "thesis.txt").exists()
    with pytest.raises(StorageError, match="holds no head"):
        save_head(made(), tmp_path / "other" / "thesis.txt")


def test_a_failed_save_leaves_the_old_head_and_no_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_head(made(), tmp_path / "head")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="disk is full"):
        save_head(made(view="l2"), tmp_path / "head")
    assert load_head(tmp_path / "head").view == "raw"
    assert [path.name for path in tmp_path.iterdir()] == ["head"]


def test_a_folder_without_a_head_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"config\.json is missing"):
        load_head(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_damage_is_seen(tmp_path: Path, name: str) -> None:
    path = save_head(made(), tmp_path / "head") / name
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"{}", b"[]"):
        path.write_bytes(damaged)
        with pytest.raises(CorruptError, match="again"):
            load_head(tmp_path / "head")


def test_changed_numbers_and_classes_are_seen(tmp_path: Path) -> None:
    folder = save_head(made(), tmp_path / "head")
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)
    with pytest.raises(CorruptError, match="not the one that was written"):
        load_head(folder)
    folder = save_head(made(), tmp_path / "second")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"classes": ["cat", "dog", "cow"]}))
    with pytest.raises(CorruptError, match="not the one that was written"):
        load_head(folder)
    (folder / "config.json").write_text(json.dumps(config | {"format": 2}))
    with pytest.raises(MismatchError, match="format 2"):
        load_head(folder)


def test_embeddings_of_another_encoding_are_refused(rows: NDArray[np.float32]) -> None:
    other = dataclasses.replace(SPEC, view="mean", weights="bb")
    with pytest.raises(MismatchError, match="differ in weights, view"):
        scores(made(), encoded(rows, spec=other))
    with pytest.raises(MismatchError, match="Encode with the head's backbone"):
        scores(dataclasses.replace(made(), recipe={}), encoded(rows, spec=other))
    assert len(scores(made(spec=None), encoded(rows, spec=other))) == 7


def test_triggered_pictures_of_the_same_encoding_are_scored(rows: NDArray[np.float32]) -> None:
    triggered = dataclasses.replace(SPEC, trigger="square")
    assert np.array_equal(scores(made(), encoded(rows, spec=triggered)), scores(made(), rows))


def test_rows_without_scores_are_named(rows: NDArray[np.float32]) -> None:
    rows[4] = np.nan
    with pytest.raises(InputError, match="row 4 is not finite"):
        predict(made(), rows)
    rows[2] = 0
    with pytest.raises(InputError, match="row 2 is not finite or has no direction"):
        predict(made(view="l2"), rows)
    with pytest.raises(InputError, match="rows of 5 numbers"):
        predict(made(), rows[:, :4])


class Hub:
    """Remembers what it was asked to do."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.files: dict[str, bytes] = {}

    def create_repo(self, **options: Any) -> None:
        """Note it."""
        self.calls.append(("create_repo", options))

    def upload_folder(self, *, folder_path: str, **options: Any) -> str:
        """Note it, and read the files."""
        self.calls.append(("upload_folder", options))
        self.files = {path.name: path.read_bytes() for path in Path(folder_path).iterdir()}
        return "https://hub/somebody/head"


def test_a_head_is_pushed_as_it_is_saved(tmp_path: Path) -> None:
    hub = Hub()
    address = push_to_hub(made(), "somebody/head", private=True, api=hub)
    assert address == "https://hub/somebody/head"
    assert hub.calls == [
        ("create_repo", {"repo_id": "somebody/head", "private": True, "exist_ok": True}),
        ("upload_folder", {"repo_id": "somebody/head", "commit_message": "Upload head"}),
    ]
    for name, content in hub.files.items():
        (tmp_path / name).write_bytes(content)
    assert load_head(tmp_path).digest == made().digest


def test_the_real_hub_client_takes_these_calls() -> None:
    import inspect

    from huggingface_hub import HfApi

    inspect.signature(HfApi.create_repo).bind(None, repo_id="a/b", private=True, exist_ok=True)
    inspect.signature(HfApi.upload_folder).bind(None, repo_id="a/b", folder_path=".", commit_message="x")


def test_a_head_predicts_where_torch_cannot_be_imported(tmp_path: Path, rows: NDArray[np.float32]) -> None:
    folder = save_head(made(), tmp_path / "head")
    np.save(tmp_path / "rows.npy", rows)
    script = """
import sys
for name in ("torch", "transformers", "datasets", "sklearn", "scipy", "huggingface_hub"):
    sys.modules[name] = None
import numpy as np
from probekit.models.serving import load_head, predict
print(predict(load_head(sys.argv[1]), np.load(sys.argv[2])).tolist())
"""
    command = [sys.executable, "-c", script, str(folder), str(tmp_path / "rows.npy")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.stderr == ""
    assert json.loads(run.stdout) == predict(made(), rows).tolist()
