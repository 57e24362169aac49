"""Whole networks trained by the command line."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

import probekit as library
from probekit.backbones.module import FrozenModule
from probekit.cache import DiskStore
from probekit.models.serving import predict
from probekit.runs.folder import RunFolder
from probekit.runs.options import TrainOptions
from tests.cli.conftest import Command, Probekit
from tests.cli.networks.shop import (
    FIRST,
    RIDGE,
    Shop,
    certificate,
    minimum,
    network_head,
    pictures,
    save,
)


def test_a_data_set_is_read_into_the_cache_once(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    original = FrozenModule.encode

    def counted(module: FrozenModule, rows: Any) -> Any:
        encoded.append(len(rows))
        return original(module, rows)

    monkeypatch.setattr(FrozenModule, "encode", counted)
    data, base = save(tmp_path / "own.npz", 90), ("--cache", tmp_path / "cache", "--json")
    first = command("train", data, *FIRST, "--run", "one", *base)
    assert first.code == 0, first.err
    assert "Reading the pictures" in first.err
    assert (first.value["backbone"], first.value["rows"], first.value["server_rows"]) == ("pixels:12", 90, 18)
    seen, canary = sum(encoded), sum(encoded) - 90
    assert 0 < canary < 10
    again = command("train", data, *FIRST, "--run", "two", *base)
    assert sum(encoded) - seen <= canary
    assert "Reading the pictures" not in again.err
    assert again.value["head"] == first.value["head"]
    assert len(DiskStore(tmp_path / "cache").sets.names()) == 1


def test_a_data_set_that_changed_is_read_anew(command: Command, tmp_path: Path) -> None:
    base = ("--cache", tmp_path / "cache", "--json", "--rounds", "1")
    sets = []
    for seed in (0, 1):
        data = save(tmp_path / "own.npz", 60, seed=seed)
        assert command("train", data, *FIRST, "--run", f"r{seed}", *base).code == 0
        sets.append(RunFolder.open(f"r{seed}").inputs["set"])
    assert sets[0] != sets[1]


def test_folders_of_coloured_pictures_and_their_splits(command: Command, tmp_path: Path) -> None:
    for split, rows, seed in (("train", 60, 0), ("test", 30, 5)):
        for number, (image, label) in enumerate(zip(*pictures(rows, side=16, seed=seed, rgb=True), strict=True)):
            folder = tmp_path / "photos" / split / f"class-{label}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{number}.png")
    base = ("--cache", tmp_path / "cache", "--json")
    found = command("train", f"folder:{tmp_path}/photos", "--split", "train", *FIRST, "--network", "cnn", *base)
    assert found.code == 0, found.err
    assert (found.value["backbone"], found.value["rows"]) == ("pixels:16#rgb", 60)
    path = Path(found.value["run"])
    assert path.name.endswith("-cnn")
    assert network_head(path).network.shape == (3, 16, 16)
    assert network_head(path).classes == ("class-0", "class-1", "class-2")
    extract = ("extract", f"folder:{tmp_path}/photos", "--split", "test", "-b", "pixels:16#rgb", "--name", "t")
    assert command(*extract, *base).code == 0
    judged = command("evaluate", path, "t", *base)
    assert judged.value["results"][0]["accuracy"]["value"] > 0.8


def test_the_head_folder_is_all_that_predicting_needs(trained: Path, shop: Shop) -> None:
    folder = trained / "states" / "0001" / "head"
    assert {"config.json", "model.safetensors"} <= {path.name for path in folder.iterdir()}
    test = shop.store.open("test")
    head = library.load_head(folder)
    assert np.array_equal(predict(head, test), predict(RunFolder.open(trained).head(), test))
    assert (predict(head, test) == test.labels).mean() > 0.9
    assert np.linalg.norm(head.params - minimum(trained, shop.store, 1)) <= 1e-4 * np.linalg.norm(head.params)


def test_the_config_in_run_json_trains_the_same_again(trained: Path, probekit: Probekit) -> None:
    config = json.loads((trained / "run.json").read_text())["config"]
    made = TrainOptions.of(config)
    assert (made.backend, made.network, made.pretrain_epochs, made.keep) == ("jvp", "mlp", 3, "gradients")
    given = {"embeddings": config["embeddings"], **made.plain}
    default = {"embeddings": None} | {one.name: one.default for one in fields(TrainOptions)}
    lines = [
        f"{name.replace('_', '-')} = {json.dumps(value)}"
        for name, value in given.items()
        if value is not None and value != default[name]
    ]
    Path("run.toml").write_text("\n".join(["[train]", *lines, 'run = "again"', ""]))
    code, value, said = probekit("train", "--config", "run.toml")
    assert code == 0, said
    assert value["head"] == network_head(trained).digest
    assert json.loads(Path("again/run.json").read_text())["config"] == config


def test_fedavg_comes_near_with_the_rounds(probekit: Probekit, shop: Shop) -> None:
    steps = ("--method", "fedavg", "--local-steps", "5", "--batch-size", "12")
    gaps = []
    for rounds in ("2", "40"):
        code, value, said = probekit("train", "grey", *FIRST, *steps, "--rounds", rounds, "--run", f"r{rounds}")
        assert (code, value.get("method"), value.get("rounds")) == (0, "fedavg", int(rounds)), said
        gaps.append(np.linalg.norm(network_head(Path(f"r{rounds}")).params - minimum(Path("r2"), shop.store, 1)))
    config = RunFolder.open("r2").config
    assert (config["local_steps"], config["batch_size"], config["rounds"]) == (5, 12, 2)
    assert gaps[1] < 0.7 * gaps[0]


@pytest.mark.parametrize("option", ["--centre", "--center"])
def test_the_ridge_may_pull_to_zero(probekit: Probekit, shop: Shop, option: str) -> None:
    code, _, said = probekit("train", "grey", *FIRST, option, "zero", "--run", "r")
    assert code == 0, said
    head = network_head(Path("r"))
    assert head.centre == "zero"
    wanted = minimum(Path("r"), shop.store, 1)
    assert np.linalg.norm(head.params - wanted) <= 1e-4 * np.linalg.norm(wanted)


@pytest.mark.parametrize(("subset", "moving"), [("1", {"5.weight", "5.bias"}), ("3.*", {"3.weight", "3.bias"})])
def test_a_subset_moves_alone(probekit: Probekit, subset: str, moving: set[str]) -> None:
    code, value, said = probekit("train", "grey", *FIRST, "--subset", subset, "--run", "r")
    assert code == 0, said
    head = network_head(Path("r"))
    assert set(head.network.moving) == moving
    assert len(head.params) == sum(head.network.weights[name].size for name in moving) == value["parameters"]


def test_weights_of_a_file_replace_pretraining(probekit: Probekit, trained: Path) -> None:
    weights = {name: np.asarray(one) for name, one in network_head(trained).network.weights.items()}
    save_file(weights, "wp.safetensors")
    base = ("train", "grey", "--backend", "jvp", "--network-weights", "wp.safetensors", "--ridge", str(RIDGE))
    code, _, said = probekit(*base, "--clients", "3", "--server-share", "0.2", "--run", "r")
    assert code == 0, said
    assert np.allclose(network_head(Path("r")).params, network_head(trained).params, rtol=0, atol=1e-12)
    code, _, said = probekit(*base, "--clients", "4", "--run", "no-server")
    assert code == 0, said
    code, value, said = probekit("unlearn", "no-server", "--client", "0", "--method", "retrain")
    assert (code, value.get("method")) == (0, "retrain"), said
    assert probekit("verify", certificate(Path("no-server")), "--run", "no-server")[0] == 7


@pytest.mark.parametrize("name", ["tiny", "given", "dropping", "normed"])
def test_a_network_of_ones_own(probekit: Probekit, factories: str, name: str) -> None:
    code, value, said = probekit("train", "grey", *FIRST, "--network", factories + name, "--run", "r")
    assert code == 0, said
    assert f"{factories}{name}" in value["kind"]
    code, value, said = probekit("unlearn", "r", "--client", "1", "--method", "fedremoval-pcg:30", "--test", "test")
    assert (code, value["agreement"]["certified"]) == (0, 45), said
    assert probekit("verify", certificate(Path("r")), "--run", "r", "--test", "test")[0] == 7
