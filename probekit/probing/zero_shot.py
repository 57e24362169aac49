"""Zero-shot classifiers: heads made of the texts that name the classes.

A text per class and template is encoded by the text tower of the model that encoded the pictures.
Vectors are normalized, averaged over the templates and normalized again, as CLIP does.
Probabilities are a softmax over the classes for SigLIP too; its bias is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from probekit.arrays import Array, Json, digest, unit_rows
from probekit.backbones import load_backbone
from probekit.embeddings import Encoding
from probekit.errors import InputError, NotFoundError
from probekit.extraction.extract import ExtractOptions
from probekit.heads import Head
from probekit.probing.options import DEFAULT_TEMPLATES
from probekit.progress import Progress, Step, silent
from probekit.registry import Name, nearest

Template = str | Callable[[str], str]
"""A text with {} in the place of the class, or a function of the class."""

IMAGENET = "openai-imagenet"
SIMPLE = "simple"
VIEW = "proj"
BATCH = 64
"""Texts encoded at once."""


def zero_shot_head(
    backbone: str,
    class_names: Sequence[str],
    *,
    prompt_names: Sequence[str] | str | Path | None = None,
    templates: Sequence[Template] | str | Path = DEFAULT_TEMPLATES,
    encoding: Encoding | None = None,
    options: ExtractOptions | None = None,
    progress: Progress = silent,
) -> Head:
    """The head whose weights are the directions of the classes' texts, (d, k).

    backbone: the model that encoded the pictures, `open_clip:...` or `hf:...`, with `#proj` or
        without a view.
    class_names: what the head calls its classes.
    prompt_names: what the texts call them, in the same order; a file with a line for each, or
        "openai-imagenet" (its 1,000 classes). Default: class_names, with spaces for underscores.
    templates: texts with {}, a file with a line for each, or those of CLIP by name:
        "openai-imagenet" (80), "simple" (7).
    encoding: of the pictures' embeddings; the head refuses others.
    """
    from probekit.backbones.module import TorchBackbone

    texts = _prompt_names(class_names, prompt_names)
    prompts = read_templates(templates)
    name = Name.parse(backbone)
    view = VIEW if encoding is None else encoding.identity.get("view")  # None of vectors
    if view != VIEW or name.view not in (VIEW, None):
        raise InputError(
            f"Zero-shot needs embeddings in the space that pictures and texts share, #{VIEW} of "
            f"CLIP or SigLIP; found {backbone}. Encode with such a model and view "
            f"(-b open_clip:ViT-B-32/laion2b_s34b_b79k#{VIEW})."
        )
    options = options or ExtractOptions()
    encoder = load_backbone(
        str(Name(name.scheme, name.name, name.revision, VIEW)),
        device=options.device,
        precision=options.precision,
        kind="text",
    )
    if not isinstance(encoder, TorchBackbone) or encoder.temperature is None:
        raise InputError(
            f"Zero-shot needs a model of pictures and texts, such as CLIP or SigLIP; {backbone} "
            "is none. Choose another backbone (-b open_clip:ViT-B-32/laion2b_s34b_b79k)."
        )
    columns: list[Array] = []
    step = max(1, (options.batch_size or BATCH) // len(prompts))  # classes at once
    for start in range(0, len(texts), step):
        part = texts[start : start + step]
        rows = encoder.encode([fill(template, text) for text in part for template in prompts])
        columns += [unit_rows(each).mean(axis=0) for each in np.split(rows, len(part))]
        progress(Step("encoding class names", len(columns), len(texts)))
    weights = unit_rows(np.stack(columns)).T
    fit: dict[str, Json] = {
        "head": "zero-shot",
        "templates": len(prompts),
        "prompts": digest([fill(template, text) for text in texts for template in prompts]),
        "text_weights": encoder.identity["weights"],
    }
    return Head(
        weights=np.ascontiguousarray(weights),
        intercept=np.zeros(len(texts)),
        names=tuple(class_names),
        normalize="l2",
        temperature=encoder.temperature,
        encoding=encoding,
        fit=fit,
    )


def fill(template: Template, name: str) -> str:
    """A prompt; only {} is replaced, so that other braces stay."""
    return template.replace("{}", name) if isinstance(template, str) else template(name)


def read_templates(templates: Sequence[Template] | str | Path) -> Sequence[Template]:
    """Templates by their name, from a file, or as they are."""
    if templates in (IMAGENET, SIMPLE):
        import probekit.backbones.module  # noqa: F401, lets open_clip import torchvision

        # isort: split
        from open_clip import zero_shot_metadata

        named = {
            IMAGENET: zero_shot_metadata.OPENAI_IMAGENET_TEMPLATES,
            SIMPLE: zero_shot_metadata.SIMPLE_IMAGENET_TEMPLATES,
        }
        return tuple(named[str(templates)])
    prompts: Sequence[Template]
    if isinstance(templates, str | Path):
        prompts = _read_lines(templates, [IMAGENET, SIMPLE])
    else:
        prompts = tuple(templates)
    wrong = [text for text in prompts if isinstance(text, str) and "{}" not in text]
    if wrong or not prompts:
        found = repr(wrong[0]) if wrong else "none"
        raise InputError(
            f"A template must have {{}} where the class goes, as 'a photo of a {{}}.'; found "
            f"{found}. Correct it."
        )
    return prompts


def _prompt_names(
    class_names: Sequence[str], prompt_names: Sequence[str] | str | Path | None
) -> Sequence[str]:
    """What prompts call the classes, by their numbers: ImageNet's names are not all distinct."""
    texts: Sequence[str]
    if prompt_names is None:
        texts = [name.replace("_", " ") for name in class_names]
    elif prompt_names == IMAGENET:
        import probekit.backbones.module  # noqa: F401

        # isort: split
        from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES

        texts = IMAGENET_CLASSNAMES
    elif isinstance(prompt_names, str | Path):
        texts = _read_lines(prompt_names, [IMAGENET])
    else:
        texts = list(prompt_names)
    if len(texts) != len(class_names) or not texts:
        raise InputError(
            f"prompt_names must name the {len(class_names)} classes, in their order; found "
            f"{len(texts)}. Correct the list."
        )
    return texts


def _read_lines(source: str | Path, names: list[str]) -> list[str]:
    path = Path(source).expanduser()
    if not path.is_file():
        raise NotFoundError(
            f"{path} is no file with a text in each line. {nearest(str(source), names)}"
        )
    return [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
