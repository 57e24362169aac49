"""The recipe for the paper's probes on tiny stand-ins: pictures; small CLIP and BLIP-2 of the real classes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import probekit.backbones.torchvision_operators  # noqa: F401 before open_clip
from probekit.bench.cells import BenchPlace
from probekit.bench.reading import narrowed, read
from probekit.bench.results import result_of
from probekit.bench.running import BenchRun

TEXT = {"context_length": 8, "vocab_size": 64, "width": 16, "heads": 2, "layers": 1}
VISION = {"image_size": 32, "layers": 1, "width": 24, "head_width": 12, "patch_size": 8}


@pytest.fixture
def clip(tmp_path: Path) -> str:
    """A small CLIP in the hub's format."""
    import open_clip

    home = tmp_path / "clip"
    home.mkdir()
    config = {"embed_dim": 12, "vision_cfg": VISION, "text_cfg": TEXT}
    (home / "tiny-recipe.json").write_text(json.dumps(config))
    open_clip.add_model_config(home)
    torch.manual_seed(0)
    model = open_clip.create_model("tiny-recipe").eval()
    (home / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": {}}))
    save_file(model.state_dict(), home / "open_clip_model.safetensors")
    return f"open_clip:local-dir:{home}"


@pytest.fixture
def blip2(tmp_path: Path) -> str:
    """A small BLIP-2 in the hub's format, with the view that the recipe takes."""
    import transformers

    hub: Any = transformers
    hub.utils.logging.disable_progress_bar()
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = hub.Blip2Config(
        vision_config={**sizes, "image_size": 32, "patch_size": 8},
        qformer_config={**sizes, "encoder_hidden_size": 24, "vocab_size": 64},
        text_config={
            "model_type": "opt",
            "hidden_size": 24,
            "word_embed_proj_dim": 24,
            "ffn_dim": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "vocab_size": 64,
        },
        num_query_tokens=4,
        image_text_hidden_size=16,
    )
    torch.manual_seed(0)
    model = hub.Blip2ForConditionalGeneration(config)
    with torch.no_grad():
        for weight in model.parameters():  # many of the first ones are zero
            weight.add_(torch.randn(weight.shape) * 0.1)
    model.save_pretrained(tmp_path / "blip2")
    hub.BlipImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path / "blip2")
    return f"hf:{tmp_path / 'blip2'}#qformer.mean"


@pytest.mark.parametrize(
    ("name", "model", "view", "published"),
    [
        ("DomainNet-10, CLIP", "clip", "", ((89.72, 0.38), (8.86, 0.953))),
        ("Flowers, BLIP-2", "blip2", "#qformer.mean", ((97.11, 0.07), (12.45, 1.54))),
    ],
)
def test_the_recipe_of_the_papers_probes(
    name: str, model: str, view: str, published: tuple[Any, ...], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    stand_in: str = request.getfixturevalue(model)
    generator = np.random.default_rng(0)
    for number, kind in enumerate(("birds", "cars", "trees")):
        place = tmp_path / "pictures" / kind
        place.mkdir(parents=True)
        for row in range(40):
            pixels = generator.integers(0, 90, (16, 16, 3), dtype=np.uint8)
            pixels[..., number] += 120
            Image.fromarray(pixels).save(place / f"{row}.png")
    whole = narrowed(read("probes-paper", scale="quick"), [name, "fedremoval"])
    [recipe] = whole.settings
    assert recipe.data.backbone.endswith(view)
    data = replace(recipe.data, set=f"folder:{tmp_path / 'pictures'}", backbone=stand_in, rows=None, test_rows=None)
    trainer = "fedavg:rounds=5,local_steps=none,local_epochs=1,batch_size=32,learning_rate=1e-2,optimiser=adam"
    trained = replace(recipe.model, trainer=trainer)
    small = replace(recipe, data=data, model=trained, clients=replace(recipe.clients, number=3))
    run = BenchRun(replace(whole, settings=(small,)), BenchPlace(tmp_path / "cache"))
    run.run()
    found = result_of(run)
    rows = {row.method: row for row in found.rows}
    assert {"nothing", "exact", "retrain", "retrain-fedavg", "fedremoval"} <= rows.keys()
    assert all(not row.errors for row in rows.values())
    assert rows["exact"].mean("distance") == pytest.approx(0, abs=1e-9)
    assert rows["retrain-fedavg"].published == published  # the paper's, beside ours
    assert 0 < (rows["retrain-fedavg"].mean("seeds_apart") or 0) < 1  # minibatches depend on the seed
