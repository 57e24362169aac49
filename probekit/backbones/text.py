"""Text encoders of transformers: encoders, decoders, and the text towers of CLIP and SigLIP.

Texts are tokenized where they are encoded, a batch at a time, and padded on the right with a mask
(decoders and some encoders give other numbers for padding on the left). `#mean` and `#last` are of
the tokens that the mask shows; the special tokens of the tokenizer are among them.

SigLIP was trained without a mask, on texts padded to its whole length: there all tokens count. Its
texts become small letters without punctuation, as its authors and open_clip evaluate it: the
checkpoints of SigLIP 2 name a tokenizer that keeps capitals, which it was not trained on.
"""

from __future__ import annotations

import inspect
import json
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from probekit.arrays import Json, digest
from probekit.backbones import checkpoint
from probekit.backbones.hub import translate
from probekit.backbones.module import Options, Preprocessing, TorchBackbone
from probekit.backbones.views import Vectors, near, view_backbone
from probekit.data.pictures import CANARY_TEXTS
from probekit.errors import InputError, NotFoundError
from probekit.registry import Name

# isort: split
import transformers

PADDED_TYPES = {"siglip_text_model", "siglip2_text_model"}
"""Model types that were trained on texts padded to their whole length, without a mask."""
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
PROJECTION = "text_projection"
TOWER = "text_model"
NO_LIMIT = 1_000_000
"""Tokenizers without a length say 1e30."""
NO_TOKENIZER = (
    "{name} has no tokenizer that transformers can load ({cause}). Install what it "
    "needs, or save the one that it was trained with into the same folder."
)


def canonicalize(text: str) -> str:
    """Small letters, single spaces, no punctuation, as big_vision does for prompts."""
    return " ".join(text.replace("_", " ").translate(NO_PUNCTUATION).lower().split())


CLEAN: Mapping[str, Callable[[str], str]] = {
    "none": str,
    "lower": str.lower,
    "canonicalize": canonicalize,
}


@dataclass(frozen=True)
class Tokenization:
    """Texts to the inputs of a model.

    max_length: texts are cut to so many tokens, special ones included.
    is_padded: to max_length always, without a mask.
    clean: what is done to a text first: one of CLEAN.
    inputs: the names that the model takes.
    """

    tokenizer: Any
    prompt: str
    max_length: int | None
    is_padded: bool
    inputs: frozenset[str]
    clean: str = "none"

    def __call__(self, texts: Sequence[str]) -> tuple[dict[str, Tensor], Tensor]:
        """The model's inputs, and the mask of the tokens that count, (n, tokens)."""
        clean = CLEAN[self.clean]
        encoded = self.tokenizer(
            [clean(self.prompt + text) for text in texts],
            truncation=self.max_length is not None,
            max_length=self.max_length,
            padding="max_length" if self.is_padded else False,
            padding_side="right",
            verbose=False,
        )
        rows = {name: [torch.tensor(row) for row in encoded[name]] for name in encoded}
        if not all(map(len, rows["input_ids"])):
            raise ValueError("it has no tokens; leave it out, or put a prompt before it")
        fill = {"input_ids": self.tokenizer.pad_token_id or 0}
        inputs = {
            name: pad_sequence(rows[name], batch_first=True, padding_value=fill.get(name, 0))
            for name in {"input_ids", "token_type_ids"} & self.inputs & rows.keys()
        }
        ones = [torch.ones_like(row) for row in rows["input_ids"]]
        mask = pad_sequence(ones, batch_first=True)
        if not self.is_padded:
            inputs["attention_mask"] = mask
        return inputs, mask

    @cached_property
    def identity(self) -> dict[str, Json]:
        return {
            "library": "transformers",
            "tokenizer": type(self.tokenizer).__name__,
            "vocabulary": digest(vocabulary(self.tokenizer)),
            "prompt": self.prompt,
            "clean": self.clean,
            "max_length": self.max_length,
            "padding": "max_length, no mask" if self.is_padded else "right, mask",
        }


def vocabulary(tokenizer: Any) -> Json:
    """What determines the tokens of a text, whatever was cut or padded before."""
    if not tokenizer.is_fast:
        added = sorted(map(str, tokenizer.added_tokens_decoder.items()))
        return [tokenizer.get_vocab(), added]
    rules: dict[str, Json] = json.loads(tokenizer.backend_tokenizer.to_str())
    return {name: rule for name, rule in rules.items() if name not in ("truncation", "padding")}


@dataclass(frozen=True)
class TextLayout(checkpoint.TowerLayout):
    """is_causal: whether tokens see only those before them: the last one sums up the text."""

    is_causal: bool = False


@dataclass(kw_only=True)
class TextEncoder(checkpoint.TowerEncoder):
    """model: a ModuleDict of the tower and, behind it, the projection of its pooled output."""

    kind: ClassVar[str] = "text"
    tokenize: Tokenization
    default_views: Sequence[str] = ("proj", "mean")
    layout: TextLayout = TextLayout()

    def vectors(self, batch: Sequence[str]) -> Vectors:
        inputs, mask = self.inputs(batch)
        outputs = self.model["tower"](**inputs)
        vectors = self._tokens(outputs.last_hidden_state, mask)
        if self.layout.pooled:
            vectors["pooled"] = outputs.pooler_output
        return {**vectors, **self.project(vectors.get("pooled"))}

    def layers(
        self, batch: Sequence[str], numbers: Sequence[int], *, normed: bool
    ) -> Sequence[Vectors]:
        """The last layer has passed the final norm, so that there is no #lastN."""
        inputs, mask = self.inputs(batch)
        states = self.model["tower"](**inputs, output_hidden_states=True).hidden_states
        chosen = [states[number] for number in numbers] if numbers else states
        return [self._tokens(state, mask) for state in chosen]

    def inputs(self, batch: Sequence[str]) -> tuple[dict[str, Tensor], Tensor]:
        """The tower's inputs and the mask of the tokens that count, where the weights are."""
        device = next(self.model.parameters()).device
        inputs, mask = self.tokenize(batch)
        return {name: tensor.to(device) for name, tensor in inputs.items()}, mask.to(device)

    def _tokens(self, state: Tensor, mask: Tensor) -> dict[str, Tensor]:
        vectors = {"mean": masked_mean(state, mask), "last": last_token(state, mask)}
        if self.layout.has_class:
            vectors["cls"] = state[:, 0]
        return vectors


def masked_mean(state: Tensor, mask: Tensor) -> Tensor:
    return (state.float() * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def last_token(state: Tensor, mask: Tensor) -> Tensor:
    """The last one that the mask shows."""
    positions = torch.arange(mask.shape[1], device=mask.device)
    return state[torch.arange(len(state), device=mask.device), (mask * positions).argmax(1)]


def text_backbone(
    name: Name, encoder: TextEncoder, *, commit: str, **options: Unpack[Options]
) -> TorchBackbone:
    native = Preprocessing(as_text, encoder.tokenize.identity, ())
    return view_backbone(name, encoder, native, commit=commit, **options)


def as_text(content: str) -> str:
    """Tokens are made with the batch."""
    return content


def load_encoder(name: Name, folder: Path, prompt: str, max_length: int | None) -> TextEncoder:
    """The text encoder of a checkpoint; what would be random is refused or left out."""
    config = checkpoint.load_config(folder)
    model, missing = checkpoint.load_model(name, folder, _model_class(config))
    tower, prefix = _find_tower(name, model)
    pooler_loaded = checkpoint.pooler_is_loaded(name, missing, prefix)
    loaded = checkpoint.loaded_parts(model, missing)
    parts = {"tower": tower}
    if PROJECTION in loaded:
        parts["projection"] = getattr(model, PROJECTION)
    identity: dict[str, Json] = {
        "library": "transformers",
        "tower": checkpoint.essential(tower.config.to_dict()),
    }
    tower.config.use_cache = False
    tokenizer = _load_tokenizer(name, folder)
    is_padded = tower.config.model_type in PADDED_TYPES
    length = _choose_length(name, tokenizer, tower, max_length, is_padded=is_padded)
    clean = "canonicalize" if is_padded else "none"
    tokenize = Tokenization(tokenizer, prompt, length, is_padded, _parameters(tower), clean)
    encoder = TextEncoder(nn.ModuleDict(parts), identity, tokenize=tokenize)
    encoder.layout = find_text_layout(encoder, pooler_loaded=pooler_loaded)
    if encoder.layout.is_causal:
        encoder.default_views = ("proj", "last")
    encoder.temperature = checkpoint.find_temperature(model, loaded)
    if hasattr(model, "get_text_features"):
        texts = CANARY_TEXTS[1:3]
        inputs, _ = encoder.inputs(texts)
        with torch.inference_mode():
            features = model.get_text_features(**inputs).pooler_output
        encoder.check_projection(texts, features)
    return encoder


def _model_class(config: Any) -> str:
    architecture: str = (config.architectures or [""])[0]
    if architecture.endswith("TextModelWithProjection"):
        return architecture
    is_composite = "text_config" in config.sub_configs
    if type(config) in transformers.MODEL_FOR_TEXT_ENCODING_MAPPING and not is_composite:
        return "AutoModelForTextEncoding"  # of T5 the encoder alone
    return "AutoModel"


def _find_tower(name: Name, model: transformers.PreTrainedModel) -> tuple[Any, str]:
    """The part of a model that encodes texts, and the prefix of its weights."""
    modules: dict[str, Any] = dict(model.named_children())
    tower = modules.get(TOWER, model)
    if model.config.is_encoder_decoder:
        tower = model.get_encoder()
    if "input_ids" not in _parameters(tower) or "pixel_values" in _parameters(tower):
        raise InputError(
            f"{name} ({type(model).__name__}) has no text encoder that can be told apart. "
            f"{checkpoint.WRAP_IT}"
        )
    prefixes = [f"{child}." for child, module in modules.items() if module is tower]
    return tower, prefixes[0] if prefixes else ""


def _parameters(model: nn.Module) -> frozenset[str]:
    return frozenset(inspect.signature(model.forward).parameters)


def _load_tokenizer(name: Name, folder: Path) -> Any:
    """The tokenizer of a folder; without its files transformers would make an empty one."""
    auto: Any = transformers.AutoTokenizer
    try:
        tokenizer = auto.from_pretrained(folder, **checkpoint.FROM_FOLDER)
    except (OSError, ValueError, ImportError) as error:
        raise NotFoundError(NO_TOKENIZER.format(name=name, cause=translate(error, name))) from error
    files = sorted(tokenizer.vocab_files_names.values())
    if files and not any((folder / file).is_file() for file in files):
        raise NotFoundError(NO_TOKENIZER.format(name=name, cause=f"no {' or '.join(files)}"))
    return tokenizer


def _choose_length(
    name: Name, tokenizer: Any, tower: Any, max_length: int | None, *, is_padded: bool
) -> int | None:
    """How many tokens a text may have: what the tokenizer says, at most what the model can take."""
    positions = [
        module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
        for path, module in tower.named_modules()
        if isinstance(module, nn.Embedding) and "position" in path and "rel" not in path
    ]
    stated = [getattr(tower.config, "max_position_embeddings", None) or 0]  # GPT-2: n_positions
    limits = [length for length in [*positions, *stated] if length > 0]  # XLNet: -1
    limit = min(limits, default=None)
    if max_length is not None and limit is not None and (max_length > limit or is_padded):
        raise InputError(
            f"max_length (--max-length) must be at most {limit} for {name}"
            f"{', which takes texts of that length alone' if is_padded else ''}; found "
            f"{max_length}. Leave it out or lower it."
        )
    if max_length is not None or is_padded:
        return max_length or limit
    if tokenizer.model_max_length < NO_LIMIT:
        limits.append(tokenizer.model_max_length)
    return min(limits, default=None)


@torch.inference_mode()
def find_text_layout(encoder: TextEncoder, *, pooler_loaded: bool) -> TextLayout:
    """Find what a text tower's outputs are by running it on a text and on one with another end."""
    inputs, _ = encoder.inputs(CANARY_TEXTS[:1])
    tower = encoder.model["tower"].eval()
    outputs = tower(**inputs)
    ids = inputs["input_ids"]
    changed = ids.clone()
    changed[:, -1] = (ids[:, -1] - 1).abs()
    other = tower(**{**inputs, "input_ids": changed})
    is_causal = near(outputs.last_hidden_state[:, 0], other.last_hidden_state[:, 0])
    tokenizer = encoder.tokenize.tokenizer
    is_special = int(ids[0, 0]) in {*tokenizer.all_special_ids} - {tokenizer.pad_token_id}
    return TextLayout(
        has_class=is_special and not is_causal,
        is_causal=is_causal,
        pooled=pooler_loaded and outputs.get("pooler_output") is not None,
    )
