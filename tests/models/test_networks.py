"""Networks by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from probekit.errors import InputError, NotFoundError
from probekit.models.networks import NETWORKS, network

MADE = {
    "mlp": ((1, 28, 28), 84_060),
    "mlp-large": ((1, 28, 28), 443_610),
    "cnn": ((3, 32, 32), 139_714),
    "lenet": ((1, 28, 28), 61_706),
}


@pytest.mark.parametrize("name", MADE)
def test_the_papers_networks_have_the_papers_size(name: str) -> None:
    shape, size = MADE[name]
    assert sum(one.numel() for one in network(name, shape, 10).parameters()) == size


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_scores_every_class_and_is_made_by_its_seed(name: str) -> None:
    shape = MADE.get(name, ((3, 16, 16), 0))[0]
    one, two, other = (network(name, shape, 7, seed=seed) for seed in (3, 3, 4))
    inputs = torch.rand(2, *shape)
    with torch.no_grad():
        assert one(inputs).shape == (2, 7)
        assert torch.equal(one(inputs), two(inputs))
        assert not torch.equal(one(inputs), other(inputs))
    assert not one.training


def test_making_a_network_leaves_the_random_numbers_of_others_alone() -> None:
    torch.manual_seed(1)
    wanted = torch.rand(1)
    torch.manual_seed(1)
    network("mlp", (1, 4, 4), 2)
    assert torch.equal(torch.rand(1), wanted)


def test_a_factory_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "from torch import nn\n"
        "def sized(shape, classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], classes))\n"
        "def fixed():\n    return nn.Linear(3, 2)\n"
        "def wrong(shape, classes):\n    return 'network'\n"
        "number = 3\n"
    )
    (tmp_path / "their_networks.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert network("py:their_networks:sized", (5,), 2)(torch.rand(1, 5)).shape == (1, 2)
    assert network("py:their_networks:fixed", (9,), 9)(torch.rand(1, 3)).shape == (1, 2)
    with pytest.raises(InputError, match=r"must make a torch.nn.Module; found str"):
        network("py:their_networks:wrong", (5,), 2)
    with pytest.raises(InputError, match="must be a function"):
        network("py:their_networks:number", (5,), 2)
    with pytest.raises(NotFoundError, match="cannot be found"):
        network("py:their_networks:missing", (5,), 2)
    with pytest.raises(InputError, match="after a second colon"):
        network("py:their_networks", (5,), 2)


def test_unknown_names_and_small_pictures_are_refused() -> None:
    with pytest.raises(NotFoundError, match=r"no network 'lnet'.*lenet"):
        network("lnet", (1, 28, 28), 10)
    with pytest.raises(InputError, match=r"at least 16; found \(3, 8, 8\)"):
        network("cnn", (3, 8, 8), 10)
