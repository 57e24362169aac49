"""Folders of sentence-transformers, old and of version 6, against poolings written as loops."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from probekit.backbones import load_backbone
from probekit.backbones.module import TorchBackbone
from probekit.errors import InputError, NotFoundError, OfflineError
from tests.backbones.texts import hf, save_model, write_tokenizer

TEXTS = ["ab", "a longer text, of 30 letters.", "x", "seven words " * 8, "ba"]
OLD = "sentence_transformers.models"
NEW = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
}
FORWARD = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
LINEAR = np.random.default_rng(3).normal(size=(8, 24)).astype(np.float32)
BIAS = np.arange(8, dtype=np.float32)


def write_json(file: Path, document: object) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(document))


def save(folder: Path, pooling: dict[str, Any], *, model: str = "bert", new: bool = False) -> Path:
    """Transformer, Pooling, Dense and Normalize, as the library wrote them then or writes them."""
    save_model(model, folder)
    names = ["Transformer", "Pooling", "Dense", "Normalize"]
    paths = ["", "1_Pooling", "2_Dense", "3_Normalize"]
    types = [NEW[name] if new else f"{OLD}.{name}" for name in names]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (path, kind) in enumerate(zip(paths, types, strict=True))
    ]
    write_json(folder / "modules.json", modules[::-1])
    write_json(folder / "1_Pooling" / "config.json", pooling)
    dense: dict[str, Any] = {"in_features": 24, "out_features": 8, "bias": True}
    dense["activation_function"] = "torch.nn.modules.activation.Tanh"
    if new:
        keys = {"module_input_name": "sentence_embedding"}
        keys["module_output_name"] = "sentence_embedding"
        write_json(folder / "3_Normalize" / "config.json", keys)
        dense |= keys
        settings: dict[str, Any] = {"transformer_task": "feature-extraction"}
        settings |= {"modality_config": FORWARD, "module_output_name": "token_embeddings"}
        write_tokenizer(folder, model_max_length=12)
    else:
        settings = {"max_seq_length": 12, "do_lower_case": False}
    write_json(folder / "sentence_bert_config.json", settings)
    write_json(folder / "2_Dense" / "config.json", dense)
    state = {"linear.weight": torch.tensor(LINEAR), "linear.bias": torch.tensor(BIAS)}
    save_file(state, folder / "2_Dense" / "model.safetensors")
    return folder


def load(name: object, **options: Any) -> TorchBackbone:
    backbone = load_backbone(f"st:{name}", device="cpu", **options)
    assert isinstance(backbone, TorchBackbone)
    return backbone


@torch.inference_mode()
def token_vectors(folder: Path, text: str, length: int = 12) -> NDArray[np.float64]:
    model = hf.BertModel.from_pretrained(folder).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer([text], truncation=True, max_length=length, padding=False)
    ids = torch.tensor(inputs["input_ids"])
    return np.asarray(model(input_ids=ids).last_hidden_state[0], np.float64)


def behind(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    """Dense with its tanh, and Normalize."""
    values = np.tanh(LINEAR[:, : len(vector)] @ vector + BIAS)
    return values / math.sqrt(float(values @ values))


def weighted(tokens: NDArray[np.float64]) -> NDArray[np.float64]:
    total = sum((number + 1) * token for number, token in enumerate(tokens))
    return np.asarray(total / sum(range(1, len(tokens) + 1)))


POOLINGS: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "cls": lambda tokens: tokens[0],
    "max": lambda tokens: tokens.max(0),
    "mean": lambda tokens: tokens.mean(0),
    "mean_sqrt_len_tokens": lambda tokens: tokens.sum(0) / math.sqrt(len(tokens)),
    "weightedmean": weighted,
    "lasttoken": lambda tokens: tokens[-1],
}
OLD_KEYS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


def old_pooling(mode: str) -> dict[str, Any]:
    flags = {key: name == mode for name, key in OLD_KEYS.items()}
    return {"word_embedding_dimension": 24, **flags}


def new_pooling(mode: Any, **settings: Any) -> dict[str, Any]:
    return {"embedding_dimension": 24, "pooling_mode": mode, "include_prompt": True, **settings}


@pytest.mark.parametrize("mode", POOLINGS)
def test_both_forms_pool_as_written(mode: str, tmp_path: Path) -> None:
    old = save(tmp_path / "old", old_pooling(mode))
    new = save(tmp_path / "new", new_pooling(mode), new=True)
    expected = [behind(POOLINGS[mode](token_vectors(old, text))) for text in TEXTS]
    backbones = [load(old), load(new)]
    for backbone in backbones:
        assert (backbone.kind, backbone.views) == ("text", {"pooled": 8})
        np.testing.assert_allclose(backbone.encode(TEXTS), expected, atol=1e-5)
    assert backbones[0].identity == backbones[1].identity


def test_several_poolings_are_joined(tmp_path: Path) -> None:
    folder = save(tmp_path / "st", new_pooling(["max", "cls"]), new=True)
    modules = json.loads((folder / "modules.json").read_text())
    write_json(folder / "modules.json", [item for item in modules if item["idx"] < 2])
    tokens = [token_vectors(folder, text) for text in TEXTS]
    expected = [np.concatenate([item.max(0), item[0]]) for item in tokens]
    np.testing.assert_allclose(load(folder).encode(TEXTS), expected, atol=1e-5)
    write_json(folder / "1_Pooling" / "config.json", old_pooling("cls") | {OLD_KEYS["max"]: True})
    expected = [np.concatenate([item[0], item.max(0)]) for item in tokens]
    np.testing.assert_allclose(load(folder).encode(TEXTS), expected, atol=1e-5)


def test_a_prompt_may_be_left_out_of_the_pooling(tmp_path: Path) -> None:
    folder = save(tmp_path / "st", new_pooling("mean", include_prompt=False), new=True)
    prompts = {"prompts": {"query": "ask ", "passage": ""}, "default_prompt_name": "query"}
    write_json(folder / "config_sentence_transformers.json", prompts)
    tokens = [token_vectors(folder, f"ask {text}") for text in TEXTS]
    expected = [behind(item[5:].mean(0)) for item in tokens]  # <s> and four characters
    default = load(folder)
    np.testing.assert_allclose(default.encode(TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(load(folder, prompt="ask ").encode(TEXTS), expected, atol=1e-5)
    assert default.description["prompts"] == prompts["prompts"]
    without = [behind(token_vectors(folder, text).mean(0)) for text in TEXTS]
    bare = load(folder, prompt="")
    np.testing.assert_allclose(bare.encode(TEXTS), without, atol=1e-5)
    assert bare.identity != default.identity


def test_length_and_small_letters_are_settings(tmp_path: Path) -> None:
    folder = save(tmp_path / "st", old_pooling("mean"))
    expected = [behind(token_vectors(folder, text, 7).mean(0)) for text in TEXTS]
    np.testing.assert_allclose(load(folder, max_length=7).encode(TEXTS), expected, atol=1e-5)
    capitals = load(folder).encode(["AA", "aa"])
    assert np.abs(capitals[0] - capitals[1]).max() > 1e-3
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 12, "do_lower_case": True})
    lowered = load(folder)
    assert np.array_equal(*lowered.encode(["AA", "aa"]))
    assert lowered.identity != load(folder, max_length=7).identity


def test_the_transformers_own_views_are_there(tmp_path: Path) -> None:
    folder = save(tmp_path / "st", old_pooling("mean"))
    for view in ("mean", "cls", "last", "layer:2.mean"):
        inside = load_backbone(f"hf:{folder}#{view}", max_length=12, device="cpu")
        own = load(f"{folder}#{view}")
        assert np.array_equal(own.encode(TEXTS), inside.encode(TEXTS))


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("1_Pooling/config.json", {"pooling_mode": "attention"}),
        ("2_Dense/config.json", {"activation_function": "evil.Activation"}),
        ("2_Dense/config.json", {"activation_function": "torch.nn.functional"}),
        ("2_Dense/config.json", {"use_residual": True}),
        ("2_Dense/config.json", {"module_input_name": "token_embeddings"}),
        ("3_Normalize/config.json", {"module_input_name": "token_embeddings"}),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}),
        ("sentence_bert_config.json", {"module_output_name": "sentence_embedding"}),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {"padding": True}}}),
        ("sentence_bert_config.json", {"model_args": {"some": "thing"}}),
        ("sentence_bert_config.json", {"modality_config": {"image": {}}}),
    ],
)
def test_what_is_not_read_is_refused(file: str, change: dict[str, Any], tmp_path: Path) -> None:
    folder = save(tmp_path / "st", new_pooling("mean"), new=True)
    document = json.loads((folder / file).read_text())
    write_json(folder / file, {**document, **change})
    with pytest.raises(InputError):
        load(folder)


@pytest.mark.parametrize("kinds", [["LSTM"], ["WeightedLayerPooling"], ["Dropout"]])
def test_other_modules_are_refused_by_name(kinds: list[str], tmp_path: Path) -> None:
    folder = save(tmp_path / "st", old_pooling("mean"))
    modules = json.loads((folder / "modules.json").read_text())
    for number, kind in enumerate(kinds):
        modules.append({"idx": 9 + number, "path": "", "type": f"{OLD}.{kind}"})
    write_json(folder / "modules.json", modules)
    with pytest.raises(InputError, match=kinds[0]):
        load(folder)


def test_a_hub_name_resolves_through_the_local_cache(tmp_path: Path, publish: Any) -> None:
    folder = save(tmp_path / "st", old_pooling("mean"))
    commit = publish(folder, "org/tiny")
    backbone = load("org/tiny")
    assert backbone.commit == commit
    assert np.array_equal(backbone.encode(TEXTS), load(folder).encode(TEXTS))
    with pytest.raises(OfflineError):
        load("org/absent")
    publish(save_model("bert", tmp_path / "bert"), "org/bert")
    with pytest.raises(NotFoundError, match="hf:org/bert"):
        load("org/bert")
    with pytest.raises(NotFoundError):
        load(tmp_path)
