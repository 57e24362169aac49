"""Properties of towers found by running them, on towers whose properties are known."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling

from probekit.backbones.huggingface import Layout, VisionEncoder, find_layout
from probekit.backbones.views import Views, find_views
from probekit.errors import NotFoundError
from probekit.registry import Name

WIDTH = 6


class Tower(nn.Module):
    """Patches of 4 x 4 pixels, prefix tokens, layers, and a final norm where there is one."""

    def __init__(self, prefix: int, *, named: bool = True, norm: str = "tokens") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.config = SimpleNamespace()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        tokens = nn.Parameter(torch.randn(prefix, WIDTH))
        self.register_parameter("cls_token" if named else "extra", tokens)
        self.prefix = tokens
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        self.inner_norm = nn.LayerNorm(WIDTH)
        self.final = nn.ModuleDict({"norm": nn.LayerNorm(WIDTH)})
        self.norm_kind = norm
        for parameter in self.parameters():
            nn.init.normal_(parameter)

    def forward(self, pixel_values: Tensor, output_hidden_states: bool = False) -> Any:
        patches = self.patches(pixel_values).flatten(2).mT
        prefix = self.prefix.expand(len(patches), -1, -1)
        states = [torch.cat([prefix, patches], 1)]
        for layer in self.layers:
            states.append(self.inner_norm(layer(states[-1])))
        last = states[-1]
        pooled = None
        if self.norm_kind == "tokens":
            last = self.final["norm"](last)
        if self.norm_kind == "pooled":
            pooled = self.final["norm"](last[:, 0])
        return BaseModelOutputWithPooling(
            last_hidden_state=last, pooler_output=pooled, hidden_states=tuple(states)
        )


NAME = Name("hf", "model")


def encoder_of(
    tower: nn.Module, shape: tuple[int, int] = (12, 8), *, pooler_loaded: bool = True
) -> tuple[VisionEncoder, Views]:
    batch = torch.randn(2, 3, *shape, generator=torch.Generator().manual_seed(1))
    encoder = VisionEncoder(nn.ModuleDict({"tower": tower}), {})
    encoder.layout = find_layout(tower, batch, pooler_loaded=pooler_loaded)
    return encoder, find_views(encoder, batch)


@pytest.mark.parametrize("prefix", [0, 1, 5])
@pytest.mark.parametrize("shape", [(8, 8), (12, 8), (16, 20), (13, 9)])
def test_the_prefix_is_what_the_grid_leaves(prefix: int, shape: tuple[int, int]) -> None:
    encoder, views = encoder_of(Tower(prefix), shape)
    norm = "final.norm"
    assert encoder.layout == Layout(prefix=prefix, has_class=bool(prefix), norm=norm)
    assert ((None, "cls") in views.parts) == bool(prefix)
    assert views.layers == range(4)


def test_tokens_without_the_name_of_a_class_token_are_none() -> None:
    encoder, views = encoder_of(Tower(2, named=False))
    assert encoder.layout.prefix == 2
    assert {name for _, name in views.parts} == {"mean"}


@pytest.mark.parametrize(
    ("kind", "norm"), [("tokens", "final.norm"), ("pooled", "final.norm"), ("none", "")]
)
def test_the_final_norm_is_found(kind: str, norm: str) -> None:
    encoder, views = encoder_of(Tower(1, norm=kind))
    assert encoder.layout.norm == norm
    assert not views.select("layer:1", NAME).normed
    if norm:
        assert views.select("last2.cls", NAME).normed
    else:
        with pytest.raises(NotFoundError):
            views.select("last2.cls", NAME)


def test_a_guessed_grid_has_no_mean() -> None:
    tower = Tower(1)
    tower.patches = nn.Conv2d(3, WIDTH, 5, 4, padding=1)  # overlapping: no plain grid
    encoder, views = encoder_of(tower, (16, 16))
    assert encoder.layout.prefix is None
    assert {name for _, name in views.parts} == {"cls"}


def test_a_pooler_that_was_not_loaded_is_no_view() -> None:
    _, views = encoder_of(Tower(1, norm="pooled"))
    assert (None, "pooled") in views.parts
    encoder, views = encoder_of(Tower(1, norm="pooled"), pooler_loaded=False)
    assert (None, "pooled") not in views.parts
    assert not encoder.layout.norm


ENCODER, VIEWS = encoder_of(Tower(1))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("cls", ["cls"]),
        ("cls+mean", ["cls+mean"]),
        ("layer:-1", ["layer:3.cls"]),
        ("layer:0.mean", ["layer:0.mean"]),
        ("layer:-2.cls+mean", ["layer:2.cls+mean"]),
        ("layer:*", [f"layer:{index}.cls" for index in range(4)]),
        ("layer:*.mean", [f"layer:{index}.mean" for index in range(4)]),
        ("last3.mean", ["last3.mean"]),
    ],
)
def test_texts_of_views(text: str, names: list[str]) -> None:
    assert list(VIEWS.select(text, NAME).parts) == names


@settings(max_examples=200, deadline=None)
@given(
    st.text(alphabet="clsmean+.:*-0123456789layrt ", max_size=14)
    | st.from_regex(r"(layer:(\*|-?\d)|last\d)(\.(cls|mean|cls\+mean))?", fullmatch=True)
)
def test_any_text_is_a_view_or_not_found(text: str) -> None:
    try:
        selection = VIEWS.select(text, NAME)
    except NotFoundError as error:
        assert "#cls" in str(error)  # noqa: PT017
    else:
        for view, parts in selection.parts.items():
            assert VIEWS.select(view, NAME).parts == {view: parts}


def test_stages_with_a_prefix_have_no_inner_layers() -> None:
    encoder, _ = encoder_of(Tower(1))
    encoder.layout = replace(encoder.layout, inner=False)
    views = find_views(encoder, torch.randn(2, 3, 8, 8))
    for text in ("layer:1.cls", "layer:*", "last1.cls"):
        with pytest.raises(NotFoundError):
            views.select(text, NAME)


def test_equal_views_are_equal_numbers() -> None:
    """The last of all layers through the norm is the last hidden state."""
    batch = torch.randn(2, 3, 8, 8)
    vectors = {}
    for text in ("cls", "last1.cls", "cls+mean", "mean"):
        selection = VIEWS.select(text, NAME)
        vectors[text] = selection(ENCODER, batch)[text].detach().numpy()
    np.testing.assert_allclose(vectors["cls"], vectors["last1.cls"], rtol=1e-6)
    joined = np.concatenate([vectors["cls"], vectors["mean"]], axis=1)
    np.testing.assert_array_equal(vectors["cls+mean"], joined)
