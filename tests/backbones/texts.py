"""Tiny text models of real classes, and tokenizers of single characters, in the hub's format."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import probekit.backbones.module  # noqa: F401

# isort: split
import transformers

hf: Any = transformers
SPECIAL = ("<unk>", "<pad>", "<s>", "</s>")
CHARACTERS = "abcdefghijklmnopqrstuvwxyz 0123456789.,A"
VOCABULARY = {token: number for number, token in enumerate([*SPECIAL, *CHARACTERS])}
POSITIONS = 40
SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": POSITIONS,
    "vocab_size": len(VOCABULARY),
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
VISION = {**SIZES, "image_size": 16, "patch_size": 8}
DECODER: dict[str, Any] = {**SIZES, "num_key_value_heads": 1, "head_dim": 12}
T5: dict[str, Any] = {
    "d_model": 24,
    "d_kv": 12,
    "d_ff": 32,
    "num_layers": 3,
    "num_heads": 2,
    "vocab_size": len(VOCABULARY),
    "pad_token_id": 1,
}
BART: dict[str, Any] = {
    "d_model": 24,
    "encoder_layers": 3,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    **{key: SIZES[key] for key in ("max_position_embeddings", "vocab_size", "pad_token_id")},
}
GPT2: dict[str, Any] = {
    "n_embd": 24,
    "n_layer": 3,
    "n_head": 2,
    "n_positions": POSITIONS,
    **{key: SIZES[key] for key in ("vocab_size", "bos_token_id", "eos_token_id")},
}


@dataclass(frozen=True)
class TextModel:
    """What is known of a class from its source.

    before, after: the special tokens that its tokenizer adds.
    tower: where its text encoder is, in the library's class.
    length: the most tokens that it takes; None: any number.
    """

    make: Callable[[], Any]
    before: str = "<s>"
    after: str = "</s>"
    cls: bool = True
    pooled: bool = False
    default: str = "mean"
    tower: str = ""
    length: int | None = POSITIONS


def clip_like(family: str, **options: Any) -> Any:
    config = getattr(hf, f"{family}Config")(vision_config=VISION, text_config=SIZES, **options)
    return getattr(hf, f"{family}Model")(config)


DECODED: dict[str, Any] = {"before": "", "after": "", "cls": False, "default": "last"}
SHARED: dict[str, Any] = {"pooled": True, "default": "proj", "tower": "text_model", "cls": False}
MODELS = {
    "bert": TextModel(lambda: hf.BertModel(hf.BertConfig(**SIZES)), pooled=True),
    "bert-mlm": TextModel(lambda: hf.BertForMaskedLM(hf.BertConfig(**SIZES)), tower="bert"),
    "distilbert": TextModel(
        lambda: hf.DistilBertModel(
            hf.DistilBertConfig(
                dim=24,
                n_layers=3,
                n_heads=2,
                hidden_dim=32,
                max_position_embeddings=POSITIONS,
                vocab_size=len(VOCABULARY),
                pad_token_id=1,
            )
        )
    ),
    "roberta": TextModel(
        lambda: hf.RobertaModel(hf.RobertaConfig(**SIZES)), pooled=True, length=POSITIONS - 2
    ),
    "xlm-roberta": TextModel(
        lambda: hf.XLMRobertaModel(hf.XLMRobertaConfig(**SIZES)), pooled=True, length=POSITIONS - 2
    ),
    "mpnet": TextModel(
        lambda: hf.MPNetModel(hf.MPNetConfig(**SIZES)), pooled=True, length=POSITIONS - 2
    ),
    "deberta-v2": TextModel(
        lambda: hf.DebertaV2Model(
            hf.DebertaV2Config(**SIZES, relative_attention=True, pos_att_type=["p2c", "c2p"])
        )
    ),
    "modernbert": TextModel(
        lambda: hf.ModernBertModel(
            hf.ModernBertConfig(**SIZES, cls_token_id=2, sep_token_id=3, local_attention=8)
        )
    ),
    "t5": TextModel(
        lambda: hf.T5ForConditionalGeneration(hf.T5Config(**T5)),
        before="",
        cls=False,
        tower="encoder",
        length=None,
    ),
    "t5-encoder": TextModel(
        lambda: hf.T5EncoderModel(hf.T5Config(**T5)),
        before="",
        cls=False,
        tower="encoder",
        length=None,
    ),
    "bart": TextModel(lambda: hf.BartModel(hf.BartConfig(**BART)), tower="encoder"),
    "gpt2": TextModel(
        lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2)), **DECODED, tower="transformer"
    ),
    "llama": TextModel(
        lambda: hf.LlamaModel(hf.LlamaConfig(**DECODER)), "<s>", "", cls=False, default="last"
    ),
    "qwen3": TextModel(
        lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**DECODER)), **DECODED, tower="model"
    ),
    "clip": TextModel(lambda: clip_like("CLIP", projection_dim=16), **SHARED),
    "clip-projection": TextModel(
        lambda: hf.CLIPTextModelWithProjection(hf.CLIPTextConfig(**SIZES, projection_dim=16)),
        **SHARED,
    ),
    "clip-tower": TextModel(
        lambda: hf.CLIPTextModel(hf.CLIPTextConfig(**SIZES)), pooled=True, cls=False, default="last"
    ),
    "siglip": TextModel(lambda: clip_like("Siglip"), before="", **SHARED),
    "siglip2": TextModel(lambda: clip_like("Siglip2"), before="", **SHARED),
}


def make_model(name: str) -> Any:
    """A model whose weights all matter; many initial ones are zero or tiny."""
    torch.manual_seed(0)
    model = MODELS[name].make()
    perturb(model)
    return model.eval()


def perturb(model: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)


def write_tokenizer(
    folder: Path, *, before: str = "<s>", after: str = "</s>", **settings: object
) -> None:
    """A tokenizer of characters; it was saved with a truncation and a padding, as many are."""
    single = [{"Sequence": {"id": "A", "type_id": 0}}]
    if before:
        single.insert(0, {"SpecialToken": {"id": before, "type_id": 0}})
    if after:
        single.append({"SpecialToken": {"id": after, "type_id": 0}})
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    document = {
        "version": "1.0",
        "truncation": {
            "direction": "Right",
            "max_length": 4,
            "strategy": "LongestFirst",
            "stride": 0,
        },
        "padding": {
            "strategy": {"Fixed": 50},
            "direction": "Left",
            "pad_to_multiple_of": None,
            "pad_id": 1,
            "pad_type_id": 0,
            "pad_token": "<pad>",
        },
        "added_tokens": [
            {"id": VOCABULARY[token], "content": token, **flags, "special": True}
            for token in SPECIAL
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "[\\s\\S]"},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {
                token: {"id": token, "ids": [VOCABULARY[token]], "tokens": [token]}
                for token in ("<s>", "</s>")
            },
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": VOCABULARY, "unk_token": "<unk>"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(document))
    names = dict(zip(("unk_token", "pad_token", "bos_token", "eos_token"), SPECIAL, strict=True))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **names, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def save_model(name: str, folder: Path) -> Path:
    """A checkpoint as save_pretrained writes it, with its tokenizer."""
    if not folder.exists():
        make_model(name).save_pretrained(folder)
        write_tokenizer(folder, before=MODELS[name].before, after=MODELS[name].after)
    return folder
