"""Which tensor a view of a transformers model is. The first view of a family is its default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from probekit.errors import InputError

Read = Callable[[Any, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class View:
    """A transformers class, how to read the embedding out of it, and its parts that this does not need."""

    model: str
    read: Read
    unused: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """The views of one kind of model. `others` begin the names of weights of other parts of a checkpoint."""

    views: Mapping[str, View]
    others: tuple[str, ...]
    packed: bool = False


def _output(name: str) -> Read:
    """Reads one of the model's outputs."""
    return lambda model, pixels: getattr(model(pixel_values=pixels), name)


_pooled, _projected, _tokens = _output("pooler_output"), _output("image_embeds"), _output("last_hidden_state")


def _cls(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    return _tokens(model, pixels)[:, 0]


def _patch_mean(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    """The mean over the patches, without the class token and the registers that may stand before them."""
    return _tokens(model, pixels)[:, 1 + getattr(model.config, "num_register_tokens", 0) :].mean(dim=1)


def _token_mean(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    return _tokens(model, pixels).mean(dim=1)


def unpacked(samples: torch.Tensor) -> dict[str, torch.Tensor]:
    """SigLIP 2's three inputs out of the one tensor that `packed` made of them."""
    return {
        "pixel_values": samples[:, :, :-3],
        "pixel_attention_mask": samples[:, :, -3].int(),
        "spatial_shapes": samples[:, 0, -2:].long(),
    }


def packed(inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Patches, mask and grid of one picture in one tensor (n, p + 3), so that a sample stays an array."""
    patches, mask, grid = (inputs[name][0] for name in ("pixel_values", "pixel_attention_mask", "spatial_shapes"))
    return torch.cat([patches, mask[:, None].to(patches), grid.to(patches).expand(len(patches), 2)], dim=1)


def _packed_pooled(model: Any, samples: torch.Tensor) -> torch.Tensor:
    return cast(torch.Tensor, model(**unpacked(samples)).pooler_output)


def _packed_mean(model: Any, samples: torch.Tensor) -> torch.Tensor:
    inputs = unpacked(samples)
    mask = inputs["pixel_attention_mask"][:, :, None].float()
    return cast(torch.Tensor, (model(**inputs).last_hidden_state * mask).sum(dim=1) / mask.sum(dim=1))


def _queries(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    """The Q-Former's outputs (b, queries, d)."""
    seen = model.vision_model(pixel_values=pixels).last_hidden_state
    mask = torch.ones(seen.shape[:2], dtype=torch.long, device=seen.device)
    queries = model.query_tokens.expand(len(seen), -1, -1)
    read = model.qformer(query_embeds=queries, encoder_hidden_states=seen, encoder_attention_mask=mask)
    return cast(torch.Tensor, read.last_hidden_state)


def _query_read(query: int) -> Read:
    return lambda model, pixels: _queries(model, pixels)[:, query]


def _query_mean(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    return _queries(model, pixels).mean(dim=1)


def _query_projected(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    """The projection of the first query, not normalised: that is left to whoever fits."""
    return cast(torch.Tensor, model.vision_projection(_queries(model, pixels)[:, 0]))


BLIP2 = "Blip2VisionModelWithProjection"
TOWER = ("vision_projection", "qformer", "query_tokens")

_clip = Family(
    views={
        "proj": View("CLIPVisionModelWithProjection", _projected),
        "pre": View("CLIPVisionModel", _pooled),
        "cls": View("CLIPVisionModel", _cls),
        "mean": View("CLIPVisionModel", _patch_mean),
    },
    others=("text_model.", "text_projection.", "visual_projection.", "logit_scale", "classifier."),
)
_siglip = Family(
    views={"pooled": View("SiglipVisionModel", _pooled), "mean": View("SiglipVisionModel", _token_mean)},
    others=("text_model.", "logit_", "classifier."),
)
_siglip2 = Family(
    views={"pooled": View("Siglip2VisionModel", _packed_pooled), "mean": View("Siglip2VisionModel", _packed_mean)},
    others=("text_model.", "logit_", "classifier."),
    packed=True,
)
_vit = Family(
    views={
        "cls": View("ViTModel", _cls, options={"add_pooling_layer": False}),
        "mean": View("ViTModel", _patch_mean, options={"add_pooling_layer": False}),
        "pooled": View("ViTModel", _pooled, options={"add_pooling_layer": True}),
    },
    others=("classifier.", "pooler.", "vit.pooler.", "decoder.", "embeddings.mask_token", "vit.embeddings.mask_token"),
)
_blip2 = Family(
    views={
        "qformer.0": View(BLIP2, _query_read(0), unused=("vision_projection",)),
        "qformer.mean": View(BLIP2, _query_mean, unused=("vision_projection",)),
        "cls": View(BLIP2, lambda model, pixels: _cls(model.vision_model, pixels), unused=TOWER),
        "mean": View(BLIP2, lambda model, pixels: _patch_mean(model.vision_model, pixels), unused=TOWER),
        "proj": View(BLIP2, _query_projected),
    },
    others=("language_model.", "language_projection.", "itm_head.", "text_projection.", "embeddings."),
)


def _dinov2(model: str) -> Family:
    return Family(views={"cls": View(model, _cls), "mean": View(model, _patch_mean)}, others=("classifier.",))


FAMILIES = {"blip-2": _blip2, "clip": _clip, "siglip": _siglip, "siglip2": _siglip2, "vit": _vit}
FAMILIES |= {f"{name}_vision_model": FAMILIES[name] for name in ("clip", "siglip", "siglip2")}
FAMILIES |= {"dinov2": _dinov2("Dinov2Model"), "dinov2_with_registers": _dinov2("Dinov2WithRegistersModel")}


def family(model_type: str) -> Family:
    """The family of this model type, as its config.json names it."""
    if model_type not in FAMILIES:
        remedy = "Wrap it in a function of your own and name it py:module:factory."
        raise InputError(f"hf: reads the types {', '.join(FAMILIES)}; found {model_type!r}. {remedy}")
    return FAMILIES[model_type]


def view(name: str | None, config: Any) -> tuple[str, View]:
    """The view of this name, or the family's default; BLIP-2 has one for each of its queries."""
    known = family(config.model_type)
    chosen = name or next(iter(known.views))
    queries = range(config.num_query_tokens if known is _blip2 else 0)
    views = {f"qformer.{query}": View(BLIP2, _query_read(query), unused=("vision_projection",)) for query in queries}
    views |= known.views
    if chosen in views:
        return chosen, views[chosen]
    names = ", ".join(f"#{view}" for view in known.views)
    more = f", #qformer.N with N below {len(queries)}" if queries else ""
    raise InputError(f"A checkpoint of type {config.model_type!r} has no view #{chosen}. It has: {names}{more}.")
