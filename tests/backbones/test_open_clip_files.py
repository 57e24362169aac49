"""A weights file that something contradicts is refused, with the name to type instead."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from probekit.backbones import backbone, open_clip_files
from probekit.errors import InputError

# isort: split
import open_clip


@pytest.fixture(autouse=True, scope="module")
def mini_architecture(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A small architecture, known to open_clip beside its own."""
    vision = {"image_size": 32, "layers": 1, "width": 8, "head_width": 4, "patch_size": 16}
    text = {"context_length": 8, "vocab_size": 64, "width": 8, "heads": 2, "layers": 1}
    file = tmp_path_factory.mktemp("architecture") / "mini.json"
    file.write_text(json.dumps({"embed_dim": 4, "vision_cfg": vision, "text_cfg": text}))
    open_clip.add_model_config(file)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    file = tmp_path / "mine.pt"
    torch.save({"a": torch.zeros(1)}, file)
    return file


def checked(arch: str, file: Path) -> Path:
    return open_clip_files.checked(arch, str(file), config=open_clip.get_model_config(arch))


def test_a_file_of_which_nothing_is_known_is_accepted(weights: Path) -> None:
    assert checked("ViT-B-32", weights) == weights
    assert checked("ViT-B-32-quickgelu", weights) == weights


def test_a_torchscript_archive_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "ViT-B-32.pt"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("ViT-B-32/code/__torch__.py", "")
        archive.writestr("ViT-B-32/constants.pkl", b"")
    with pytest.raises(InputError, match=r"TorchScript.*open_clip:ViT-B-32-quickgelu/openai"):
        checked("ViT-B-32", file)


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"preprocess_cfg": {"mean": [0.5, 0.5, 0.5]}}, "mean"),
        ({"preprocess_cfg": {"resize_mode": "squash"}}, "resize_mode squash"),
        ({"model_cfg": {"quick_gelu": True, "vision_cfg": {}}}, "quick_gelu True"),
    ],
)
def test_a_configuration_beside_the_file_that_disagrees(weights: Path, stated: dict[str, Any], words: str) -> None:
    (weights.parent / "open_clip_config.json").write_text(json.dumps(stated))
    with pytest.raises(InputError, match=rf"{words}.*open_clip:local-dir:{weights.parent}"):
        checked("ViT-B-32", weights)


def test_a_configuration_beside_the_file_that_agrees(weights: Path) -> None:
    plain = {"mean": list(open_clip.OPENAI_DATASET_MEAN), "interpolation": "bicubic"}
    stated = {"model_cfg": {"vision_cfg": {}}, "preprocess_cfg": plain}
    (weights.parent / "open_clip_config.json").write_text(json.dumps(stated))
    assert checked("ViT-B-32", weights) == weights


@pytest.mark.parametrize(
    ("arch", "place", "instead"),
    [
        ("ViT-B-32", "vit_b_32-quickgelu-laion400m_e32-46683a32.pt", "ViT-B-32-quickgelu/laion400m_e32"),
        (
            "ViT-B-32",
            "models--timm--vit_base_patch32_clip_224.openai/snapshots/1/open_clip_model.safetensors",
            "ViT-B-32-quickgelu/openai",
        ),
        ("ViT-B-32", "my-openai-weights.pt", "ViT-B-32-quickgelu/"),
        ("ViT-B-16-SigLIP", "mine.pt", "local-dir:FOLDER"),
        ("RN50x4", "mine.pt", "RN50x4-quickgelu/"),
    ],
)
def test_a_file_that_is_known_to_be_used_otherwise(tmp_path: Path, arch: str, place: str, instead: str) -> None:
    file = tmp_path / place
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"a": torch.zeros(1)}, file)
    with pytest.raises(InputError, match=f"open_clip:{instead}"):
        checked(arch, file)
    if "quickgelu" in instead:
        assert checked(f"{arch}-quickgelu", file) == file


def test_a_pickle_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "whole.pt"
    torch.save(torch.nn.Linear(1, 1), file)
    with pytest.raises(InputError, match=r"more than tensors.*safetensors"):
        backbone(f"open_clip:mini/{file}")


def test_weights_of_another_architecture_are_refused(weights: Path) -> None:
    with pytest.raises(InputError, match="Cannot load open_clip:mini"):
        backbone(f"open_clip:mini/{weights}")


def test_another_ending_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.npz").write_bytes(b"")
    with pytest.raises(InputError, match=r"\.safetensors, \.pt"):
        checked("ViT-B-32", tmp_path / "weights.npz")


def test_every_published_tag_is_either_used_rightly_or_answered_with_a_name_that_is() -> None:
    for arch, tag in open_clip.list_pretrained():
        try:
            open_clip_files.check_tag(arch, tag, config=open_clip.get_model_config(arch))
        except InputError as error:
            better = str(error).rpartition("open_clip:")[2].removesuffix(".").split("/")
            assert open_clip.is_pretrained_cfg(*better)
            open_clip_files.check_tag(*better, config=open_clip.get_model_config(better[0]))
