"""Views of an encoder: which tensor of it is the embedding.

    #proj               what the model's image-text projection gives
    #pre                the input of that projection
    #pooled             the model's own pooled output
    #cls #mean          the class token, the mean of the patches (of a text: of all its tokens), of
                        the last tokens or map
    #last               the last token of a text
    #qformer.N          query N of a Q-Former; #qformer.mean their mean
    #cls+mean           side by side
    #layer:K.cls        tokens after layer K, before the final norm; -1 is the last layer;
                        #layer:K takes the class token where there is one, else the mean
    #layer:*            #layer:K for all K in one pass, each a view of its own; also #layer:*.mean
    #lastN.cls          the last N layers side by side, each through the final norm

Layer 1 is the first block or stage; transformers has a layer 0, the embeddings. What a model has
is found by running it (`find_views`), not by a list of families.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from probekit.arrays import Json
from probekit.backbones.module import Options, Preprocessing, TorchBackbone, stack_batch
from probekit.data.pictures import canary_samples
from probekit.errors import NotFoundError
from probekit.registry import Name

Vectors = Mapping[str, Tensor]
Part = tuple[int | None, str]
"""A vector of a whole model (None, "pooled"), or after a layer (3, "cls")."""

LAYER_VIEW = re.compile(r"(layer:(?=[-*\d])|last(?=\d))(\*|-?\d{1,4})(?:\.([a-z+]+))?")
CLASS_TOKEN = re.compile(r"(^|\.)(cls_(register_)?tokens?|class_(embedding|token))(\.|$)")
TOKENS = ("cls", "mean", "last")
UNSUPPORTED = (AttributeError, AssertionError, TypeError, RuntimeError, ValueError)
"""What models raise that cannot give their layers."""


@dataclass
class Encoder(ABC):
    """A library's model of pictures (batches are tensors) or texts (batches are lists).

    identity: what determines its numbers, the tensors aside.
    default_views: the first of them that exists is taken.
    first_layer: the number of its first layer.
    temperature: of the softmax over cosines between pictures and texts, where it has both.
    """

    kind: ClassVar[str] = "image"

    model: Any
    identity: Mapping[str, Json]
    default_views: Sequence[str] = ("pooled",)
    first_layer: int = 1
    temperature: float | None = None

    @abstractmethod
    def vectors(self, batch: Any) -> Vectors:
        """All vectors of the whole model."""

    def layers(self, batch: Any, numbers: Sequence[int], *, normed: bool) -> Sequence[Vectors]:
        """cls, mean and last after these layers (none: all), before or after the final norm."""
        return []

    def keep(self, names: set[str]) -> Mapping[str, Tensor]:
        """Drop what these vectors do not need; gives the tensors that they depend on."""
        tensors: Mapping[str, Tensor] = self.model.state_dict()
        return tensors


@dataclass(frozen=True)
class Selection:
    """Reads views of an encoder in one pass.

    parts: view -> the vectors that it joins.
    normed: whether layers pass the final norm.
    """

    encoder: Encoder
    parts: Mapping[str, Sequence[Part]]
    normed: bool = False

    def __call__(self, model: object, batch: Any) -> Vectors:
        layers = {layer for parts in self.parts.values() for layer, _ in parts}
        numbers = sorted(layer for layer in layers if layer is not None)
        values: dict[int | None, Vectors] = {}
        if numbers:
            states = self.encoder.layers(batch, numbers, normed=self.normed)
            values.update(zip(numbers, states, strict=True))
        else:
            values[None] = self.encoder.vectors(batch)
        return {
            view: torch.cat([values[layer][name] for layer, name in parts], dim=1)
            for view, parts in self.parts.items()
        }


@dataclass(frozen=True)
class Views:
    """What an encoder can give.

    parts: its vectors.
    layers: their numbers.
    has_norm: whether all layers can pass one final norm, so that `#lastN` means something.
    """

    encoder: Encoder
    parts: frozenset[Part]
    layers: range
    has_norm: bool

    def select(self, text: str, name: Name) -> Selection:
        """What a text after # means; NotFoundError lists the texts that exist."""
        views = self.by_name()
        names = [text]
        match = LAYER_VIEW.fullmatch(text)
        if match is not None:
            kind, number, token = match.groups()
            numbers = list(self.layers)
            if number != "*":
                offset = self.layers.stop if number.startswith("-") else 0
                numbers = [int(number) + offset]
            default = next(iter(self._tokens(self.layers.start)), "mean")
            names = [f"{kind}{number}.{token or default}" for number in numbers]
        if not names or not views.keys() >= set(names):
            raise NotFoundError(f"{name} has no view #{text}. It has: {', '.join(self.listed())}.")
        parts = {view: views[view] for view in names}
        return Selection(self.encoder, parts, normed=text.startswith("last"))

    def by_name(self) -> dict[str, list[Part]]:
        """Every view and the vectors that it joins; `#layer:*` is all those of layers."""
        vectors = sorted(vector for layer, vector in self.parts if layer is None)
        views: dict[str, list[Part]] = {vector: [(None, vector)] for vector in vectors}
        groups: dict[str, Sequence[int | None]] = {"": [None]}
        groups |= {f"layer:{number}.": [number] for number in self.layers}
        if self.has_norm:
            counts = range(1, self.layers.stop)
            groups |= {f"last{count}.": self.layers[-count:] for count in counts}
        for prefix, layers in groups.items():
            for joined in self._tokens(layers[-1]):
                tokens = joined.split("+")
                views[prefix + joined] = [(layer, token) for token in tokens for layer in layers]
        return views

    def _tokens(self, layer: int | None) -> list[str]:
        tokens = [token for token in TOKENS if (layer, token) in self.parts]
        return [*tokens, "cls+mean"] if {"cls", "mean"} <= set(tokens) else tokens

    def listed(self) -> list[str]:
        """All views, those of numbers in short."""
        last = self.layers.stop - 1
        ranges = {
            "layer:N": f" (N from {self.layers.start} to {last}, or * for all)",
            "lastN": f" (N from 1 to {last})",
        }
        views = dict.fromkeys(re.sub(r"\d+", "N", view) for view in self.by_name())
        return [f"#{view}{ranges.get(view.partition('.')[0], '')}" for view in views]


def view_backbone(
    name: Name,
    encoder: Encoder,
    native: Preprocessing,
    *,
    channels_last: bool = False,
    commit: str = "",
    **options: Unpack[Options],
) -> TorchBackbone:
    """An encoder with the view that a name asks for, checked on two samples."""
    preprocessing = native.choose(options["preprocessing"])
    batch = sample_batch(preprocessing, encoder.kind)
    views = find_views(encoder, batch)
    defaults = [view for view in encoder.default_views if (None, view) in views.parts]
    selection = views.select(name.view or defaults[0], name)
    names = {vector for parts in selection.parts.values() for _, vector in parts}
    backbone = TorchBackbone(
        name=str(name),
        tensors=encoder.keep(names),
        model=encoder.model,
        forward=selection,
        views=dict.fromkeys(selection.parts, 0),
        preprocessing=preprocessing,
        identity=encoder.identity,
        device=options["device"],
        precision=options["precision"],
        kind=encoder.kind,
        channels_last=channels_last,
        commit=commit,
        temperature=encoder.temperature,
        description={"other_views": views.listed()},
    )
    backbone.encode(list(batch))  # measures the widths
    return backbone


def sample_batch(preprocessing: Preprocessing, kind: str = "image") -> Any:
    """Two samples of different sizes, prepared."""
    samples = canary_samples(kind)[1:3]
    return stack_batch([preprocessing.prepare(sample) for sample in samples])


@torch.inference_mode()
def find_views(encoder: Encoder, batch: Any) -> Views:
    """Run an encoder: which vectors it has, and whether all layers can pass its final norm."""
    encoder.model.eval()
    vectors = encoder.vectors(batch)
    parts: set[Part] = {(None, name) for name, vector in vectors.items() if vector.dim() == 2}
    raw = _layers(encoder, batch, [], normed=False)
    numbers = range(encoder.first_layer, encoder.first_layer + len(raw))
    for number, state in zip(numbers, raw, strict=True):
        parts |= {(number, token) for token in state}
    normed = _layers(encoder, batch, numbers[-1:], normed=True)
    pairs = [(vector, raw[-1][token]) for state in normed for token, vector in state.items()]
    one_width = len({state["mean"].shape[1] for state in raw if "mean" in state}) == 1
    has_norm = one_width and bool(pairs) and not any(near(*pair) for pair in pairs)
    return Views(encoder, frozenset(parts), numbers, has_norm)


def _layers(
    encoder: Encoder, batch: Any, numbers: Sequence[int], *, normed: bool
) -> Sequence[Vectors]:
    try:
        return encoder.layers(batch, numbers, normed=normed)
    except UNSUPPORTED:
        return []


def near(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and torch.allclose(first, second, atol=1e-5, rtol=1e-4)


def has_class_token(model: nn.Module) -> bool:
    return any(CLASS_TOKEN.search(name) for name, _ in model.named_parameters())


def read_tokens(state: Tensor, *, prefix: int | None, has_class: bool) -> dict[str, Tensor]:
    """cls and mean of tokens (n, tokens, d) or of a map (n, d, height, width).

    prefix: tokens before the patches; None where the patches are not known.
    """
    if state.dim() == 4:
        return {"mean": state.mean(dim=(2, 3))}
    tokens = {"cls": state[:, 0]} if has_class else {}
    if prefix is not None:
        tokens["mean"] = state[:, prefix:].mean(dim=1)
    return tokens
