"""Zero-shot heads against open_clip's own classifier and the logits of transformers' models."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import probekit
import probekit.backbones.module

# isort: split
import open_clip
from open_clip.zero_shot_metadata import (
    IMAGENET_CLASSNAMES,
    OPENAI_IMAGENET_TEMPLATES,
    SIMPLE_IMAGENET_TEMPLATES,
)

from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError, MismatchError, NotFoundError
from probekit.probing.zero_shot import DEFAULT_TEMPLATES, read_templates, zero_shot_head
from tests.backbones.texts import hf, perturb, save_model

NAMES = ("cat", "grey_wolf", "sea lion", "t")
TEMPLATES = ("a photo of a {}.", "{}", "the {} in a {} house, 2")
TEXT = {"context_length": 20, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2}
VISION = {"image_size": 16, "layers": 2, "width": 24, "head_width": 12, "patch_size": 8}
PICTURES = [
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (20, 17, 3), np.uint8))
    for seed in range(12)
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def save_open_clip(folder: Path, **settings: object) -> str:
    """A small model in open_clip's format."""
    parts = {"embed_dim": 12, "vision_cfg": VISION, "text_cfg": TEXT}
    if not folder.exists():
        folder.mkdir()
        document = {"model_cfg": {**parts, **settings}, "preprocess_cfg": {}}
        (folder / "open_clip_config.json").write_text(json.dumps(document))
        torch.manual_seed(0)
        custom = settings == {"custom_text": True}
        model = open_clip.CustomTextCLIP(**parts) if custom else open_clip.CLIP(**parts)
        perturb(model)
        save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    return f"open_clip:local-dir:{folder}"


def save_transformers(family: str, folder: Path) -> str:
    if not folder.exists():
        save_model(family, folder)
        size = {"height": 16, "width": 16}
        processors = {"clip": hf.CLIPImageProcessor, "siglip": hf.SiglipImageProcessor}
        processors[family](size=size, crop_size=size).save_pretrained(folder)
    return f"hf:{folder}"


def encode_pictures(backbone: str, folder: Path) -> EmbeddingSet:
    labels = [NAMES[number % 4] for number in range(len(PICTURES))]
    options = probekit.ExtractOptions(device="cpu", workers=0)
    cache = probekit.Cache(folder)
    rows = probekit.extract((PICTURES, labels), backbone, cache=cache, options=options)
    assert isinstance(rows, EmbeddingSet)
    return rows


@pytest.mark.parametrize("settings", [{}, {"quick_gelu": True}, {"custom_text": True}])
@pytest.mark.parametrize("templates", ["simple", TEMPLATES])
def test_weights_are_those_of_open_clip(settings: Any, templates: Any, root: Path) -> None:
    name = save_open_clip(root / "-".join(["open", *settings]), **settings)
    head = zero_shot_head(name, NAMES, templates=templates)
    source = name.removeprefix("open_clip:")
    model = open_clip.create_model(source, require_pretrained=True).eval()
    prompts: Any = SIMPLE_IMAGENET_TEMPLATES
    if templates != "simple":
        prompts = [lambda text, each=each: each.replace("{}", text) for each in templates]
    expected = open_clip.build_zero_shot_classifier(
        model, open_clip.get_tokenizer(source), ["cat", "grey wolf", "sea lion", "t"], prompts
    )
    np.testing.assert_allclose(head.weights, expected.numpy(), atol=1e-6)
    assert head.names == NAMES
    assert head.temperature == pytest.approx(1 / model.logit_scale.exp().item())


def test_probabilities_are_those_of_open_clip(root: Path, tmp_path: Path) -> None:
    name = save_open_clip(root / "open")
    rows = encode_pictures(name, tmp_path)
    head = zero_shot_head(name, NAMES, encoding=rows.encoding)
    source = name.removeprefix("open_clip:")
    model, _, transform = open_clip.create_model_and_transforms(source)
    prompts = [f"a photo of a {text}." for text in ("cat", "grey wolf", "sea lion", "t")]
    with torch.inference_mode():
        pixels = torch.stack([transform(picture) for picture in PICTURES])
        logits, _ = model.eval().get_logits(pixels, open_clip.get_tokenizer(source)(prompts))
    np.testing.assert_allclose(head.predict_proba(rows), logits.softmax(1).numpy(), atol=1e-5)
    assert (head.predict(rows) == logits.argmax(1).numpy()).all()


@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_predictions_are_those_of_transformers(family: str, root: Path, tmp_path: Path) -> None:
    name = save_transformers(family, root / family)
    rows = encode_pictures(name, tmp_path)
    head = zero_shot_head(rows.encoding.backbone, NAMES, encoding=rows.encoding)
    folder = name.removeprefix("hf:")
    model = hf.AutoModel.from_pretrained(folder).eval()
    processor = hf.AutoImageProcessor.from_pretrained(folder, backend="pil")
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    prompts = [f"a photo of a {text}." for text in ("cat", "grey wolf", "sea lion", "t")]
    inputs = dict(processor(images=PICTURES, return_tensors="pt"))
    options: dict[str, Any] = {"padding": True, "padding_side": "right"}
    if family == "siglip":
        options = {"padding": "max_length", "max_length": 40, "padding_side": "right"}
        prompts = [text.removesuffix(".") for text in prompts]
    texts = tokenizer(prompts, return_tensors="pt", truncation=True, **options)
    if family == "siglip":
        texts = {"input_ids": texts["input_ids"]}
    with torch.inference_mode():
        outputs = model(**inputs, **texts)
    logits = outputs.logits_per_image
    cosines = (
        torch.nn.functional.normalize(outputs.image_embeds)
        @ torch.nn.functional.normalize(outputs.text_embeds).mT
    )
    np.testing.assert_allclose(head.decision(rows), cosines.numpy(), atol=1e-5)
    assert (head.predict(rows) == logits.argmax(1).numpy()).all()
    np.testing.assert_allclose(head.predict_proba(rows), logits.softmax(1).numpy(), atol=1e-4)
    assert len(set(head.predict(rows).tolist())) > 1


def test_templates_are_averaged_as_directions(root: Path) -> None:
    name = save_transformers("clip", root / "clip")
    together = zero_shot_head(name, NAMES, templates=TEMPLATES).weights
    alone = [zero_shot_head(name, NAMES, templates=[each]).weights for each in TEMPLATES]
    mean = np.mean(alone, axis=0)
    np.testing.assert_allclose(together, mean / np.linalg.norm(mean, axis=0), atol=1e-6)


def test_imagenets_classes_are_named_by_number(root: Path) -> None:
    name = save_transformers("clip", root / "clip")
    numbers = [str(number) for number in range(1000)]
    head = zero_shot_head(name, numbers, prompt_names="openai-imagenet", templates=["{}"])
    assert head.names == tuple(numbers)
    twice = [text for text, count in Counter(IMAGENET_CLASSNAMES).items() if count == 2]
    for text in twice:
        first, second = (i for i in range(1000) if IMAGENET_CLASSNAMES[i] == text)
        np.testing.assert_allclose(head.weights[:, first], head.weights[:, second], atol=1e-6)
    assert len(twice) == 2


def test_templates_come_by_name_from_files_and_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "templates.txt"
    file.write_text("a {}.\n\n  the {}  \n", "utf-8")
    assert read_templates(file) == read_templates(str(file)) == ["a {}.", "the {}"]
    assert read_templates("openai-imagenet") == tuple(OPENAI_IMAGENET_TEMPLATES)
    assert read_templates(DEFAULT_TEMPLATES) == DEFAULT_TEMPLATES
    with pytest.raises(InputError):
        read_templates(["a photo"])
    with pytest.raises(InputError):
        read_templates([])
    with pytest.raises(NotFoundError):
        read_templates("openai")


def test_names_for_prompts_come_from_a_file(root: Path, tmp_path: Path) -> None:
    name = save_transformers("clip", root / "clip")
    file = tmp_path / "names.txt"
    file.write_text("domestic cat\nwolf\nsea lion\nt\n", "utf-8")
    head = zero_shot_head(name, NAMES, prompt_names=file)
    same = zero_shot_head(name, ["domestic cat", "wolf", "sea lion", "t"])
    assert head.names == NAMES
    assert np.array_equal(head.weights, same.weights)
    with pytest.raises(InputError):
        zero_shot_head(name, NAMES[:3], prompt_names=file)
    with pytest.raises(InputError):
        zero_shot_head(name, [])


def test_only_the_shared_space_of_a_model_of_both_will_do(root: Path, tmp_path: Path) -> None:
    name = save_transformers("clip", root / "clip")
    with pytest.raises(InputError):
        zero_shot_head(f"{name}#cls", NAMES)
    inner = encode_pictures(f"{name}#mean", tmp_path)
    with pytest.raises(InputError):
        zero_shot_head(name, NAMES, encoding=inner.encoding)
    head = zero_shot_head(name, NAMES, encoding=encode_pictures(name, tmp_path).encoding)
    with pytest.raises(MismatchError):
        head.predict(inner)
    for other in ("pixels", f"hf:{save_model('bert', root / 'bert')}"):
        with pytest.raises((InputError, NotFoundError)):
            zero_shot_head(other, NAMES)


def test_a_saved_head_predicts_the_same(root: Path, tmp_path: Path) -> None:
    name = save_transformers("siglip", root / "siglip")
    rows = encode_pictures(name, tmp_path)
    head = zero_shot_head(name, NAMES, encoding=rows.encoding)
    head.save(tmp_path / "head")
    stored = probekit.load_head(tmp_path / "head")
    assert np.array_equal(stored.predict_proba(rows), head.predict_proba(rows))
