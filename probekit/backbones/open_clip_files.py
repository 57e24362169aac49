"""Weights files for open_clip: they carry neither activation nor preprocessing, so both are looked up."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import probekit.backbones.torchvision_operators  # noqa: F401

# isort: split
import open_clip

from probekit.errors import InputError, NotFoundError
from probekit.registry import nearest

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
QUICK = "-quickgelu"


def check_tag(arch: str, tag: str, *, config: dict[str, Any]) -> None:
    """Refuses weights that want QuickGELU for an architecture that says GELU; open_clip would only warn."""
    wanted = bool(open_clip.get_pretrained_cfg(arch, tag).get("quick_gelu"))
    if wanted and not config.get("quick_gelu") and not _ignores_quick_gelu(config):
        raise InputError(
            f"The weights {tag!r} were trained with QuickGELU, but {arch} computes GELU: embeddings would "
            f"be wrong. Write open_clip:{arch}{QUICK}/{tag}."
        )


def checked(arch: str, text: str, *, config: dict[str, Any]) -> Path:
    """The weights file of this name, if nothing that can be known about it contradicts the architecture."""
    file = Path(text).expanduser()
    if not file.is_file():
        raise NotFoundError(_unknown(arch, text))
    if file.suffix not in SUFFIXES:
        raise InputError(f"Cannot read weights from {file}: wanted one of {', '.join(SUFFIXES)}.")
    _refuse_torchscript(arch, file)
    quick = bool(config.get("quick_gelu")) and not _ignores_quick_gelu(config)
    _refuse_disagreeing_folder(file, quick)
    _refuse_disagreeing_tag(arch, file, config=config)
    _refuse_unpublished(arch, file, config=config)
    return file


def _ignores_quick_gelu(config: dict[str, Any]) -> bool:
    return "timm_model_name" in config["vision_cfg"]  # timm's towers bring their own activation


def _unknown(arch: str, text: str) -> str:
    if Path(text).suffix in SUFFIXES or text.startswith((".", "/", "~")) or "/" in text:
        return f"There is no weights file {text}. Correct the path after open_clip:{arch}/."
    tags = open_clip.list_pretrained_tags_by_model(arch)
    elsewhere = open_clip.list_pretrained_models_by_tag(text)
    hint = f" {text} exists for {', '.join(elsewhere[:4])}." if elsewhere else ""
    return f"open_clip has no weights {text!r} for {arch}, nor is that a file. {nearest(text, tags)}{hint}"


def _refuse_torchscript(arch: str, file: Path) -> None:
    if not zipfile.is_zipfile(file):
        return
    with zipfile.ZipFile(file) as archive:
        scripted = any(entry.endswith("/constants.pkl") or "/code/" in entry for entry in archive.namelist())
    if scripted:
        arch = arch.removesuffix(QUICK)
        raise InputError(
            f"{file} is a TorchScript archive, as OpenAI published its weights: it holds code, and its activation "
            f"(QuickGELU) would be lost. Write open_clip:{arch}{QUICK}/openai, which fetches the same weights."
        )


def _refuse_disagreeing_folder(file: Path, quick: bool) -> None:
    """A configuration beside the file says how its weights are to be used."""
    beside = file.parent / "open_clip_config.json"
    if not beside.is_file():
        return
    stated = json.loads(beside.read_text(encoding="utf-8"))
    differences = _differences(stated.get("preprocess_cfg", {}), _plain_file())
    wanted = bool(stated.get("model_cfg", {}).get("quick_gelu"))
    if wanted != quick and not _ignores_quick_gelu(stated.get("model_cfg", {"vision_cfg": {}})):
        differences.append(f"quick_gelu {wanted} (here {quick})")
    if differences:
        raise InputError(
            f"{beside} says how {file.name} is to be used, and a bare file loses it: {'; '.join(differences)}. Write "
            f"open_clip:local-dir:{file.parent}."
        )


def _refuse_disagreeing_tag(arch: str, file: Path, *, config: dict[str, Any]) -> None:
    """A file that open_clip publishes under a tag is used as that tag says."""
    quick = bool(config.get("quick_gelu"))
    for known, tag in open_clip.list_pretrained():
        published = open_clip.get_pretrained_cfg(known, tag)
        if not _published_as(file, published):
            continue
        differences = _differences(published, _plain_file())
        if bool(published.get("quick_gelu")) != quick and not _ignores_quick_gelu(config):
            differences.append(f"quick_gelu {bool(published.get('quick_gelu'))} (here {quick})")
        if differences:
            better = (
                known + QUICK if published.get("quick_gelu") and known + QUICK in open_clip.list_models() else known
            )
            raise InputError(
                f"{file.name} is what open_clip publishes as {known}/{tag}, and a bare file loses how it is to be "
                f"used: {'; '.join(differences)}. Write open_clip:{better}/{tag}."
            )
        return
    words = file.stem.lower().replace("_", "-")
    if not quick and not _ignores_quick_gelu(config) and ("quickgelu" in words or "openai" in words):
        raise InputError(
            f"{file.name} calls itself a file of weights for QuickGELU, but {arch} computes GELU. "
            f"Write open_clip:{arch}{QUICK}/{file}."
        )


def _refuse_unpublished(arch: str, file: Path, *, config: dict[str, Any]) -> None:
    """A bare file is used as open_clip does by default, unless no published weights of its kind are."""
    published = [open_clip.get_pretrained_cfg(arch, tag) for tag in open_clip.list_pretrained_tags_by_model(arch)]
    quick = bool(config.get("quick_gelu"))
    usual = (
        not _differences(cfg, _plain_file()) and (_ignores_quick_gelu(config) or bool(cfg.get("quick_gelu")) == quick)
        for cfg in published
    )
    if published and not any(usual):
        example = published[0]
        differences = _differences(example, _plain_file()) or [
            f"quick_gelu {bool(example.get('quick_gelu'))} (here {quick})"
        ]
        raise InputError(
            f"All published weights of {arch} are used otherwise than a bare file would be: {'; '.join(differences)}. "
            f"Put {file.name} into a folder with an open_clip_config.json and write open_clip:local-dir:FOLDER"
            + (f", or open_clip:{arch}{QUICK}/{file}." if arch + QUICK in open_clip.list_models() else ".")
        )


def _plain_file() -> dict[str, Any]:
    """The preprocessing open_clip gives to weights of which it knows nothing."""
    mean, std = open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD
    return {"mean": mean, "std": std, "interpolation": "bicubic", "resize_mode": "shortest"}


def _differences(stated: dict[str, Any], used: dict[str, Any]) -> list[str]:
    found = []
    for name, value in used.items():
        wanted = stated.get(name)
        plain = tuple(wanted) if isinstance(wanted, list) else wanted
        if plain is not None and plain != value:
            found.append(f"{name} {plain} (here {value})")
    return found


def _published_as(file: Path, published: dict[str, Any]) -> bool:
    """Whether this file, by its name or its place in the hub's cache, is the one that a tag fetches."""
    address = published.get("url", "").rpartition("/")[2]
    repository, _, stored = published.get("hf_hub", "").rpartition("/")
    if file.name in {address, stored} - {"", "open_clip_pytorch_model.bin", "open_clip_model.safetensors"}:
        return True
    return bool(repository) and f"models--{repository.replace('/', '--')}" in file.absolute().parts
