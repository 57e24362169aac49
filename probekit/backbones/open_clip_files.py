"""Weights files for open_clip: they carry neither activation nor preprocessing, so both are looked up."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import probekit.backbones.torchvision_operators  # noqa: F401

# isort: split
import open_clip

from probekit.backbones import hub
from probekit.errors import InputError, NotFoundError
from probekit.registry import nearest

QUICK = "-quickgelu"


def check_tag(arch: str, tag: str, *, config: dict[str, Any]) -> None:
    """Refuses weights that want QuickGELU for an architecture that says GELU; open_clip would only warn."""
    wanted = bool(open_clip.get_pretrained_cfg(arch, tag).get("quick_gelu"))
    if wanted and _used(config).get("quick_gelu") is False:
        remedy = f"embeddings would be wrong. Write open_clip:{arch}{QUICK}/{tag}."
        raise InputError(f"The weights {tag!r} were trained with QuickGELU, but {arch} computes GELU: {remedy}")


def checked(arch: str, text: str, *, config: dict[str, Any]) -> Path:
    """The weights file of this name, if nothing that can be known about it contradicts the architecture."""
    if not ("/" in text or text.startswith((".", "~")) or Path(text).suffix in hub.SUFFIXES or Path(text).is_file()):
        tags, elsewhere = open_clip.list_pretrained_tags_by_model(arch), open_clip.list_pretrained_models_by_tag(text)
        hint = f" {text} exists for {', '.join(elsewhere[:4])}." if elsewhere else ""
        raise NotFoundError(
            f"open_clip has no weights {text!r} for {arch}, nor is that a file. {nearest(text, tags)}{hint}"
        )
    file, used = hub.weights_file(text, f"open_clip:{arch}"), _used(config)
    _refuse_torchscript(arch, file)
    _refuse_disagreeing_folder(file, used)
    _refuse_disagreeing_tag(arch, file, used)
    _refuse_unpublished(arch, file, used)
    return file


def _used(config: dict[str, Any]) -> dict[str, Any]:
    """How open_clip uses weights of which it knows nothing; timm's towers bring their own activation."""
    mean, std = open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD
    used = {"mean": mean, "std": std, "interpolation": "bicubic", "resize_mode": "shortest"}
    own = "timm_model_name" in config["vision_cfg"]
    return used if own else used | {"quick_gelu": bool(config.get("quick_gelu"))}


def _differences(stated: dict[str, Any], used: dict[str, Any]) -> str:
    """What weights are stated to need and would not get; what is not stated is open_clip's default."""
    needed = {"quick_gelu": False} | {
        name: tuple(value) if isinstance(value, list) else value for name, value in stated.items()
    }
    pairs = ((name, needed.get(name), value) for name, value in used.items())
    return "; ".join(f"{name} {need} (here {value})" for name, need, value in pairs if need not in (None, value))


def _refuse_torchscript(arch: str, file: Path) -> None:
    if not zipfile.is_zipfile(file):
        return
    with zipfile.ZipFile(file) as archive:
        scripted = any(entry.endswith("/constants.pkl") or "/code/" in entry for entry in archive.namelist())
    if scripted:
        remedy = f"Write open_clip:{arch.removesuffix(QUICK)}{QUICK}/openai, which fetches the same weights."
        raise InputError(f"{file} is a TorchScript archive: it holds code, and its QuickGELU would be lost. {remedy}")


def _refuse_disagreeing_folder(file: Path, used: dict[str, Any]) -> None:
    """A configuration beside the file says how its weights are to be used."""
    beside = file.parent / "open_clip_config.json"
    if not beside.is_file():
        return
    stated = json.loads(beside.read_text(encoding="utf-8"))
    model = stated.get("model_cfg", {})
    quick = None if "timm_model_name" in model.get("vision_cfg", ()) else bool(model.get("quick_gelu"))
    if differences := _differences({"quick_gelu": quick, **stated.get("preprocess_cfg", {})}, used):
        lost = f"{beside} says how {file.name} is to be used, and a bare file loses it: {differences}"
        raise InputError(f"{lost}. Write open_clip:local-dir:{file.parent}.")


def _refuse_disagreeing_tag(arch: str, file: Path, used: dict[str, Any]) -> None:
    """A file that open_clip publishes under a tag is used as that tag says."""
    for known, tag in open_clip.list_pretrained():
        published = open_clip.get_pretrained_cfg(known, tag)
        if not _published_as(file, published):
            continue
        if differences := _differences(published, used):
            quick = published.get("quick_gelu") and known + QUICK in open_clip.list_models()
            lost = f"{file.name} is what open_clip publishes as {known}/{tag}, and a bare file loses its use"
            raise InputError(f"{lost}: {differences}. Write open_clip:{known}{QUICK if quick else ''}/{tag}.")
        return
    words = file.stem.lower().replace("_", "-")
    if used.get("quick_gelu") is False and ("quickgelu" in words or "openai" in words):
        remedy = f"Write open_clip:{arch}{QUICK}/{file}."
        raise InputError(f"{file.name} calls itself weights for QuickGELU, but {arch} computes GELU. {remedy}")


def _refuse_unpublished(arch: str, file: Path, used: dict[str, Any]) -> None:
    """A bare file is used as open_clip does by default, unless no published weights of its kind are."""
    published = [open_clip.get_pretrained_cfg(arch, tag) for tag in open_clip.list_pretrained_tags_by_model(arch)]
    differences = [_differences(cfg, used) for cfg in published]
    if differences and all(differences):
        quick = f", or open_clip:{arch}{QUICK}/{file}" if arch + QUICK in open_clip.list_models() else ""
        raise InputError(
            f"All published weights of {arch} are used otherwise than a bare file would be: {differences[0]}. Put "
            f"{file.name} into a folder with an open_clip_config.json and write open_clip:local-dir:FOLDER{quick}."
        )


def _published_as(file: Path, published: dict[str, Any]) -> bool:
    """Whether this file, by its name or its place in the hub's cache, is the one that a tag fetches."""
    address = published.get("url", "").rpartition("/")[2]
    repository, _, stored = published.get("hf_hub", "").rpartition("/")
    if file.name in {address, stored} - {"", "open_clip_pytorch_model.bin", "open_clip_model.safetensors"}:
        return True
    return bool(repository) and f"models--{repository.replace('/', '--')}" in file.absolute().parts
