"""Networks by name: the paper's sizes, options of own ones, and whose code is run."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

from probekit.errors import InputError, NotFoundError
from probekit.networks.architectures import (
    Architecture,
    Cnn,
    Mlp,
    Own,
    architecture,
    built,
    initialized,
    parameter_count,
    trust,
)
from probekit.records import dump, parse
from tests.networks import modules

MODULE = modules.__name__


def own(name: str) -> Architecture:
    trust(f"py:{MODULE}:{name}")
    return architecture(f"py:{MODULE}:{name}", (4,), 3)


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("mlp", (1, 28, 28), 784 * 100 + 100 + 100 * 50 + 50 + 50 * 10 + 10),  # 84,060: the paper
        ("mlp:500-100", (1, 28, 28), 784 * 500 + 500 + 500 * 100 + 100 + 100 * 10 + 10),
        ("mlp:7", (5,), 5 * 7 + 7 + 7 * 10 + 10),
        ("cnn", (3, 32, 32), 456 + 2416 + 400 * 256 + 256 + 256 * 128 + 128 + 1290),
        ("cnn", (1, 16, 16), 156 + 2416 + 16 * 256 + 256 + 256 * 128 + 128 + 1290),
    ],
)
def test_packaged_networks(name: str, shape: tuple[int, ...], parameters: int) -> None:
    network = architecture(name, shape, 10)
    assert parameter_count(network) == parameters
    module = initialized(network, 0)
    assert sum(parameter.numel() for parameter in module.parameters()) == parameters
    assert module(torch.zeros(2, *shape)).shape == (2, 10)
    assert not module.training


def test_the_mlp_is_linear_layers_with_leaky_relu() -> None:
    module = initialized(Mlp((4, 3, 2)), 0)
    first, last = (layer for layer in module.modules() if isinstance(layer, nn.Linear))
    rows = torch.randn(5, 2, 2)
    hidden = nn.functional.leaky_relu(first(rows.flatten(start_dim=1)), 0.01)
    torch.testing.assert_close(module(rows), last(hidden))


@pytest.mark.parametrize("name", ["mlp:", "mlp:5-", "mlp:-5", "mlp:5,4", "mlp:five", "mlp:0"])
def test_bad_sizes_are_refused(name: str) -> None:
    if name == "mlp:":
        assert architecture(name, (4,), 3) == architecture("mlp", (4,), 3)
        return
    with pytest.raises(InputError, match=r"sizes.*found"):
        architecture(name, (4,), 3)


@pytest.mark.parametrize("shape", [(), (12,), (32, 32), (3, 32, 16), (1, 3, 32, 32)])
def test_the_cnn_takes_square_pictures(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"square pictures; found samples of shape .* or take mlp"):
        architecture("cnn", shape, 3)


def test_the_cnn_takes_pictures_of_16() -> None:
    with pytest.raises(InputError, match=r"16 x 16 or more; found 3 x 15 x 15. Take larger"):
        architecture("cnn", (3, 15, 15), 3)
    assert architecture("cnn", (3, 16, 16), 3) == Cnn(3, 16, 3)


@pytest.mark.parametrize("name", ["resnet", "cnn:5", "", "MLP"])
def test_unknown_names_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(
        NotFoundError, match=r"Unknown network .* Known: mlp, mlp:500-100, cnn, py:"
    ):
        architecture(name, (4,), 3)


def test_own_networks_take_options() -> None:
    default = [parameter.shape for parameter in own("sized").build().parameters()]
    assert default == [(5, 4), (5,), (3, 5), (3,)]
    wide = own("sized:width=7,bias=false").build()
    assert [parameter.shape for parameter in wide.parameters()] == [(7, 4), (3, 7), (3,)]
    assert isinstance(own("sized:num-classes=2").build(), nn.Module)
    assert own("sized:num-classes=2").build()(torch.zeros(1, 4)).shape == (1, 2)


def test_a_module_is_its_own_factory_and_stays_as_it_is() -> None:
    module = own("READY").build()
    with torch.no_grad():
        next(module.parameters()).zero_()
    assert next(modules.READY.parameters()).abs().max() > 0


def test_classes_are_passed_to_factories_that_take_them() -> None:
    assert own("few_outputs").build()(torch.zeros(1, 4)).shape == (1, 2)


def test_code_that_nobody_named_is_not_run() -> None:
    network = parse(dump(Own("py:antigravity:fly", 3)), Own, max_bytes=10**4)
    with pytest.raises(InputError, match=r"only whoever starts a command .* Pass --network py:ant"):
        initialized(network, 0)
    with pytest.raises(InputError, match="is own code"):
        built(network, 5)
    assert "antigravity" not in sys.modules


def test_a_process_that_unpickles_an_own_network_runs_it() -> None:
    data = pickle.dumps(own("sized"))
    code = f"import pickle; print(len(list(pickle.loads({data!r}).build().parameters())))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (process.stdout, process.stderr) == ("4\n", "")


def test_building_draws_from_no_one_elses_generator() -> None:
    before = torch.random.get_rng_state()
    first, second = (initialized(Mlp((4, 5, 3)), 3).state_dict() for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_weights_of_another_size_are_refused_before_memory_is_taken() -> None:
    with pytest.raises(InputError, match=r"as many as its parameters, 2,000,.*; found 5. Use the"):
        built(Mlp((10**6, 10**6, 10**6)), 5)
    with pytest.raises(InputError, match="found 5"):
        built(own("sized"), 5)
