"""Trained networks as heads: saved, loaded, and what their cards say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard

from probekit.heads import load_head
from probekit.networks.head import NetworkHead, TrainedNetwork
from tests.networks.modules import model_of, samples_of


@pytest.mark.parametrize("linearize", [True, False])
def test_a_saved_network_predicts_and_says_what_it_is(linearize: bool, tmp_path: Path) -> None:
    model = model_of("mlp:5-4", linearize=linearize)
    trained = TrainedNetwork(model, model.weights + 0.1)
    head = NetworkHead(names=("a", "b", "c"), trained=trained)
    rows = samples_of(model, 6).to_numpy()
    folder = head.save(tmp_path / "head")
    again = load_head(folder)
    np.testing.assert_array_equal(again.decision(rows), head.decision(rows))
    card = ModelCard.load(folder / "README.md")
    kind = "linearized" if linearize else "conventional"
    assert f"{kind}-network" in card.data.tags
    assert f"# A {kind} network" in card.text
