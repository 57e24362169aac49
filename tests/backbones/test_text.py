"""Each view of a text in a batch is what the library gives for that text alone."""

from __future__ import annotations

import json
import pickle
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from probekit.backbones import load_backbone
from probekit.backbones.module import TorchBackbone
from probekit.errors import InputError, NotFoundError
from probekit.testing import check_backbone
from tests.backbones.texts import MODELS, POSITIONS, VOCABULARY, hf, save_model, write_tokenizer

TEXTS = ["ab", "a longer text, of 30 letters.", "x", "seven words " * 8, "ba"]
PADDED = ("siglip", "siglip2")
CLEANED = ["ab", "a longer text of 30 letters", "x", " ".join(["seven words"] * 8), "ba"]
"""For SigLIP."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("texts")


def load(name: str, **options: Any) -> TorchBackbone:
    backbone = load_backbone(name, device="cpu", kind="text", **options)
    assert isinstance(backbone, TorchBackbone)
    return backbone


def encode(name: str, texts: list[str] = TEXTS, **options: Any) -> NDArray[np.float32]:
    backbone = load(name, **options)
    return backbone.encode([backbone.prepare(text) for text in texts])


def library_views(name: str, folder: Path, text: str) -> dict[str, torch.Tensor]:
    """All views of one text by the library's own class, without padding where it needs none."""
    facts = MODELS[name]
    model = getattr(hf, type(facts.make()).__name__).from_pretrained(folder).eval()
    tower = model.get_submodule(facts.tower)
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    padding = "max_length" if name in PADDED else False
    inputs = tokenizer(
        [text],
        truncation=True,
        max_length=facts.length or 1000,
        padding=padding,
        padding_side="right",
        return_tensors="pt",
    )
    if name in PADDED:
        inputs = {"input_ids": inputs["input_ids"]}
    with torch.inference_mode():
        outputs = tower(**inputs, output_hidden_states=True)
        state = outputs.last_hidden_state[0]
        views = {"mean": state.mean(0), "last": state[-1]}
        for number, layer in enumerate(outputs.hidden_states):
            views[f"layer:{number}.mean"] = layer[0].mean(0)
            views[f"layer:{number}.last"] = layer[0, -1]
            if facts.cls:
                views[f"layer:{number}.cls"] = layer[0, 0]
        if facts.cls:
            views["cls"] = state[0]
        if facts.pooled:
            views["pooled"] = outputs.pooler_output[0]
        if name.startswith(("clip", "siglip")) and facts.default == "proj":
            whole = model(**inputs) if name == "clip-projection" else None
            features = model.get_text_features(**inputs).pooler_output if whole is None else None
            views["proj"] = features[0] if whole is None else whole.text_embeds[0]
        if name in ("clip", "clip-projection"):
            views["pre"] = outputs.pooler_output[0]
    return views


@pytest.mark.parametrize("name", MODELS)
def test_every_view_is_the_librarys_own_vector_of_the_text_alone(name: str, root: Path) -> None:
    folder = save_model(name, root / name)
    texts = CLEANED if name in PADDED else TEXTS
    alone = [library_views(name, folder, text) for text in texts]
    expected = {view: torch.stack([views[view] for views in alone]).numpy() for view in alone[0]}
    default = load(f"hf:{folder}")
    assert (default.kind, list(default.views)) == ("text", [MODELS[name].default])
    listed: Any = default.description["other_views"]
    assert {view[1:] for view in listed if ":" not in view} - {"cls+mean"} == {
        view for view in expected if ":" not in view
    }
    for view, vectors in expected.items():
        if view.startswith("layer:") and not view.startswith("layer:1."):
            continue  # all of them: next test
        rows = encode(f"hf:{folder}#{view}")
        np.testing.assert_allclose(rows, vectors, atol=2e-5, rtol=1e-5, err_msg=f"{name}#{view}")
        assert np.abs(rows[1] - rows[3]).max() > 1e-3


PAGE = Path(__file__).parents[2] / "docs" / "backbones.md"
DOCUMENTED = {
    "intfloat/e5-base-v2": "bert",
    "google-bert/bert-base-uncased": "bert",
    "FacebookAI/roberta-base": "roberta",
    "microsoft/deberta-v3-base": "deberta-v2",
    "answerdotai/ModernBERT-base": "modernbert",
    "google-t5/t5-base": "t5",
    "openai-community/gpt2": "gpt2",
    "Qwen/Qwen3-0.6B-Base": "qwen3",
    "openai/clip-vit-base-patch32": "clip",
    "google/siglip-base-patch16-224": "siglip",
}
"""Checkpoints of the page, and the tiny model of each one's architecture."""


def test_the_page_shows_the_default_views() -> None:
    table = PAGE.read_text().split("## Texts")[1]
    rows = re.findall(r"\| `hf:([^`]+)` \| `#([^`]+)` \|", table)
    assert dict(rows) == {name: MODELS[model].default for name, model in DOCUMENTED.items()}


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "clip"])
def test_all_layers_come_out_of_one_pass(name: str, root: Path) -> None:
    folder = save_model(name, root / name)
    alone = [library_views(name, folder, text) for text in TEXTS]
    layers = [f"layer:{number}.last" for number in range(4)]
    backbone = load(f"hf:{folder}#layer:*.last")
    assert list(backbone.views) == layers
    joined = np.stack([np.concatenate([views[layer] for layer in layers]) for views in alone])
    rows = backbone.encode(TEXTS)
    np.testing.assert_allclose(rows, joined, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "siglip"])
def test_the_conformance_kit_accepts_text_encoders(name: str, root: Path) -> None:
    folder = save_model(name, root / name)
    measured = check_backbone(load(f"hf:{folder}"))
    assert measured.batch_difference < 1e-5


def test_a_checkpoint_without_its_pooler_has_no_pooled_view(root: Path) -> None:
    folder = save_model("bert-mlm", root / "bert-mlm")
    assert load(f"hf:{folder}").identity == load(f"hf:{folder}").identity
    with pytest.raises(NotFoundError):
        load(f"hf:{folder}#pooled")


def test_causal_models_have_no_class_token(root: Path) -> None:
    for name in ("llama", "clip"):
        with pytest.raises(NotFoundError):
            load(f"hf:{save_model(name, root / name)}#cls")


def test_the_kind_of_the_data_chooses_the_tower(root: Path, tmp_path: Path) -> None:
    folder = save_model("clip", tmp_path / "clip")
    size = {"height": 16, "width": 16}
    hf.CLIPImageProcessor(size=size, crop_size=size).save_pretrained(folder)
    pictures = load_backbone(f"hf:{folder}", device="cpu")
    texts = load(f"hf:{folder}")
    assert (pictures.kind, texts.kind) == ("image", "text")
    assert isinstance(pictures, TorchBackbone)
    assert pictures.temperature == texts.temperature
    model = hf.CLIPModel.from_pretrained(folder)
    assert texts.temperature == pytest.approx(1 / model.logit_scale.exp().item())
    bert = load_backbone(f"hf:{save_model('bert', root / 'bert')}", kind="image", device="cpu")
    assert bert.kind == "text"


def test_a_prompt_stands_before_every_text(root: Path) -> None:
    name = f"hf:{save_model('bert', root / 'bert')}"
    prompted = encode(name, prompt="query. ")
    by_hand = encode(name, [f"query. {text}" for text in TEXTS])
    np.testing.assert_allclose(prompted, by_hand, atol=1e-6)
    assert np.abs(prompted - encode(name)).max() > 1e-3


def test_texts_are_cut_to_the_maximal_length(root: Path) -> None:
    name = f"hf:{save_model('bert', root / 'bert')}"
    cut = encode(name, ["abcdefgh"], max_length=5)
    np.testing.assert_allclose(cut, encode(name, ["abc"]), atol=1e-6)
    long = "ab" * 100
    whole = encode(name, [long])
    np.testing.assert_allclose(whole, encode(name, [long[: POSITIONS - 2]]), atol=1e-6)


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2"])
def test_a_length_beyond_the_positions_is_refused(name: str, root: Path) -> None:
    folder = save_model(name, root / name)
    limit = MODELS[name].length
    assert limit is not None
    load(f"hf:{folder}", max_length=limit)
    with pytest.raises(InputError):
        load(f"hf:{folder}", max_length=limit + 1)


def test_siglip_reads_small_letters_and_no_punctuation(root: Path) -> None:
    name = f"hf:{save_model('siglip', root / 'siglip')}"
    rows = encode(name, ["AaA. 2", "aaa 2", "aaa 3"])
    assert np.array_equal(rows[0], rows[1])
    assert np.abs(rows[1] - rows[2]).max() > 1e-3


def test_a_model_of_fixed_length_takes_no_other(root: Path) -> None:
    with pytest.raises(InputError):
        load(f"hf:{save_model('siglip', root / 'siglip')}", max_length=8)


def test_the_tokenizers_own_length_counts_where_it_is_shorter(tmp_path: Path) -> None:
    folder = save_model("bert", tmp_path / "bert")
    write_tokenizer(folder, model_max_length=6)
    cut = encode(f"hf:{folder}", ["abcdefgh"])
    np.testing.assert_allclose(cut, encode(f"hf:{folder}", ["abcd"]), atol=1e-6)
    load(f"hf:{folder}", max_length=POSITIONS)


def test_the_identity_is_that_of_the_numbers(root: Path, tmp_path: Path) -> None:
    folder = save_model("bert", tmp_path / "bert")
    identity = load(f"hf:{folder}").identity
    assert json.dumps(dict(identity))
    assert load(f"hf:{save_model('bert', root / 'bert')}").identity == identity
    write_tokenizer(folder, padding_side="left")
    assert load(f"hf:{folder}").identity == identity
    changes: list[dict[str, Any]] = [{"prompt": "a"}, {"max_length": 7}]
    identities = [load(f"hf:{folder}", **change).identity for change in changes]
    document = json.loads((folder / "tokenizer.json").read_text())
    document["model"]["vocab"] |= {"a": VOCABULARY["b"], "b": VOCABULARY["a"]}
    (folder / "tokenizer.json").write_text(json.dumps(document))
    identities.append(load(f"hf:{folder}").identity)
    state = load_file(folder / "model.safetensors")
    state["encoder.layer.1.output.dense.bias"][0] += 1e-3
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    identities.append(load(f"hf:{folder}").identity)
    texts = {json.dumps(item, sort_keys=True) for item in [identity, *identities]}
    assert len(texts) == 5


def test_weights_that_would_be_random_are_refused(tmp_path: Path) -> None:
    folder = save_model("clip", tmp_path / "clip")
    state = load_file(folder / "model.safetensors")
    del state["text_model.encoder.layers.1.mlp.fc1.weight"]
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError):
        load(f"hf:{folder}")


def test_a_missing_projection_only_removes_its_views(tmp_path: Path) -> None:
    folder = save_model("clip", tmp_path / "clip")
    state = load_file(folder / "model.safetensors")
    del state["text_projection.weight"]
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    assert list(load(f"hf:{folder}").views) == ["last"]
    with pytest.raises(NotFoundError):
        load(f"hf:{folder}#proj")


def test_a_text_without_tokens_is_refused(root: Path) -> None:
    backbone = load(f"hf:{save_model('gpt2', root / 'gpt2')}")
    with pytest.raises(ValueError, match="no tokens"):
        backbone.encode(["a", ""])
    assert len(encode(f"hf:{save_model('bert', root / 'bert')}", ["a", ""])) == 2


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = save_model("bert", tmp_path / "bert")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(NotFoundError):
        load(f"hf:{folder}")
    if find_spec("sentencepiece") is None:
        write_tokenizer(folder, tokenizer_class="SiglipTokenizer")
        with pytest.raises(NotFoundError, match=r"^[^\n]*SentencePiece[^\n]*$"):
            load(f"hf:{folder}")


def test_options_of_texts_are_for_texts() -> None:
    for options in ({"prompt": "a"}, {"max_length": 3}):
        with pytest.raises(InputError):
            load_backbone("pixels", **options)  # type: ignore[arg-type]
        with pytest.raises(InputError):
            load_backbone(lambda texts: [[1.0]], kind="text", **options)  # type: ignore[arg-type]


def test_a_preset_of_pictures_is_no_option_of_texts(root: Path) -> None:
    with pytest.raises(InputError):
        load(f"hf:{save_model('bert', root / 'bert')}", preprocessing="f2l2-imagenet")


def test_workers_receive_the_preparation_alone(root: Path) -> None:
    backbone = load(f"hf:{save_model('bert', root / 'bert')}")
    assert pickle.loads(pickle.dumps(backbone.prepare))("a text") == "a text"
