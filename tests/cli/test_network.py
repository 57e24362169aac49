"""Whole networks by the command line, from pictures to a purged run, and what is refused on the way."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import load_file, save_file

import probekit as library
from probekit.backbones.module import FrozenModule
from probekit.cache import DiskStore
from probekit.certificates import certificate_text, read_certificate
from probekit.cli import ledger
from probekit.cli.config import TrainConfig
from probekit.cli.main import run
from probekit.cli.runs import Run
from probekit.cli.unlearning import Wanted, carry_out, read_request, rows_at
from probekit.federated.network_clients import holders
from probekit.heads import load_head, predict
from probekit.learning import Partition
from probekit.linearized import NetworkHead
from probekit.networks import inputs_of, linearized
from tests.cli.conftest import Command
from tests.cli.shelves import Probekit

RIDGE = 0.05
QUICK = ("--backend", "jvp", "--server-share", "0.2", "--clients", "3", "--pretrain-epochs", "3")
FIRST = (*QUICK, "--ridge", str(RIDGE))
FORK = multiprocessing.get_context("fork")

FACTORIES = '''
"""Networks of somebody's own, most of them not fit to be linearized."""
import torch
from torch import nn


def plain(shape, classes, *between):
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 8), *between, nn.Linear(8, classes))


def tiny(shape, classes):
    return plain(shape, classes, nn.LeakyReLU(0.01))


def given(*_):
    return tiny((1, 12, 12), 3)


def dropping(shape, classes):
    return plain(shape, classes, nn.Dropout(0.5)).train()


def normed(shape, classes):
    return plain(shape, classes, nn.BatchNorm1d(8)).train()


class Restless(nn.BatchNorm1d):
    def train(self, mode=True):
        return super().train(True)


class Random(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.5, training=True)


class Writing(nn.Linear):
    def forward(self, x):
        found = super().forward(x)
        self.scratch = getattr(self, "scratch", torch.zeros(found.shape[1], dtype=found.dtype))
        with torch.no_grad() if self.training else torch.enable_grad():
            self.scratch.copy_(found[0] * 0)
        return found + self.scratch.detach() if self.training else found + self.scratch


def stubborn(shape, classes):
    return plain(shape, classes, Restless(8))


def random(shape, classes):
    return plain(shape, classes, Random())


def writing(shape, classes):
    return plain(shape, classes, Writing(8, 8))


def small(shape, classes):
    return nn.Linear(7, classes)


def more_classes(shape, classes):
    return plain(shape, classes + 2)


def unflattened(shape, classes):
    return nn.Conv2d(shape[0], classes, 3)


def idle(shape, classes):
    return nn.Flatten()


def number(shape, classes):
    return 3


def broken(shape, classes):
    raise RuntimeError("a bug of its own. And more")


def one_argument(shape):
    return None


def interrupted(shape, classes):
    raise KeyboardInterrupt


instance = nn.Linear(3, 3)
'''


def pictures(rows: int, *, side: int = 12, seed: int = 0, rgb: bool = False) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Noisy pictures of three patterns, and which of them each is."""
    generator = np.random.default_rng(seed)
    labels = generator.permutation(np.arange(rows) % 3)
    patterns = np.random.default_rng(7).integers(0, 256, (3, 4, 4, 3)).repeat(side // 4, 1).repeat(side // 4, 2)
    noisy = patterns[labels] + generator.normal(0, 60, (rows, side, side, 3))
    found = np.clip(noisy, 0, 255).astype(np.uint8)
    return (found if rgb else found[..., 0]), labels


def save(path: Path, rows: int, **how: Any) -> str:
    """A file of pictures, as a data set."""
    images, labels = pictures(rows, **how)
    np.savez(path, images=images, labels=labels)
    return f"npz:{path}"


@dataclass(frozen=True)
class Shop:
    """A cache, data sets, and a run that was trained on one of them by three clients."""

    root: Path

    @property
    def grey(self) -> str:
        return f"npz:{self.root / 'grey.npz'}"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def store(self) -> DiskStore:
        return DiskStore(self.cache)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    found = Shop(tmp_path_factory.mktemp("shop"))
    save(found.root / "grey.npz", 90)
    save(found.root / "test.npz", 45, seed=5)
    base = ["--cache", str(found.cache), "-q"]
    for source, name, *more in (
        ("grey", "grey"),
        ("test", "test"),
        ("grey", "grey-triggered", "--trigger", "square"),
        ("test", "test-triggered", "--trigger", "square"),
    ):
        data = f"npz:{found.root / source}.npz"
        assert run(["extract", data, "-b", "pixels:12", "--name", name, *more, *base]) == 0
    trained = found.root / "run"
    assert run(["train", "grey", *FIRST, "--run", str(trained), *base]) == 0
    poison = ["--poison", "0", "--triggered", "grey-triggered", "--run", str(found.root / "poisoned")]
    assert run(["train", "grey", *FIRST, *poison, *base]) == 0
    return found


@pytest.fixture
def probekit(shop: Shop, command: Command, monkeypatch: pytest.MonkeyPatch) -> Probekit:
    """The command line with the shop's cache and JSON: exit code, value, words on stderr."""
    monkeypatch.setenv("COLUMNS", "10000")

    def call(*arguments: object) -> tuple[int, dict[str, Any], str]:
        outcome = command(*arguments, "--cache", shop.cache, "--json")
        return outcome.code, outcome.value, outcome.err

    return call


@pytest.fixture
def trained(shop: Shop, tmp_path: Path) -> Path:
    """A copy of the run."""
    return Path(shutil.copytree(shop.root / "run", tmp_path / "run"))


@pytest.fixture
def poisoned(shop: Shop, tmp_path: Path) -> Path:
    """A copy of the run whose client 0 taught a backdoor."""
    return Path(shutil.copytree(shop.root / "poisoned", tmp_path / "poisoned"))


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The beginning of a network's name: a module beside the current folder."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "own_networks.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(folder)
    yield "py:own_networks:"
    sys.modules.pop("own_networks", None)


def network_head(run: Path, state: int = 1) -> NetworkHead:
    found = load_head(run / "states" / f"{state:04d}" / "head")
    assert isinstance(found, NetworkHead)
    return found


def certificate(run: Path, state: int = 2) -> Path:
    return run / "states" / f"{state:04d}" / "certificate.json"


def minimum(run: Path, store: DiskStore, state: int) -> NDArray[np.float64]:
    """The minimum of a state's own loss by a dense solve of all parameters' dual."""
    opened, head = Run.open(run), network_head(run, state)
    embeddings, partition = rows_at(opened, store, state)
    rows = np.concatenate([partition.clients[name] for name in opened.trained(state).counts])
    model = linearized(head.network)
    inputs = inputs_of(head.network, np.asarray(embeddings.embeddings[rows])).double()
    parts = torch.func.jacrev(lambda p: model.forward(p, inputs))(model.base)
    matrix = torch.cat([one.reshape(len(rows) * 3, -1) for one in parts], dim=1).numpy()
    offset = model.over(inputs, centre=head.centre).offset
    lacking = (np.eye(3)[embeddings.labels[rows]] - offset).reshape(-1, 1) / len(rows)
    dual = matrix @ matrix.T / len(rows) + RIDGE * np.eye(len(matrix))
    return np.asarray(matrix.T @ np.linalg.solve(dual, lacking))


def sentence(said: str) -> str:
    """The one line that an error is told in."""
    lines = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, said
    assert "Something unexpected" not in said
    assert "Traceback" not in said
    return lines[0]


# training


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
    assert (first.value["backbone"], first.value["rows"], first.value["server rows"]) == ("pixels:12", 90, 18)
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
        sets.append(Run.open(f"r{seed}").inputs["set"])
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
    assert np.array_equal(predict(head, test), predict(Run.open(trained).head(), test))
    assert (predict(head, test) == test.labels).mean() > 0.9
    assert np.linalg.norm(head.params - minimum(trained, shop.store, 1)) <= 1e-4 * np.linalg.norm(head.params)


def test_the_config_in_run_json_trains_the_same_again(trained: Path, probekit: Probekit) -> None:
    config = json.loads((trained / "run.json").read_text())["config"]
    made = TrainConfig.of({**config, "ridge": str(config["ridge"])})
    assert (made.backend, made.network, made.pretrain_epochs, made.keep) == ("jvp", "mlp", 3, "gradients")
    given = {one.name: getattr(made, one.name) for one in fields(made)}
    default = {one.name: one.default for one in fields(TrainConfig)}
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
    config = Run.open("r2").config
    assert (config["local_steps"], config["batch_size"], config["rounds"]) == (5, 12, 2)
    assert gaps[1] < 0.7 * gaps[0]


def test_the_ridge_may_pull_to_zero(probekit: Probekit, shop: Shop) -> None:
    code, _, said = probekit("train", "grey", *FIRST, "--centre", "zero", "--run", "r")
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
    assert probekit("verify", certificate(Path("no-server")), "--run", "no-server")[0] == 0


@pytest.mark.parametrize("name", ["tiny", "given", "dropping", "normed"])
def test_a_network_of_ones_own(probekit: Probekit, factories: str, name: str) -> None:
    code, value, said = probekit("train", "grey", *FIRST, "--network", factories + name, "--run", "r")
    assert code == 0, said
    assert f"{factories}{name}" in value["kind"]
    code, value, said = probekit("unlearn", "r", "--client", "1", "--method", "fedremoval-pcg:30", "--test", "test")
    assert (code, value["agreement"]["certified"]) == (0, 45), said
    assert probekit("verify", certificate(Path("r")), "--run", "r", "--test", "test")[0] == 0


# unlearning


def test_auto_asks_the_clients_and_the_certificate_holds(trained: Path, probekit: Probekit, shop: Shop) -> None:
    code, value, said = probekit("unlearn", trained, "--client", "1", "--test", "test")
    assert (code, value.get("state"), value.get("method")) == (0, 2, "fedremoval-pcg:10"), said
    assert value["retained"] == {"0": 24, "2": 24}
    gap = np.linalg.norm(network_head(trained, 2).params - minimum(trained, shop.store, 2))
    before = np.linalg.norm(network_head(trained, 1).params - minimum(trained, shop.store, 2))
    assert gap <= value["bounds"]["weights"] < 0.1 * before
    assert value["agreement"]["certified"] == 45
    code, checked, said = probekit("verify", certificate(trained), "--run", trained, "--test", "test")
    assert (code, checked["verified"]) == (0, True), said
    names = {one["name"] for one in checked["checks"]}
    assert {"head after", "head before", "network", "retained rows", "retained residual"} <= names
    assert any("linearized around w_p" in one for one in checked["assumptions"])


@pytest.mark.parametrize(
    "method", ["fedremoval", "fedremoval:dual", "fedremoval:pcg", "fedremoval-line", "fedremoval-pcg:3", "retrain"]
)
def test_every_method_stays_within_its_bound(trained: Path, probekit: Probekit, shop: Shop, method: str) -> None:
    code, value, said = probekit("unlearn", trained, "--client", "2", "--method", method)
    assert (code, value.get("method")) == (0, method), said
    wanted = minimum(trained, shop.store, 2)
    gap = np.linalg.norm(network_head(trained, 2).params - wanted)
    assert gap <= value["bounds"]["weights"]
    if method == "retrain":
        assert gap <= 1e-5 * np.linalg.norm(wanted)
    assert probekit("verify", certificate(trained), "--run", trained)[0] == 0
    code, value, _ = probekit("unlearn", trained, "--client", "2", "--method", method)
    assert (code, value["already done"], value["state"]) == (0, True, 2)
    assert Run.open(trained).states() == [1, 2]


def test_retraining_by_fedavg_is_for_runs_of_fedavg(trained: Path, probekit: Probekit, shop: Shop) -> None:
    code, _, said = probekit("unlearn", trained, "--client", "2", "--method", "retrain-fedavg")
    assert (code, "FedAvg options" in sentence(said)) == (2, True)
    steps = ("--method", "fedavg", "--rounds", "3", "--local-steps", "4")
    assert probekit("train", "grey", *FIRST, *steps, "--run", "r")[0] == 0
    code, value, said = probekit("unlearn", "r", "--client", "2", "--method", "retrain-fedavg")
    assert (code, value.get("method"), value["cost"]["rounds"]) == (0, "retrain-fedavg", 3), said
    found, head = Run.open("r"), network_head(Path("r"))
    embeddings, partition = rows_at(found, shop.store, 2)
    left = {name: held for name, held in partition.clients.items() if name != "2"}
    kept = np.sort(np.concatenate([partition.server, *left.values()]))
    place = {int(row): number for number, row in enumerate(kept)}
    moved = {name: np.array([place[int(row)] for row in held]) for name, held in left.items()}
    server = np.array([place[int(row)] for row in partition.server])
    own = holders(
        linearized(head.network),
        inputs_of(head.network, np.asarray(embeddings.embeddings[kept])),
        embeddings.labels[kept],
        Partition(moved, server, len(kept), "iid", 0),
    )
    from probekit.federated.fedavg import FedAvg
    from probekit.federated.network import train_holders

    wanted = train_holders(own, ridge=RIDGE, method=FedAvg(rounds=3, local_steps=4)).params
    assert np.allclose(network_head(Path("r"), 2).params, wanted, rtol=1e-8, atol=1e-10)
    assert probekit("verify", certificate(Path("r")), "--run", "r")[0] == 0


def test_samples_labels_and_a_return(trained: Path, probekit: Probekit, shop: Shop) -> None:
    opened = Run.open(trained)
    embeddings, partition = opened.embeddings(shop.store), opened.partition()
    first, second = (int(row) for row in partition.clients["0"][:2])
    label = (int(embeddings.labels[second]) + 1) % 3
    for state, asked in enumerate(
        (
            ("--sample", embeddings.ids[first]),
            ("--relabel", f"0/{embeddings.ids[second]}={label}"),
            ("--client", "1"),
            ("--add", "1"),
        ),
        start=2,
    ):
        more = ("--method", "fedremoval-pcg:60") if state > 3 else ()
        code, value, said = probekit("unlearn", trained, *asked, *more)
        assert (code, value.get("state")) == (0, state), said
        wanted = minimum(trained, shop.store, state)
        assert np.linalg.norm(network_head(trained, state).params - wanted) <= 1e-4 * np.linalg.norm(wanted), asked
        assert probekit("verify", certificate(trained, state), "--run", trained)[0] == 0
    assert value["retained"] == {"0": 23, "1": 24, "2": 24}
    left, divided = rows_at(Run.open(trained), shop.store, 5)
    assert embeddings.ids[first] not in left.ids
    assert left.labels[left.ids.index(embeddings.ids[second])] == label
    assert len(divided.clients["0"]) == 23


def test_what_w_p_was_pretrained_on_cannot_be_taken_out(trained: Path, probekit: Probekit, shop: Shop) -> None:
    opened = Run.open(trained)
    sample = opened.embeddings(shop.store).ids[int(opened.partition().server[0])]
    for asked in (("--sample", sample), ("--relabel", f"{sample}=1")):
        code, _, said = probekit("unlearn", trained, *asked)
        assert (code, "the network was pretrained on it" in sentence(said)) == (2, True)
    assert Run.open(trained).states() == [1]


def test_the_server_alone_certifies_nothing(trained: Path, probekit: Probekit) -> None:
    code, value, said = probekit("unlearn", trained, "--client", "1", "--server-only")
    assert (code, value.get("method"), value["bounds"]["weights"]) == (0, "fedremoval", None), said
    assert (value["checkable by"], value["cost"]["rounds"]) == ("server alone", 0)
    assert probekit("verify", certificate(trained), "--run", trained)[0] == 0
    code, _, said = probekit("audit", "influence", trained)
    assert (code, "gradients were not kept" in sentence(said)) == (2, True)


def test_nothing_kept_needs_the_rows(probekit: Probekit) -> None:
    assert probekit("train", "grey", *FIRST, "--keep", "nothing", "--run", "r")[0] == 0
    code, _, said = probekit("unlearn", "r", "--client", "0", "--server-only")
    assert (code, "whole network" in sentence(said)) == (2, True)
    code, value, said = probekit("unlearn", "r", "--client", "0")
    assert (code, value.get("method")) == (0, "fedremoval-pcg:10"), said


def test_a_released_network_has_noise(trained: Path, probekit: Probekit, shop: Shop) -> None:
    noise = ("--sigma", "0.02", "--epsilon", "1", "--delta", "1e-5")
    code, _, said = probekit("unlearn", trained, "--client", "1", *noise, "--method", "fedremoval-line")
    assert (code, "fedremoval-pcg" in sentence(said)) == (2, True)
    code, value, said = probekit("unlearn", trained, "--client", "1", *noise, "--release", "out")
    assert code == 0, said
    assert value["privacy"]["largest_bound"] >= value["bounds"]["weights"]
    released = load_head("out")
    assert 0.018 < (released.params - network_head(trained, 2).params).std() < 0.022
    assert predict(released, shop.store.open("test")).shape == (45,)


def test_forgeries_fail_with_exit_code_6(trained: Path, probekit: Probekit) -> None:
    assert probekit("unlearn", trained, "--client", "1", "--method", "fedremoval-line")[0] == 0
    good, forged = certificate(trained).read_text(), Path("forged.json")
    places = [place for place, letter in enumerate(good) if letter.isdigit()]
    for place in places[:: len(places) // 12]:
        forged.write_text(good[:place] + str((int(good[place]) + 1) % 10) + good[place + 1 :])
        assert probekit("verify", forged, "--run", trained)[0] == 6, good[place - 20 : place + 20]
    said, _ = read_certificate(good)
    assert said.residual is not None
    assert said.bounds.weights is not None
    less = replace(said.residual, norm=said.residual.norm / 2, by_class=(said.residual.norm / 2,))
    assert said.curvature is not None
    bound = less.bound / said.curvature.value
    bounds = replace(said.bounds, weights=bound, outputs=bound, excess_loss=bound**2 * said.curvature.value / 2)
    lie = replace(said, residual=less, bounds=bounds)
    forged.write_text(certificate_text(lie))
    assert probekit("verify", forged, "--run", trained)[0] == 6
    heads = trained / "states"
    assert probekit("verify", certificate(trained), "--head", heads / "0001" / "head")[0] == 6
    assert probekit("verify", certificate(trained), "--head", heads / "0002" / "head")[0] == 0
    _enter_in_ledger(trained, lie.digest)
    code, checked, _ = probekit("verify", forged, "--run", trained)
    assert code == 6
    assert "retained residual" in {one["name"] for one in checked["checks"] if not one["passed"]}


def _enter_in_ledger(run: Path, digest: str) -> None:
    """Make the ledger name another certificate for its last state, its chain whole: the work of an insider."""
    opened = Run.open(run)
    entries, path = opened.entries(), run / "ledger.jsonl"
    last = entries[-1]
    event = ledger.Event(last.action, last.inputs, {**last.details, "certificate": digest})
    entry = ledger.follow(entries[-2], event, last.outputs)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    ledger.append(path, entry)
    note = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**note, "ledger": entry.digest}))


def test_a_swapped_head_or_network_in_the_run_fails(trained: Path, probekit: Probekit) -> None:
    assert probekit("unlearn", trained, "--client", "1")[0] == 0
    good = Path(shutil.copytree(trained, "good"))
    shutil.rmtree(trained / "states" / "0002" / "head")
    shutil.copytree(good / "states" / "0001" / "head", trained / "states" / "0002" / "head")
    code, _, said = probekit("verify", certificate(trained), "--run", trained)
    assert code == 4, said
    weights = good / "states" / "0002" / "head" / "model.safetensors"
    tensors = load_file(weights)
    name = next(one for one in tensors if one.endswith("1.bias"))
    weights.unlink()
    save_file({**tensors, name: tensors[name] + np.float32(0.01)}, weights)
    code, _, said = probekit("verify", certificate(good), "--run", good)
    assert code == 4, said


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        (("--client", "1", "--method", "exact"), 2, "a linearized network does not have"),
        (
            ("--client", "1", "--method", "fedremoval:lu"),
            3,
            "no solver 'lu'. Known and close: adam, cg, cholesky, dual",
        ),
        (("--client", "1", "--method", "fedremoval-pcg:none"), 2, "fedremoval-pcg"),
        (("--client", "9"), 2, "this run has clients 0 to 2"),
        (("--client", "0", "--client", "1", "--client", "2"), 2, "nothing would remain"),
        (("--add", "1"), 2, "this run has it already"),
        (("--sample", "ffffffffffff"), 2, "means 0 samples"),
    ],
)
def test_requests_that_cannot_be_met(
    trained: Path, probekit: Probekit, asked: Sequence[str], code: int, words: str
) -> None:
    found, _, said = probekit("unlearn", trained, *asked)
    assert (found, words in sentence(said)) == (code, True), said
    assert Run.open(trained).states() == [1]


# looking at it


def test_evaluate_tells_states_apart(poisoned: Path, probekit: Probekit) -> None:
    assert probekit("unlearn", poisoned, "--client", "0")[0] == 0
    for state, success in ((1, 0.9), (2, None)):
        code, value, said = probekit(
            "evaluate", poisoned, "test", "--triggered", "test-triggered", "--state", str(state)
        )
        assert code == 0, said
        assert (value["state"], value["head"]) == (state, network_head(poisoned, state).digest)
        assert value["results"][0]["accuracy"]["value"] > 0.8
        found = value["backdoor"]
        if success is not None:
            assert found["head"]["excluding target"] > success
        else:
            assert found["head"]["excluding target"] < 0.2
        assert found["difference to retraining"] < 0.05
    assert len(list((poisoned / "references").iterdir())) == 2


def test_the_servers_rows_flatter_a_network_that_was_pretrained_on_them(trained: Path, probekit: Probekit) -> None:
    code, value, said = probekit("evaluate", trained)
    assert code == 0, said
    assert "pretrained on" in value["results"][0]["meaning"]


def test_few_shot_curves_are_of_heads(trained: Path, probekit: Probekit) -> None:
    code, _, said = probekit("evaluate", trained, "test", "--shots", "1,2")
    assert (code, "whole network" in sentence(said)) == (2, True)


def test_the_report_tells_margins_and_bounds(poisoned: Path, probekit: Probekit, shop: Shop) -> None:
    assert probekit("unlearn", poisoned, "--client", "0")[0] == 0
    code, value, said = probekit("report", poisoned, "--test", "test", "--triggered", "test-triggered")
    assert code == 0, said
    page = (poisoned / "report" / "report.md").read_text()
    assert len(value["pictures"]) >= 4
    assert all((poisoned / "report" / one).is_file() and one in page for one in _files(value["pictures"]))
    last = value["stages"][-1]
    gap = float(np.linalg.norm(network_head(poisoned, 2).params - minimum(poisoned, shop.store, 2)))
    assert np.isclose(last["distance"], gap, rtol=1e-3)
    assert last["distance"] <= last["bound"]
    margins = value["judged"][0]["margins"]
    assert (margins["rows"], margins["certified"]) == (45, 45)
    assert {one["client"] for one in value["influence"]["clients"]} == {"0", "1", "2"}
    success = next(one for one in value["comparison"] if one["measure"].startswith("backdoor success"))
    assert success["heads"]["before"]["value"] > success["heads"]["after"]["value"]


def _files(pictures: Any) -> list[str]:
    found = pictures.values() if isinstance(pictures, dict) else pictures
    return [one if isinstance(one, str) else one["file"] for one in found]


def holds(folder: Path, secret: bytes) -> list[Path]:
    """The files below a folder that contain these bytes."""
    return [path for path in folder.rglob("*") if path.is_file() and secret in path.read_bytes()]


def test_purge_leaves_no_byte_of_the_forgotten(trained: Path, command: Command, shop: Shop, tmp_path: Path) -> None:
    cache = Path(shutil.copytree(shop.cache, tmp_path / "cache"))
    base = ("--cache", cache, "--json")
    opened = Run.open(trained)
    kept = opened.trained().gradients
    assert kept is not None
    embeddings, partition = opened.embeddings(DiskStore(cache)), opened.partition()
    rows = [embeddings.embeddings[int(row)].tobytes() for row in partition.clients["1"]]
    secrets = [np.ascontiguousarray(kept.aggregate["1"]).tobytes(), opened.head().params.tobytes()]
    assert command("unlearn", trained, "--client", "1", *base).code == 0
    assert command("report", trained, *base).code == 0
    assert len(list((trained / "references").iterdir())) == 2
    assert all(holds(trained, secret) for secret in secrets)
    assert all(holds(cache, row) for row in rows)
    gone = command("purge", trained, "--rows", "--yes", *base)
    assert (gone.code, gone.value["cache"]["remains"], gone.value["cache"]["rows"]) == (0, [], 2 * 24), (
        gone.err
    )  # triggered, too
    assert not (trained / "references").exists()
    assert not (trained / "report").exists()
    assert Run.open(trained).states() == [2]
    assert not [secret for secret in [*secrets, *rows] if holds(trained, secret) or holds(cache, secret)]
    assert command("verify", certificate(trained), "--run", trained, *base).code == 0
    assert command("unlearn", trained, "--client", "2", *base).code == 0
    assert command("verify", certificate(trained, 3), "--run", trained, *base).code == 0
    assert command("report", trained, *base).code == 0


def test_audits_work_or_say_why_not(trained: Path, probekit: Probekit) -> None:
    code, value, said = probekit("audit", "duplicates", trained, "--test", "test")
    assert (code, value.get("across")) == (0, []), said
    code, value, said = probekit("audit", "influence", trained)
    assert code == 0, said
    assert "bounds only" in value["computed from"]
    assert {one["client"]: one["distance"] for one in value["clients"]} == dict.fromkeys(("0", "1", "2"))
    before = network_head(trained).params
    for one in value["clients"]:
        copied = shutil.copytree(trained, f"without-{one['client']}")
        assert probekit("unlearn", copied, "--client", one["client"], "--method", "retrain")[0] == 0
        assert np.linalg.norm(network_head(Path(copied), 2).params - before) <= one["bound"]
    for more in ((), ("--client", "0"), ("--unseen", "test")):
        code, _, said = probekit("audit", "membership", trained, *more)
        assert (code, "a whole network has none" in sentence(said)) == (2, True)


def test_people_read_it_without_json(trained: Path, command: Command, shop: Shop) -> None:
    base = ("--cache", shop.cache)
    for arguments in (
        ("unlearn", trained, "--client", "1", "--test", "test"),
        ("verify", certificate(trained), "--run", trained),
        ("evaluate", trained, "test", "--triggered", "test-triggered"),
        ("report", trained),
        ("audit", "influence", trained),
    ):
        found = command(*arguments, *base)
        assert found.code == 0, (arguments, found.err)
        assert len(found.out) > 100


# what is refused


REFUSED: dict[str, tuple[tuple[str, ...], int, str]] = {
    "a ridge of 0": (("--ridge", "0"), 2, "needs a ridge above 0"),
    "a chosen ridge": (("--ridge", "auto"), 2, "The ridge of a whole network is a number"),
    "statistics": (("--keep", "statistics"), 2, "no statistics to keep"),
    "a view of the fit": (("--fit-view", "centre"), 2, "--fit-view is about heads"),
    "sum scaling": (("--scaling", "sum"), 2, "--scaling is about heads"),
    "exact arithmetic": (("--arithmetic", "exact"), 2, "--arithmetic is about heads"),
    "objective noise": (("--objective-noise", "0.1"), 2, "--objective-noise is about heads"),
    "a history": (("--method", "fedavg", "--keep-history"), 2, "--keep-history is about heads"),
    "logistic": (("--method", "logistic"), 2, "--method cg or fedavg; found logistic"),
    "a preset": (("--method", "fedavg", "--preset", "f2l2"), 2, "--optimiser adam"),
    "local steps without fedavg": (("--local-steps", "3"), 2, "add --method fedavg"),
    "no such network": (("--network", "mpl"), 3, "Known and close: mlp"),
    "too small for it": (("--network", "cnn"), 2, "each side at least 16; found (1, 12, 12)"),
    "no such weights": (("--network-weights", "no.safetensors"), 3, "no file of weights no.safetensors"),
    "other weights": (("--network-weights", "other.safetensors"), 2, "do not fit the network"),
    "no weights": (("--network-weights", "text.safetensors"), 2, "do not fit the network"),
    "no such subset": (("--subset", "9.*"), 2, "No parameter's name matches"),
    "too many layers": (("--subset", "4"), 2, "counted from 1 to 3"),
    "a split of a set": (("--split", "test"), 2, "--split is of a data set"),
    "no such rate": (("--pretrain-rate", "0"), 2, "rate above 0"),
    "no such client": (("--poison", "7", "--triggered", "grey-triggered"), 2, "Cannot poison client 7"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(probekit: Probekit, what: str) -> None:
    save_file({"1.weight": np.zeros((3, 4), np.float32)}, "other.safetensors")
    Path("text.safetensors").write_text("no weights at all")
    options, code, words = REFUSED[what]
    found, _, said = probekit("train", "grey", *QUICK, *options, "--run", "r")
    assert (found, words in sentence(said)) == (code, True), said
    assert not Path("r").exists()


OWN: dict[str, tuple[str, int, str]] = {
    "batch norm that stays in train mode": ("stubborn", 2, "is in train mode"),
    "dropout by a function": ("random", 2, "two calls gave different ones"),
    "writing in place": ("writing", 2, "in place where torch.func cannot follow"),
    "another shape of inputs": ("small", 2, "cannot take inputs of shape (1, 12, 12)"),
    "other classes": ("more_classes", 2, "one score per class for each input, (3, 3); found (3, 5)"),
    "outputs in space": ("unflattened", 2, "found (3, 3, 10, 10)"),
    "nothing to train": ("idle", 2, "needs parameters"),
    "no module": ("number", 2, "must make a torch.nn.Module; found int"),
    "a module, no function": ("instance", 2, "must be a function"),
    "a bug": ("broken", 2, "RuntimeError: a bug of its own."),
    "another signature": ("one_argument", 2, "takes 1 positional argument but 2 were given"),
    "an unknown function": ("nowhere", 3, "has no attribute 'nowhere'"),
    "interruption": ("interrupted", 130, "Interrupted"),
}


@pytest.mark.parametrize("what", OWN)
def test_networks_of_ones_own_that_are_refused(probekit: Probekit, factories: str, what: str) -> None:
    name, code, words = OWN[what]
    found, _, said = probekit("train", "grey", *FIRST, "--network", factories + name, "--run", "r")
    assert (found, words in sentence(said)) == (code, True), said
    assert not Path("r").exists()
    assert not [path for path in Path().iterdir() if path.name.startswith(".") and path.is_dir()]


def test_a_batch_of_one_row_has_no_variance(probekit: Probekit, factories: str) -> None:
    base = ("train", "grey", *FIRST, "--network", f"{factories}normed", "--run", "r", "--pretrain-batch")
    code, _, said = probekit(*base, "17")
    assert (code, "Choose another batch size" in sentence(said)) == (2, True)
    assert probekit(*base, "9")[0] == 0


def test_networks_and_heads_are_told_apart(probekit: Probekit, shop: Shop) -> None:
    for arguments, code, words in (
        (("grey", "--network", "cnn"), 2, "--network is about a whole network: add --backend jvp"),
        (("grey", "--pretrain-epochs", "3"), 2, "--pretrain-epochs is about a whole network"),
        (("grey", "--method", "cg"), 2, "--method cg is for whole networks"),
        (("grey", "--backend", "jvp"), 2, "Partition with a server share"),
        ((shop.grey,), 3, "There is no set"),
        (("nowhere", "--backend", "jvp"), 3, "a data set is written SCHEME:NAME"),
        (("npz:nowhere.npz", "--backend", "jvp"), 3, "There is no file"),
        ((shop.grey, "--split", "test", "--backend", "jvp"), 3, "has no split 'test'"),
        (("nope:nowhere", "--backend", "jvp"), 3, "There is no dataset 'nope'"),
    ):
        found, _, said = probekit("train", *arguments, "--clients", "3", "--run", "r")
        assert (found, words in sentence(said)) == (code, True), said
        assert not Path("r").exists()


def test_rows_that_are_no_pictures(probekit: Probekit) -> None:
    np.savez("rows.npz", embeddings=np.eye(30, 6, dtype=np.float32), labels=np.arange(30) % 3)
    code, _, said = probekit("train", "npz:rows.npz", *FIRST, "--run", "r")
    assert (code, "holds no pictures" in sentence(said)) == (2, True)


def test_a_network_that_is_gone_is_missed(probekit: Probekit, factories: str, tmp_path: Path) -> None:
    assert probekit("train", "grey", *FIRST, "--network", f"{factories}tiny", "--run", "r")[0] == 0
    sys.modules.pop("own_networks")
    changed = FACTORIES.replace("8", "7")
    (tmp_path / "modules" / "own_networks.py").write_text(changed)
    shutil.rmtree(tmp_path / "modules" / "__pycache__", ignore_errors=True)
    code, _, said = probekit("unlearn", "r", "--client", "0")
    assert (code, "Give the code that it was trained with" in sentence(said)) == (4, True)
    sys.modules.pop("own_networks")
    (tmp_path / "modules" / "own_networks.py").unlink()
    shutil.rmtree(tmp_path / "modules" / "__pycache__", ignore_errors=True)
    code, _, said = probekit("evaluate", "r", "test")
    assert (code, "cannot be found" in sentence(said)) == (3, True)


# stopped halfway


@pytest.mark.parametrize("place", ["certify", "train"])
def test_an_interrupted_unlearning_leaves_the_old_run(
    trained: Path, probekit: Probekit, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    with monkeypatch.context() as broken:
        if place == "certify":
            broken.setattr("probekit.cli.unlearning.certify", stop)
        else:
            broken.setattr("probekit.unlearning.network_retrain.train_holders", stop)
        code, _, said = probekit("unlearn", trained, "--client", "1", "--method", "retrain")
        assert (code, "Interrupted" in said) == (130, True)
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before
    code, value, _ = probekit("unlearn", trained, "--client", "1")
    assert (code, value["state"]) == (0, 2)


def _killed(path: Path, root: Path, before: str) -> None:
    """Forget a client and die at a step of the writing."""
    import probekit.cli.runs as runs

    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(runs if before == "sync_folder" else ledger, before, die)
    carry_out(Run.open(path), DiskStore(root), read_request(["1"]), Wanted("fedremoval:dual"))


@pytest.mark.parametrize("before", ["sync_folder", "append"])
def test_killed_while_writing_the_run_is_the_old_one(
    trained: Path, probekit: Probekit, shop: Shop, before: str
) -> None:
    process = FORK.Process(target=_killed, args=(trained, shop.cache, before))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    opened = Run.open(trained)
    assert opened.state == 1
    assert opened.head().digest == network_head(trained).digest
    code, value, said = probekit("unlearn", trained, "--client", "1")
    assert (code, value.get("state")) == (0, 2), said
    assert probekit("verify", certificate(trained), "--run", trained)[0] == 0


@pytest.mark.parametrize(
    ("name", "words"), [("train", ("--backend", "--network-weights", "py:module:factory")), ("unlearn", ("dual|pcg",))]
)
def test_help_names_the_options_of_networks(
    command: Command, monkeypatch: pytest.MonkeyPatch, name: str, words: Sequence[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    found = command(name, "--help")
    assert found.code == 0
    assert all(word in found.out for word in ("whole network", *words))
