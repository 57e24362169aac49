"""Datasets of texts through extraction: their key, repeated texts, texts without tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import probekit
from probekit.backbones import load_backbone
from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError, SampleError
from tests.backbones.texts import save_model

TEXTS = ["ab", "a longer text", "x", "ab", "seven words " * 8]
LABELS = ["b", "a", "a", "b", "a"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def extract(texts: list[str], backbone: str, folder: Path, **options: str) -> EmbeddingSet:
    rows = probekit.extract(
        (texts, LABELS[: len(texts)]),
        backbone,
        cache=probekit.Cache(folder),
        options=probekit.ExtractOptions(device="cpu", **options),  # type: ignore[arg-type]
    )
    assert isinstance(rows, EmbeddingSet)
    return rows


def test_texts_become_rows_in_their_order(root: Path, tmp_path: Path) -> None:
    name = f"hf:{save_model('bert', root / 'bert')}"
    rows = extract(TEXTS, name, tmp_path)
    expected = load_backbone(name, kind="text", device="cpu").encode(TEXTS)
    np.testing.assert_allclose(np.asarray(rows.rows), expected, atol=1e-6)
    assert rows.class_names == ("a", "b")
    assert len(np.unique(rows.ids, axis=0)) == 4


def test_a_prompt_is_part_of_the_key(root: Path, tmp_path: Path) -> None:
    name = f"hf:{save_model('bert', root / 'bert')}"
    plain = extract(TEXTS, name, tmp_path)
    prompted = extract(TEXTS, name, tmp_path, prompt="ask ")
    assert plain.encoding.digest != prompted.encoding.digest
    assert (plain.ids == prompted.ids).all()
    by_hand = extract([f"ask {text}" for text in TEXTS], name, tmp_path)
    np.testing.assert_allclose(np.asarray(prompted.rows), np.asarray(by_hand.rows), atol=1e-6)


def test_a_text_without_tokens_is_named_or_skipped(root: Path, tmp_path: Path) -> None:
    name = f"hf:{save_model('gpt2', root / 'gpt2')}"
    texts = ["ab", "", "abc"]
    with pytest.raises(SampleError, match="no tokens"):
        extract(texts, name, tmp_path)
    rows = extract(texts, name, tmp_path, on_error="skip")
    assert (len(rows), len(rows.skipped)) == (2, 1)


def test_pictures_are_no_texts(root: Path, tmp_path: Path) -> None:
    name = f"hf:{save_model('bert', root / 'bert')}"
    pictures = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    with pytest.raises(InputError):
        probekit.extract((pictures, ["a", "b"]), name, cache=probekit.Cache(tmp_path))
