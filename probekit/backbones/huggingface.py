"""Vision towers of transformers checkpoints: `hf:ORG/NAME[@REVISION]` or `hf:FOLDER`, and a `#view`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import probekit.backbones.torchvision_operators  # noqa: F401

# isort: split
import torch
import transformers
from torch import nn

from probekit.backbones import hub, huggingface_views
from probekit.backbones.huggingface_views import Family, View
from probekit.backbones.module import FrozenModule
from probekit.backbones.preprocessing import Preprocess, choose_preprocess, picture_preprocess
from probekit.errors import InputError, NotFoundError
from probekit.protocols import Reference
from probekit.values import Json, canonical

RESAMPLING = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Pillow's numbers for its filters, as preprocessor_config.json writes them."""

INCIDENTAL = {"_name_or_path", "architectures", "auto_map", "dtype", "id2label", "label2id", "problem_type"}
INCIDENTAL |= {"torch_dtype", "transformers_version"}
"""Entries of a configuration that do not change what the model computes."""


def load(reference: Reference) -> FrozenModule:
    """The vision part of a checkpoint, and nothing else of it."""
    with _quiet(), hub.translating(reference):
        source, revision = _source(reference)
        config = transformers.AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)
        name, view = huggingface_views.view(reference.view, config)
        packed = huggingface_views.family(config.model_type).packed
        native, size = _native(_processor(reference, source, revision), packed=packed)
        module = _module(reference, view, source=source, revision=revision, config=config)
        preprocess, architecture = choose_preprocess(reference.preset, native, size=size), _architecture(view, config)
        stated: dict[str, Any] = {"name": str(reference), "view": name, "architecture": architecture}
        return FrozenModule(module, preprocess, read=view.read, **stated)


@contextmanager
def _quiet() -> Iterator[None]:
    """Loading reports go to nobody: what matters in them is raised."""
    log: Any = transformers.utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


def _source(reference: Reference) -> tuple[str, str | None]:
    """A folder or a hub name, and the revision; a folder's own name may hold an @."""
    whole = f"{reference.name}@{reference.revision}" if reference.revision else reference.name
    for text, revision in ((whole, None), (reference.name, reference.revision)):
        folder = Path(text).expanduser()
        if folder.is_dir():
            if revision is not None:
                raise InputError(f"{folder} is a folder, and folders have no revisions. Leave out @{revision}.")
            if not (folder / "config.json").is_file():
                raise NotFoundError(f"{folder} holds no config.json. Name a folder made by save_pretrained.")
            return str(folder), None
    if reference.name.startswith((".", "/", "~")) or reference.name.count("/") != 1:
        raise NotFoundError(f"There is no folder {whole}. Correct the path, or write hf:ORG/NAME[@REVISION].")
    return reference.name, reference.revision


def _module(reference: Reference, view: View, *, source: str, revision: str | None, config: Any) -> nn.Module:
    part = config
    if config.model_type in ("clip", "siglip", "siglip2"):
        part = config.vision_config
    if config.model_type == "clip":  # the whole model's projection is the one that counts, whatever its parts say
        part.projection_dim = config.projection_dim
    options = {"config": part, "revision": revision, "trust_remote_code": False, "weights_only": True, **view.options}
    model, info = getattr(transformers, view.model).from_pretrained(source, output_loading_info=True, **options)
    _refuse_random(reference, view, info, huggingface_views.family(config.model_type))
    for part_name in view.unused:
        delattr(model, part_name)
    return cast(nn.Module, model)


def _refuse_random(reference: Reference, view: View, info: Mapping[str, Any], family: Family) -> None:
    """transformers fills what a checkpoint lacks with random numbers, and goes on."""
    lacking = sorted(key for key in info["missing_keys"] if not key.startswith(view.unused))
    if lacking:
        found = f"lacks {len(lacking)} of the weights that this view reads ({', '.join(lacking[:3])})"
        others = ", ".join(f"#{name}" for name in family.views)
        raise InputError(f"{reference} {found}; they would be random. Choose another view ({others}) or checkpoint.")
    left = sorted(key for key in info["unexpected_keys"] if not key.startswith(family.others))
    if left:
        found = f"holds {len(left)} weights that its config.json has no place for ({', '.join(left[:3])})"
        raise InputError(f"{reference} {found}. Configuration and weights do not belong together: fetch both anew.")


def _processor(reference: Reference, source: str, revision: str | None) -> Any:
    auto: Any = transformers.AutoImageProcessor
    try:
        return auto.from_pretrained(source, revision=revision, trust_remote_code=False)
    except (OSError, ValueError) as error:
        problem = hub.translated(error, reference)
        if type(problem) is not InputError:
            raise problem from error
        remedy = "Save the processor that it was trained with into the same folder."
        raise NotFoundError(
            f"{reference} is without an image processor (preprocessor_config.json). {remedy}"
        ) from error


@dataclass(frozen=True)
class ProcessorCall:
    """A transformers image processor as a function from one picture to one tensor."""

    processor: Any
    packed: bool

    def __call__(self, picture: Any) -> torch.Tensor:
        inputs = self.processor(images=picture, return_tensors="pt")
        return huggingface_views.packed(inputs) if self.packed else cast(torch.Tensor, inputs["pixel_values"][0])


def _native(processor: Any, *, packed: bool) -> tuple[Preprocess, tuple[int, int] | None]:
    """The checkpoint's own preprocessing, and the height and width it makes (None: grids of patches)."""
    stated = _plain({key: value for key, value in processor.to_dict().items() if not key.startswith("_")})
    for key in ("image_processor_type", "feature_extractor_type", "processor_class", "auto_map"):
        stated.pop(key, None)
    if isinstance(stated.get("resample"), int):
        stated["resample"] = RESAMPLING[stated["resample"]]
    # the same class name stands for other arithmetic in other versions of transformers
    lineage = {kind.__name__ for kind in type(processor).__mro__}
    fast = type(processor).__name__.endswith("Fast") or "TorchvisionBackend" in lineage
    backend = "torchvision" if fast else "pillow"
    values: dict[str, Json] = {"library": "transformers", "processor": type(processor).__name__, "backend": backend}
    native = picture_preprocess(ProcessorCall(processor, packed), **values, **stated)
    return native, None if packed else _size(stated)


def _size(stated: dict[str, Any]) -> tuple[int, int]:
    box = stated.get("crop_size") if stated.get("do_center_crop") else stated.get("size")
    if not box or "height" not in box or "width" not in box:
        found = f"The checkpoint's image processor makes pictures of varying size (size {stated.get('size')}, no crop)"
        raise InputError(f"{found}. Set crop_size and do_center_crop in its preprocessor_config.json.")
    return int(box["height"]), int(box["width"])


def _architecture(view: View, config: Any) -> str:
    """What the weights do not tell, out of the configuration of the parts that are used."""
    parts = [getattr(config, "vision_config", config)]
    if config.model_type == "blip-2" and "qformer" not in view.unused:
        parts.append(config.qformer_config)
    stated = [{key: value for key, value in part.to_dict().items() if key not in INCIDENTAL} for part in parts]
    return canonical({"library": "transformers", "model": view.model, "parts": [_plain(part) for part in stated]})


def _plain(entries: dict[str, Any]) -> dict[str, Any]:
    return cast(dict[str, Any], json.loads(json.dumps(entries, default=str)))
